"""Handlers that do not stop when told to lose their slot, and a worker that has too many of them ends."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from holdfast import Backoff, HandlersStuck, Queue
from holdfast.worker import stuck_handlers as stuck_module
from holdfast.worker.worker import Worker
from tests.chaos.processes import PATIENCE_SECONDS
from tests.chaos.threads import in_background, wait_until
from tests.worker.workers import arrived, at_work, comes, ended, in_state

COLOURS = pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaited"])


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let handlers keep their slot for a moment only after they were told to stop."""
    monkeypatch.setattr(stuck_module, "HEEDING_SECONDS", 0.05)


class Deaf:
    """A task that never heeds: it ends when the test lets it."""

    def __init__(self, queue: Queue, *, awaited: bool) -> None:
        self.go_on = threading.Event()
        self.running = 0
        self._queue = queue
        queue.task("deaf", timeout=0.05, backoff=Backoff(base=3600))(self._awaited if awaited else self._blocking)
        queue.task("quick")(lambda: "quick")

    def _blocking(self) -> None:
        self.running += 1
        arrived(self.go_on)

    async def _awaited(self) -> None:
        self.running += 1
        while not self.go_on.is_set():
            try:
                await comes(self.go_on)
            except asyncio.CancelledError:
                continue

    def fail_one(self) -> None:
        """Let one more attempt fail by its timeout."""
        made = self._queue.enqueue("deaf", {})
        in_state(self._queue, made.id, "scheduled")


@COLOURS
def test_a_handler_past_its_timeout_gives_its_slot_back(
    queue: Queue, awaited: bool, caplog: pytest.LogCaptureFixture
) -> None:
    deaf = Deaf(queue, awaited=awaited)
    with at_work(queue, concurrency=1) as working:
        deaf.fail_one()
        # The only slot is that of the handler which runs on.
        assert ended(queue, queue.enqueue("quick", {}).id).result == "quick"
        assert working.worker.status().abandoned == 1
        deaf.go_on.set()
        wait_until(lambda: working.worker.status().abandoned == 0)
        assert ended(queue, queue.enqueue("quick", {}).id).result == "quick"
        wait_until(lambda: working.worker.status().ended == {"retried": 1, "done": 2})

    [abandoned] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "of kind deaf runs on though it was told to stop (timeout): abandoned, 1 of at most 1" in abandoned


@COLOURS
def test_with_more_of_them_than_slots_the_worker_ends_in_good_order_and_says_why(queue: Queue, awaited: bool) -> None:
    deaf = Deaf(queue, awaited=awaited)
    held, go_on = threading.Event(), threading.Event()

    @queue.task("polite")
    def polite() -> str:
        held.set()
        arrived(go_on)
        return "in peace"

    worker = Worker(queue, concurrency=2)
    running = in_background(worker.run)
    waiting = polite.enqueue()
    arrived(held)
    for _ in range(3):
        deaf.fail_one()
    wait_until(lambda: worker.status().stopping)
    go_on.set()
    assert ended(queue, waiting.id).result == "in peace"
    later = queue.enqueue("quick", {})
    deaf.go_on.set()
    with pytest.raises(HandlersStuck) as caught:
        running.result(PATIENCE_SECONDS)

    assert caught.value.kinds == ("deaf",)
    assert deaf.running == 3
    assert queue.get(later.id).state == "ready"
    assert queue.workers() == []


def test_a_handler_that_heeds_is_never_abandoned(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    @queue.task("heeds", timeout=0.02, max_attempts=1)
    async def heeds() -> None:
        await asyncio.get_running_loop().create_future()

    with at_work(queue, concurrency=2) as working:
        for _ in range(6):
            assert ended(queue, heeds.enqueue().id).state == "failed"
        assert working.worker.status().abandoned == 0

    assert "abandoned" not in caplog.text
