"""Keeping leases: a thread with a store connection of its own extends what this worker holds.

It lives apart from the event loop because handlers may block that. It also enforces what only time tells: a timeout
that has passed, and a store out of reach for so long that the leases can no longer be believed in.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from holdfast.client.operations import Operations
from holdfast.domain import limits
from holdfast.domain.claim import Renewal
from holdfast.domain.errors import HoldfastError, LeaseLost, Unavailable
from holdfast.runtime.attempt import Attempt
from holdfast.stores.drivers import drive
from holdfast.stores.engine import Runner

log = logging.getLogger("holdfast.worker")

# A lease is extended three times before it would lapse, so that two answers may be lost.
_BEATS_IN_A_LEASE = 3
# How often timeouts are looked at; one that starts and ends in between is noticed that late.
_LOOKS_SECONDS = 0.25
_LOOKS_SECONDS_IDLE = 60.0
_RETRY_SECONDS = 0.2


class LeaseKeeper:
    """Extends leases until they are let go; tells of each attempt that it has decided itself."""

    def __init__(self, operations: Operations, runner: Runner, lease_seconds: float) -> None:
        self.decided: Callable[[Attempt], None] = lambda _attempt: None
        """Told of each attempt that is decided here while its handler still runs."""
        self._operations = operations
        self._runner = runner
        self._lease_seconds = lease_seconds
        self._beat_seconds = lease_seconds / _BEATS_IN_A_LEASE
        self._held: dict[tuple[int, int], Attempt] = {}
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._stopping = False
        self._next_beat_at = time.monotonic() + self._beat_seconds
        self._thread = threading.Thread(target=self._keep, name="holdfast-leases", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def hold(self, attempts: Iterable[Attempt]) -> None:
        """Extend the leases of *attempts* from now on."""
        with self._lock:
            idle = not self._held
            self._held.update((attempt.key, attempt) for attempt in attempts)
        if idle:
            self._changed.set()

    def let_go(self, attempts: Iterable[Attempt]) -> None:
        """Extend the leases of *attempts* no more."""
        with self._lock:
            for attempt in attempts:
                self._held.pop(attempt.key, None)

    def held(self) -> list[Attempt]:
        """Return what is held now."""
        with self._lock:
            return list(self._held.values())

    def stop(self) -> None:
        """End the thread; what is still held will lapse."""
        self._stopping = True
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join(self._lease_seconds)

    # --- the thread ----------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        while not self._stopping:
            now = time.monotonic()
            attempts = self.held()
            self._end_overdue(attempts, now)
            if now >= self._next_beat_at:
                # Past its timeout nothing is extended any more, whatever becomes of its settlement.
                self._beat([attempt for attempt in self.held() if attempt.stopped not in {"timeout", "lost"}])
            self._changed.wait(self._seconds_to_next(attempts))
            self._changed.clear()

    def _seconds_to_next(self, attempts: Sequence[Attempt]) -> float:
        """Return how long there is nothing to do, at least if no shorter timeout is started meanwhile."""
        moments = [self._next_beat_at, *(at for attempt in attempts if (at := attempt.timeout_at) is not None)]
        looks = _LOOKS_SECONDS if attempts else _LOOKS_SECONDS_IDLE
        return max(0.005, min(min(moments) - time.monotonic(), looks, self._beat_seconds))

    def _end_overdue(self, attempts: Sequence[Attempt], now: float) -> None:
        for attempt in attempts:
            if attempt.timeout_at is not None and attempt.timeout_at <= now and attempt.time_out():
                log.warning("job %s is past its timeout and was stopped", attempt.claim.job.id)
                self.decided(attempt)

    def _beat(self, attempts: list[Attempt]) -> None:
        started = time.monotonic()
        try:
            for first in range(0, len(attempts), limits.SETTLE_MANY_MAX):
                self._beat_some(attempts[first : first + limits.SETTLE_MANY_MAX], started)
        except Unavailable as error:
            self._next_beat_at = time.monotonic() + min(_RETRY_SECONDS, self._beat_seconds)
            log.warning("leases could not be extended, trying again: %s", error)
            self._give_up_unbelievable(attempts)
        else:
            self._next_beat_at = started + self._beat_seconds

    def _beat_some(self, attempts: list[Attempt], started: float) -> None:
        """Extend some leases and write the progress noted since the last time, in one commit."""
        noted = [(attempt.claim, attempt.context.take_progress()) for attempt in attempts]
        for attempt, answer in zip(attempts, drive(self._operations.keep_many(noted), self._runner), strict=True):
            self._heed(attempt, answer, started)

    def _heed(self, attempt: Attempt, answer: Renewal | HoldfastError, started: float) -> None:
        if isinstance(answer, Renewal):
            attempt.lease_ends_at = started + self._lease_seconds
            if answer.cancel_requested and attempt.stopped is None:
                attempt.stop("cancel")
        elif isinstance(answer, LeaseLost) and attempt.lose():
            log.warning("lost the lease of job %s: %s", attempt.claim.job.id, answer)
            self.decided(attempt)

    def _give_up_unbelievable(self, attempts: Sequence[Attempt]) -> None:
        """Let go of what may be another worker's by now: the store could not be asked for a whole lease."""
        now = time.monotonic()
        for attempt in attempts:
            if attempt.lease_ends_at <= now and attempt.lose():
                log.error("let go of job %s: the store could not be reached for a lease", attempt.claim.job.id)
                self.decided(attempt)
