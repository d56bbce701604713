"""The async API: the same operations and results, without blocking the event loop.

Every store must pass this file unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from holdfast import (
    Artifact,
    AsyncQueue,
    AsyncTransaction,
    Claim,
    Conflict,
    Done,
    Failed,
    InvalidInput,
    JobNotFound,
    LeaseLost,
    NewJob,
    WaitTimeout,
)
from holdfast.errors import LaneDraining
from tests.support.assertions import duplicate
from tests.support.clock import ManualClock
from tests.support.stores import Harness

pytestmark = pytest.mark.in_memory

T = TypeVar("T")


def run(harness: Harness, scenario: Callable[[AsyncQueue], Awaitable[T]]) -> T:
    """Run *scenario* with an async client in a new event loop."""

    async def main() -> T:
        async with harness.open_async() as queue:
            return await scenario(queue)

    return asyncio.run(main())


async def must_claim(queue: AsyncQueue, **options: Any) -> Claim:
    claim = await queue.claim(**options)
    assert claim is not None
    return claim


async def turns() -> None:
    """Run all other tasks until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


class RollbackError(Exception):
    """Raised by the caller."""


@asynccontextmanager
async def rolled_back(queue: AsyncQueue) -> AsyncIterator[AsyncTransaction]:
    """Open a transaction whose block ends by raising."""
    with contextlib.suppress(RollbackError):
        async with queue.transaction() as tx:
            yield tx
            raise RollbackError


class TestJobs:
    def test_a_job_goes_from_enqueue_to_done(self, harness: Harness) -> None:
        async def scenario(queue: AsyncQueue) -> None:
            enqueued = await queue.enqueue("work", {"n": 2**70}, tags={"t": "1"}, events="all")
            assert (enqueued.created, await queue.get(enqueued.id)) == (True, enqueued.job)
            claim = await must_claim(queue, worker="w1")
            await queue.heartbeat(claim)
            await queue.progress(claim, phase="loading", percent=40)
            job = await queue.settle(claim, Done({"ok": True}, artifacts=[Artifact("report", b"bytes")]))
            assert (job.state, job.result, job.phase) == ("done", {"ok": True}, "loading")
            assert (await queue.artifact(enqueued.id, "report")).data == b"bytes"
            assert [attempt.outcome for attempt in await queue.attempts(enqueued.id)] == ["done"]
            assert [event.name for event in await queue.events()] == ["enqueued", "claimed", "done"]
            assert await queue.counts() == {"done": 1}

        run(harness, scenario)

    def test_many_keep_their_order_and_one_bad_one_refuses_all(self, harness: Harness) -> None:
        async def scenario(queue: AsyncQueue) -> None:
            enqueued = await queue.enqueue_many([NewJob("work", number) for number in range(50)])
            claims = await queue.claim_many(limit=50)
            assert [claim.job.id for claim in claims] == [answer.id for answer in enqueued]
            with pytest.raises(InvalidInput) as caught:
                await queue.enqueue_many([NewJob("work"), NewJob("work", b"x")])
            assert caught.value.field == "jobs[1].payload"
            assert await queue.counts() == {"running": 50}

        run(harness, scenario)

    def test_ids_and_keys_are_respected(self, harness: Harness) -> None:
        async def scenario(queue: AsyncQueue) -> None:
            first = await queue.enqueue("work", 1, job_id="a", dedupe_key="k")
            assert duplicate(await queue.enqueue("work", 1, job_id="a", dedupe_key="k")) == first.job
            with pytest.raises(Conflict):
                await queue.enqueue("work", 2, job_id="a", dedupe_key="k")
            assert (await queue.enqueue("work", 3, dedupe_key="k")).id == "a"
            claim = await must_claim(queue)
            successor = await queue.enqueue("work", 4, dedupe_key="k", on_duplicate="run_again")
            assert (successor.created, successor.job.state) == (True, "blocked")
            await queue.settle(claim, Failed("never", permanent=True))
            assert (await must_claim(queue)).job.id == successor.id

        run(harness, scenario)

    def test_refusals_are_the_same_errors(self, harness: Harness, clock: ManualClock) -> None:
        async def scenario(queue: AsyncQueue) -> None:
            with pytest.raises(JobNotFound):
                await queue.get("missing")
            await queue.lanes.set("mail", state="draining")
            with pytest.raises(LaneDraining):
                await queue.enqueue("work", lane="mail")
            await queue.enqueue("work")
            stale = await must_claim(queue, lease=10)
            clock.advance(11)
            with pytest.raises(LeaseLost):
                await queue.settle(stale, Done())

        run(harness, scenario)

    def test_many_tasks_share_one_queue_and_no_job_is_claimed_twice(self, harness: Harness) -> None:
        async def scenario(queue: AsyncQueue) -> None:
            await asyncio.gather(*(queue.enqueue("work", number) for number in range(20)))
            claims = await asyncio.gather(*(queue.claim() for _ in range(25)))
            taken = [claim for claim in claims if claim is not None]
            assert sorted(claim.job.payload for claim in taken) == list(range(20))
            await asyncio.gather(*(queue.settle(claim, Done()) for claim in taken))
            assert await queue.counts() == {"done": 20}

        run(harness, scenario)


