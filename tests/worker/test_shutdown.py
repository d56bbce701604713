"""Shutdown: the worker waits for running handlers and releases the remaining jobs without using an attempt."""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import Any

import pytest

from holdfast import Context, NewJob, Queue, Worker
from holdfast.client.queue_state import state_of
from holdfast.worker.status import WorkerMetrics
from tests.chaos.threads import wait_until
from tests.support.stores import Harness
from tests.worker.timers import MovableTimer
from tests.worker.workers import Outage, comes, in_state, running_worker, wait_finished, wait_for_event

COLOURS = pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaited"])


class Slow:
    """A task whose handlers run until the test releases them; they may stop on request or ignore it."""

    def __init__(self, queue: Queue, *, awaited: bool, obeys: bool = True) -> None:
        self.started, self.proceed = threading.Event(), threading.Event()
        self.reason: str | None = None
        self.obeys = obeys
        queue.task("slow")(self._awaited() if awaited else self._blocking())

    def _blocking(self) -> Any:
        def slow(context: Context) -> str:
            self.started.set()
            while not self.proceed.wait(0.005):
                self.reason = context.stop_reason
                if self.obeys:
                    context.raise_if_cancelled()
            return "finished"

        return slow

    def _awaited(self) -> Any:
        async def slow(context: Context) -> str:
            self.started.set()
            while not self.proceed.is_set():
                try:
                    await comes(self.proceed)
                except asyncio.CancelledError:
                    self.reason = context.stop_reason
                    if self.obeys:
                        raise
            return "finished"

        return slow


@COLOURS
def test_a_graceful_stop_waits_for_what_runs_and_takes_no_more(queue: Queue, awaited: bool) -> None:
    slow = Slow(queue, awaited=awaited)
    enqueued = [queue.enqueue("slow", {}) for _ in range(3)]
    with running_worker(queue, concurrency=1) as working:
        wait_for_event(slow.started)
        working.worker.stop()
        wait_until(lambda: working.worker.status().stopping)
        slow.proceed.set()
        working.end()

    assert [queue.get(one.id).state for one in enqueued] == ["done", "ready", "ready"]
    assert queue.get(enqueued[0].id).result == "finished"
    assert [queue.get(one.id).attempt for one in enqueued] == [1, 0, 0]


@COLOURS
def test_what_outlasts_the_grace_period_is_released_without_spending_its_attempt(queue: Queue, awaited: bool) -> None:
    slow = Slow(queue, awaited=awaited)
    enqueued = queue.enqueue("slow", {})
    with running_worker(queue, grace=0.05) as working:
        wait_for_event(slow.started)
        working.worker.stop()
        working.end()

    job = queue.get(enqueued.id)
    assert slow.reason == "shutdown"
    assert (job.state, job.attempt, job.epoch) == ("ready", 0, 1)
    assert working.worker.status().ended == {"released": 1}


@COLOURS
def test_a_second_stop_does_not_wait_for_the_grace_period(queue: Queue, awaited: bool) -> None:
    slow = Slow(queue, awaited=awaited)
    enqueued = queue.enqueue("slow", {})
    with running_worker(queue, grace=3600) as working:
        wait_for_event(slow.started)
        working.worker.stop()
        working.worker.stop()
        working.end()

    assert (queue.get(enqueued.id).state, queue.get(enqueued.id).attempt) == ("ready", 0)


@COLOURS
def test_handlers_that_do_not_heed_keep_no_worker_up(queue: Queue, awaited: bool) -> None:
    slow = Slow(queue, awaited=awaited, obeys=False)
    enqueued = queue.enqueue("slow", {})
    timer = MovableTimer()
    with running_worker(queue, grace=0, timer=timer) as working:
        wait_for_event(slow.started)
        working.worker.stop()
        wait_until(lambda: slow.reason == "shutdown")
        timer.advance(1)
        in_state(queue, enqueued.id, "ready")
        if awaited:
            # Only a handler that never suspends can keep an event loop from closing.
            slow.obeys = True
        working.end()
        slow.proceed.set()

    assert queue.get(enqueued.id).attempt == 0


def test_a_handler_that_cleans_up_for_longer_than_it_is_given_does_not_hang_the_worker(queue: Queue) -> None:
    started, cleaning = threading.Event(), threading.Event()

    @queue.task("tidy")
    async def tidy() -> None:
        started.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cleaning.set()
            await asyncio.sleep(3600)

    enqueued = tidy.enqueue()
    with running_worker(queue, grace=0) as working:
        wait_for_event(started)
        working.worker.stop()
        wait_for_event(cleaning)
        working.end()

    assert (queue.get(enqueued.id).state, queue.get(enqueued.id).attempt) == ("ready", 0)


