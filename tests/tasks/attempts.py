"""A running attempt for tests of contexts and outcomes, without a worker."""

from __future__ import annotations

from typing import Any

import holdfast
from holdfast.tasks.handler_state import HandlerState


def running(**options: Any) -> HandlerState:
    """Return the state of the handler of a job that was claimed from a new queue."""
    with holdfast.connect(":memory:") as queue:
        queue.enqueue("email.send", {"to": "ada"}, **options)
        claim = queue.claim(worker="w1")
        assert claim is not None
        return HandlerState(claim)
