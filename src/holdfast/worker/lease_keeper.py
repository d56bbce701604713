"""Keeping leases: a thread with a store connection of its own extends what this worker holds, another watches time.

Both live apart from the event loop because handlers may block that. What only time tells must not wait for the store
either: a timeout that has passed, and a store out of reach for so long that the leases can no longer be believed in.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TypeAlias

from holdfast.client.operations import Operations
from holdfast.domain import limits
from holdfast.domain.claims import Claim, LeaseUpdate, Note, Renewal
from holdfast.domain.errors import HoldfastError, LeaseLost, Unavailable
from holdfast.storage.notifications import worker_topic
from holdfast.storage.store import Store, SyncTarget
from holdfast.storage.transaction import run_sync
from holdfast.worker.attempt import RunningAttempt
from holdfast.worker.retry import RetryState
from holdfast.worker.timers import Timer

log = logging.getLogger("holdfast.worker")

_Held: TypeAlias = tuple[RunningAttempt, Sequence[Claim]]
"""An attempt, and what is held under it."""

# A lease is extended three times before it would expire, so that two answers may be lost.
_BEATS_IN_A_LEASE = 3
# How often timeouts are looked at; one that starts and ends in between is noticed that late.
_LOOKS_SECONDS = 0.25
_LOOKS_SECONDS_LEAST = 0.005
_RETRY_SECONDS_LAST = 0.2
# Many cancels in a row are answered together.
_HEED_SECONDS = 0.02
# For how long after a lease was lost the store may still think that it is held.
_LOST_LATER_SECONDS = 1.0


class LeaseKeeper:
    """Extends leases until they are let go; tells of each attempt that it has decided itself."""

    def __init__(
        self, operations: Operations, runner: SyncTarget, worker: str, lease_seconds: float, timer: Timer
    ) -> None:
        self.decided: Callable[[RunningAttempt], None] = lambda _attempt: None
        """Told of each attempt that is decided here while its handler still runs."""
        self.recovered: Callable[[], None] = lambda: None
        """Told when the store answers again."""
        self.lease_seconds = lease_seconds
        self.cut_off_at: float | None = None
        """When a lease was last lost because the store did not answer, by the monotonic clock."""
        self._unanswered_since: float | None = None
        """Since when the store has not answered a heartbeat, by the monotonic clock."""
        self._operations = operations
        self._runner = runner
        self._timer = timer
        self._retrying = RetryState("lease renewals", timer, last=_RETRY_SECONDS_LAST)
        self._beat_seconds = lease_seconds / _BEATS_IN_A_LEASE
        self._held: dict[tuple[int, int], RunningAttempt] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._topic = worker_topic(worker)
        self._called = threading.Event()
        """Wakes the thread that extends: somebody asked for a cancel, or the worker ends."""
        self._resting = False
        self._held_again = threading.Event()
        """Wakes the watch where it rests because nothing was held."""
        self._threads = [
            threading.Thread(target=self._keep, name="holdfast-leases", daemon=True),
            threading.Thread(target=self._watch, name="holdfast-timeouts", daemon=True),
        ]

    def start(self) -> None:
        """Start the threads."""
        self._runner.notifier.add(self._topic, self)
        for thread in self._threads:
            thread.start()

    def hold(self, attempts: Iterable[RunningAttempt]) -> None:
        """Extend the leases of *attempts* from now on."""
        with self._lock:
            self._held.update((attempt.key, attempt) for attempt in attempts)
            resting, self._resting = self._resting, False
        if resting:
            self._held_again.set()

    def let_go(self, attempts: Iterable[RunningAttempt]) -> None:
        """Extend the leases of *attempts* no more."""
        with self._lock:
            for attempt in attempts:
                self._held.pop(attempt.key, None)

    def held(self) -> list[RunningAttempt]:
        """Return what is held now."""
        with self._lock:
            return list(self._held.values())

    def stop(self, seconds: float) -> bool:
        """Tell the threads to end and wait for them for *seconds*; return whether they did.

        What is still held then expires. A thread that waits for the store ends when the store has answered.
        """
        self._runner.notifier.remove(self._topic, self)
        self._stopping.set()
        self._called.set()
        self._held_again.set()
        until = self._timer.monotonic() + seconds
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(until - self._timer.monotonic(), 0))
        return not any(thread.is_alive() for thread in self._threads)

    def wake(self) -> None:
        """Ask the store at once: somebody wants a job of this worker to be cancelled. From any thread."""
        self._called.set()

    # --- the thread that extends -----------------------------------------------------------------------------------

    def _keep(self) -> None:
        pause = self._beat_seconds
        while not self._stopped_within(pause):
            # Past its timeout nothing is extended any more, whatever becomes of its settlement.
            attempts = [attempt for attempt in self.held() if attempt.stopped not in {"timeout", "lost"}]
            if not attempts:
                self._unanswered_since = None
            pause = self._beat(attempts) if attempts else self._beat_seconds

    def _stopped_within(self, seconds: float) -> bool:
        """Wait until the next beat, or until called; tell whether to end."""
        if self._timer.wait(self._called, seconds):
            self._stopping.wait(min(seconds, _HEED_SECONDS))
            self._called.clear()
        return self._stopping.is_set()

    def _beat(self, attempts: list[RunningAttempt]) -> float:
        """Extend leases; return after how many seconds to do so again."""
        started = self._timer.monotonic()
        if self._unanswered_since is None:
            self._unanswered_since = started
        try:
            for some in _calls(attempts):
                self._beat_some(some, started)
            self._unanswered_since = None
        except Unavailable as error:
            return min(self._retrying.failed(error), self._beat_seconds)
        if self._retrying.succeeded():
            self.recovered()
        return max(0.0, started + self._beat_seconds - self._timer.monotonic())

    def _beat_some(self, held: Sequence[_Held], started: float) -> None:
        """Extend some leases and write the progress noted since the last time, in one commit."""
        notes = [attempt.context.take_progress() for attempt, _ in held]
        # What a turn notes of itself belongs to the first of its entries.
        noted = [
            LeaseUpdate(claims[0], note, started=attempt.started_at is not None)
            for (attempt, claims), note in zip(held, notes, strict=True)
        ]
        noted += [LeaseUpdate(claim) for _, claims in held for claim in claims[1:]]
        try:
            answers = run_sync(self._operations.sync_on(self._runner).renew_many(noted))
        except Unavailable:
            for (attempt, _), note in zip(held, notes, strict=True):
                attempt.context.return_progress(note)
            raise
        further = iter(answers[len(held) :])
        for (attempt, claims), answer in zip(held, answers, strict=False):
            self.heed(attempt, _together([answer, *islice(further, len(claims) - 1)]), started)

    def heed(self, attempt: RunningAttempt, answer: Renewal | HoldfastError, started: float) -> None:
        """Do what the store answered to a heartbeat that was *started* at a moment of the monotonic clock."""
        if isinstance(answer, Renewal):
            attempt.lease_ends_at = started + self.lease_seconds
            if answer.cancel_requested and attempt.stopped is None:
                attempt.stop("cancel")
        elif isinstance(answer, LeaseLost) and attempt.lose():
            log.warning("lost the lease of job %s: %s", attempt.claim.job.id, answer)
            self.decided(attempt)

    async def say_phase(self, store: Store, attempts: Sequence[RunningAttempt], phase: str) -> None:
        """Write at once what attempts do now; what cannot be written is left to the next heartbeat."""
        telling = [attempt for attempt in attempts if not attempt.decided][: limits.SETTLE_MANY_MAX]
        noted = [LeaseUpdate(attempt.claim, Note(phase)) for attempt in telling]
        started = self._timer.monotonic()
        with suppress(HoldfastError):
            answers = await self._operations.async_on(store).renew_many(noted)
            for attempt, answer in zip(telling, answers, strict=True):
                self.heed(attempt, answer, started)

    def told_cut_off(self, asked_at: float) -> None:
        """Note that a claim made *asked_at* a moment of the monotonic clock has told the store of the lost leases."""
        lost_at = self.cut_off_at
        # By the store's clock the leases may end a moment later than this worker gives them up.
        if lost_at is not None and asked_at > lost_at + _LOST_LATER_SECONDS:
            self.cut_off_at = None

    # --- the thread that watches time ------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._stopping.is_set():
            attempts = self._held_or_rest()
            now = self._timer.monotonic()
            for attempt in attempts:
                self._end_overdue(attempt, now)
            self._timer.wait(self._stopping, _seconds_to_next(attempts, self._timer.monotonic()))

    def _held_or_rest(self) -> list[RunningAttempt]:
        """Return what is held, as soon as there is anything."""
        with self._lock:
            self._resting = not self._held
            if self._resting:
                self._held_again.clear()
        if self._resting and not self._stopping.is_set():
            self._held_again.wait()
        return self.held()

    def _end_overdue(self, attempt: RunningAttempt, now: float) -> None:
        """Stop a handler whose time is up, or whose job may be another worker's by now."""
        job_id = attempt.claim.job.id
        if attempt.lease_ends_at <= now:
            unanswered = self._unanswered_since
            if attempt.lose():
                log.error("let go of job %s: its lease could not be extended in time", job_id)
                # A process that could not even ask in time was stopped or blocked, perhaps by the job itself.
                if unanswered is not None and unanswered < attempt.lease_ends_at:
                    self.cut_off_at = now
                self.decided(attempt)
        elif attempt.timeout_at is not None and attempt.timeout_at <= now and attempt.time_out():
            log.warning("job %s is past its timeout and was stopped", job_id)
            self.decided(attempt)


