"""The attempts that a worker holds, from their claim to their settlement, and how those that ended were counted."""

import logging
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import islice

from holdfast.client.middleware import EndedAs, Middleware
from holdfast.domain import claims, errors, job, limits, outcomes
from holdfast.worker import job_logs, lease_keeper, status
from holdfast.worker.attempt import RunningAttempt, failure_from_refusal, outcome_name

log = logging.getLogger("holdfast.worker")

# How many failures a worker's status shows.
_FAILURES_KEPT = 5


class HeldAttempts:
    """The attempts of one worker whose leases the worker holds; used in its event loop."""

    def __init__(self, keeper: lease_keeper.LeaseKeeper, middleware: Sequence[Middleware]) -> None:
        self.counts: Counter[str] = Counter()
        """Ended attempts, by outcome."""
        self.failures: deque[status.FailedAttempt] = deque(maxlen=_FAILURES_KEPT)
        """The latest failed attempts, newest first."""
        self._keeper = keeper
        self._middleware = middleware
        # Dicts without values keep their order.
        self._held: dict[RunningAttempt, None] = {}
        self._to_settle: dict[RunningAttempt, None] = {}
        """Those that are decided."""
        self._settling: set[RunningAttempt] = set()
        """Those of them that calls in flight settle."""
        self._unacknowledged: dict[RunningAttempt, None] = {}
        """Those whose claims are not acknowledged yet."""
        self._wait_logged = False

    def __len__(self) -> int:
        """Return the number of attempts."""
        return len(self._held)

    def attempts(self) -> list[RunningAttempt]:
        """Return all attempts, oldest claim first."""
        return list(self._held)

    def longest_waiting(self) -> RunningAttempt | None:
        """Return the attempt that has waited longest for a slot, if any waits."""
        return next((attempt for attempt in self._held if attempt.waits_for_slot), None)

    def add(self, attempts: Sequence[RunningAttempt]) -> None:
        """Hold newly claimed attempts: renew their leases from now on."""
        if self._middleware:
            for attempt in attempts:
                attempt.wrap_handler(self._middleware)
        self._held.update(dict.fromkeys(attempts))
        waiting = [attempt for attempt in attempts if job.columns_of(attempt.claim.job).unacknowledged]
        self._unacknowledged.update(dict.fromkeys(waiting))
        self._keeper.add(attempts)

    # --- claims ahead ----------------------------------------------------------------------------------------------

    def to_acknowledge(self) -> list[RunningAttempt]:
        """Return running attempts, as many as one call can acknowledge; settlement acknowledges ended ones."""
        running = [
            attempt for attempt in self._unacknowledged if attempt.started_at is not None and not attempt.decided
        ]
        return running[: limits.SETTLE_MANY_MAX]

    def acknowledged(self, attempts: Iterable[RunningAttempt]) -> None:
        """Record that the store knows that *attempts* have started."""
        for attempt in attempts:
            self._unacknowledged.pop(attempt, None)

    # --- settlement ------------------------------------------------------------------------------------------------

    def decided(self, attempt: RunningAttempt) -> bool:
        """Record that an attempt is decided; return whether it was held, and not settled or lost before."""
        if attempt not in self._held:
            return False
        if attempt.outcome is None:
            self.ended(attempt, "done" if attempt.settled else "lost")
        else:
            self._to_settle[attempt] = None
        return True

    def handlers_ended(self, attempts: Iterable[RunningAttempt]) -> None:
        """Record that the handlers of *attempts* have ended, and that they are decided."""
        held, to_settle = self._held, self._to_settle
        for attempt in attempts:
            if attempt.outcome is not None and attempt in held:
                to_settle[attempt] = None
            else:
                self.decided(attempt)

    @property
    def any_to_settle(self) -> bool:
        """Whether decided attempts wait for their settlement."""
        return bool(self._to_settle)

    def log_wait(self, seconds: float) -> None:
        """Log once that a worker that stops waits up to *seconds* for the store, if attempts are to be settled."""
        if self._to_settle and not self._wait_logged:
            self._wait_logged = True
            jobs = "1 job" if len(self._to_settle) == 1 else f"{len(self._to_settle)} jobs"
            log.warning(
                "the store does not answer: tries for %.0f s more to settle or release %s, then the leases expire;"
                " a second signal ends the wait",
                seconds,
                jobs,
            )

    def to_settle(self) -> list[RunningAttempt]:
        """Return decided attempts, as many as one call can settle; they stay here until they have ended."""
        settling = self._settling
        left = (attempt for attempt in self._to_settle if attempt not in settling) if settling else self._to_settle
        return list(islice(left, limits.SETTLE_MANY_MAX))

    def settling(self, attempts: Iterable[RunningAttempt]) -> None:
        """Record that a call settles *attempts*."""
        self._settling.update(attempts)

    def settled(self, attempts: Sequence[RunningAttempt], settlements: Sequence[claims.Settlement]) -> None:
        """Record the store's answers to the settlements of *attempts*."""
        ended: list[tuple[RunningAttempt, EndedAs, Sequence[job.Job]]] = []
        done: list[RunningAttempt] = []
        # Most attempts succeed: they are counted together if nothing else is to be done for each of them.
        quiet = not self._middleware and not job_logs.logs_success()
        self._settling.difference_update(attempts)
        for attempt, settlement in zip(attempts, settlements, strict=True):
            if settlement.error is None:
                if quiet and isinstance(attempt.outcome, outcomes.Done):
                    done.append(attempt)
                    continue
                jobs = () if settlement.job is None else (settlement.job,)
                ended.append((attempt, outcome_name(attempt.outcome), jobs))
            elif isinstance(settlement.error, errors.LeaseLost):
                log.warning("the result of job %s was refused: %s", attempt.claim.job.id, settlement.error)
                ended.append((attempt, "lost", ()))
            else:
                # It stays here, to be settled with another outcome.
                log.error("the outcome of job %s was refused: %s", attempt.claim.job.id, settlement.error)
                attempt.amend(failure_from_refusal(settlement.error))
                continue
            self._remove(attempt)
        for of in (self._held, self._to_settle, self._unacknowledged):
            for attempt in done:
                of.pop(attempt, None)
        # Before they are counted, so that a status never shows a counted attempt as running.
        self._keeper.remove([*done, *(attempt for attempt, _, _ in ended)])
        if done:
            self.counts["done"] += len(done)
        for attempt, outcome, settled_jobs in ended:
            self._count(attempt, outcome, settled_jobs)

    def ended(self, attempt: RunningAttempt, outcome: EndedAs, jobs: Sequence[job.Job] = ()) -> None:
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
        if attempt not in self._held:
            return False
        del self._held[attempt]
        self._to_settle.pop(attempt, None)
        self._settling.discard(attempt)
        self._unacknowledged.pop(attempt, None)
        return True

    def _count(self, attempt: RunningAttempt, outcome: EndedAs, jobs: Sequence[job.Job] = ()) -> None:
        failure = job_logs.failure_of(attempt, jobs[0] if jobs else None)
        if failure is not None:
            self.failures.appendleft(failure)
        self.counts["retried" if failure is not None and failure.retried else outcome] += 1
        job_logs.log_ended(attempt, outcome, failure)
        if self._middleware:
            attempt.report_ended(self._middleware, outcome, jobs)
