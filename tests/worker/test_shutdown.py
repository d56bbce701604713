"""Going down: what runs is waited for, what is left is given back without spending its attempt."""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import Any

import pytest

from holdfast import Context, NewJob, Queue, Worker
from holdfast.worker.watched_attempts import WorkerMetrics
from tests.chaos.threads import wait_until
from tests.support.stores import Harness
from tests.worker.timers import MovableTimer
from tests.worker.workers import Outage, arrived, at_work, comes, ended, in_state

COLOURS = pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaited"])


class Slow:
    """A task whose handlers run until they are let go; they may heed being told to stop, or not."""

    def __init__(self, queue: Queue, *, awaited: bool, heeds: bool = True) -> None:
        self.started, self.go_on = threading.Event(), threading.Event()
        self.reason: str | None = None
        self.heeds = heeds
        queue.task("slow")(self._awaited() if awaited else self._blocking())

    def _blocking(self) -> Any:
        def slow(context: Context) -> str:
            self.started.set()
            while not self.go_on.wait(0.005):
                self.reason = context.stop_reason
                if self.heeds:
                    context.raise_if_cancelled()
            return "finished"

        return slow

    def _awaited(self) -> Any:
        async def slow(context: Context) -> str:
            self.started.set()
            while not self.go_on.is_set():
                try:
                    await comes(self.go_on)
                except asyncio.CancelledError:
                    self.reason = context.stop_reason
                    if self.heeds:
                        raise
            return "finished"

        return slow


@COLOURS
def test_a_graceful_stop_waits_for_what_runs_and_takes_no_more(queue: Queue, awaited: bool) -> None:
    slow = Slow(queue, awaited=awaited)
    made = [queue.enqueue("slow", {}) for _ in range(3)]
    with at_work(queue, concurrency=1) as working:
        arrived(slow.started)
        working.worker.stop()
        wait_until(lambda: working.worker.status().stopping)
        slow.go_on.set()
        working.end()

    assert [queue.get(one.id).state for one in made] == ["done", "ready", "ready"]
    assert queue.get(made[0].id).result == "finished"
    assert [queue.get(one.id).attempt for one in made] == [1, 0, 0]


@COLOURS
def test_what_outlasts_the_grace_period_is_released_without_spending_its_attempt(queue: Queue, awaited: bool) -> None:
    slow = Slow(queue, awaited=awaited)
    made = queue.enqueue("slow", {})
    with at_work(queue, grace=0.05) as working:
        arrived(slow.started)
        working.worker.stop()
        working.end()

    job = queue.get(made.id)
    assert slow.reason == "shutdown"
    assert (job.state, job.attempt, job.epoch) == ("ready", 0, 1)
    assert working.worker.status().ended == {"released": 1}


@COLOURS
def test_a_second_stop_does_not_wait_for_the_grace_period(queue: Queue, awaited: bool) -> None:
    slow = Slow(queue, awaited=awaited)
    made = queue.enqueue("slow", {})
    with at_work(queue, grace=3600) as working:
        arrived(slow.started)
        working.worker.stop()
        working.worker.stop()
        working.end()

    assert (queue.get(made.id).state, queue.get(made.id).attempt) == ("ready", 0)


@COLOURS
def test_handlers_that_do_not_heed_keep_no_worker_up(queue: Queue, awaited: bool) -> None:
    slow = Slow(queue, awaited=awaited, heeds=False)
    made = queue.enqueue("slow", {})
    timer = MovableTimer()
    with at_work(queue, grace=0, timer=timer) as working:
        arrived(slow.started)
        working.worker.stop()
        wait_until(lambda: slow.reason == "shutdown")
        timer.advance(1)
        in_state(queue, made.id, "ready")
        if awaited:
            # Only what never gives way at all can keep a loop from ending.
            slow.heeds = True
        working.end()
        slow.go_on.set()

    assert queue.get(made.id).attempt == 0


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

    made = tidy.enqueue()
    with at_work(queue, grace=0) as working:
        arrived(started)
        working.worker.stop()
        arrived(cleaning)
        working.end()

    assert (queue.get(made.id).state, queue.get(made.id).attempt) == ("ready", 0)


@COLOURS
def test_a_handler_that_ends_in_the_grace_period_is_done(queue: Queue, awaited: bool) -> None:
    slow = Slow(queue, awaited=awaited)
    made = queue.enqueue("slow", {})
    with at_work(queue, grace=60) as working:
        arrived(slow.started)
        working.worker.stop()
        slow.go_on.set()
        working.end()

    assert queue.get(made.id).state == "done"


def test_a_worker_told_to_stop_before_it_starts_takes_nothing(queue: Queue) -> None:
    queue.task("note")(lambda: None)
    queue.enqueue("note", {})
    with at_work(queue) as first:
        first.worker.stop()
        first.end()
    with at_work(queue) as second:
        wait_until(lambda: queue.counts() == {"done": 1})
        second.worker.stop()
        second.end()


