"""The attempts that a worker holds, from their claim to their settlement, and how those that ended were counted."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import islice

from holdfast.client.middleware import EndedAs, Middleware
from holdfast.domain import limits
from holdfast.domain.claims import Settlement
from holdfast.domain.errors import LeaseLost
from holdfast.domain.job import Job, row_of
from holdfast.worker.attempt import RunningAttempt, failure_from_refusal, outcome_name
from holdfast.worker.job_logs import failure_of, log_ended
from holdfast.worker.lease_keeper import LeaseKeeper
from holdfast.worker.status import FailedAttempt

log = logging.getLogger("holdfast.worker")

# How many failures a worker's status shows.
_FAILURES_KEPT = 5


class HeldAttempts:
    """The attempts of one worker whose leases the worker holds; used in its event loop."""

    def __init__(self, keeper: LeaseKeeper, middleware: Sequence[Middleware]) -> None:
        self.counts: Counter[str] = Counter()
        """Ended attempts, by outcome."""
        self.failures: deque[FailedAttempt] = deque(maxlen=_FAILURES_KEPT)
        """The latest failed attempts, newest first."""
        self._keeper = keeper
        self._middleware = middleware
        self._held: dict[tuple[int, int], RunningAttempt] = {}
        self._to_settle: dict[tuple[int, int], RunningAttempt] = {}
        """Those that are decided."""
        self._unacknowledged: dict[tuple[int, int], RunningAttempt] = {}
        """Those whose claims are not acknowledged yet."""

    def __len__(self) -> int:
        """Return the number of attempts."""
        return len(self._held)

    def attempts(self) -> list[RunningAttempt]:
        """Return all attempts, oldest claim first."""
        return list(self._held.values())

    def longest_waiting(self) -> RunningAttempt | None:
        """Return the attempt that has waited longest for a slot, if any waits."""
        return next((attempt for attempt in self._held.values() if attempt.waits_for_slot), None)

    def add(self, attempts: Sequence[RunningAttempt]) -> None:
        """Hold newly claimed attempts: renew their leases from now on."""
        for attempt in attempts:
            attempt.wrap_handler(self._middleware)
            self._held[attempt.key] = attempt
            if row_of(attempt.claim.job).unacknowledged:
                self._unacknowledged[attempt.key] = attempt
        self._keeper.add(attempts)

    # --- claims ahead ----------------------------------------------------------------------------------------------

    def to_acknowledge(self) -> list[RunningAttempt]:
        """Return running attempts, as many as one call can acknowledge; settlement acknowledges ended ones."""
        running = [
            attempt
            for attempt in self._unacknowledged.values()
            if attempt.started_at is not None and not attempt.decided
        ]
        return running[: limits.SETTLE_MANY_MAX]

    def acknowledged(self, attempts: Iterable[RunningAttempt]) -> None:
        """Record that the store knows that *attempts* have started."""
        for attempt in attempts:
            self._unacknowledged.pop(attempt.key, None)

    # --- settlement ------------------------------------------------------------------------------------------------

    def decided(self, attempt: RunningAttempt) -> bool:
        """Record that an attempt is decided; return whether it was held, and not settled or lost before."""
        if attempt.key not in self._held:
            return False
        if attempt.outcome is None:
            self.ended(attempt, "done" if attempt.settled else "lost")
        else:
            self._to_settle[attempt.key] = attempt
        return True

    @property
    def any_to_settle(self) -> bool:
        """Whether decided attempts wait for their settlement."""
        return bool(self._to_settle)

    def to_settle(self) -> list[RunningAttempt]:
        """Return decided attempts, as many as one call can settle; they stay here until they have ended."""
        return list(islice(self._to_settle.values(), limits.SETTLE_MANY_MAX))

    def settled(self, attempts: Sequence[RunningAttempt], settlements: Sequence[Settlement]) -> None:
        """Record the store's answers to the settlements of *attempts*."""
        for attempt, settlement in zip(attempts, settlements, strict=True):
            if settlement.error is None:
                jobs = () if settlement.job is None else (settlement.job,)
                self._count(attempt, outcome_name(attempt.outcome), jobs)
            elif isinstance(settlement.error, LeaseLost):
                log.warning("the result of job %s was refused: %s", attempt.claim.job.id, settlement.error)
                self._count(attempt, "lost")
            else:
                # It stays here, to be settled with another outcome.
                log.error("the outcome of job %s was refused: %s", attempt.claim.job.id, settlement.error)
                attempt.amend(failure_from_refusal(settlement.error))
                continue
            self._remove(attempt)
        self._keeper.remove(attempt for attempt in attempts if attempt.key not in self._held)

    def ended(self, attempt: RunningAttempt, outcome: EndedAs, jobs: Sequence[Job] = ()) -> None:
        """Record that an attempt has ended: it was settled, or its lease is lost."""
        if self._remove(attempt):
            self._keeper.remove([attempt])
            self._count(attempt, outcome, jobs)

    def drop_expired(self, attempts: Sequence[RunningAttempt], now: float) -> list[RunningAttempt]:
        """Drop those of *attempts* whose lease has expired because the store did not answer; return the others."""
        for attempt in attempts:
            if attempt.lease_ends_at <= now:
                self._keeper.cut_off_at = now
                self.ended(attempt, "lost")
        return [attempt for attempt in attempts if attempt.lease_ends_at > now]

    def _remove(self, attempt: RunningAttempt) -> bool:
        self._to_settle.pop(attempt.key, None)
        self._unacknowledged.pop(attempt.key, None)
        return self._held.pop(attempt.key, None) is not None

    def _count(self, attempt: RunningAttempt, outcome: EndedAs, jobs: Sequence[Job] = ()) -> None:
        failure = failure_of(attempt, jobs[0] if jobs else None)
        if failure is not None:
            self.failures.appendleft(failure)
        self.counts["retried" if failure is not None and failure.retried else outcome] += 1
        log_ended(attempt, outcome, failure)
        if self._middleware:
            attempt.report_ended(self._middleware, outcome, jobs)