@COLOURS
def test_a_handler_that_ends_in_the_grace_period_is_done(queue: Queue, awaited: bool) -> None:
    slow = Slow(queue, awaited=awaited)
    enqueued = queue.enqueue("slow", {})
    with running_worker(queue, grace=60) as working:
        wait_for_event(slow.started)
        working.worker.stop()
        slow.proceed.set()
        working.end()

    assert queue.get(enqueued.id).state == "done"


def test_a_worker_told_to_stop_before_it_starts_takes_nothing(queue: Queue) -> None:
    queue.task("note")(lambda: None)
    queue.enqueue("note", {})
    with running_worker(queue) as first:
        first.worker.stop()
        first.end()
    with running_worker(queue) as second:
        wait_until(lambda: queue.counts() == {"done": 1})
        second.worker.stop()
        second.end()


def test_a_claim_whose_answer_was_lost_is_not_left_to_expire(harness: Harness) -> None:
    outage = Outage(harness)
    queue = harness.open()
    queue.task("note")(lambda: None)
    with running_worker(queue) as working:
        wait_until(lambda: len(queue.admin.workers()) == 1)
        enqueued = queue.enqueue("note", {}, delay=10)
        outage.lose_answers(1)
        harness.clock.advance(10)
        wait_until(lambda: outage.answers_lost)
        # It may have been the answer to another call.
        wait_until(lambda: queue.get(enqueued.id).state != "scheduled")
        working.worker.stop()
        working.end()

    job = queue.get(enqueued.id)
    assert job.state in {"ready", "done"}
    assert (job.state, job.attempt) in {("ready", 0), ("done", 1)}


@pytest.mark.slow("many jobs run, or a store is away for a while")
def test_a_store_that_is_away_for_a_while_costs_no_attempt(harness: Harness) -> None:
    outage = Outage(harness)
    queue = harness.open()

    @queue.task("note")
    async def note(number: int) -> int:
        await asyncio.sleep(0.001)
        return number

    jobs = queue.enqueue_many([NewJob("note", {"number": number}) for number in range(500)])
    with running_worker(queue, concurrency=10) as working:
        wait_until(lambda: working.worker.status().ended.get("done", 0) > 20)
        with outage:
            outage.wait_struck(3)
        outage.lose_answers(3)
        wait_until(lambda: working.worker.status().ended == {"done": 500})

    found = [queue.get(enqueued.id) for enqueued in jobs]
    assert {(job.state, job.attempt, job.epoch) for job in found} == {("done", 1, 1)}
    assert [job.result for job in found] == list(range(500))


@pytest.mark.slow("many jobs run, or a store is away for a while")
@pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaited"])
def test_ten_rolling_restarts_lose_nothing_and_spend_no_attempt(harness: Harness, awaited: bool) -> None:
    queue = harness.open()
    ran: list[int] = []

    def blocking(context: Context, number: int) -> None:
        context.wait_cancelled(0.002 if number % 25 else 0.3)
        context.raise_if_cancelled()
        ran.append(number)

    async def later(number: int) -> None:
        await asyncio.sleep(0.002 if number % 25 else 0.3)
        ran.append(number)

    queue.task("work")(later if awaited else blocking)
    jobs = queue.enqueue_many([NewJob("work", {"number": number}) for number in range(600)])
    for turn in range(10):
        with running_worker(queue, concurrency=8, grace=0.02 * (turn % 3)) as working:
            # A fast worker may leave nothing for the last turns.
            wait_until(lambda: sum(working.worker.status().ended.values()) > 20 or len(ran) == len(jobs))
            working.worker.stop()
            working.end()
    with running_worker(queue, concurrency=50):
        wait_until(lambda: queue.counts() == {"done": len(jobs)})

    found = [queue.get(enqueued.id) for enqueued in jobs]
    assert {job.attempt for job in found} == {1}
    assert any(job.releases for job in found), "no restart met a running handler"
    assert set(ran) == set(range(600))
    outcomes = {attempt.outcome for enqueued in jobs for attempt in queue.attempts(enqueued.id)}
    assert outcomes == {"done", "released"}


def test_a_worker_whose_store_is_away_ends_all_the_same(harness: Harness) -> None:
    outage = Outage(harness)
    queue = harness.open()
    slow = Slow(queue, awaited=False)
    enqueued = queue.enqueue("slow", {})
    with running_worker(queue, lease=600, concurrency=1) as working:
        wait_for_event(slow.started)
        with outage:
            slow.proceed.set()
            outage.wait_struck(2)
            working.worker.stop()
            working.worker.stop()
            working.end()
    # It could not be settled, so its lease expires.
    assert queue.get(enqueued.id).state == "running"