def test_a_claim_whose_answer_was_lost_is_not_left_to_expire(harness: Harness) -> None:
    outage = Outage(harness)
    queue = harness.open()
    queue.task("note")(lambda: None)
    with at_work(queue) as working:
        wait_until(lambda: len(queue.workers()) == 1)
        made = queue.enqueue("note", {}, delay=10)
        outage.lose_answers(1)
        harness.clock.advance(10)
        wait_until(lambda: outage.answers_lost)
        working.worker.stop()
        working.end()

    job = queue.get(made.id)
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
    with at_work(queue, concurrency=10) as working:
        wait_until(lambda: working.worker.status().ended.get("done", 0) > 20)
        with outage:
            outage.struck(3)
        outage.lose_answers(3)
        wait_until(lambda: working.worker.status().ended == {"done": 500})

    found = [queue.get(made.id) for made in jobs]
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
    jobs = queue.enqueue_many([NewJob("work", {"number": number}) for number in range(1500)])
    for turn in range(10):
        with at_work(queue, concurrency=8, grace=0.02 * (turn % 3)) as working:
            wait_until(lambda: sum(working.worker.status().ended.values()) > 50)
            working.worker.stop()
            working.end()
    with at_work(queue, concurrency=50):
        wait_until(lambda: queue.counts() == {"done": len(jobs)})

    found = [queue.get(made.id) for made in jobs]
    assert {job.attempt for job in found} == {1}
    assert any(job.releases for job in found), "no restart met a running handler"
    assert set(ran) == set(range(1500))
    outcomes = {attempt.outcome for made in jobs for attempt in queue.attempts(made.id)}
    assert outcomes == {"done", "released"}


def test_a_worker_whose_store_is_away_ends_all_the_same(harness: Harness) -> None:
    outage = Outage(harness)
    queue = harness.open()
    slow = Slow(queue, awaited=False)
    made = queue.enqueue("slow", {})
    with at_work(queue, lease=600, concurrency=1) as working:
        arrived(slow.started)
        with outage:
            slow.go_on.set()
            outage.struck(2)
            working.worker.stop()
            working.worker.stop()
            working.end()
    # It could not be settled and is left to expire.
    assert queue.get(made.id).state == "running"


class HangingMetrics(WorkerMetrics):
    """Metrics whose `stop` does not return before `go_on` is set."""

    def __init__(self) -> None:
        self.stopping, self.go_on = threading.Event(), threading.Event()

    def stop(self) -> None:
        self.stopping.set()
        arrived(self.go_on)


def test_a_worker_ends_though_its_metrics_do_not_stop(local_queue: Queue) -> None:
    metrics = HangingMetrics()
    timer = MovableTimer()
    local_queue.task("noop")(lambda: None)
    try:
        with at_work(local_queue, metrics=metrics, timer=timer) as working:
            working.worker.stop()
            arrived(metrics.stopping)

            def ends() -> bool:
                timer.advance(5)
                return working.ended.done()

            wait_until(ends)
            working.end()
    finally:
        metrics.go_on.set()


class TestACancelledServe:
    """`await worker.serve()` is cancelled: by its task, by the end of its loop, by Ctrl-C under `asyncio.run`."""

    @COLOURS
    def test_lets_what_runs_come_to_its_end(self, local_queue: Queue, awaited: bool) -> None:
        slow = Slow(local_queue, awaited=awaited)
        made = [local_queue.enqueue("slow", {}) for _ in range(3)]

        async def cancel() -> None:
            serving = asyncio.create_task(Worker(local_queue, concurrency=1).serve())
            await comes(slow.started)
            serving.cancel()
            await asyncio.sleep(0.01)
            assert not serving.done()
            slow.go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await serving

        asyncio.run(cancel())
        assert [local_queue.get(one.id).state for one in made] == ["done", "ready", "ready"]
        assert [local_queue.get(one.id).attempt for one in made] == [1, 0, 0]
        assert local_queue.workers() == []

    @COLOURS
    def test_releases_what_outlasts_the_grace_period(self, queue: Queue, awaited: bool) -> None:
        slow = Slow(queue, awaited=awaited)
        made = [queue.enqueue("slow", {}) for _ in range(3)]

        async def cancel() -> None:
            serving = asyncio.create_task(Worker(queue, concurrency=1, grace=0).serve())
            await comes(slow.started)
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving

        asyncio.run(cancel())
        assert {(queue.get(one.id).state, queue.get(one.id).attempt) for one in made} == {("ready", 0)}

    def test_a_second_cancel_ends_the_grace_period(self, local_queue: Queue) -> None:
        slow = Slow(local_queue, awaited=False)
        made = local_queue.enqueue("slow", {})

        async def cancel() -> None:
            serving = asyncio.create_task(Worker(local_queue, grace=3600).serve())
            await comes(slow.started)
            serving.cancel()
            await asyncio.sleep(0)
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving

        asyncio.run(cancel())
        assert (local_queue.get(made.id).state, local_queue.get(made.id).attempt) == ("ready", 0)

    @COLOURS
    def test_a_loop_that_is_left_with_a_worker_in_it_releases_what_runs(self, queue: Queue, awaited: bool) -> None:
        slow = Slow(queue, awaited=awaited)
        made = queue.enqueue("slow", {})
        kept = []

        async def leave() -> None:
            kept.append(asyncio.create_task(Worker(queue, grace=0).serve()))
            await comes(slow.started)

        asyncio.run(leave())
        assert (queue.get(made.id).state, queue.get(made.id).attempt) == ("ready", 0)
        assert kept[0].cancelled()

    def test_an_interrupt_under_asyncio_run_releases_what_runs(self, local_queue: Queue) -> None:
        @local_queue.task("interrupt")
        def interrupt(context: Context) -> None:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            context.wait_cancelled()
            context.raise_if_cancelled()

        made = interrupt.enqueue()
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(Worker(local_queue, grace=0).serve())
        assert (local_queue.get(made.id).state, local_queue.get(made.id).attempt) == ("ready", 0)

    def test_a_timeout_around_it_raises_its_own_error(self, local_queue: Queue) -> None:
        local_queue.task("note")(lambda: None)

        async def limited() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await Worker(local_queue).serve()

        asyncio.run(limited())


def test_a_worker_that_has_stopped_listens_to_nothing(queue: Queue) -> None:
    queue.task("note")(lambda: None)
    made = queue.enqueue("note", {})
    with at_work(queue):
        ended(queue, made.id)

    assert queue.store.notifier.topics() == set()
