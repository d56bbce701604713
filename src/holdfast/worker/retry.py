"""Retries of store calls that a part of the worker repeats until the store answers."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from holdfast.domain.backoff import RetryPolicy
from holdfast.storage import randomness
from holdfast.worker.timers import Timer

log = logging.getLogger("holdfast.worker")

WORKER_RETRIES: Final = RetryPolicy(first=0.1, last=5.0)
"""The policy for calls that can wait."""
LEASE_RETRIES: Final = RetryPolicy(first=0.1, last=0.2)
"""The policy for calls that have to succeed before a lease expires."""
# The longest wait between retries during shutdown.
_STOPPING_SECONDS = 0.1


class RetryState:
    """Counts the failures of one kind of call, and logs each change of state once.

    *purpose* names the calls in the log. *chance* returns a random number from 0 to 1 for the jitter.
    """

    def __init__(
        self,
        purpose: str,
        timer: Timer,
        policy: RetryPolicy = WORKER_RETRIES,
        chance: Callable[[], float] = randomness.RANDOM.random,
    ) -> None:
        self._purpose = purpose
        self._timer = timer
        self._policy = policy
        self._chance = chance
        self._failing_since: float | None = None
        self._failures = 0

    def failed(self, error: BaseException) -> float:
        """Record a failed call; return how many seconds to wait before the next."""
        if self._failing_since is None:
            self._failing_since, self._failures = self._timer.monotonic(), 0
            log.warning("%s fail and are retried until they succeed: %s", self._purpose, error)
        self._failures += 1
        return self._policy.pause_seconds(self._failures, self._chance())

    def succeeded(self) -> bool:
        """Record a successful call; return whether the previous call had failed."""
        if self._failing_since is None:
            return False
        seconds = self._timer.monotonic() - self._failing_since
        self._failing_since = None
        log.warning("%s succeed again, after %.1f s and %d failed calls", self._purpose, seconds, self._failures)
        return True


class RetryWaits:
    """The waits of the worker loop's calls before a retry; used in its event loop."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._stopping = False
        self._end = asyncio.Event()

    def call_begins(self) -> None:
        """Forget earlier calls of `end`: the wait after this call, if it fails, is for a later one."""
        self._end.clear()

    def end(self) -> None:
        """End the current waits, because the store answered another call."""
        self._end.set()

    def stop(self) -> None:
        """End the current waits and shorten later ones, because the worker stops."""
        self._stopping = True
        self._end.set()

    async def wait(self, seconds: float) -> None:
        """Wait before a retry; return early if `end` or `stop` is called, or was called during the failed call."""
        if self._stopping:
            await self._timer.sleep(min(seconds, _STOPPING_SECONDS))
        else:
            await self._timer.wait_async(self._end, seconds)
            self._end.clear()
