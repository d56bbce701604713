"""Workers that are drained or stopped by a request in the store."""

from __future__ import annotations

import threading

import pytest

from holdfast import Queue, Worker
from holdfast.storage import notifications
from holdfast.worker import maintenance
from tests.chaos.threads import wait_until
from tests.worker.workers import running_worker, wait_finished, wait_for_event


@pytest.fixture
def without_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make workers write their row only when something changes or a notification arrives."""
    monkeypatch.setattr(maintenance, "HEARTBEAT_SECONDS", 3600.0)
    monkeypatch.setattr(maintenance, "_CHECK_SECONDS", 3600.0)
    monkeypatch.setattr(maintenance, "_FIRST_CHECK_SECONDS", 3600.0)


class Slow:
    """A task whose handlers run until they may end."""

    def __init__(self, queue: Queue) -> None:
        self.started, self.proceed = threading.Event(), threading.Event()
        queue.task("slow")(self._run)

    def _run(self) -> None:
        self.started.set()
        wait_for_event(self.proceed)


@pytest.mark.usefixtures("without_heartbeats")
def test_a_drained_worker_finishes_what_it_holds_takes_nothing_new_and_stays_registered(queue: Queue) -> None:
    slow = Slow(queue)
    held = queue.enqueue("slow", {})
    with running_worker(queue, worker="w1", concurrency=2) as working:
        wait_for_event(slow.started)
        wait_until(lambda: len(queue.admin.workers()) == 1)

        queue.admin.drain_worker("w1")
        wait_until(lambda: [row.state for row in queue.admin.workers()] == ["draining"])
        new = queue.enqueue("slow", {})
        slow.proceed.set()

        assert wait_finished(queue, held.id).state == "done"
        wait_until(lambda: working.worker.status().running == ())
        assert working.worker.status().draining
        assert queue.get(new.id).state == "ready"
        assert [(one.kind, one.reason) for one in queue.admin.unserved()] == [("slow", "no_worker")]
        assert not working.future.done()


def test_a_stopped_worker_waits_for_running_handlers_and_ends(queue: Queue) -> None:
    slow = Slow(queue)
    held = queue.enqueue("slow", {})
    with running_worker(queue, worker="w1", grace=3600) as working:
        wait_for_event(slow.started)
        wait_until(lambda: len(queue.admin.workers()) == 1)
        queue.admin.stop_worker("w1")
        wait_until(lambda: [row.state for row in queue.admin.workers()] == ["stopping"])
        # A second request does not end the grace period.
        queue.admin.stop_worker("w1")
        slow.proceed.set()
        working.end()

    assert queue.get(held.id).state == "done"
    assert queue.admin.workers() == []


def test_without_a_notification_the_next_heartbeat_delivers_the_request(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setattr(notifications, "worker_request_topic", lambda _worker: "another topic")
    Slow(queue)
    with running_worker(queue, worker="w1") as working:
        wait_until(lambda: len(queue.admin.workers()) == 1)
        queue.admin.stop_worker("w1")
        working.end()


def test_a_worker_that_starts_again_under_its_name_is_not_drained(queue: Queue) -> None:
    queue.task("note")(lambda: None)
    with running_worker(queue, worker="w1"):
        wait_until(lambda: len(queue.admin.workers()) == 1)
        queue.admin.drain_worker("w1")
        wait_until(lambda: [row.state for row in queue.admin.workers()] == ["draining"])
        with running_worker(queue, worker="w1"):
            assert wait_finished(queue, queue.enqueue("note", {}).id).state == "done"


def test_a_worker_that_is_drained_before_it_runs_claims_nothing(queue: Queue) -> None:
    queue.task("note")(lambda: None)
    enqueued = queue.enqueue("note", {})
    worker = Worker(queue, worker="w1")
    worker.drain()
    with worker.running():
        wait_until(lambda: [row.state for row in queue.admin.workers()] == ["draining"])

    assert queue.get(enqueued.id).state == "ready"