class TestTransactions:
    def test_a_commit_stores_everything_and_a_rollback_nothing(self, harness: Harness) -> None:
        async def scenario(queue: AsyncQueue) -> None:
            async with queue.transaction() as tx:
                await tx.execute("create table orders (id integer primary key, note text)")
                await tx.execute("insert into orders values (1, 'tea')")
                await tx.enqueue("ship", job_id="kept", events="all")
            async with rolled_back(queue) as tx:
                await tx.execute("insert into orders values (2, 'coffee')")
                await tx.enqueue("ship", job_id="lost", events="all")
            async with queue.transaction() as tx:
                rows = await tx.execute("select note from orders order by id")
            assert [row[0] for row in rows] == ["tea"]
            assert [job.id for job in await queue.jobs()] == ["kept"]
            assert [event.job_id for event in await queue.events()] == ["kept"]

        run(harness, scenario)

    def test_a_refusal_inside_stores_nothing_and_the_transaction_continues(self, harness: Harness) -> None:
        async def scenario(queue: AsyncQueue) -> None:
            await queue.enqueue("ship", 1, job_id="taken")
            async with queue.transaction() as tx:
                with pytest.raises(Conflict):
                    await tx.enqueue_many([NewJob("ship", job_id="lost"), NewJob("ship", 2, job_id="taken")])
                await tx.enqueue("ship", job_id="after")
            assert sorted(job.id for job in await queue.jobs()) == ["after", "taken"]

        run(harness, scenario)

    def test_a_settle_rolled_back_leaves_the_job_running_and_settleable(self, harness: Harness) -> None:
        async def scenario(queue: AsyncQueue) -> None:
            await queue.enqueue("ship", job_id="a")
            claim = await must_claim(queue)
            async with rolled_back(queue) as tx:
                await tx.settle(claim, Done(1, follow_ups=[NewJob("next")]))
            assert await queue.get("a") == claim.job
            assert (await queue.settle(claim, Done(2))).result == 2
            assert await queue.counts() == {"done": 1}

        run(harness, scenario)


class TestCancellation:
    def test_a_cancelled_task_rolls_its_transaction_back(self, harness: Harness) -> None:
        async def scenario(queue: AsyncQueue) -> None:
            entered = asyncio.Event()

            async def hang() -> None:
                async with queue.transaction() as tx:
                    await tx.enqueue("ship")
                    entered.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(hang())
            await entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await queue.counts() == {}
            assert (await queue.enqueue("ship")).created

        run(harness, scenario)

    def test_a_call_cancelled_before_a_thread_started_it_blocks_no_other(self, harness: Harness) -> None:
        async def scenario() -> bool:
            # One busy thread: work that the store passes to threads stays queued.
            loop, free = asyncio.get_running_loop(), threading.Event()
            loop.set_default_executor(ThreadPoolExecutor(1))
            queue = harness.open_async()
            await queue.enqueue("work")
            busy = loop.run_in_executor(None, free.wait)
            task = asyncio.create_task(queue.enqueue("work"))
            await turns()
            task.cancel()
            await turns()
            free.set()
            await asyncio.gather(busy, task, return_exceptions=True)
            enqueued = await asyncio.wait_for(queue.enqueue("work"), 10)
            # Only if the call succeeded: closing waits for calls in progress.
            await queue.close()
            return enqueued.created

        assert asyncio.run(scenario())


class TestWaiting:
    def test_a_waiting_task_gets_the_finished_job(self, harness: Harness) -> None:
        async def scenario(queue: AsyncQueue) -> None:
            await queue.enqueue("work", job_id="a")
            claim = await must_claim(queue)
            waiter = asyncio.create_task(queue.wait("a", timeout=30))
            await queue.settle(claim, Done("ready"))
            assert (await waiter).result == "ready"

        run(harness, scenario)

    def test_a_job_that_does_not_finish_times_out(self, harness: Harness) -> None:
        async def scenario(queue: AsyncQueue) -> None:
            enqueued = await queue.enqueue("work")
            with pytest.raises(WaitTimeout):
                await queue.wait(enqueued.id, timeout=0.05)
            assert (await queue.get(enqueued.id)).state == "ready"

        run(harness, scenario)


class TestLife:
    def test_a_queue_serves_one_event_loop_after_another(self, harness: Harness) -> None:
        queue = harness.open_async()
        enqueued = asyncio.run(queue.enqueue("work"))
        assert asyncio.run(queue.get(enqueued.id)) == enqueued.job
        asyncio.run(queue.close())
