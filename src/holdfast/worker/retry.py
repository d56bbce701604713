"""Retries of store calls that a part of the worker repeats until the store answers."""

from __future__ import annotations

import logging

from holdfast.storage.randomness import RANDOM
from holdfast.worker.timers import Timer

log = logging.getLogger("holdfast.worker")


class RetryState:
    """Computes the wait before the next retry, and logs each change of state once.

    *purpose* names the calls in the log. The wait doubles from *first* to *last* seconds,
    and is cut by up to a half at random.
    """

    def __init__(self, purpose: str, timer: Timer, *, first: float = 0.1, last: float = 5.0) -> None:
        self._purpose = purpose
        self._timer = timer
        self._first, self._last = first, last
        self._failing_since: float | None = None
        self._tries = 0

    def failed(self, error: BaseException) -> float:
        """Record a failed call; return how many seconds to wait before the next."""
        if self._failing_since is None:
            self._failing_since, self._tries = self._timer.monotonic(), 0
            log.warning("%s fail and are retried until they succeed: %s", self._purpose, error)
        # The exponent is limited: after a day of failures the power would overflow a float.
        seconds: float = min(self._first * 2 ** min(self._tries, 16), self._last)
        self._tries += 1
        return seconds * RANDOM.uniform(0.5, 1.0)

    def succeeded(self) -> bool:
        """Record a successful call; return whether the previous call had failed."""
        if self._failing_since is None:
            return False
        seconds = self._timer.monotonic() - self._failing_since
        self._failing_since = None
        log.warning("%s succeed again, after %.1f s and %d failed calls", self._purpose, seconds, self._tries)
        return True
