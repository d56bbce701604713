"""The number of jobs a worker holds and runs, and the number of commits."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import AsyncQueue, Job, NewJob, Queue
from holdfast.domain.claims import SettledAndClaimed
from holdfast.domain.job import row_of
from holdfast.worker import executors
from holdfast.worker.timers import REAL_TIMER
from tests.chaos.threads import wait_until
from tests.support.stores import Harness
from tests.worker.timers import MovableTimer
from tests.worker.workers import Time, comes, running_worker, wait_finished, wait_for_event

COLOURS = pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaited"])
SHORT = 400
"""The number of short handlers after which a worker claims ahead."""


class Gate:
    """A task with short handlers, some of which wait at a gate; it counts handlers that run at once."""

    def __init__(self, queue: Queue) -> None:
        self.open = threading.Event()
        self.ran: list[str] = []
        self.running = 0
        self.most = 0
        self._lock = threading.Lock()
        self._queue = queue

    def declare(self, kind: str, *, awaited: bool) -> None:
        def blocking(name: str) -> None:
            with self:
                self.ran.append(name)
                if name.startswith("long"):
                    wait_for_event(self.open)

        async def later(name: str) -> None:
            with self:
                self.ran.append(name)
                if name.startswith("long"):
                    await comes(self.open)

        self._queue.task(kind)(later if awaited else blocking)

    def enqueue(self, kind: str, *names: str) -> list[str]:
        return [
            enqueued.id for enqueued in self._queue.enqueue_many([NewJob(kind, {"name": name}) for name in names])
        ]

    def warm_up(self, kind: str) -> None:
        """Run short handlers, so that the worker claims ahead."""
        for job_id in self.enqueue(kind, *[f"short {number}" for number in range(SHORT)]):
            wait_finished(self._queue, job_id)

    def __enter__(self) -> None:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.running -= 1


@COLOURS
def test_as_many_run_at_once_as_there_are_slots_and_never_more(queue: Queue, awaited: bool) -> None:
    gate = Gate(queue)
    gate.declare("work", awaited=awaited)
    enqueued = gate.enqueue("work", *[f"long {number}" for number in range(12)])
    with running_worker(queue, concurrency=5):
        wait_until(lambda: gate.running == 5)
        assert queue.counts() == {"ready": 7, "running": 5}
        gate.open.set()
        for job_id in enqueued:
            wait_finished(queue, job_id)

    assert gate.most == 5


def test_both_colours_share_the_slots_also_after_short_handlers(queue: Queue) -> None:
    gate = Gate(queue)
    gate.declare("blocking", awaited=False)
    gate.declare("awaited", awaited=True)
    timer = MovableTimer(stands_still=True)
    with running_worker(queue, concurrency=3, timer=timer):
        gate.warm_up("blocking")
        gate.warm_up("awaited")
        enqueued = gate.enqueue("blocking", *["long"] * 6) + gate.enqueue("awaited", *["long"] * 6)
        wait_until(lambda: gate.running >= 3)
        timer.advance(5)
        # Jobs claimed ahead are released, sync and async ones.
        wait_until(lambda: queue.counts().get("running") == 3)
        gate.open.set()
        for job_id in enqueued:
            wait_finished(queue, job_id)

    assert gate.most == 3


@COLOURS
def test_a_busy_worker_holds_no_more_than_it_runs(harness: Harness, awaited: bool) -> None:
    queue = harness.open()
    gate = Gate(queue)
    gate.declare("work", awaited=awaited)
    with running_worker(queue, concurrency=2, worker="busy"):
        gate.enqueue("work", *["long"] * 30)
        wait_until(lambda: gate.running == 2)
        assert queue.counts() == {"ready": 28, "running": 2}
        with running_worker(queue, concurrency=28, worker="idle"):
            wait_until(lambda: gate.running == 30)
            gate.open.set()


@COLOURS
def test_what_was_taken_ahead_is_given_back_when_handlers_turn_out_long(queue: Queue, awaited: bool) -> None:
    gate = Gate(queue)
    gate.declare("work", awaited=awaited)
    timer = MovableTimer(stands_still=True)
    with running_worker(queue, concurrency=2, worker="busy", timer=timer):
        gate.warm_up("work")
        enqueued = gate.enqueue("work", *["long"] * 100)
        wait_until(lambda: gate.running == 2)
        timer.advance(5)
        wait_until(lambda: queue.counts().get("running") == 2)
        jobs = [queue.get(job_id) for job_id in enqueued]
        assert [job.attempt for job in jobs if job.state == "ready"] == [0] * 98
        with running_worker(queue, concurrency=98, worker="idle"):
            wait_until(lambda: gate.running == 100)
            gate.open.set()
            for job_id in enqueued:
                wait_finished(queue, job_id)

    assert Counter(gate.ran)["long"] == 100


def test_what_is_taken_ahead_is_acknowledged_when_its_handler_starts(harness: Harness) -> None:
    queue, time = harness.open(), Time(harness, stands_still=True)
    first, second = Gate(queue), Gate(queue)
    first.declare("first", awaited=False)
    second.declare("second", awaited=False)
    with running_worker(queue, concurrency=1, lease=600, timer=time.timer):
        first.warm_up("first")
        [running] = first.enqueue("first", "long")
        [ahead] = second.enqueue("second", "long")
        found: list[Job] = []

        def taken_ahead() -> bool:
            found[:] = [queue.get(ahead)]
            return found[0].state == "running"

        wait_until(taken_ahead)
        assert (row_of(found[0]).unacknowledged, row_of(queue.get(running)).unacknowledged) == (1, 0)
        first.open.set()
        wait_until(lambda: second.running == 1)
        # The next renewal reports it at the latest.
        time.advance(200)
        wait_until(lambda: row_of(queue.get(ahead)).unacknowledged == 0)
        assert queue.get(ahead).state == "running"
        second.open.set()
        assert wait_finished(queue, ahead).state == "done"


def test_a_second_call_claims_while_the_first_is_in_flight_if_the_store_can_do_both(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, original = harness.open(), AsyncQueue.settle_and_claim
    in_flight, most = 0, 0
    settled: Counter[str] = Counter()

    async def observed(self: AsyncQueue, settlements: Any, **options: Any) -> SettledAndClaimed:
        nonlocal in_flight, most
        settled.update(claim.job.id for claim, _ in settlements)
        in_flight += 1
        most = max(most, in_flight)
        try:
            return await original(self, settlements, **options)
        finally:
            in_flight -= 1

    monkeypatch.setattr(AsyncQueue, "settle_and_claim", observed)
    gate = Gate(queue)
    gate.declare("work", awaited=True)
    enqueued = gate.enqueue("work", *["short"] * 4_000)
    with running_worker(queue, concurrency=8) as running:
        wait_until(lambda: running.worker.status().ended.get("done") == len(enqueued))

    assert most == (2 if harness.on_server else 1)
    assert settled == Counter(enqueued)
    assert len(gate.ran) == len(enqueued)


def renewed(queue: Queue, job_id: str, before: datetime | None) -> datetime | None:
    """Wait until a lease was renewed or has ended; return when it expires."""
    wait_until(lambda: queue.get(job_id).lease_until is None or queue.get(job_id).lease_until != before)
    return queue.get(job_id).lease_until


@COLOURS
def test_a_job_cancelled_while_it_waits_for_a_slot_never_runs_and_never_expires(
    harness: Harness, awaited: bool
) -> None:
    queue, time = harness.open(), Time(harness, stands_still=True)
    gate = Gate(queue)
    gate.declare("work", awaited=awaited)
    with running_worker(queue, concurrency=1, lease=600, timer=time.timer):
        gate.warm_up("work")
        long, unlucky = gate.enqueue("work", "long", "unlucky")
        wait_until(lambda: queue.get(unlucky).state == "running")
        queue.cancel(unlucky)
        # The first renewal's answer reports the cancel, and the worker has read it when the second arrives. It may
        # read the first only after the second step, so both steps have to fit into one lease.
        for _ in range(2):
            lease = queue.get(unlucky).lease_until
            time.advance(240)
            renewed(queue, unlucky, lease)
        gate.open.set()
        assert wait_finished(queue, unlucky).state == "cancelled"
        wait_finished(queue, long)

    assert "unlucky" not in gate.ran
    assert [attempt.outcome for attempt in queue.attempts(unlucky)] == ["released"]


@COLOURS
def test_settles_travel_with_the_next_claim(harness: Harness, awaited: bool) -> None:
    queue = harness.open()
    gate = Gate(queue)
    gate.declare("work", awaited=awaited)
    gate.enqueue("work", *[f"short {number}" for number in range(1000)])
    harness.faults.seen.clear()
    with running_worker(queue, concurrency=50) as working:
        wait_until(lambda: working.worker.status().ended.get("done") == 1000)
        commits = harness.faults.seen.count("commit")

    # If each were settled separately, there would be a thousand settlements and the claims.
    assert commits < 250


def test_settles_travel_with_the_next_claim_also_where_colours_are_mixed(harness: Harness) -> None:
    queue = harness.open()
    gate = Gate(queue)
    gate.declare("blocking", awaited=False)
    gate.declare("awaited", awaited=True)
    kinds = ["blocking", "awaited"]
    queue.enqueue_many([NewJob(kinds[number % 2], {"name": "short"}) for number in range(1000)])
    harness.faults.seen.clear()
    with running_worker(queue, concurrency=8) as working:
        wait_until(lambda: working.worker.status().ended.get("done") == 1000)
        commits = harness.faults.seen.count("commit")

    # Without claiming ahead, each commit could claim eight jobs at most.
    assert commits < 1000 / 8
    assert gate.most <= 8


def test_a_slot_that_is_stuck_takes_no_other_with_it(queue: Queue) -> None:
    stuck, proceed = threading.Event(), threading.Event()

    @queue.task("stuck", timeout=0.05)
    def hang() -> None:
        stuck.set()
        wait_for_event(proceed)

    @queue.task("quick")
    def quick() -> None: ...

    hang.enqueue()
    with running_worker(queue, concurrency=2):
        wait_for_event(stuck)
        for _ in range(3):
            wait_finished(queue, quick.enqueue().id)
        proceed.set()


def test_many_short_and_long_handlers_of_both_colours_come_to_their_end(harness: Harness) -> None:
    queue = harness.open()
    ran: Counter[int] = Counter()

    @queue.task("blocking")
    def blocking(number: int) -> None:
        ran[number] += 1
        if number % 50 == 0:
            threading.Event().wait(0.02)

    @queue.task("awaited")
    async def awaited(number: int) -> None:
        ran[number] += 1
        if number % 50 == 1:
            await asyncio.sleep(0.02)

    kinds = ["blocking", "awaited"]
    queue.enqueue_many([NewJob(kinds[number % 2], {"number": number}) for number in range(1000)])
    options: dict[str, Any] = {"concurrency": 4}
    with running_worker(queue, **options), running_worker(queue, **options):
        wait_until(lambda: queue.counts() == {"done": 1000})

    assert set(ran.values()) == {1}
    assert {job.attempt for job in queue.jobs(state="done", limit=1000).jobs} == {1}


@pytest.mark.parametrize("suspends", [False, True])
def test_an_async_slot_lets_the_event_loop_run_once_for_each_handler_whether_or_not_it_suspends(
    monkeypatch: pytest.MonkeyPatch, suspends: bool
) -> None:
    count, steps, ended, needed = 50, 0, 0, 0

    async def run_async(*_: object) -> None:
        if suspends:
            await asyncio.sleep(0)

    # As if each handler had taken longer than a slot may keep the event loop.
    monkeypatch.setattr(executors, "_YIELD_SECONDS", -1.0)
    monkeypatch.setattr(executors, "run_async", run_async)

    async def test() -> None:
        loop, all_ended = asyncio.get_running_loop(), asyncio.Event()

        def step() -> None:
            nonlocal steps
            steps += 1
            loop.call_soon(step)

        def put_ended(_attempt: object) -> None:
            nonlocal ended, needed
            ended += 1
            if ended == count:
                needed = steps
                all_ended.set()

        events: Any = SimpleNamespace(put_ended=put_ended)
        slots = executors.ExecutorQueue(1, lambda _attempt: executor)
        executor = executors.TaskExecutor(slots, events, REAL_TIMER)
        attempts: list[Any] = [SimpleNamespace(slot_freed=False) for _ in range(count)]
        slots.put(attempts)
        step()
        await all_ended.wait()
        await executor.close()

    asyncio.run(test())
    assert count - 1 <= needed < count + 5
