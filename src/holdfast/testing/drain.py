"""Running jobs in a test: `drain` runs all of them, `run_job` one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, Unpack

from holdfast.client.operations import Operations
from holdfast.client.queue import Queue
from holdfast.domain import limits, validation
from holdfast.domain.claims import Claim, ClaimOptions
from holdfast.domain.errors import Misconfigured
from holdfast.domain.job import Job, row_of
from holdfast.domain.new_job import NewJob
from holdfast.domain.outcomes import Released
from holdfast.domain.results import Enqueued
from holdfast.domain.session_claims import SessionClaim
from holdfast.domain.validation import Duration
from holdfast.operations.jobs import seconds_to_due
from holdfast.storage.transaction import run_sync
from holdfast.testing.clock import ManualClock
from holdfast.testing.inline_worker import InlineAttempt, Ran
from holdfast.testing.redirect import AnyQueue
from holdfast.worker.subscription import Subscription
from holdfast.worker.worker import Worker

__all__ = ["Drained", "Ran", "drain", "drain_async", "run_job", "run_job_async"]

JobReference: TypeAlias = NewJob | Enqueued | Job | str
"""A job to enqueue, an enqueued job, or the id of one."""

_ATTEMPTS_MAX = 10_000
_RELEASED = Released()


@dataclass(frozen=True, slots=True)
class Drained:
    """The attempts that a drain has run, in order."""

    ran: tuple[Ran, ...]

    @property
    def counts(self) -> dict[str, int]:
        """The number of attempts by outcome."""
        return dict(Counter(ran.outcome for ran in self.ran))

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The job of each attempt, as it was after the attempt."""
        return tuple(ran.job for ran in self.ran)

    def __len__(self) -> int:
        return len(self.ran)

    def __iter__(self) -> Iterator[Ran]:
        return iter(self.ran)


def drain(
    queue: Queue,
    *,
    clock: ManualClock | None = None,
    horizon: Duration | None = None,
    raises: bool = True,
    attempts_max: int = _ATTEMPTS_MAX,
    **options: Unpack[ClaimOptions],
) -> Drained:
    """Run every job that can be claimed, and the jobs they enqueue, in this thread; return the attempts.

    The options of a claim select the jobs; by default all tasks' jobs run, as in a `Worker`. With *clock*, the clock
    passed to `connect`, time advances to the next due job, by *horizon* at most, until no job is left. Turns of
    sessions run when no other job is left; each counts as one attempt, represented by its first entry. An exception
    of a handler is raised here after its attempt is settled, unless `raises=False` or the handler chose its outcome
    with it. More than *attempts_max* attempts raise `AssertionError`, because the drain may never end.
    """
    operations = queue.operations.sync_on(queue.store)
    draining = _Drain(queue, operations, options, clock, horizon, attempts_max)
    while (claim := run_sync(draining.next())) is not None:
        inline = InlineAttempt(queue, claim, draining.capabilities)
        inline.run()
        draining.add(run_sync(inline.settle(operations)), raises=raises)
    return Drained(tuple(draining.ran))


async def drain_async(
    queue: AnyQueue,
    *,
    clock: ManualClock | None = None,
    horizon: Duration | None = None,
    raises: bool = True,
    attempts_max: int = _ATTEMPTS_MAX,
    **options: Unpack[ClaimOptions],
) -> Drained:
    """Do the same as `drain` in a running event loop."""
    operations = queue.operations.async_on(queue.store)
    draining = _Drain(queue, operations, options, clock, horizon, attempts_max)
    while (claim := await draining.next()) is not None:
        inline = InlineAttempt(queue, claim, draining.capabilities)
        await inline.run_async()
        draining.add(await inline.settle(operations), raises=raises)
    return Drained(tuple(draining.ran))


def run_job(queue: Queue, job: JobReference, *, clock: ManualClock | None = None, raises: bool = True) -> Job:
    """Run one attempt of one job, before all others, and return the job after the attempt.

    *job* is a call created by `task.new(…)`, which is enqueued first, or an enqueued job. A job that is not due yet
    needs *clock*, which is advanced. An exception of the handler is raised as in `drain`.
    """
    operations = queue.operations.sync_on(queue.store)
    inline = InlineAttempt(queue, run_sync(_claim_one(queue, operations, job, clock)))
    inline.run()
    return _job_or_raise(run_sync(inline.settle(operations)), raises=raises)


async def run_job_async(
    queue: AnyQueue, job: JobReference, *, clock: ManualClock | None = None, raises: bool = True
) -> Job:
    """Do the same as `run_job` in a running event loop."""
    operations = queue.operations.async_on(queue.store)
    inline = InlineAttempt(queue, await _claim_one(queue, operations, job, clock))
    await inline.run_async()
    return _job_or_raise(await inline.settle(operations), raises=raises)


