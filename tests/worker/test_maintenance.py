"""WorkerMaintenance: the registry of workers, retention and warnings."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from holdfast import NewJob, Queue, Tasks
from holdfast.client.queue_state import state_of
from holdfast.client.sync_api.worker_calls import WorkerCalls
from holdfast.domain.results import WorkerInfo
from holdfast.errors import StoreUnreachable
from holdfast.worker import maintenance as maintenance_module
from tests.chaos.threads import registered, wait_until
from tests.support.clock import ManualClock
from tests.support.faults import Faults
from tests.support.kinds import publish
from tests.support.stores import Harness
from tests.worker.workers import Outage, running_worker, wait_finished, wait_for_event


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run maintenance every few milliseconds instead of seconds."""
    monkeypatch.setattr(maintenance_module, "HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setattr(maintenance_module, "_CHECK_SECONDS", 0.02)


def test_a_worker_is_in_the_registry_while_it_runs(queue: Queue) -> None:
    queue.task("note", lane="side")(lambda: None)
    with running_worker(queue, worker="w1", concurrency=3, capabilities=["gpu"], affinity="llama"):
        wait_until(lambda: len(queue.admin.workers()) == 1)
        [row] = queue.admin.workers()

    assert (row.worker, row.state, row.concurrency, row.process) == ("w1", "active", 3, os.getpid())
    assert (row.lanes, row.kinds, row.capabilities, row.loaded) == (("side",), ("note",), ("gpu",), ("llama",))
    assert queue.admin.workers() == []


@pytest.mark.usefixtures("often")
def test_it_says_again_and_again_that_it_is_there_and_what_it_runs(queue: Queue, clock: ManualClock) -> None:
    proceed = threading.Event()
    queue.task("long")(lambda: wait_for_event(proceed))
    queue.enqueue_many([NewJob("long", {}), NewJob("long", {})])
    with running_worker(queue):
        wait_until(lambda: [row.running for row in queue.admin.workers()] == [2])
        [first] = queue.admin.workers()
        clock.advance(300)
        wait_until(lambda: queue.admin.workers()[0].beat_at > first.beat_at)
        [second] = queue.admin.workers()
        proceed.set()

    assert second.started_at == first.started_at
    assert second.state == "active"


@pytest.mark.usefixtures("often")
def test_a_worker_that_goes_down_says_so(queue: Queue) -> None:
    started, proceed = threading.Event(), threading.Event()

    @queue.task("long")
    def long() -> None:
        started.set()
        wait_for_event(proceed)

    long.enqueue()
    with running_worker(queue) as working:
        wait_for_event(started)
        working.worker.stop()
        wait_until(lambda: [row.state for row in queue.admin.workers()] == ["stopping"])
        proceed.set()
        working.end()

    assert queue.admin.workers() == []


def test_one_that_vanished_is_silent_after_a_minute(queue: Queue, clock: ManualClock) -> None:
    row = WorkerInfo("w1", "i", "host", 1, "1", "active", 8, 0, ("default",), ("note",), (), ())
    WorkerCalls(state_of(queue).store).beat(row)
    clock.advance(61)

    assert [row.state for row in queue.admin.workers()] == ["silent"]


def test_a_thousand_workers_in_the_registry(queue: Queue, clock: ManualClock) -> None:
    for number in range(1000):
        row = WorkerInfo(f"w{number}", "i", "host", number, "1", "active", 8, 0, ("default",), ("note",), (), ())
        WorkerCalls(state_of(queue).store).beat(row)
        clock.advance(0.001)
    queue.task("note")(lambda: None)
    with running_worker(queue, worker="newest"):
        wait_until(lambda: queue.admin.workers(limit=1)[0].worker == "newest")
        assert wait_finished(queue, queue.enqueue("note", {}).id).state == "done"
        assert len(queue.admin.workers(limit=1000)) == 1000

    assert [row.worker for row in queue.admin.workers(limit=2)] == ["w999", "w998"]


@pytest.mark.usefixtures("often")
def test_retention_prunes_what_has_ended_long_ago(queue: Queue, clock: ManualClock) -> None:
    queue.task("note")(lambda: None)
    old = queue.enqueue("note", {})
    with running_worker(queue, retention=3600):
        wait_finished(queue, old.id)
        clock.advance(3000)
        young = queue.enqueue("note", {})
        wait_finished(queue, young.id)
        clock.advance(1000)
        wait_until(lambda: len(queue.jobs().jobs) == 1)

    assert [job.id for job in queue.jobs().jobs] == [young.id]


@pytest.mark.usefixtures("often")
def test_without_retention_everything_is_kept(queue: Queue, clock: ManualClock) -> None:
    queue.task("note")(lambda: None)
    enqueued = queue.enqueue("note", {})
    with running_worker(queue):
        wait_finished(queue, enqueued.id)
        # Maintenance deletes after some heartbeats, not after each, so wait for several.
        for seconds in (10 * 365 * 86400, 1, 1, 1):
            before = registered(queue).beat_at
            clock.advance(seconds)
            wait_until(lambda before=before: registered(queue).beat_at > before)  # type: ignore[misc]

    assert queue.get(enqueued.id).state == "done"


def _warnings(caplog: pytest.LogCaptureFixture, called: str) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and called in record.getMessage()
    ]


