"""Running jobs in a test: all that there are, or one of them, until nothing is left to wait for."""

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
from holdfast.domain.job import Job
from holdfast.domain.new_job import NewJob
from holdfast.domain.outcomes import Released
from holdfast.domain.results import Enqueued
from holdfast.domain.session_leases import SessionClaim
from holdfast.domain.validation import Duration
from holdfast.operations.jobs import seconds_to_due
from holdfast.storage.transaction import run_sync
from holdfast.testing.clock import ManualClock
from holdfast.testing.inline_worker import InlineAttempt, Ran
from holdfast.testing.redirect import AnyQueue
from holdfast.worker.subscription import Subscription
from holdfast.worker.worker import Worker

__all__ = ["Drained", "Ran", "drain", "drain_async", "run_job", "run_job_async"]

WhichJob: TypeAlias = NewJob | Enqueued | Job | str
"""A job to be enqueued, one that is, or the id of one."""

_ATTEMPTS_MAX = 10_000
_RELEASED = Released()


@dataclass(frozen=True, slots=True)
class Drained:
    """What a drain has run, in order."""

    ran: tuple[Ran, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many attempts ended, by outcome."""
        return dict(Counter(one.outcome for one in self.ran))

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs as each attempt left them."""
        return tuple(one.job for one in self.ran)

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
    **words: Unpack[ClaimOptions],
) -> Drained:
    """Run every job that could be claimed, and what follows from it, in this thread; return what was run.

    The words of a claim say which; by default those of every task, as for a `Worker`. With *clock*, the one given to
    `connect`, time moves on to the next job that falls due, by *horizon* at most, until none is left. Turns of
    sessions are run when no other job is left, each counted as one attempt, led by its first entry. What a handler
    raises is raised here once its attempt is settled, unless `raises=False`; outcomes it asks for are not. More than
    *attempts_max* attempts mean that it would never end, and raise `AssertionError`.
    """
    operations = queue.operations.sync_on(queue.store)
    draining = _Draining(queue, operations, words, clock, horizon, attempts_max)
    while (claim := run_sync(draining.next())) is not None:
        inline = InlineAttempt(queue, claim, draining.capabilities)
        inline.run()
        draining.note(run_sync(inline.settle(operations)), raises=raises)
    return Drained(tuple(draining.ran))


async def drain_async(
    queue: AnyQueue,
    *,
    clock: ManualClock | None = None,
    horizon: Duration | None = None,
    raises: bool = True,
    attempts_max: int = _ATTEMPTS_MAX,
    **words: Unpack[ClaimOptions],
) -> Drained:
    """Do as `drain` does, in a running event loop."""
    operations = queue.operations.async_on(queue.store)
    draining = _Draining(queue, operations, words, clock, horizon, attempts_max)
    while (claim := await draining.next()) is not None:
        inline = InlineAttempt(queue, claim, draining.capabilities)
        await inline.run_async()
        draining.note(await inline.settle(operations), raises=raises)
    return Drained(tuple(draining.ran))


def run_job(queue: Queue, job: WhichJob, *, clock: ManualClock | None = None, raises: bool = True) -> Job:
    """Run one attempt of one job, before all others, and return the job as it leaves it.

    *job* is a call as `task.new(…)` gives it, which is enqueued first, or a job that was. One that is not due yet
    needs the *clock*, which then moves on. What the handler raises is raised here, as by `drain`.
    """
    operations = queue.operations.sync_on(queue.store)
    inline = InlineAttempt(queue, run_sync(_claim_one(queue, operations, job, clock)))
    inline.run()
    return _raised(run_sync(inline.settle(operations)), raises=raises)


async def run_job_async(
    queue: AnyQueue, job: WhichJob, *, clock: ManualClock | None = None, raises: bool = True
) -> Job:
    """Do as `run_job` does, in a running event loop."""
    operations = queue.operations.async_on(queue.store)
    inline = InlineAttempt(queue, await _claim_one(queue, operations, job, clock))
    await inline.run_async()
    return _raised(await inline.settle(operations), raises=raises)


def _raised(ran: Ran, *, raises: bool) -> Job:
    if raises:
        ran.raise_defect()
    return ran.job