class HangingMetrics(WorkerMetrics):
    """Metrics whose `stop` does not return before `proceed` is set."""

    def __init__(self) -> None:
        self.stopping, self.proceed = threading.Event(), threading.Event()

    def stop(self) -> None:
        self.stopping.set()
        wait_for_event(self.proceed)


def test_a_worker_ends_though_its_metrics_do_not_stop(local_queue: Queue) -> None:
    metrics = HangingMetrics()
    timer = MovableTimer()
    local_queue.task("noop")(lambda: None)
    try:
        with running_worker(local_queue, metrics=metrics, timer=timer) as working:
            working.worker.stop()
            wait_for_event(metrics.stopping)

            def ends() -> bool:
                timer.advance(5)
                return working.future.done()

            wait_until(ends)
            working.end()
    finally:
        metrics.proceed.set()


class TestACancelledServe:
    """`await worker.serve()` is cancelled: by its task, by closing its event loop, by Ctrl-C under `asyncio.run`."""

    @COLOURS
    def test_lets_what_runs_come_to_its_end(self, local_queue: Queue, awaited: bool) -> None:
        slow = Slow(local_queue, awaited=awaited)
        enqueued = [local_queue.enqueue("slow", {}) for _ in range(3)]

        async def cancel() -> None:
            serving = asyncio.create_task(Worker(local_queue, concurrency=1).serve())
            await comes(slow.started)
            serving.cancel()
            await asyncio.sleep(0.01)
            assert not serving.done()
            slow.proceed.set()
            with pytest.raises(asyncio.CancelledError):
                await serving

        asyncio.run(cancel())
        assert [local_queue.get(one.id).state for one in enqueued] == ["done", "ready", "ready"]
        assert [local_queue.get(one.id).attempt for one in enqueued] == [1, 0, 0]
        assert local_queue.admin.workers() == []

    @COLOURS
    def test_releases_what_outlasts_the_grace_period(self, queue: Queue, awaited: bool) -> None:
        slow = Slow(queue, awaited=awaited)
        enqueued = [queue.enqueue("slow", {}) for _ in range(3)]

        async def cancel() -> None:
            serving = asyncio.create_task(Worker(queue, concurrency=1, grace=0).serve())
            await comes(slow.started)
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving

        asyncio.run(cancel())
        assert {(queue.get(one.id).state, queue.get(one.id).attempt) for one in enqueued} == {("ready", 0)}

    def test_a_second_cancel_ends_the_grace_period(self, local_queue: Queue) -> None:
        slow = Slow(local_queue, awaited=False)
        enqueued = local_queue.enqueue("slow", {})

        async def cancel() -> None:
            serving = asyncio.create_task(Worker(local_queue, grace=3600).serve())
            await comes(slow.started)
            serving.cancel()
            await asyncio.sleep(0)
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving

        asyncio.run(cancel())
        assert (local_queue.get(enqueued.id).state, local_queue.get(enqueued.id).attempt) == ("ready", 0)

    @COLOURS
    def test_a_loop_that_is_left_with_a_worker_in_it_releases_what_runs(self, queue: Queue, awaited: bool) -> None:
        slow = Slow(queue, awaited=awaited)
        enqueued = queue.enqueue("slow", {})
        tasks = []

        async def leave() -> None:
            tasks.append(asyncio.create_task(Worker(queue, grace=0).serve()))
            await comes(slow.started)

        asyncio.run(leave())
        assert (queue.get(enqueued.id).state, queue.get(enqueued.id).attempt) == ("ready", 0)
        assert tasks[0].cancelled()

    def test_an_interrupt_under_asyncio_run_releases_what_runs(self, local_queue: Queue) -> None:
        @local_queue.task("interrupt")
        def interrupt(context: Context) -> None:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            context.wait_cancelled()
            context.raise_if_cancelled()

        enqueued = interrupt.enqueue()
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(Worker(local_queue, grace=0).serve())
        assert (local_queue.get(enqueued.id).state, local_queue.get(enqueued.id).attempt) == ("ready", 0)

    def test_a_timeout_around_it_raises_its_own_error(self, local_queue: Queue) -> None:
        local_queue.task("note")(lambda: None)

        async def limited() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await Worker(local_queue).serve()

        asyncio.run(limited())


def test_a_worker_that_has_stopped_listens_to_nothing(queue: Queue) -> None:
    queue.task("note")(lambda: None)
    enqueued = queue.enqueue("note", {})
    with running_worker(queue):
        wait_finished(queue, enqueued.id)

    assert state_of(queue).store.notifier.topics() == set()
