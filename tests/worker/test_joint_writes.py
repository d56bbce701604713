"""A worker's `local_queue`: what it writes is committed together with a claim if the worker waits for jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from holdfast import AsyncQueue, Conflict, OutcomeUnknown, Unavailable, WarmResources
from holdfast.errors import LaneDraining
from holdfast.worker.worker import Worker
from tests.chaos.processes import PATIENCE_SECONDS
from tests.support.faults import Faults
from tests.support.stores import Harness
from tests.worker.workers import Outage

# A worker is idle shortly after its last job, but for the moments in which it looks for jobs, once a second.
TRIES = 30
IDLE_SECONDS = 0.03
# A claim that finds fewer jobs than it may looks for due ones twice.
CLAIM_LOOKS = 2
STORES, CLAIMS = ("job_insert",), ("claim_header", "plain_guard", "ready_", "job_claim", "plain_claim", "claim_")


class Ran:
    """A task that records its jobs, and may be held up."""

    def __init__(self, queue: AsyncQueue) -> None:
        self.keys: list[str] = []
        self.may_end = asyncio.Event()
        self.may_end.set()
        queue.task("run")(self._run)

    async def _run(self, key: str) -> None:
        self.keys.append(key)
        await self.may_end.wait()


@asynccontextmanager
async def serving(worker: Worker) -> AsyncIterator[AsyncQueue]:
    """Run a worker in this event loop for a block, and give its queue when it is idle."""
    served = asyncio.ensure_future(worker.serve())
    local = worker.local_queue
    try:
        await comes(lambda: worker.status().loaded is not None)
        await run(local, "first")
        yield local
    finally:
        worker.stop()
        with suppress(Conflict):
            await asyncio.wait_for(served, PATIENCE_SECONDS)


@asynccontextmanager
async def served(harness: Harness) -> AsyncIterator[tuple[AsyncQueue, Ran, AsyncQueue]]:
    """Run a worker for a block; give a queue of its store, its task, and its own queue when it is idle."""
    async with harness.open_async() as queue:
        ran = Ran(queue)
        async with serving(Worker(queue)) as local:
            yield queue, ran, local


async def run(queue: AsyncQueue, key: str) -> None:
    """Enqueue a job and wait until it is done."""
    enqueued = await queue.enqueue("run", {"key": key})
    assert (await queue.wait(enqueued.id, timeout=PATIENCE_SECONDS)).state == "done"


async def comes(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110  # nothing sets an event
            await asyncio.sleep(0.005)


def is_joint(faults: Faults) -> bool:
    """Return whether a transaction has stored a job and looked for jobs."""
    transactions = [one.partition("commit")[0] for one in " ".join(faults.seen).split("begin")]
    return any(any(name in one for name in STORES) and any(name in one for name in CLAIMS) for one in transactions)


async def until_joint(harness: Harness, local: AsyncQueue) -> int:
    """Enqueue jobs until one was claimed in the transaction that has stored it; return how many."""
    for number in range(TRIES):
        await asyncio.sleep(IDLE_SECONDS)
        harness.faults.seen.clear()
        await run(local, str(number))
        if is_joint(harness.faults):
            return number + 1
    pytest.fail(f"no job was claimed in the transaction that stored it, at last {harness.faults.seen}")


def test_a_job_that_finds_the_worker_idle_is_claimed_in_the_commit_that_stores_it(harness: Harness) -> None:
    async def test() -> None:
        async with harness.open_async() as queue:
            ran = Ran(queue)
            async with serving(Worker(queue, exclusive=True, warm=WarmResources())) as local:
                count = await until_joint(harness, local)
            assert ran.keys == ["first", *map(str, range(count))]

    asyncio.run(test())


def test_a_job_that_was_claimed_in_the_commit_that_stores_it_causes_no_further_claim(harness: Harness) -> None:
    def claims(faults: Faults) -> int:
        return sum(name in {"claim_header", "plain_guard"} for name in faults.seen)

    async def test() -> None:
        async with harness.open_async() as queue:
            ran = Ran(queue)
            # A notification would make it claim for its other slot.
            async with serving(Worker(queue, exclusive=True, warm=WarmResources(), concurrency=2)) as local:
                for number in range(TRIES):
                    await asyncio.sleep(IDLE_SECONDS)
                    harness.faults.seen.clear()
                    ran.may_end.clear()
                    await local.enqueue("run", {"key": str(number)})
                    joint = is_joint(harness.faults)
                    await comes(lambda: str(number) in ran.keys)  # noqa: B023
                    # What a notification causes is done once others have had their turn.
                    await asyncio.sleep(IDLE_SECONDS)
                    claimed = claims(harness.faults)
                    ran.may_end.set()
                    if joint and claimed <= CLAIM_LOOKS:
                        return
                pytest.fail(f"a claim follows each commit, at last {harness.faults.seen}")

    asyncio.run(test())


def test_a_job_that_finds_the_worker_busy_is_only_stored(harness: Harness) -> None:
    async def test() -> None:
        async with harness.open_async() as queue:
            ran = Ran(queue)
            async with serving(Worker(queue, concurrency=1)) as local:
                ran.may_end.clear()
                await local.enqueue("run", {"key": "long"})
                await comes(lambda: "long" in ran.keys)
                harness.faults.seen.clear()
                enqueued = await local.enqueue("run", {"key": "next"})
                assert not is_joint(harness.faults)
                assert (await queue.get(enqueued.id)).state == "ready"
                ran.may_end.set()
                assert (await queue.wait(enqueued.id, timeout=PATIENCE_SECONDS)).state == "done"

    asyncio.run(test())


def test_a_refused_write_is_refused_and_the_worker_goes_on(harness: Harness) -> None:
    async def test() -> None:
        async with harness.open_async() as queue:
            ran = Ran(queue)
            await queue.lanes.set("closed", state="draining")
            async with serving(Worker(queue)) as local:
                for _ in range(3):
                    with pytest.raises(LaneDraining):
                        await local.enqueue("run", {"key": "refused"}, lane="closed")
                await until_joint(harness, local)
            assert "refused" not in ran.keys

    asyncio.run(test())


def test_a_superseded_worker_still_stores_jobs(harness: Harness) -> None:
    async def test() -> None:
        async with harness.open_async() as queue:
            Ran(queue)
            async with serving(Worker(queue, exclusive=True, worker="one")) as local:
                await queue.claim(kinds=["other"], worker="one", incarnation="later", exclusive=True)
                enqueued = await local.enqueue("run", {"key": "left"})
                assert (await queue.get(enqueued.id)).state == "ready"

    asyncio.run(test())


def test_a_caller_learns_that_the_store_does_not_answer_and_the_worker_goes_on(harness: Harness) -> None:
    outage = Outage(harness)

    async def test() -> None:
        async with served(harness) as (_, ran, local):
            for _ in range(3):
                with outage, pytest.raises(Unavailable):
                    await local.enqueue("run", {"key": "lost"})
            await run(local, "last")
        assert ran.keys == ["first", "last"]

    asyncio.run(test())


def test_a_job_whose_commit_was_not_confirmed_runs_once(harness: Harness) -> None:
    outage = Outage(harness)

    async def test() -> None:
        async with served(harness) as (queue, ran, local):
            await until_joint(harness, local)
            outage.lose_answers(1)
            with suppress(OutcomeUnknown):
                await local.enqueue("run", {"key": "unknown"}, job_id="unknown")
            await comes(lambda: "unknown" in ran.keys)
            again = await local.enqueue("run", {"key": "unknown"}, job_id="unknown")
            assert not again.created
            ended = await queue.wait("unknown", timeout=PATIENCE_SECONDS)
            assert (ended.state, ended.attempt) == ("done", 1)
        assert ran.keys.count("unknown") == 1

    asyncio.run(test())


def test_the_job_of_a_cancelled_caller_is_stored_and_runs(harness: Harness) -> None:
    async def is_stored_without_its_caller(local: AsyncQueue, key: str) -> bool:
        await asyncio.sleep(IDLE_SECONDS)
        caller = asyncio.ensure_future(local.enqueue("run", {"key": key}, job_id=key))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        caller.cancel()
        with suppress(asyncio.CancelledError):
            await caller
        await run(local, f"after {key}")
        return any(job.id == key for job in await local.jobs())

    async def test() -> None:
        async with served(harness) as (_, ran, local):
            for number in range(TRIES):
                # If the worker was not idle, the call was cancelled before it began.
                if await is_stored_without_its_caller(local, str(number)):
                    break
            await comes(lambda: str(number) in ran.keys)
            await run(local, "last")
        assert ran.keys.count(str(number)) == 1

    asyncio.run(test())


def test_a_queue_of_another_event_loop_or_of_no_running_worker_only_stores(harness: Harness) -> None:
    async def stores_jointly(local: AsyncQueue, key: str) -> bool:
        harness.faults.seen.clear()
        await local.enqueue("run", {"key": key})
        return is_joint(harness.faults)

    async def test() -> None:
        async with harness.open_async() as queue:
            Ran(queue)
            worker = Worker(queue)
            assert not await stores_jointly(worker.local_queue, "before")
            joint = []
            async with serving(worker) as local:
                for number in range(5):
                    await asyncio.sleep(IDLE_SECONDS)
                    joint.append(await asyncio.to_thread(asyncio.run, stores_jointly(local, f"elsewhere {number}")))
                await run(local, "here")
            # A group commit may join one of them with a claim that the worker makes at that moment.
            assert sum(joint) <= 1
            assert not await stores_jointly(worker.local_queue, "after")
            assert await queue.counts() == {"done": 8, "ready": 1}

    asyncio.run(test())