@pytest.mark.usefixtures("often")
def test_a_trouble_is_told_once_until_it_has_gone(
    queue: Queue, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    queue.task("note")(lambda: None)
    _lose_one(queue, clock, "first")
    with caplog.at_level(logging.WARNING, logger="holdfast.worker"), running_worker(queue):
        wait_until(lambda: bool(_warnings(caplog, "suspect jobs")))
        _lose_one(queue, clock, "second")
        wait_until(lambda: [(job.state, job.suspect) for job in queue.jobs().jobs] == [("ready", 1)] * 2)
        for _ in range(3):
            last = registered(queue).beat_at
            clock.advance(1)
            wait_until(_later_than(queue, last))

    assert len(_warnings(caplog, "suspect jobs")) == 1


def _lose_one(queue: Queue, clock: ManualClock, kind: str) -> None:
    """Simulate a worker that dies while it holds a job."""
    queue.enqueue(kind, {})
    assert queue.claim(kinds=[kind], worker="gone", lease=1)
    clock.advance(10)


def _later_than(queue: Queue, time: datetime) -> Callable[[], bool]:
    return lambda: queue.admin.workers()[0].beat_at > time


@pytest.mark.usefixtures("often")
def test_upkeep_goes_on_after_the_store_was_away(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage(harness)
    queue = harness.open()
    queue.task("note")(lambda: None)
    with running_worker(queue):
        wait_until(lambda: len(queue.admin.workers()) == 1)
        with outage:
            outage.wait_struck(5)
            with pytest.raises(StoreUnreachable):
                queue.enqueue("note", {})
        harness.clock.advance(10)
        wait_until(_later_than(queue, harness.clock.time - timedelta(milliseconds=1)))
        assert wait_finished(queue, queue.enqueue("note", {}).id).state == "done"

    assert _warnings(caplog, "maintenance calls fail")


# --- the catalog of kinds -------------------------------------------------------------------------------------------


def _published(queue: Queue) -> dict[str, str | None]:
    return {kind.name: kind.published_by for kind in queue.kinds.list()}


def test_a_worker_publishes_the_tasks_that_it_serves_and_no_others(queue: Queue) -> None:
    queue.task("note", lane="side", timeout=5)(lambda text: None)
    queue.task("other")(lambda: None)
    with running_worker(queue, worker="w1", kinds=["note"]):
        wait_until(lambda: _published(queue) == {"note": "w1"})

    note = queue.kinds.get("note")
    assert (note.lane, note.timeout, note.schema["required"]) == ("side", 5.0, ["text"])


@pytest.mark.usefixtures("often")
def test_a_task_that_is_declared_while_a_worker_runs_is_published_too(queue: Queue) -> None:
    queue.task("first")(lambda: None)
    with running_worker(queue, worker="w1"):
        wait_until(lambda: "first" in _published(queue))
        queue.task("second")(lambda: None)
        wait_until(lambda: _published(queue) == {"first": "w1", "second": "w1"})


@pytest.mark.usefixtures("often")
def test_a_running_worker_does_not_publish_again_over_another_version(queue: Queue, clock: ManualClock) -> None:
    queue.task("note", lane="old")(lambda: None)
    with running_worker(queue, worker="old"):
        wait_until(lambda: "note" in _published(queue))
        tasks = Tasks()
        tasks.task("note", lane="new")(lambda: None)
        publish(queue, tasks, "new")
        for _ in range(2):
            before = clock.time
            clock.advance(1)
            wait_until(lambda before=before: queue.admin.workers()[0].beat_at > before)  # type: ignore[misc]

        assert (queue.kinds.get("note").lane, queue.kinds.get("note").published_by) == ("new", "new")


@pytest.mark.usefixtures("often")
def test_a_publication_that_fails_is_retried(harness: Harness) -> None:
    class FailsOnce(Faults):
        def __call__(self, name: str) -> None:
            if name == "kind_publish" and name not in self.seen:
                self.seen.append(name)
                raise StoreUnreachable("not now")
            super().__call__(name)

    harness.faults = FailsOnce()
    queue = harness.open()
    queue.task("note")(lambda: None)
    with running_worker(queue, worker="w1"):
        wait_until(lambda: _published(queue) == {"note": "w1"})
