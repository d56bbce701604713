"""Cancels, timeouts and lost leases: the handler is requested to stop, and its result is ignored."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast import Backoff, Context, Queue
from tests.chaos.threads import wait_until
from tests.support.assertions import failure_of
from tests.support.claims import claim_one, known
from tests.support.stores import Harness
from tests.worker.timers import MovableTimer
from tests.worker.workers import (
    LEASE_SECONDS,
    Outage,
    Time,
    comes,
    in_state,
    running_worker,
    wait_finished,
    wait_for_event,
)

COLOURS = pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaited"])


class Waiting:
    """A task that runs until it is requested to stop, and records the reason."""

    def __init__(self, queue: Queue, *, awaited: bool, **options: Any) -> None:
        self.started = threading.Event()
        self.told = threading.Event()
        self.returned = threading.Event()
        self.proceed = threading.Event()
        self.reason: str | None = None
        self.calls = 0
        queue.task("wait", **options)(self._awaited() if awaited else self._blocking())

    def _blocking(self) -> Any:
        def wait(context: Context) -> str:
            self.calls += 1
            self.started.set()
            while not context.wait_cancelled(0.01):
                if self.proceed.is_set():
                    self.returned.set()
                    return "in time"
            self._note(context)
            wait_for_event(self.proceed)
            return "too late"

        return wait

    def _awaited(self) -> Any:
        async def wait(context: Context) -> str:
            self.calls += 1
            self.started.set()
            try:
                await comes(self.proceed)
            except asyncio.CancelledError:
                self._note(context)
                await comes(self.proceed)
                return "too late"
            self.returned.set()
            return "in time"

        return wait

    def _note(self, context: Context) -> None:
        self.reason = context.stop_reason
        self.told.set()


@COLOURS
class TestCancel:
    def test_an_awaited_handler_is_cancelled_and_a_blocking_one_sees_it(self, queue: Queue, awaited: bool) -> None:
        seen: list[str | None] = []
        started = threading.Event()

        async def later(context: Context) -> None:
            started.set()
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                seen.append(context.stop_reason)
                raise

        def at_once(context: Context) -> None:
            started.set()
            assert context.wait_cancelled(30)
            seen.append(context.stop_reason)
            context.raise_if_cancelled()

        queue.task("long")(later if awaited else at_once)
        enqueued = queue.enqueue("long", {})
        with running_worker(queue):
            wait_for_event(started)
            queue.cancel(enqueued.id)
            job = wait_finished(queue, enqueued.id)

        assert seen == ["cancel"]
        assert job.state == "cancelled"

    def test_a_handler_that_is_done_before_it_is_told_has_done_its_job(self, queue: Queue, awaited: bool) -> None:
        waiting = Waiting(queue, awaited=awaited)
        enqueued = queue.enqueue("wait", {})
        with running_worker(queue):
            wait_for_event(waiting.started)
            with queue.transaction() as transaction:
                transaction.cancel(enqueued.id)
                # The worker is notified of the cancel after this commit.
                waiting.proceed.set()
                wait_for_event(waiting.returned)
            job = wait_finished(queue, enqueued.id)

        assert (job.state, job.result) == ("done", "in time")

    def test_it_is_told_at_once_and_not_by_the_next_heartbeat(self, durable_harness: Harness, awaited: bool) -> None:
        queue, another = durable_harness.open(), durable_harness.open()
        waiting = Waiting(queue, awaited=awaited)
        # The next renewal would come after twenty minutes, far beyond the timeout of this test.
        with running_worker(queue, lease=3600):
            for force, reason in ((False, "cancel"), (True, "lost")):
                waiting.told.clear()
                waiting.started.clear()
                waiting.proceed.clear()
                enqueued = another.enqueue("wait", {})
                wait_for_event(waiting.started)
                another.cancel(enqueued.id, force=force)
                wait_for_event(waiting.told)
                assert waiting.reason == reason
                waiting.proceed.set()


@COLOURS
class TestTimeout:
    def test_it_fails_at_once_and_a_late_return_is_dropped(self, queue: Queue, awaited: bool) -> None:
        timer = MovableTimer()
        waiting = Waiting(queue, awaited=awaited, timeout=30)
        enqueued = queue.enqueue("wait", {}, backoff=Backoff(base=60))
        with running_worker(queue, lease=LEASE_SECONDS, timer=timer) as working:
            wait_for_event(waiting.started)
            timer.advance(30)
            job = in_state(queue, enqueued.id, "scheduled")
            wait_for_event(waiting.told)
            before = known(queue, enqueued.id)
            waiting.proceed.set()
            wait_until(lambda: not working.worker.status().running)
            other = queue.enqueue("wait", {})
            assert wait_finished(queue, other.id).result == "in time"

        assert job.failure is not None
        assert (job.failure.failure_class, job.failure.reason) == ("transient", "timeout")
        assert waiting.reason == "timeout"
        assert known(queue, enqueued.id)[:3] == before[:3]
        assert before.job.attempt == 1

    def test_it_is_enforced_while_the_store_does_not_answer(self, harness: Harness, awaited: bool) -> None:
        queue, timer = harness.open(), MovableTimer()
        waiting = Waiting(queue, awaited=awaited, timeout=30)
        queue.enqueue("wait", {})
        with running_worker(queue, lease=LEASE_SECONDS, timer=timer):
            wait_for_event(waiting.started)
            with queue.transaction():
                # No other call can write now, neither a renewal nor a settlement.
                timer.advance(30)
                wait_for_event(waiting.told)
            waiting.proceed.set()

        assert waiting.reason == "timeout"


@COLOURS
class TestLostLease:
    def test_a_forced_cancel_tells_the_handler_and_its_result_changes_nothing(
        self, queue: Queue, awaited: bool
    ) -> None:
        waiting = Waiting(queue, awaited=awaited)
        enqueued = queue.enqueue("wait", {})
        with running_worker(queue) as working:
            wait_for_event(waiting.started)
            queue.cancel(enqueued.id, force=True)
            wait_for_event(waiting.told)
            before = known(queue, enqueued.id)
            waiting.proceed.set()
            wait_until(lambda: working.worker.status().ended.get("lost") == 1)
            other = queue.enqueue("wait", {})
            wait_finished(queue, other.id)

        assert waiting.reason == "lost"
        assert before.job.state == "cancelled"
        assert known(queue, enqueued.id)[:3] == before[:3]

    def test_a_job_that_another_has_taken_over_is_let_go(self, harness: Harness, awaited: bool) -> None:
        queue, timer = harness.open(), MovableTimer()
        waiting = Waiting(queue, awaited=awaited)
        enqueued = queue.enqueue("wait", {})
        with running_worker(queue, lease=LEASE_SECONDS, worker="slow", concurrency=1, timer=timer):
            wait_for_event(waiting.started)
            harness.clock.advance(LEASE_SECONDS)
            claim = claim_one(queue, worker="quick", lease=2 * LEASE_SECONDS)
            timer.advance(LEASE_SECONDS / 2)
            wait_for_event(waiting.told)
            waiting.proceed.set()

        assert claim.epoch == 2
        assert queue.get(enqueued.id) == claim.job

    def test_a_result_sent_after_the_lease_expired_is_refused(self, harness: Harness, awaited: bool) -> None:
        queue = harness.open()
        waiting = Waiting(queue, awaited=awaited)
        enqueued = queue.enqueue("wait", {})
        with running_worker(queue, worker="slow", concurrency=1) as working:
            wait_for_event(waiting.started)
            harness.clock.advance(60)
            claim = claim_one(queue, worker="quick", lease=3600)
            waiting.proceed.set()
            wait_until(lambda: working.worker.status().ended.get("lost") == 1)

        assert queue.get(enqueued.id) == claim.job


@COLOURS
def test_a_handler_outlives_many_leases(harness: Harness, awaited: bool) -> None:
    queue, time = harness.open(), Time(harness)
    waiting = Waiting(queue, awaited=awaited)
    enqueued = queue.enqueue("wait", {})
    with running_worker(queue, lease=LEASE_SECONDS, timer=time.timer):
        wait_for_event(waiting.started)
        time.pass_leases(queue, enqueued.id, LEASE_SECONDS, 3)
        waiting.proceed.set()
        job = wait_finished(queue, enqueued.id)

    assert (job.state, job.epoch, job.result) == ("done", 1, "in time")


@pytest.mark.slow("leases end by the real clock")
def test_a_handler_that_blocks_the_loop_for_three_leases_keeps_its_lease(harness: Harness) -> None:
    queue, time = harness.open(), Time(harness)
    started, proceed = threading.Event(), threading.Event()

    @queue.task("rude")
    async def rude() -> str:
        started.set()
        wait_for_event(proceed)  # blocks the event loop on purpose
        return "kept"

    enqueued = rude.enqueue()
    with running_worker(queue, lease=LEASE_SECONDS, timer=time.timer):
        wait_for_event(started)
        time.pass_leases(queue, enqueued.id, LEASE_SECONDS, 3)
        assert queue.claim(worker="other") is None
        proceed.set()
        job = wait_finished(queue, enqueued.id)

    assert (job.state, job.epoch, job.result) == ("done", 1, "kept")


@COLOURS
def test_handlers_stop_by_themselves_when_the_store_is_away_for_a_lease(harness: Harness, awaited: bool) -> None:
    outage = Outage(harness)
    queue, time = harness.open(), Time(harness)
    waiting = Waiting(queue, awaited=awaited)
    enqueued = queue.enqueue("wait", {})
    with running_worker(queue, lease=LEASE_SECONDS, concurrency=1, timer=time.timer):
        wait_for_event(waiting.started)
        with outage:
            time.advance(LEASE_SECONDS)
            wait_for_event(waiting.told)
        assert waiting.reason == "lost"
        waiting.proceed.set()
        # It recovers: the lease has expired, the job is claimed again and done.
        time.timer.advance(LEASE_SECONDS)
        job = wait_finished(queue, enqueued.id)

    assert (job.state, job.result) == ("done", "in time")
    assert job.epoch > 1


@contextmanager
def keeper_delayed(until: threading.Event) -> Iterator[None]:
    """Delay the lease keeper after it has told a handler of its lost lease, until an event is set."""

    def delay(record: logging.LogRecord) -> bool:
        if "could not be renewed in time" in record.getMessage():
            wait_for_event(until)
        return True

    logger = logging.getLogger("holdfast.worker")
    logger.addFilter(delay)
    try:
        yield
    finally:
        logger.removeFilter(delay)


def test_what_a_worker_loses_in_an_outage_is_not_suspect(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage(harness)
    queue, time = harness.open(), Time(harness)
    waiting = Waiting(queue, awaited=False)
    enqueued = queue.enqueue("wait", {})
    # The next claim must report the lost lease even if it follows before the keeper continues.
    claimed_again = threading.Event()
    with (
        keeper_delayed(claimed_again),
        running_worker(queue, lease=LEASE_SECONDS, concurrency=1, timer=time.timer),
    ):
        wait_for_event(waiting.started)
        with outage:
            time.advance(LEASE_SECONDS / 2)
            wait_until(lambda: "lease renewals fail" in caplog.text)
            time.advance(LEASE_SECONDS / 2)
            wait_for_event(waiting.told)
        waiting.proceed.set()
        time.timer.advance(LEASE_SECONDS)
        assert wait_finished(queue, enqueued.id).state == "done"
        claimed_again.set()

    lost, *_ = queue.attempts(enqueued.id)
    assert (lost.outcome, failure_of(lost).reason) == ("expired", "worker_cut_off")


def test_progress_that_could_not_be_written_is_written_later(harness: Harness) -> None:
    outage, timer = Outage(harness), MovableTimer()
    queue = harness.open()
    started, noted, proceed = threading.Event(), threading.Event(), threading.Event()

    @queue.task("long")
    def long(context: Context) -> None:
        wait_for_event(started)
        context.progress("loading", 30)
        noted.set()
        wait_for_event(proceed)

    enqueued = queue.enqueue("long", {})
    with running_worker(queue, lease=LEASE_SECONDS, concurrency=1, timer=timer):
        in_state(queue, enqueued.id, "running")
        with outage:
            started.set()
            wait_for_event(noted)
            timer.advance(LEASE_SECONDS / 3)
            outage.wait_struck(2)
        wait_until(lambda: queue.get(enqueued.id).phase == "loading")
        proceed.set()
        wait_finished(queue, enqueued.id)


def test_a_handler_that_cleans_up_is_cancelled_only_once(queue: Queue) -> None:
    cancels = []
    started, cleaned = threading.Event(), threading.Event()
    timer = MovableTimer()

    @queue.task("tidy", timeout=30)
    async def tidy() -> None:
        started.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancels.append("told")
            try:
                for _ in range(10):
                    await asyncio.sleep(0.005)
                    timer.advance(30)
            except asyncio.CancelledError:
                cancels.append("told again")
                raise
            finally:
                cleaned.set()

    tidy.enqueue()
    with running_worker(queue, lease=LEASE_SECONDS, timer=timer):
        wait_for_event(started)
        with queue.transaction():
            timer.advance(30)
            # Its settlement has to wait, so that it is long past its timeout.
            wait_for_event(cleaned)

    assert cancels == ["told"]
