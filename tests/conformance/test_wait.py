"""Waiting for the end of a job, or for a timeout, which does not affect the job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast import Done, Failed, InvalidInput, JobNotFound, Queue, Released, Unavailable, WaitTimeout
from tests.support.clock import ManualClock
from tests.support.job_states import FAILS, FINISHED, UNFINISHED, State, blocked_pair, claimed, job_in, start
from tests.support.stores import Harness

pytestmark = pytest.mark.in_memory

# Only a failing test reaches this timeout.
PATIENCE = 60


class TestWait:
    @pytest.mark.parametrize("state", FINISHED)
    def test_a_job_that_has_ended_is_returned_at_once(self, queue: Queue, state: State) -> None:
        job = job_in(queue, state)

        assert queue.wait(job.id, timeout=0) == job

    @pytest.mark.parametrize("timeout", [0, 0.03])
    @pytest.mark.parametrize("state", UNFINISHED)
    def test_a_timeout_does_not_affect_the_job(self, queue: Queue, state: State, timeout: float) -> None:
        job = job_in(queue, state)

        with pytest.raises(WaitTimeout) as timed_out:
            queue.wait(job.id, timeout=timeout)

        assert timed_out.value.job_id == job.id
        assert isinstance(timed_out.value, TimeoutError)
        assert isinstance(timed_out.value, Unavailable)
        assert queue.get(job.id) == job

    def test_an_unknown_job_is_not_found(self, queue: Queue) -> None:
        with pytest.raises(JobNotFound):
            queue.wait("missing", timeout=PATIENCE)

    @pytest.mark.parametrize("timeout", [-1, float("nan"), "soon", None])
    def test_an_invalid_timeout_is_refused(self, queue: Queue, timeout: Any) -> None:
        with pytest.raises(InvalidInput) as refusal:
            queue.wait(queue.enqueue("a").id, timeout=timeout)
        assert refusal.value.field == "timeout"

    def test_a_retry_is_not_an_end(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("a").job)
        queue.settle(claim, Failed("x"))

        with pytest.raises(WaitTimeout):
            queue.wait(claim.job.id, timeout=0.03)

    def test_waiting_fails_a_job_whose_deadline_passed(self, queue: Queue, clock: ManualClock) -> None:
        job = queue.enqueue("a", deadline=10, lane="missing").job
        queue.lanes.set("missing", state="paused")
        clock.advance(11)

        ended = queue.wait(job.id, timeout=0)

        assert ended.state == "failed"
        assert ended.failure is not None
        assert (ended.failure.failure_class, ended.failure.reason) == ("permanent", "deadline_passed")

    def test_waiting_fails_a_blocked_job_whose_deadline_passed(self, queue: Queue, clock: ManualClock) -> None:
        first, second = blocked_pair(queue, deadline=10)
        clock.advance(11)

        assert queue.wait(second.id, timeout=0).state == "failed"
        assert queue.settle(first, Done()).state == "done"
        assert queue.get(second.id).state == "failed"

    def test_another_tenants_job_is_not_found(self, queue: Queue) -> None:
        job = job_in(queue, "done", tenant="a")

        with pytest.raises(JobNotFound):
            queue.wait(job.id, timeout=0, tenant="b")
        assert queue.wait(job.id, timeout=0, tenant="a") == job


class TestWhileWaiting:
    """One thread waits while another ends the job through a separate client."""

    @pytest.mark.parametrize("way", ["settled", "failed", "cancelled", "forced", "retired", "deadline", "successor"])
    def test_the_end_is_noticed(self, harness: Harness, clock: ManualClock, way: str) -> None:
        waiter, other = harness.open(), harness.open()
        job_id, end, state = _prepare(other, clock, way)

        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(waiter.wait, job_id, timeout=PATIENCE)
            end()
            assert waiting.result().state == state

    def test_the_end_wakes_all_waiting_callers(self, harness: Harness) -> None:
        queue = harness.open()
        claim = start(queue, queue.enqueue("a").job)

        with ThreadPoolExecutor(4) as threads:
            waiting = [threads.submit(queue.wait, claim.job.id, timeout=PATIENCE) for _ in range(4)]
            ended = queue.settle(claim, Done({"n": 1}))
            assert [each.result() for each in waiting] == [ended] * 4

    def test_it_waits_through_retries(self, harness: Harness) -> None:
        queue = harness.open()
        job = queue.enqueue("a").job

        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(queue.wait, job.id, timeout=PATIENCE)
            for outcome in (Released(), Failed("x", retry_after=0), Done()):
                queue.settle(start(queue, job), outcome)
            assert waiting.result().state == "done"

    def test_a_job_deleted_during_the_wait_is_not_found(self, harness: Harness, clock: ManualClock) -> None:
        queue = harness.open()
        job = queue.enqueue("a").job

        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(queue.wait, job.id, timeout=PATIENCE)
            with queue.transaction() as transaction:
                transaction.cancel(job.id)
            clock.advance(10)
            queue.admin.prune(older_than=1)
            # It may have seen the end, but it must not wait for a deleted job.
            error = waiting.exception()
            assert isinstance(error, JobNotFound) if error else waiting.result().state == "cancelled"


def _prepare(queue: Queue, clock: ManualClock, way: str) -> tuple[str, Callable[[], object], str]:
    """Return an unfinished job, a function that ends it, and the resulting state."""
    job_id = queue.enqueue("a", deadline=3600).id
    if way == "successor":
        first, second = blocked_pair(queue)
        return second.id, lambda: (queue.settle(first, Done()), queue.cancel(second.id)), "cancelled"
    if way in {"settled", "failed", "forced"}:
        claim = claimed(queue)
    ends: dict[str, tuple[Callable[[], object], str]] = {
        "settled": (lambda: queue.settle(claim, Done()), "done"),
        "failed": (lambda: queue.settle(claim, FAILS), "failed"),
        "cancelled": (lambda: queue.cancel(job_id), "cancelled"),
        "forced": (lambda: queue.cancel(job_id, force=True), "cancelled"),
        "retired": (lambda: queue.kinds.retire("a"), "retired"),
        "deadline": (lambda: clock.advance(3601), "failed"),
    }
    return job_id, *ends[way]


class TestAwaiting:
    def test_an_async_wait_returns_a_job_that_ends(self, harness: Harness) -> None:
        assert asyncio.run(_settled_while_awaited(harness)) == ("done", {"n": 1})

    def test_an_async_timeout_does_not_block_the_loop(self, harness: Harness) -> None:
        assert asyncio.run(_timed_out_beside_a_counter(harness)) > 1


async def _settled_while_awaited(harness: Harness) -> tuple[str, Any]:
    async with harness.open_async() as queue:
        enqueued = await queue.enqueue("a")
        waiting = asyncio.create_task(queue.wait(enqueued.id, timeout=PATIENCE))
        # One iteration of the loop: the wait is in progress when the job ends.
        await asyncio.sleep(0)
        claim = await queue.claim()
        assert claim is not None
        await queue.settle(claim, Done({"n": 1}))
        job = await waiting
        return job.state, job.result


async def _timed_out_beside_a_counter(harness: Harness) -> int:
    async with harness.open_async() as queue:
        enqueued = await queue.enqueue("a")
        waiting = asyncio.create_task(queue.wait(enqueued.id, timeout=0.1))
        turns = 0
        while not waiting.done():
            await asyncio.sleep(0.005)
            turns += 1
        with pytest.raises(WaitTimeout):
            waiting.result()
        return turns
