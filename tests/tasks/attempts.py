"""A running attempt for tests of contexts and outcomes, without a worker."""

from __future__ import annotations

from typing import Any

import holdfast
from holdfast import Context


def running(**options: Any) -> Context:
    """Return the context of a job that was claimed from a new queue."""
    with holdfast.connect(":memory:") as queue:
        queue.enqueue("email.send", {"to": "ada"}, **options)
        claim = queue.claim(worker="w1")
        assert claim is not None
        return Context(claim)
