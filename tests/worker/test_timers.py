"""The worker's time: all parts of a worker read the clock and wait through one timer, which a test can advance."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path

import pytest

import holdfast.worker
from holdfast.worker.timers import REAL_TIMER, Timer
from tests.chaos.processes import PATIENCE_SECONDS
from tests.chaos.threads import in_background
from tests.worker.timers import MovableTimer

SOURCE = Path(holdfast.worker.__file__).parent
# The supervisor waits for processes, which the operating system runs; how long a handler keeps the loop is real.
REAL_TIME = {"timers.py", "supervisor.py", "executors.py"}


def test_no_other_part_of_a_worker_reads_the_clock() -> None:
    reading = re.compile(r"\btime\.monotonic\b|\basyncio\.timeout\b|\bthreading\.Timer\b")
    found = {path.name for path in SOURCE.rglob("*.py") if reading.search(path.read_text())}
    assert found <= REAL_TIME


@pytest.mark.parametrize("timer", [REAL_TIMER, MovableTimer()], ids=["real", "movable"])
class TestWaiting:
    def test_a_wait_ends_when_its_event_is_set_and_says_so(self, timer: Timer) -> None:
        event, event_async = threading.Event(), asyncio.Event()
        event.set()
        event_async.set()

        assert timer.wait(event, timer.monotonic() + 3600)
        assert asyncio.run(timer.wait_async(event_async, 3600))

    def test_a_wait_ends_when_its_time_has_passed_and_says_so(self, timer: Timer) -> None:
        async def wait() -> bool:
            return await timer.wait_async(asyncio.Event(), 0.001)

        started = timer.monotonic()
        assert not timer.wait(threading.Event(), timer.monotonic() + 0.001)
        assert not asyncio.run(wait())
        assert timer.monotonic() >= started + 0.002

    def test_a_call_that_was_cancelled_is_not_made(self, timer: Timer) -> None:
        enqueued, cancelled = threading.Event(), threading.Event()
        timer.call_later(3600, cancelled.set).cancel()
        timer.call_later(0.001, enqueued.set)

        assert enqueued.wait(PATIENCE_SECONDS)
        assert not cancelled.is_set()


def test_moving_the_timer_ends_what_waits_for_it() -> None:
    timer, called = MovableTimer(), threading.Event()
    timer.call_later(3600, called.set)
    blocking = in_background(lambda: timer.wait(threading.Event(), timer.monotonic() + 3600))
    sleeping = in_background(lambda: asyncio.run(timer.sleep(3600)))
    ended = threading.Event()

    def move() -> None:
        while not ended.wait(0.005):
            timer.advance(3600)

    moving = in_background(move)
    assert blocking.result(PATIENCE_SECONDS) is False
    sleeping.result(PATIENCE_SECONDS)
    assert called.wait(PATIENCE_SECONDS)
    ended.set()
    moving.result(PATIENCE_SECONDS)
