"""Requests that arrive while others run are carried out together: one transaction and one statement for many."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from holdfast.client.async_api.enqueued import AsyncEnqueued
from holdfast.client.async_api.queue import AsyncQueue
from holdfast.domain import errors
from holdfast.domain.claims import Claim
from holdfast.domain.job import Job
from holdfast.domain.new_job import NewJob
from holdfast.operations import access as access_operations
from holdfast.storage import runners

Item = TypeVar("Item")
Answer = TypeVar("Answer")

TOGETHER_MAX: Final = 100
# A batch begins when no call has arrived in so many rounds of the event loop. After a batch, its answers are sent in
# the first round; in the second the next requests of its clients are read, which call in the third. An idle loop
# makes a round in microseconds. A call that no other has joined yet probably has no company.
_ROUNDS: Final = 4
_ROUNDS_ALONE: Final = 2
# As many of them are within the limit of one claim.
_CLAIM_MAX: Final = 10
# Options of a job that concern no other job and read nothing. Others are enqueued alone: they may wait for a key.
_OWN_OPTIONS: Final = frozenset(
    ("lane", "tenant", "priority", "tags", "headers", "max_attempts", "backoff", "requires", "affinity", "job_id")
)
# Options that select jobs regardless of which claims went before.
_PLAIN_CLAIM: Final = frozenset(
    ("worker", "incarnation", "lanes", "kinds", "tenant", "capabilities", "lease", "acknowledged")
)


class Combiner(Generic[Item, Answer]):
    """Carries out calls with the same key one batch at a time; those that arrive during a batch are the next one.

    A batch begins when all requests that have arrived were read. So a call never waits for others to be sent, and the
    more there are at once, the less each of them costs.
    """

    def __init__(self, run: Callable[[Sequence[Item]], Awaitable[Sequence[Answer | errors.HoldfastError]]]) -> None:
        self._run = run
        self._waiting: dict[Hashable, list[tuple[Item, asyncio.Future[Answer]]]] = {}
        # The event loop keeps only weak references to its tasks.
        self._tasks: set[asyncio.Task[None]] = set()

    def call(self, item: Item, key: Hashable = None) -> asyncio.Future[Answer]:
        """Return the future answer to *item*, or its error.

        It is not carried out if the future is cancelled before its batch begins.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.append((item, future))
        else:
            self._waiting[key] = [(item, future)]
            task = loop.create_task(self._run_waiting(key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return future

    async def _run_waiting(self, key: Hashable) -> None:
        while waiting := self._waiting[key]:
            await _gather(waiting)
            batch, self._waiting[key] = waiting[:TOGETHER_MAX], waiting[TOGETHER_MAX:]
            if batch := [one for one in batch if not one[1].done()]:
                await self._run_batch(batch)
        del self._waiting[key]

    async def _run_batch(self, batch: Sequence[tuple[Item, Any]]) -> None:
        answers: Sequence[Any]
        try:
            answers = await self._run([item for item, _ in batch])
        except errors.Unavailable as error:
            # None of them would fare better alone.
            answers = [error] * len(batch)
        except Exception as error:  # one of them was refused, or has an error of ours
            if len(batch) > 1:
                await asyncio.gather(*(self._run_batch([one]) for one in batch))
                return
            answers = [error]
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)


async def _gather(waiting: Sequence[object]) -> None:
    """Return when *waiting* has not grown for a few rounds of the event loop, or is as long as a batch may be."""
    count, idle = len(waiting), 0
    while idle < (_ROUNDS if count > 1 else _ROUNDS_ALONE) and count < TOGETHER_MAX:
        await asyncio.sleep(0)
        idle = idle + 1 if len(waiting) == count else 0
        count = len(waiting)


class _ClaimCall(NamedTuple):
    limit: int
    options: dict[str, Any]


class CombinedCalls:
    """The calls that most requests make, each together with those that arrive at the same time."""

    def __init__(self, queue: AsyncQueue, runner: runners.AsyncRunner) -> None:
        self._queue = queue
        self._runner = runner
        self._enqueues: Combiner[NewJob, AsyncEnqueued[Any]] = Combiner(self._enqueue_all)
        self._claims: Combiner[_ClaimCall, list[Claim]] = Combiner(self._claim_all)
        self._settlements: Combiner[access_operations.HeldSettlement, Job] = Combiner(self._settle_all)
        self._reads: Combiner[str, Job] = Combiner(self._read_all)

    # These are no coroutines, which would take part in each wake-up of a request.

    def enqueue(self, new: NewJob) -> Awaitable[AsyncEnqueued[Any]]:
        """Enqueue one job."""
        if _OWN_OPTIONS.issuperset(new.options):
            return self._enqueues.call(new)
        return self._queue.enqueue(new)

    async def _enqueue_all(self, jobs: Sequence[NewJob]) -> list[AsyncEnqueued[Any]]:
        if len(jobs) == 1:
            return [await self._queue.enqueue(jobs[0])]
        return await self._queue.enqueue_many(jobs)

    def claim(self, actor: str, limit: int, options: dict[str, Any]) -> Awaitable[list[Claim]]:
        """Claim jobs. Equal claims of one worker under one token are one claim, and share its lease token.

        Lists among the options are tuples.
        """
        if limit > _CLAIM_MAX or not _PLAIN_CLAIM.issuperset(options):
            return self._queue.claim_many(limit=limit, **options)
        return self._claims.call(_ClaimCall(limit, options), (actor, *options, *options.values()))

    async def _claim_all(self, calls: Sequence[_ClaimCall]) -> list[list[Claim]]:
        claims = await self._queue.claim_many(limit=sum(call.limit for call in calls), **calls[0].options)
        answers, start = [], 0
        for call in calls:
            answers.append(claims[start : start + call.limit])
            start += call.limit
        return answers

    def settle(self, settlement: access_operations.HeldSettlement) -> Awaitable[Job]:
        """Record a plain success."""
        return self._settlements.call(settlement)

    async def _settle_all(
        self, settlements: Sequence[access_operations.HeldSettlement]
    ) -> list[Job | errors.HoldfastError]:
        return await self._runner.write(access_operations.settle_held, settlements)

    def job(self, job_id: str) -> Awaitable[Job]:
        """Return a job of any tenant, as it is after the call, or raise `JobNotFound`."""
        return self._reads.call(job_id)

    async def _read_all(self, job_ids: Sequence[str]) -> list[Job | errors.HoldfastError]:
        found = await self._runner.read(access_operations.jobs_by_id, job_ids)
        jobs = {job.id: job for job in found}
        return [jobs.get(job_id) or errors.JobNotFound(job_id) for job_id in job_ids]
