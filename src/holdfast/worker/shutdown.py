"""The shutdown of a worker: its phases, and the time that each step may take."""

import asyncio
import math
import signal
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from holdfast.worker.timers import Timer

# A worker exits within five seconds after the grace period, even if the store or a handler hangs. Each shutdown step
# may use the remaining time except for a reserve for the later steps; the interpreter's exit gets the rest.
_ENDING_SECONDS = 3.5
# The part of these seconds in which handlers may still react to the request to stop.
_STOPPING_SECONDS = 1.0
# How long a worker that holds nothing waits for the answer to its last call.
_ANSWER_SECONDS = 1.5


def stop_signals() -> list[signal.Signals]:
    """Return the signals that stop a worker. A hangup, as when a terminal is closed, is one unless it is ignored."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([] if ignored else [signal.SIGHUP])]


class Phase(IntEnum):
    """How far the shutdown has come."""

    RUNNING = 0
    """No stop was requested."""
    GRACE = 1
    """Nothing more is claimed; running handlers may end."""
    STOPPING = 2
    """Handlers were requested to stop."""
    RELEASING = 3
    """Jobs whose handlers still run are released."""
    OVER = 4
    """The worker leaves. The leases of jobs that it could not release expire."""


class Shutdown:
    """The current phase, and how long it may take."""

    def __init__(self, grace_seconds: float, timer: Timer) -> None:
        self.phase = Phase.RUNNING
        self.phase_ends_at = math.inf
        """When the next phase begins if no stop is requested before, by the timer."""
        self.cancellation: asyncio.CancelledError | None = None
        """The cancellation that stopped the worker, to be raised after the shutdown."""
        self._grace_seconds = grace_seconds
        self._timer = timer
        self._late_at = math.inf
        self._ends_at: float | None = None
        """When the shutdown has to be complete, by the timer; None before the end of the grace period."""

    def advance(self, *, requested: bool) -> Phase:
        """Begin the next phase, because a stop was *requested* or the time of the phase has passed; return it."""
        now = self._timer.monotonic()
        match self.phase:
            case Phase.RUNNING:
                self.phase, self.phase_ends_at = Phase.GRACE, now + self._grace_seconds
            case Phase.GRACE if not requested:
                self.phase, self.phase_ends_at = Phase.STOPPING, now + _STOPPING_SECONDS
                self._ends_at = now + _ENDING_SECONDS
            case Phase.GRACE | Phase.STOPPING:
                self.phase, self.phase_ends_at = Phase.RELEASING, now + self.seconds_left(2.0)
            case Phase.RELEASING | Phase.OVER:
                self.phase, self.phase_ends_at = Phase.OVER, math.inf
        return self.phase

    def has_waited_for_calls(self, log_wait: Callable[[float], None], *, in_flight: bool) -> bool:
        """Return whether a worker that holds nothing may leave: no call is *in_flight*, or it has taken too long.

        If the last claim was carried out all the same, its lease expires, and the job is released because its handler
        has not started. A worker that waits longer calls *log_wait* with the seconds that are left.
        """
        now = self._timer.monotonic()
        self._late_at = min(self._late_at, now + _ANSWER_SECONDS) if in_flight else math.inf
        if now >= self._late_at:
            log_wait(self.phase_ends_at - now)
        return not in_flight or now >= self._late_at

    def seconds_left(self, reserved: float) -> float:
        """Return how many seconds a step may take if later steps need *reserved* seconds."""
        now = self._timer.monotonic()
        if self._ends_at is None:
            self._ends_at = now + _ENDING_SECONDS
        return max(self._ends_at - now - reserved, 0.05)

    async def end_within(self, reserved: float, running: asyncio.Future[Any]) -> None:
        """Wait for *running*, and cancel it if later steps need the *reserved* seconds; ignore its exception."""
        try:
            async with self._timer.timeout(self.seconds_left(reserved)):
                await asyncio.wait((running,))
        except TimeoutError:
            running.cancel()
        except asyncio.CancelledError as error:
            self.cancellation = error
            running.cancel()
        if running.done() and not running.cancelled():
            running.exception()
