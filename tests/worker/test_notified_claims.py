"""A notification that the worker loop handles while a claim is in flight leads to another claim."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Queue
from holdfast.storage import notifications
from holdfast.worker import loop
from holdfast.worker.events import EventQueue, LaneListener, StoreRecovered
from holdfast.worker.loop import WorkerLoop
from holdfast.worker.session_loop import SessionTurns
from tests.chaos.threads import wait_until
from tests.worker.chats import Chat, Message
from tests.worker.workers import running_worker, wait_finished


@pytest.fixture(autouse=True)
def without_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make workers claim only when they are notified."""
    monkeypatch.setattr(loop, "_POLL_SECONDS", 3600.0)
    monkeypatch.setattr(notifications, "POLL_SECONDS", 3600.0)


class InFlight:
    """Enqueues one job when a claim has found nothing, and holds its answer back until the loop was notified."""

    def __init__(self, enqueue: Callable[[], str]) -> None:
        self._enqueue = enqueue
        self.armed = False
        self.job_id = ""

    async def found_nothing(self, events: EventQueue, listener: LaneListener) -> None:
        if not self.armed:
            return
        self.armed = False
        self.job_id = await asyncio.to_thread(self._enqueue)
        await asyncio.to_thread(wait_until, lambda: listener._pending)

        def handled() -> bool:
            # The notification alone does not wake the loop during an exchange; an urgent event does. The server
            # sends the notification of a job of this process as well, perhaps after the first was handled.
            events.put(StoreRecovered())
            return not listener._pending

        await asyncio.to_thread(wait_until, handled)


def _finishes(queue: Queue, in_flight: InFlight, enqueue: Callable[[], str]) -> None:
    with running_worker(queue):
        # The worker listens when the first job is done.
        wait_finished(queue, enqueue())
        in_flight.armed = True
        wait_finished(queue, enqueue())
        wait_until(lambda: bool(in_flight.job_id))
        assert wait_finished(queue, in_flight.job_id).state == "done"


def test_of_jobs(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.task("note")(lambda: None)

    def enqueue() -> str:
        return queue.enqueue("note", {}).id

    in_flight, send = InFlight(enqueue), WorkerLoop._send

    async def hold_back(worker_loop: WorkerLoop, *args: Any) -> Any:
        answer = await send(worker_loop, *args)
        if not answer[1]:
            await in_flight.found_nothing(worker_loop._events, worker_loop._listener)
        return answer

    monkeypatch.setattr(WorkerLoop, "_send", hold_back)
    _finishes(queue, in_flight, enqueue)


def test_of_sessions(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    chat, numbers = Chat(queue), itertools.count()

    def enqueue() -> str:
        # Another session each time: the end of a turn is a notification for its own.
        return chat.answer.enqueue(Message("hello"), session=str(next(numbers))).id

    in_flight, claim_one = InFlight(enqueue), SessionTurns._claim_one

    async def hold_back(turns: SessionTurns, *args: Any) -> Any:
        claim = await claim_one(turns, *args)
        if claim is None:
            await in_flight.found_nothing(turns._listener._events, turns._listener)
        return claim

    monkeypatch.setattr(SessionTurns, "_claim_one", hold_back)
    _finishes(queue, in_flight, enqueue)
