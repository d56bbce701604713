"""Handlers that ignore the request to stop lose their slot, and a worker with too many of them stops."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from holdfast import Backoff, Queue
from holdfast.errors import HandlersStuck
from holdfast.worker import stuck_handlers as stuck_module
from holdfast.worker.worker import Worker
from tests.chaos.processes import PATIENCE_SECONDS
from tests.chaos.threads import in_background, wait_until
from tests.worker.workers import comes, in_state, running_worker, wait_finished, wait_for_event

COLOURS = pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaited"])


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let handlers keep their slot only briefly after the request to stop."""
    monkeypatch.setattr(stuck_module, "STOP_SECONDS", 0.05)


class Deaf:
    """A task that ignores the request to stop: it ends when the test releases it."""

    def __init__(self, queue: Queue, *, awaited: bool) -> None:
        self.proceed = threading.Event()
        self.running = 0
        self._queue = queue
        queue.task("deaf", timeout=0.05, backoff=Backoff(base=3600))(self._awaited if awaited else self._blocking)
        queue.task("quick")(lambda: "quick")

    def _blocking(self) -> None:
        self.running += 1
        wait_for_event(self.proceed)

    async def _awaited(self) -> None:
        self.running += 1
        while not self.proceed.is_set():
            try:
                await comes(self.proceed)
            except asyncio.CancelledError:
                continue

    def fail_one(self) -> None:
        """Let one more attempt time out."""
        enqueued = self._queue.enqueue("deaf", {})
        in_state(self._queue, enqueued.id, "scheduled")


@COLOURS
def test_a_handler_past_its_timeout_gives_its_slot_back(
    queue: Queue, awaited: bool, caplog: pytest.LogCaptureFixture
) -> None:
    deaf = Deaf(queue, awaited=awaited)
    with running_worker(queue, concurrency=1) as working:
        deaf.fail_one()
        # The handler that keeps running has the only slot.
        assert wait_finished(queue, queue.enqueue("quick", {}).id).result == "quick"
        assert working.worker.status().abandoned == 1
        deaf.proceed.set()
        wait_until(lambda: working.worker.status().abandoned == 0)
        assert wait_finished(queue, queue.enqueue("quick", {}).id).result == "quick"
        wait_until(lambda: working.worker.status().ended == {"retried": 1, "done": 2})

    [abandoned] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "of kind deaf did not stop when requested (timeout): abandoned, 1 of at most 1" in abandoned


@COLOURS
def test_with_more_of_them_than_slots_the_worker_ends_in_good_order_and_says_why(queue: Queue, awaited: bool) -> None:
    deaf = Deaf(queue, awaited=awaited)
    held, proceed = threading.Event(), threading.Event()

    @queue.task("polite")
    def polite() -> str:
        held.set()
        wait_for_event(proceed)
        return "in peace"

    worker = Worker(queue, concurrency=2)
    running = in_background(worker.run)
    waiting = polite.enqueue()
    wait_for_event(held)
    for _ in range(3):
        deaf.fail_one()
    wait_until(lambda: worker.status().stopping)
    proceed.set()
    assert wait_finished(queue, waiting.id).result == "in peace"
    later = queue.enqueue("quick", {})
    deaf.proceed.set()
    with pytest.raises(HandlersStuck) as caught:
        running.result(PATIENCE_SECONDS)

    assert caught.value.kinds == ("deaf",)
    assert deaf.running == 3
    assert queue.get(later.id).state == "ready"
    assert queue.admin.workers() == []


def test_a_handler_that_obeys_is_never_abandoned(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    @queue.task("obeys", timeout=0.02, max_attempts=1)
    async def obeys() -> None:
        await asyncio.get_running_loop().create_future()

    with running_worker(queue, concurrency=2) as working:
        for _ in range(6):
            assert wait_finished(queue, obeys.enqueue().id).state == "failed"
        assert working.worker.status().abandoned == 0

    assert "abandoned" not in caplog.text
