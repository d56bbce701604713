"""The queue of events: order, threads, and how often it wakes its reader."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from typing import Any

import pytest

from holdfast.worker.events import AffinitiesChanged, DrainRequested, Event, EventQueue, Notified, StopRequested
from holdfast.worker.timers import REAL_TIMER

HOUR = 3600.0
SOON = 0.001


class CountingLoop:
    """Counts how often other threads wake an event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wakes = 0
        loop = asyncio.get_running_loop()
        self._call = loop.call_soon_threadsafe
        monkeypatch.setattr(loop, "call_soon_threadsafe", self._count)

    def _count(self, *args: Any) -> Any:
        self.wakes += 1
        return self._call(*args)


def run(test: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test

    asyncio.run(bounded())


def put_in_thread(events: EventQueue, *put: Event) -> None:
    thread = threading.Thread(target=put_all, args=(events, put))
    thread.start()
    thread.join()


def put_all(events: EventQueue, put: Iterable[Event]) -> None:
    for event in put:
        events.put(event)


def test_events_come_in_their_order_from_every_thread() -> None:
    async def test() -> None:
        events = EventQueue(REAL_TIMER)
        put: list[Event] = [Notified("jobs"), StopRequested(), Notified("sessions")]
        events.put(put[0])
        put_in_thread(events, *put[1:])
        await events.wait(HOUR)

        assert list(events.drain()) == put
        assert list(events.drain()) == []

    run(test())


def test_events_that_arrive_together_wake_the_reader_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        counting = CountingLoop(monkeypatch)
        events = EventQueue(REAL_TIMER)
        waiting = asyncio.ensure_future(events.wait(HOUR))
        await asyncio.sleep(0)
        put_in_thread(events, *[Notified("jobs")] * 100)
        await waiting

        assert len(list(events.drain())) == 100
        assert counting.wakes == 1

    run(test())


def test_a_reader_that_does_not_wait_is_not_woken_and_finds_the_event_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        counting = CountingLoop(monkeypatch)
        events = EventQueue(REAL_TIMER)
        put_in_thread(events, Notified("jobs"))

        assert counting.wakes == 0
        await events.wait(HOUR)
        assert list(events.drain()) == [Notified("jobs")]

    run(test())


def test_a_wait_for_urgent_events_ignores_others() -> None:
    async def test() -> None:
        events = EventQueue(REAL_TIMER)
        events.put(AffinitiesChanged())
        waiting = asyncio.ensure_future(events.wait(HOUR, urgent_only=True))
        await asyncio.sleep(SOON)
        put_in_thread(events, Notified("jobs"))
        await asyncio.sleep(SOON)
        assert not waiting.done()

        put_in_thread(events, DrainRequested())
        await waiting
        assert list(events.drain()) == [AffinitiesChanged(), Notified("jobs"), DrainRequested()]

    run(test())


def test_an_urgent_event_that_came_before_the_wait_ends_it() -> None:
    async def test() -> None:
        events = EventQueue(REAL_TIMER)
        events.put(StopRequested())
        await events.wait(HOUR, urgent_only=True)

    run(test())


def test_a_wait_ends_without_an_event_when_its_time_has_passed() -> None:
    async def test() -> None:
        events = EventQueue(REAL_TIMER)
        await events.wait(SOON)
        assert list(events.drain()) == []

    run(test())


def test_no_event_is_missed_however_threads_and_the_reader_interleave() -> None:
    async def test() -> None:
        events, count = EventQueue(REAL_TIMER), 4 * 500
        threads = [threading.Thread(target=put_all, args=(events, [Notified("jobs")] * 500)) for _ in range(4)]
        for thread in threads:
            thread.start()
        received = 0
        while received < count:
            await events.wait(HOUR)
            received += len(list(events.drain()))
        assert received == count

    run(test())


def test_an_event_that_comes_after_the_end_of_the_event_loop_is_ignored() -> None:
    async def create() -> tuple[EventQueue, asyncio.Task[None]]:
        events = EventQueue(REAL_TIMER)
        waiting = asyncio.ensure_future(events.wait(HOUR))
        await asyncio.sleep(0)
        return events, waiting

    loop = asyncio.new_event_loop()
    events, waiting = loop.run_until_complete(create())
    loop.close()
    put_in_thread(events, StopRequested())

    assert not waiting.done()
    # Nothing awaits the task; its loop is closed.
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]
