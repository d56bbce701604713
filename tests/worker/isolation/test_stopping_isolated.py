"""An isolated handler is requested to stop like any other; if it does not, its process is killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast import Queue
from tests.chaos.threads import wait_until
from tests.support.stores import Harness
from tests.worker.isolation import handlers
from tests.worker.isolation.processes import is_gone, marked
from tests.worker.workers import LEASE_SECONDS, Time, in_state, running_worker, wait_finished

STOPPING = pytest.mark.parametrize("kind", ["stops", "stops.async"])
IGNORING = pytest.mark.parametrize("kind", ["ignore", "ignore.later"])


@pytest.fixture
def started(tmp_path: Path) -> Path:
    return tmp_path / "started"


@pytest.fixture
def told(tmp_path: Path) -> Path:
    return tmp_path / "told"


class TestTheGilHeldInC:
    @pytest.mark.slow("handlers run in processes of their own")
    def test_for_three_leases_it_keeps_its_lease(
        self, durable_harness: Harness, queue: Queue, started: Path, tmp_path: Path
    ) -> None:
        proceed, time = tmp_path / "proceed", Time(durable_harness)
        os.mkfifo(proceed)
        enqueued = handlers.hold_until.enqueue(str(started), str(proceed))
        with running_worker(queue, lease=LEASE_SECONDS, timer=time.timer):
            marked(started)
            time.pass_leases(queue, enqueued.id, LEASE_SECONDS, 3)
            proceed.write_bytes(b"")
            job = wait_finished(queue, enqueued.id)

        assert (job.state, job.result, job.attempt, job.epoch) == ("done", "held", 1, 1)

    def test_past_its_timeout_its_process_is_killed(self, queue: Queue, started: Path) -> None:
        enqueued = handlers.hold_short.enqueue(str(started))
        with running_worker(queue, kill_after=0.05):
            failure = wait_finished(queue, enqueued.id).failure
            wait_until(lambda: is_gone(marked(started)))

        assert failure is not None
        assert (failure.failure_class, failure.reason) == ("transient", "timeout")


class TestCancel:
    @STOPPING
    def test_one_that_obeys_is_told_and_keeps_its_process(
        self, queue: Queue, started: Path, told: Path, kind: str
    ) -> None:
        enqueued = queue.enqueue(kind, {"started": str(started), "told": str(told)})
        with running_worker(queue, concurrency=1):
            process = marked(started)
            queue.cancel(enqueued.id)
            assert wait_finished(queue, enqueued.id).state == "cancelled"
            assert told.read_text(encoding="utf-8") == "cancel"
            assert wait_finished(queue, handlers.which.enqueue().id).result == process

    @IGNORING
    def test_one_that_ignores_it_is_killed_after_a_grace(self, queue: Queue, started: Path, kind: str) -> None:
        enqueued = queue.enqueue(kind, {"started": str(started)})
        with running_worker(queue, concurrency=1, kill_after=0.05):
            process = marked(started)
            queue.cancel(enqueued.id)
            job = wait_finished(queue, enqueued.id)
            wait_until(lambda: is_gone(process))
            # Its slot is free again.
            assert wait_finished(queue, handlers.echo.enqueue(1).id).result == 1

        assert (job.state, job.failure) == ("cancelled", None)


class TestTimeout:
    @pytest.mark.parametrize("kind", ["stops.short", "stops.short.async"])
    def test_one_that_stops_keeps_its_process(self, queue: Queue, started: Path, told: Path, kind: str) -> None:
        enqueued = queue.enqueue(kind, {"started": str(started), "told": str(told)}, max_attempts=1)
        with running_worker(queue, concurrency=1):
            process = marked(started)
            failure = wait_finished(queue, enqueued.id).failure
            assert wait_finished(queue, handlers.which.enqueue().id).result == process

        assert failure is not None
        assert (failure.failure_class, failure.reason) == ("transient", "timeout")
        assert told.read_text(encoding="utf-8") == "timeout"


class TestShutdown:
    def test_running_ones_may_end_within_the_grace(self, queue: Queue, started: Path, tmp_path: Path) -> None:
        proceed = tmp_path / "proceed"
        enqueued = queue.enqueue("linger", {"started": str(started), "proceed": str(proceed)})
        with running_worker(queue, grace=30) as working:
            process = marked(started)
            working.worker.stop()
            wait_until(lambda: working.worker.status().stopping)
            proceed.touch()
            working.end()

        assert queue.get(enqueued.id).result == "at last"
        wait_until(lambda: is_gone(process))

    @STOPPING
    def test_one_that_obeys_is_given_back_without_spending_its_attempt(
        self, queue: Queue, started: Path, told: Path, kind: str
    ) -> None:
        enqueued = queue.enqueue(kind, {"started": str(started), "told": str(told)})
        with running_worker(queue, grace=0) as working:
            process = marked(started)
            working.worker.stop()
            working.end()

        job = queue.get(enqueued.id)
        assert (job.state, job.attempt, job.releases) == ("ready", 0, 1)
        assert told.read_text(encoding="utf-8") == "shutdown"
        wait_until(lambda: is_gone(process))

    @pytest.mark.parametrize("kind", ["ignore", "ignore.later", "hold"])
    def test_one_that_does_not_is_given_back_and_killed(self, queue: Queue, started: Path, kind: str) -> None:
        options = {"seconds": 600} if kind == "hold" else {}
        enqueued = queue.enqueue(kind, {"started": str(started), **options})
        with running_worker(queue, grace=0) as working:
            process = marked(started)
            working.worker.stop()
            working.end()

        job = queue.get(enqueued.id)
        assert (job.state, job.attempt, job.releases) == ("ready", 0, 1)
        wait_until(lambda: is_gone(process))


def test_a_lost_lease_stops_it(durable_harness: Harness, started: Path, told: Path) -> None:
    queue = durable_harness.open()
    queue.include(handlers.tasks, again=True)
    enqueued = queue.enqueue("stops", {"started": str(started), "told": str(told)})
    with running_worker(queue):
        marked(started)
        queue.cancel(enqueued.id, force=True)
        in_state(queue, enqueued.id, "cancelled")
        wait_until(told.exists)
        wait_until(lambda: told.read_text(encoding="utf-8") == "lost")
