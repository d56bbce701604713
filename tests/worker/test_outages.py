"""An unavailable store: the worker still stops in time, logs it once, and continues when the store answers."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Context, Middleware
from holdfast.client.queue_state import state_of
from holdfast.domain.backoff import RetryPolicy
from holdfast.errors import StoreUnreachable
from holdfast.webhooks.sender import StoreFailures
from holdfast.worker.retry import RetryState, RetryWaits
from holdfast.worker.timers import REAL_TIMER, Timer
from tests.chaos.processes import stop
from tests.chaos.threads import wait_until
from tests.support.postgres_server import Server
from tests.support.stores import Harness
from tests.worker.timers import MovableTimer
from tests.worker.workers import Outage, RunningWorker, running_worker, wait_finished, wait_for_event


def _messages(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


class TestRetrying:
    def test_each_change_of_state_is_logged_once_with_a_summary(self, caplog: pytest.LogCaptureFixture) -> None:
        timer = MovableTimer(stands_still=True)
        retrying = RetryState("claims", timer)
        for _ in range(50):
            retrying.failed(StoreUnreachable("no answer"))
        timer.advance(60)
        assert retrying.succeeded()
        assert not retrying.succeeded()

        [failing, succeeding] = _messages(caplog, "claims")
        assert "no answer" in failing
        assert "after 60.0 s and 50 failed calls" in succeeding

    def test_the_sender_of_webhooks_logs_an_outage_in_two_lines(self, caplog: pytest.LogCaptureFixture) -> None:
        failures = StoreFailures()
        for _ in range(50):
            failures.failed("the event log could not be read", StoreUnreachable("no answer"))
        failures.succeeded()
        failures.succeeded()

        [failing, answering] = [record.getMessage() for record in caplog.records]
        assert "could not be read" in failing
        assert "no answer" in failing
        assert "answers again" in answering

    def test_waits_follow_the_policy_and_start_over_after_a_success(self) -> None:
        chances = iter([0.0, 1.0, 0.0, 0.0])
        retrying = RetryState("claims", REAL_TIMER, RetryPolicy(first=0.1, last=5.0), lambda: next(chances))
        error = StoreUnreachable("no answer")
        waits = [retrying.failed(error), retrying.failed(error), retrying.failed(error)]
        retrying.succeeded()

        assert [*waits, retrying.failed(error)] == [0.1, 0.1, 0.4, 0.1]


class TestRetryWaits:
    def test_an_answer_to_another_call_ends_the_wait_and_not_the_next_one(self) -> None:
        async def test() -> None:
            waits = RetryWaits(REAL_TIMER)
            first = asyncio.ensure_future(waits.wait(3600))
            await asyncio.sleep(0)
            waits.end()
            await first
            second = asyncio.ensure_future(waits.wait(3600))
            for _ in range(10):
                await asyncio.sleep(0)
            assert not second.done()
            waits.end()
            await second

        asyncio.run(test())

    def test_an_answer_during_the_failed_call_ends_the_wait_and_an_earlier_one_does_not(self) -> None:
        async def test() -> None:
            waits = RetryWaits(REAL_TIMER)
            waits.call_begins()
            waits.end()
            await waits.wait(3600)
            waits.end()
            waits.call_begins()
            later = asyncio.ensure_future(waits.wait(3600))
            for _ in range(10):
                await asyncio.sleep(0)
            assert not later.done()
            later.cancel()

        asyncio.run(test())

    def test_a_stop_ends_the_wait_and_shortens_later_ones(self) -> None:
        async def test() -> None:
            waits = RetryWaits(REAL_TIMER)
            waiting = asyncio.ensure_future(waits.wait(3600))
            await asyncio.sleep(0)
            waits.stop()
            await waiting
            await waits.wait(3600)

        asyncio.run(test())


def test_an_outage_is_logged_once_by_each_part_and_its_end_too(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    outage = Outage(harness)
    queue = harness.open()
    started, proceed = threading.Event(), threading.Event()

    @queue.task("long")
    def long() -> None:
        started.set()
        wait_for_event(proceed)

    enqueued = long.enqueue()
    timer = MovableTimer()
    with running_worker(queue, lease=30, concurrency=1, timer=timer):
        wait_for_event(started)
        with outage:
            # A third of a lease: renewals are due.
            timer.advance(10)
            wait_until(lambda: bool(_messages(caplog, "lease renewals fail")))
            proceed.set()
            wait_until(lambda: bool(_messages(caplog, "claims and settlements fail")))
            outage.wait_struck(5)
        assert wait_finished(queue, enqueued.id).state == "done"
        wait_until(lambda: bool(_messages(caplog, "claims and settlements succeed again")))

    assert len(_messages(caplog, "claims and settlements")) == 2
    assert len(_messages(caplog, "lease renewals fail")) == 1


class NeverDue(Timer):
    """Waits in the event loop end by their event and never by time."""

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        return asyncio.timeout(None)


def test_the_first_renewal_after_an_outage_wakes_the_claim_loop(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    outage = Outage(harness)
    queue = harness.open()
    holding, proceed, settling = threading.Event(), threading.Event(), threading.Event()

    @queue.task("hold")
    def hold(context: Context) -> None:
        holding.set()
        context.wait_cancelled()

    @queue.task("short")
    def short() -> None:
        settling.set()
        wait_for_event(proceed)

    hold.enqueue()
    enqueued = short.enqueue()
    with running_worker(queue, lease=3, concurrency=2, grace=0, timer=NeverDue()):
        wait_for_event(holding)
        wait_for_event(settling)
        with outage:
            proceed.set()
            # Both the claim loop and the lease keeper have to notice; maintenance calls fail too.
            wait_until(lambda: bool(_messages(caplog, "claims and settlements fail")))
            wait_until(lambda: bool(_messages(caplog, "lease renewals fail")))
        # The claim loop waits without a timeout; only the lease keeper can wake it when the store answers.
        assert wait_finished(queue, enqueued.id).state == "done"


class SlowClaims(Middleware):
    """The first claim that leases jobs is answered after a whole lease."""

    def __init__(self, timer: MovableTimer, lease: float) -> None:
        self._timer = timer
        self._seconds = lease

    def claim(self, call: object) -> Generator[None, Any, None]:
        claims = yield
        if claims:
            self._timer.advance(self._seconds)
            self._seconds = 0.0


def test_a_claim_that_is_answered_after_an_outage_of_a_lease_still_holds_its_job(harness: Harness) -> None:
    timer = MovableTimer()
    queue = harness.open()
    state_of(queue).middleware = (SlowClaims(timer, 30),)

    @queue.task("short", max_attempts=1)
    def short(context: Context) -> bool:
        return context.wait_cancelled(0.3)

    enqueued = short.enqueue()
    with running_worker(queue, lease=30, concurrency=1, timer=timer):
        job = wait_finished(queue, enqueued.id)
    assert (job.state, job.result, job.attempt) == ("done", False, 1)


# --- a server that is down or frozen -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    try:
        server.start()
        yield server
    finally:
        server.close()


@contextmanager
def _down(server: Server) -> Iterator[None]:
    server.stop(immediate=True)
    yield
    server.start()


@contextmanager
def _frozen(server: Server) -> Iterator[None]:
    leader = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])
    stop(leader)
    children = Path(f"/proc/{leader}/task/{leader}/children").read_text().split()
    processes = [leader, *map(int, children)]
    for process in processes:
        stop(process)
    try:
        yield
    finally:
        # The leader last: as soon as it runs, it collects children that had ended, and their numbers are unknown.
        for process in reversed(processes):
            os.kill(process, signal.SIGCONT)


def _seconds_to_stop(working: RunningWorker, timer: MovableTimer) -> float:
    """Stop a worker whose time stands still: advance it by each wait of its loop, and return the sum."""
    seconds = 0.0
    before = timer.loop_wait
    working.worker.stop()
    # The wait that the stop ends does not count, however late the loop is.
    wait_until(lambda: working.future.done() or before is None or timer.loop_wait is not before)
    while not working.future.done():
        wait_until(lambda: working.future.done() or timer.loop_seconds > 0)
        left = timer.loop_seconds
        timer.advance(left + 1e-6)  # beyond a rounding error
        seconds += left
    working.end()
    return seconds


@pytest.mark.slow("starts a server")
@pytest.mark.parametrize("unavailable", [_down, _frozen], ids=["down", "frozen"])
def test_a_worker_stops_within_its_grace_period_and_five_seconds_though_its_server_does_not_answer(
    server: Server, unavailable: Callable[[Server], AbstractContextManager[None]]
) -> None:
    with holdfast.connect(server.url) as queue:
        started, proceed = threading.Event(), threading.Event()

        @queue.task("hold")
        def hold() -> None:
            started.set()
            wait_for_event(proceed)

        hold.enqueue()
        timer = MovableTimer(stands_still=True)
        with running_worker(queue, lease=3000, concurrency=1, grace=3, timer=timer) as working:
            wait_for_event(started)
            with unavailable(server):
                seconds = _seconds_to_stop(working, timer)
            proceed.set()
        assert 3 <= seconds <= 8


@pytest.mark.slow("starts a server")
@pytest.mark.parametrize("unavailable", [_down, _frozen], ids=["down", "frozen"])
def test_an_idle_worker_does_not_wait_for_a_server_that_does_not_answer(
    server: Server, unavailable: Callable[[Server], AbstractContextManager[None]]
) -> None:
    with holdfast.connect(server.url) as queue:
        queue.task("note")(lambda: None)
        timer = MovableTimer(stands_still=True)
        # Those of workers whose server was stopped remain.
        registered = len(queue.admin.workers())
        with running_worker(queue, lease=3000, concurrency=1, grace=600, timer=timer) as working:
            wait_until(lambda: len(queue.admin.workers()) > registered)
            with unavailable(server):
                # Its next claim is in flight when it stops.
                timer.advance(60)
                seconds = _seconds_to_stop(working, timer)
        assert seconds <= 6


@pytest.mark.slow("starts a server")
def test_a_worker_that_cannot_settle_says_for_how_long_it_tries(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with holdfast.connect(server.url) as queue:
        started, proceed = threading.Event(), threading.Event()

        @queue.task("hold")
        def hold() -> None:
            started.set()
            wait_for_event(proceed)

        hold.enqueue()
        timer = MovableTimer(stands_still=True)
        with running_worker(queue, lease=3000, concurrency=1, grace=30, timer=timer) as working:
            wait_for_event(started)
            with _down(server):
                proceed.set()
                assert 30 <= _seconds_to_stop(working, timer) <= 35
    [line] = [record.getMessage() for record in caplog.records if "does not answer" in record.getMessage()]
    assert re.fullmatch(
        r"the store does not answer: tries for 2\d s more to settle or release 1 job, then the leases expire;"
        r" a second signal ends the wait",
        line,
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the file with a program that does not use Holdfast."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=60)
    connection.execute("begin immediate")
    try:
        yield
    finally:
        connection.close()


@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
def test_a_worker_stops_within_its_grace_period_and_five_seconds_though_another_program_locks_its_file(
    tmp_path: Path, busy: bool
) -> None:
    with holdfast.connect(str(tmp_path / "jobs.db")) as queue:
        started, proceed = threading.Event(), threading.Event()

        @queue.task("hold")
        def hold() -> None:
            started.set()
            wait_for_event(proceed)

        queue.migrate()
        if busy:
            hold.enqueue()
        timer = MovableTimer(stands_still=True)
        with running_worker(queue, lease=3000, concurrency=1, grace=3, timer=timer) as working:
            wait_for_event(started) if busy else wait_until(lambda: len(queue.admin.workers()) == 1)
            with _locked(tmp_path / "jobs.db"):
                seconds = _seconds_to_stop(working, timer)
                proceed.set()
        assert 3 <= seconds <= 8 if busy else seconds <= 6
