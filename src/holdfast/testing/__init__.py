"""A kit for testing programs that use Holdfast: a clock to move, workers that run inline, and what was enqueued.

Nothing here replaces a part of Holdfast. Jobs go through the serializer, the store and the rules as they do in
production; only the waiting is left out.
"""

from holdfast.testing.assertions import assert_enqueued, enqueued, refute_enqueued
from holdfast.testing.clock import ManualClock
from holdfast.testing.drain import Drained, Ran, drain, drain_async, run_job, run_job_async
from holdfast.testing.redirect import redirected

__all__ = [
    "Drained",
    "ManualClock",
    "Ran",
    "assert_enqueued",
    "drain",
    "drain_async",
    "enqueued",
    "redirected",
    "refute_enqueued",
    "run_job",
    "run_job_async",
]
