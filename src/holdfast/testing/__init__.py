"""Tools for testing programs that use Holdfast: a manual clock, inline workers and assertions on enqueued jobs.

Nothing here replaces a part of Holdfast. Jobs use the same serializer, store and rules as in production; only the
waiting is omitted.
"""

from holdfast.testing.assertions import assert_enqueued, enqueued, refute_enqueued
from holdfast.testing.clock import ManualClock
from holdfast.testing.drain import drain, run_job
from holdfast.testing.drain_async import drain_async, run_job_async
from holdfast.testing.inline_worker import Drained, Ran, redirected

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
