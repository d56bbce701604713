# Generated from testing/drain_async.py by scripts/make-sync; do not edit.
"""Running jobs in sync tests: `drain` runs all of them, `run_job` one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Unpack

from holdfast.client import queue_state
from holdfast.client.sync_api.queue import Queue
from holdfast.domain import errors, limits, validation
from holdfast.domain.claims import Claim, ClaimOptions
from holdfast.domain.job import Job, row_of, with_row
from holdfast.domain.new_job import NewJob
from holdfast.domain.outcomes import Released
from holdfast.domain.session_claims import SessionClaim
from holdfast.domain.validation import Duration
from holdfast.operations.jobs import seconds_to_due
from holdfast.storage.runners import SyncRunner
from holdfast.testing import inline_worker
from holdfast.testing.clock import ManualClock
from holdfast.testing.inline_worker import AnyQueue, Drained, JobReference, Ran


def drain(
    queue: AnyQueue,
    *,
    clock: ManualClock | None = None,
    horizon: Duration | None = None,
    raises: bool = True,
    attempts_max: int = 10_000,
    **options: Unpack[ClaimOptions],
) -> Drained:
    """Run every job that can be claimed, and the jobs they enqueue, in the test itself; return the attempts.

    The options of a claim select the jobs; by default all tasks' jobs run, as in a `Worker`. With *clock*, the clock
    passed to `connect`, time advances to the next due job, by *horizon* seconds at most, until no job is left; with
    *horizon* also to the next ticks of schedules. Turns
    of sessions run when no other job is left; each counts as one attempt, represented by its first entry. An
    exception of a handler is raised here after its attempt is settled, unless `raises=False` or the handler chose its
    outcome with it. More than *attempts_max* attempts raise `AssertionError`, because the drain may never end.
    """
    draining = Drain(queue, options, clock, horizon, attempts_max)
    while (claim := draining.next()) is not None:
        inline = inline_worker.InlineAttempt(queue, claim, draining.capabilities)
        inline.run()
        draining.add(inline.settle(draining.queue), raises=raises)
    return Drained(tuple(draining.ran))


def run_job(queue: AnyQueue, job: JobReference, *, clock: ManualClock | None = None, raises: bool = True) -> Job:
    """Run one attempt of one job, before all others, and return the job after the attempt.

    *job* is a call created by `task.new(…)`, which is enqueued first, or an enqueued job. A job that is not due yet
    needs *clock*, which is advanced. An exception of the handler is raised as in `drain`.
    """
    calls = Queue(queue_state.state_of(queue))
    inline = inline_worker.InlineAttempt(queue, _claim_one(calls, job, clock))
    inline.run()
    return inline_worker.job_or_raise(inline.settle(calls), raises=raises)


class Drain:
    """Claims the next job and advances the clock if needed."""

    def __init__(
        self,
        queue: AnyQueue,
        options: ClaimOptions,
        clock: ManualClock | None,
        horizon: Duration | None,
        attempts_max: int,
    ) -> None:
        if horizon is not None and clock is None:
            raise errors.Misconfigured(
                "horizon requires clock, the clock to advance: drain(queue, clock=clock, horizon=…)"
            )
        self.ran: list[Ran] = []
        state = queue_state.state_of(queue)
        self.queue = Queue(state)
        self._runner = SyncRunner(state.store)
        self._subscription = inline_worker.subscription_of(queue, options)
        self._clock = clock
        self._left_ms = math.inf if horizon is None else validation.duration_ms(horizon, "horizon")
        self._attempts_max = attempts_max

    @property
    def capabilities(self) -> Sequence[str]:
        """The capabilities of its worker."""
        return self._subscription.options.get("capabilities", ())

    def next(self) -> Claim | SessionClaim | None:
        """Claim the next job or session turn, advancing the clock if needed; return None if none is left."""
        while (claim := self._claim()) is None:
            if not self._advance_clock():
                return None
        if len(self.ran) >= self._attempts_max:
            job = claim.job if isinstance(claim, Claim) else claim.entries[0]
            raise AssertionError(
                f"{self._attempts_max} attempts were run and there is still work, the next is {job!r}; "
                "does a job enqueue itself again? Pass a horizon or a larger attempts_max"
            )
        return claim

    def _claim(self) -> Claim | SessionClaim | None:
        self._subscription.refresh()
        jobs, sessions = self._subscription.jobs, self._subscription.sessions
        claim = None if jobs is None else self.queue.claim(**jobs)
        if claim is not None or sessions is None:
            return claim
        return self.queue.sessions.claim_next(**sessions)

    def _advance_clock(self) -> bool:
        """Advance the clock to the next due job; return whether there is one within the horizon."""
        if self._clock is None:
            return False
        seconds = self._runner.read(seconds_to_due, ticks=self._left_ms != math.inf)
        # A job that is due and was not claimed does not match the claim options.
        if not seconds or seconds * 1000 > self._left_ms:
            return False
        self._clock.advance(seconds)
        self._left_ms -= seconds * 1000
        return True

    def add(self, ran: Ran, *, raises: bool) -> None:
        """Add an attempt; with *raises*, raise its error."""
        self.ran.append(ran)
        if raises:
            inline_worker.raise_defect(ran)


def _claim_one(queue: Queue, reference: JobReference, clock: ManualClock | None) -> Claim:
    """Claim this job and no other, as a worker with its required capabilities."""
    job = _find(queue, reference)
    if job.finished:
        raise AssertionError(f"{job!r} cannot be claimed: {inline_worker.unclaimable_reason(job, clock)}")
    if job.entry is not None:
        raise errors.Misconfigured(
            f"{job!r} is an entry of session {job.entry.session!r}, whose turns run in order; run them with drain"
        )
    if clock is not None and job.due_at > clock.time:
        clock.travel_to(job.due_at)
    # Give the job the highest priority for the claim; its own priority is restored below.
    queue.reprioritize(job.id, limits.PRIORITY_MAX)
    claim = queue.claim(kinds=[job.kind], lanes=[job.lane], tenant=job.tenant, capabilities=job.requires)
    if claim is not None and claim.job.id != job.id:
        queue.settle(claim, Released())
        claim = None
    now = queue.get(job.id)
    if not now.finished:
        queue.reprioritize(job.id, job.priority)
    if claim is None:
        raise AssertionError(f"{now!r} cannot be claimed: {inline_worker.unclaimable_reason(now, clock)}")
    row = row_of(claim.job)._replace(priority=job.priority)
    return Claim(with_row(claim.job, row), claim.lease_ms)


def _find(queue: Queue, reference: JobReference) -> Job:
    if isinstance(reference, NewJob):
        queue.tasks.get(reference.kind)
        return (queue.enqueue(reference)).job
    return queue.get(reference if isinstance(reference, str) else reference.id)