class _Draining:
    """Which job comes next, and how far time has moved for it."""

    def __init__(
        self,
        queue: AnyQueue,
        operations: Operations,
        words: ClaimOptions,
        clock: ManualClock | None,
        horizon: Duration | None,
        attempts_max: int,
    ) -> None:
        if horizon is not None and clock is None:
            raise Misconfigured("a horizon needs the clock that is to be moved: drain(queue, clock=clock, horizon=…)")
        self.ran: list[Ran] = []
        self._operations = operations
        self._subscription = _subscription(queue, words)
        self._clock = clock
        self._left_ms = math.inf if horizon is None else validation.duration_ms(horizon, "horizon")
        self._attempts_max = attempts_max

    @property
    def capabilities(self) -> Sequence[str]:
        """What its worker has."""
        return self._subscription.words().get("capabilities", ())

    async def next(self) -> Claim | SessionClaim | None:
        """Claim the next job, or the next turn of a session, moving time on to it if need be."""
        while (claim := (await self._claim())) is None:
            if not (await self._move_on()):
                return None
        if len(self.ran) >= self._attempts_max:
            job = claim.job if isinstance(claim, Claim) else claim.entries[0]
            raise AssertionError(
                f"{self._attempts_max} attempts were run and there is still work, the next is {job!r}; "
                "does a job enqueue itself again? Give a horizon, or a larger attempts_max"
            )
        return claim

    async def _claim(self) -> Claim | SessionClaim | None:
        jobs, sessions = self._subscription.jobs(), self._subscription.sessions()
        claim = None if jobs is None else (await self._operations.claim(**jobs))
        if claim is not None or sessions is None:
            return claim
        return await self._operations.claim_any_session(**sessions)

    async def _move_on(self) -> bool:
        """Let time pass until the next job falls due; tell whether there is one within reach."""
        if self._clock is None:
            return False
        seconds = await self._operations.runner.read(seconds_to_due)
        # What is due and was not claimed is not for us.
        if not seconds or seconds * 1000 > self._left_ms:
            return False
        self._clock.advance(seconds)
        self._left_ms -= seconds * 1000
        return True

    def note(self, ran: Ran, *, raises: bool) -> None:
        """Take note of what was run, and raise what is wrong with it."""
        self.ran.append(ran)
        if raises:
            ran.raise_defect()


def _subscription(queue: AnyQueue, words: ClaimOptions) -> Subscription:
    """Return what a worker with these words would take."""
    worker = Worker(queue, **words)
    named: ClaimOptions = {**words, "worker": worker.name, "incarnation": worker.incarnation}
    return Subscription(queue.tasks, named)


async def _claim_one(queue: AnyQueue, operations: Operations, which: WhichJob, clock: ManualClock | None) -> Claim:
    """Claim one job and no other, as a worker with all that it requires would."""
    job = await _find(queue, operations, which)
    if job.finished:
        raise AssertionError(f"{job!r} cannot be claimed: {_why(job, clock)}")
    if job.entry is not None:
        raise Misconfigured(
            f"{job!r} is an entry of session {job.entry.session!r}, whose turns go in order; run them with drain"
        )
    if clock is not None and job.due_at > clock.moment:
        clock.travel_to(job.due_at)
    # Nothing may stand before it; what it was is put back at once.
    await operations.reprioritize(job.id, limits.PRIORITY_MAX)
    claim = await operations.claim(kinds=[job.kind], lanes=[job.lane], tenant=job.tenant, capabilities=job.requires)
    if claim is not None and claim.job.id != job.id:
        await operations.settle(claim, _RELEASED)
        claim = None
    now = await operations.get(job.id)
    if not now.finished:
        await operations.reprioritize(job.id, job.priority)
    if claim is None:
        raise AssertionError(f"{now!r} cannot be claimed: {_why(now, clock)}")
    return Claim(claim.job._replace(priority=job.priority), claim.lease_ms)


async def _find(queue: AnyQueue, operations: Operations, which: WhichJob) -> Job:
    if isinstance(which, NewJob):
        queue.tasks.get(which.kind)
        options: Any = which.options
        return (await operations.enqueue(which.kind, which.payload, **options)).job
    return await operations.get(which if isinstance(which, str) else which.id)


def _why(job: Job, clock: ManualClock | None) -> str:
    if job.finished:
        return f"it is {job.state} already"
    if job.state == "scheduled" and clock is None:
        return f"it is due at {job.due_at}; give the clock, so that time can move on"
    return f"it is {job.state} in the lane {job.lane!r}; is that paused, or held by somebody?"