def _calls(attempts: Sequence[RunningAttempt]) -> Iterator[list[_Held]]:
    """Part attempts so that what is held under each part fits into one call."""
    part: list[_Held] = []
    size = 0
    for attempt in attempts:
        # Asked for once: a turn may take in more at any time.
        claims = attempt.claims
        size += len(claims)
        if size > limits.SETTLE_MANY_MAX:
            yield part
            part, size = [], len(claims)
        part.append((attempt, claims))
    yield part


def _together(answers: list[Renewal | HoldfastError]) -> Renewal | HoldfastError:
    """Return the answer to a whole attempt: one entry that is lost is a turn that is lost, and so for a cancel."""
    if len(answers) == 1:
        return answers[0]
    renewals = [answer for answer in answers if isinstance(answer, Renewal)]
    if len(renewals) < len(answers):
        return next(answer for answer in answers if not isinstance(answer, Renewal))
    return min(renewals)._replace(cancel_requested=any(one.cancel_requested for one in renewals))


def _seconds_to_next(attempts: Sequence[RunningAttempt], now: float) -> float:
    """Return for how long no time is up, at least if no shorter timeout is started meanwhile."""
    ends = [attempt.lease_ends_at for attempt in attempts if attempt.stopped is None]
    ends += [at for attempt in attempts if attempt.stopped is None and (at := attempt.timeout_at) is not None]
    return max(_LOOKS_SECONDS_LEAST, min([end - now for end in ends] + [_LOOKS_SECONDS]))