def _job_or_raise(ran: Ran, *, raises: bool) -> Job:
    if raises:
        ran.raise_defect()
    return ran.job


class _Drain:
    """Claims the next job and advances the clock if needed."""

    def __init__(
        self,
        queue: AnyQueue,
        operations: Operations,
        options: ClaimOptions,
        clock: ManualClock | None,
        horizon: Duration | None,
        attempts_max: int,
    ) -> None:
        if horizon is not None and clock is None:
            raise Misconfigured("horizon requires clock, the clock to advance: drain(queue, clock=clock, horizon=…)")
        self.ran: list[Ran] = []
        self._operations = operations
        self._subscription = _subscription(queue, options)
        self._clock = clock
        self._left_ms = math.inf if horizon is None else validation.duration_ms(horizon, "horizon")
        self._attempts_max = attempts_max

    @property
    def capabilities(self) -> Sequence[str]:
        """The capabilities of its worker."""
        return self._subscription.options.get("capabilities", ())

    async def next(self) -> Claim | SessionClaim | None:
        """Claim the next job or session turn, advancing the clock if needed; return None if none is left."""
        while (claim := (await self._claim())) is None:
            if not (await self._advance_clock()):
                return None
        if len(self.ran) >= self._attempts_max:
            job = claim.job if isinstance(claim, Claim) else claim.entries[0]
            raise AssertionError(
                f"{self._attempts_max} attempts were run and there is still work, the next is {job!r}; "
                "does a job enqueue itself again? Pass a horizon or a larger attempts_max"
            )
        return claim

    async def _claim(self) -> Claim | SessionClaim | None:
        self._subscription.refresh()
        jobs, sessions = self._subscription.jobs, self._subscription.sessions
        claim = None if jobs is None else (await self._operations.claim(**jobs))
        if claim is not None or sessions is None:
            return claim
        return await self._operations.claim_any_session(**sessions)

    async def _advance_clock(self) -> bool:
        """Advance the clock to the next due job; return whether there is one within the horizon."""
        if self._clock is None:
            return False
        seconds = await self._operations.runner.read(seconds_to_due)
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
            ran.raise_defect()


def _subscription(queue: AnyQueue, options: ClaimOptions) -> Subscription:
    """Return the subscription of a worker with these options."""
    worker = Worker(queue, **options)
    claim_options: ClaimOptions = {**options, "worker": worker.name, "incarnation": worker.incarnation}
    return Subscription(queue.tasks, claim_options)


async def _claim_one(
    queue: AnyQueue, operations: Operations, job_or_id: JobReference, clock: ManualClock | None
) -> Claim:
    """Claim this job and no other, as a worker with its required capabilities."""
    job = await _find(queue, operations, job_or_id)
    if job.finished:
        raise AssertionError(f"{job!r} cannot be claimed: {_unclaimable_reason(job, clock)}")
    if job.entry is not None:
        raise Misconfigured(
            f"{job!r} is an entry of session {job.entry.session!r}, whose turns run in order; run them with drain"
        )
    if clock is not None and job.due_at > clock.time:
        clock.travel_to(job.due_at)
    # Give the job the highest priority for the claim; its own priority is restored below.
    await operations.reprioritize(job.id, limits.PRIORITY_MAX)
    claim = await operations.claim(kinds=[job.kind], lanes=[job.lane], tenant=job.tenant, capabilities=job.requires)
    if claim is not None and claim.job.id != job.id:
        await operations.settle(claim, _RELEASED)
        claim = None
    now = await operations.get(job.id)
    if not now.finished:
        await operations.reprioritize(job.id, job.priority)
    if claim is None:
        raise AssertionError(f"{now!r} cannot be claimed: {_unclaimable_reason(now, clock)}")
    return Claim(Job(row_of(claim.job)._replace(priority=job.priority)), claim.lease_ms)


async def _find(queue: AnyQueue, operations: Operations, job_or_id: JobReference) -> Job:
    if isinstance(job_or_id, NewJob):
        queue.tasks.get(job_or_id.kind)
        options: Any = job_or_id.options
        return (await operations.enqueue(job_or_id.kind, job_or_id.payload, **options)).job
    return await operations.get(job_or_id if isinstance(job_or_id, str) else job_or_id.id)


def _unclaimable_reason(job: Job, clock: ManualClock | None) -> str:
    if job.finished:
        return f"it is already {job.state}"
    if job.state == "scheduled" and clock is None:
        return f"it is due at {job.due_at}; pass clock= to advance the time"
    return f"it is {job.state} in the lane {job.lane!r}; is the lane paused, or the job held by another worker?"
