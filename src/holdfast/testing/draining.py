"""Running jobs in a test: all that there are, or one of them, until nothing is left to wait for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, Unpack

from holdfast.client.queue import Queue
from holdfast.domain import checks, limits
from holdfast.domain.admission import NewJob
from holdfast.domain.checks import Duration
from holdfast.domain.claim import Claim, ClaimOptions
from holdfast.domain.errors import Misconfigured
from holdfast.domain.job import Job
from holdfast.domain.outcome import Released
from holdfast.domain.records import Enqueued
from holdfast.runtime.subscription import Subscription
from holdfast.runtime.worker import Worker
from holdfast.stores.drivers import drive, drive_async
from holdfast.stores.script import Procedure, read
from holdfast.stores.scripts.backlog import seconds_to_due
from holdfast.testing.clock import ManualClock
from holdfast.testing.inline import InlineAttempt, Ran
from holdfast.testing.redirecting import AnyQueue

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
    `connect`, time moves on to the next job that falls due, by *horizon* at most, until none is left. What a handler
    raises is raised here once its attempt is settled, unless `raises=False`; outcomes it asks for are not. More than
    *attempts_max* attempts mean that it would never end, and raise `AssertionError`.
    """
    draining = _Draining(queue, words, clock, horizon, attempts_max)
    while (claim := drive(draining.next(), queue.store)) is not None:
        inline = InlineAttempt(queue, claim)
        inline.run()
        draining.note(drive(inline.settle(), queue.store), raises=raises)
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
    draining = _Draining(queue, words, clock, horizon, attempts_max)
    while (claim := await drive_async(draining.next(), queue.store)) is not None:
        inline = InlineAttempt(queue, claim)
        await inline.run_async()
        draining.note(await drive_async(inline.settle(), queue.store), raises=raises)
    return Drained(tuple(draining.ran))


def run_job(queue: Queue, job: WhichJob, *, clock: ManualClock | None = None, raises: bool = True) -> Job:
    """Run one attempt of one job, before all others, and return the job as it leaves it.

    *job* is a call as `task.new(…)` gives it, which is enqueued first, or a job that was. One that is not due yet
    needs the *clock*, which then moves on. What the handler raises is raised here, as by `drain`.
    """
    inline = InlineAttempt(queue, drive(_claim_one(queue, job, clock), queue.store))
    inline.run()
    return _raised(drive(inline.settle(), queue.store), raises=raises)


async def run_job_async(
    queue: AnyQueue, job: WhichJob, *, clock: ManualClock | None = None, raises: bool = True
) -> Job:
    """Do as `run_job` does, in a running event loop."""
    inline = InlineAttempt(queue, await drive_async(_claim_one(queue, job, clock), queue.store))
    await inline.run_async()
    return _raised(await drive_async(inline.settle(), queue.store), raises=raises)


def _raised(ran: Ran, *, raises: bool) -> Job:
    if raises:
        ran.raise_defect()
    return ran.job


class _Draining:
    """Which job comes next, and how far time has moved for it."""

    def __init__(
        self,
        queue: AnyQueue,
        words: ClaimOptions,
        clock: ManualClock | None,
        horizon: Duration | None,
        attempts_max: int,
    ) -> None:
        if horizon is not None and clock is None:
            raise Misconfigured("a horizon needs the clock that is to be moved: drain(queue, clock=clock, horizon=…)")
        self.ran: list[Ran] = []
        self._operations = queue.operations
        self._words = _words(queue, words)
        self._clock = clock
        self._left_ms = math.inf if horizon is None else checks.duration_ms(horizon, "horizon")
        self._attempts_max = attempts_max

    def next(self) -> Procedure[Claim | None]:
        """Claim the next job, moving time on to it if need be."""
        while (claim := (yield from self._operations.claim(**self._words))) is None:
            if not (yield from self._move_on()):
                return None
        if len(self.ran) >= self._attempts_max:
            raise AssertionError(
                f"{self._attempts_max} attempts were run and there is still work, the next is {claim.job!r}; "
                "does a job enqueue itself again? Give a horizon, or a larger attempts_max"
            )
        return claim

    def _move_on(self) -> Procedure[bool]:
        """Let time pass until the next job falls due; tell whether there is one within reach."""
        if self._clock is None:
            return False
        seconds = yield from read(seconds_to_due)
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


def _words(queue: AnyQueue, words: ClaimOptions) -> ClaimOptions:
    """Return the words of the claims that a worker would send."""
    worker = Worker(queue, **words)
    named: ClaimOptions = {**words, "worker": worker.name, "incarnation": worker.incarnation}
    return Subscription(queue.tasks, named).words()


def _claim_one(queue: AnyQueue, which: WhichJob, clock: ManualClock | None) -> Procedure[Claim]:
    """Claim one job and no other, as a worker with all that it requires would."""
    operations = queue.operations
    job = yield from _find(queue, which)
    if job.finished:
        raise AssertionError(f"{job!r} cannot be claimed: {_why(job, clock)}")
    if clock is not None and job.due_at > clock.moment:
        clock.travel_to(job.due_at)
    # Nothing may stand before it; what it was is put back at once.
    yield from operations.reprioritize(job.id, limits.PRIORITY_MAX)
    claim = yield from operations.claim(
        kinds=[job.kind], lanes=[job.lane], tenant=job.tenant, capabilities=job.requires
    )
    if claim is not None and claim.job.id != job.id:
        yield from operations.settle(claim, _RELEASED)
        claim = None
    now = yield from operations.get(job.id)
    if not now.finished:
        yield from operations.reprioritize(job.id, job.priority)
    if claim is None:
        raise AssertionError(f"{now!r} cannot be claimed: {_why(now, clock)}")
    return Claim(claim.job._replace(priority=job.priority), claim.lease_ms)


def _find(queue: AnyQueue, which: WhichJob) -> Procedure[Job]:
    if isinstance(which, NewJob):
        queue.tasks.get(which.kind)
        options: Any = which.options
        return (yield from queue.operations.enqueue(which.kind, which.payload, **options)).job
    return (yield from queue.operations.get(which if isinstance(which, str) else which.id))


def _why(job: Job, clock: ManualClock | None) -> str:
    if job.finished:
        return f"it is {job.state} already"
    if job.state == "scheduled" and clock is None:
        return f"it is due at {job.due_at}; give the clock, so that time can move on"
    return f"it is {job.state} in the lane {job.lane!r}; is that paused, or held by somebody?"
