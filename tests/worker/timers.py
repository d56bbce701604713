"""A worker's timer that a test advances, instead of waiting for leases, timeouts and grace periods."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

from holdfast.worker.timers import Scheduled, Timer

# How often a waiting thread checks whether the time was advanced.
_LOOK_SECONDS = 0.005


class MovableTimer(Timer):
    """Real time plus the time that `advance` adds: a wait that is over then ends at once.

    With *stands_still* only `advance` moves the time, so that handlers take no time, however busy the machine is.
    """

    def __init__(self, *, stands_still: bool = False) -> None:
        # A whole number, so that whole seconds that a test adds are measured exactly.
        self._stands_at = float(int(time.monotonic())) if stands_still else None
        self._ahead = 0.0
        self._lock = threading.Lock()
        self._timeouts: dict[asyncio.Timeout, tuple[asyncio.AbstractEventLoop, float]] = {}
        self._waiting: dict[asyncio.Task[object] | None, tuple[float, asyncio.Timeout]] = {}

    def monotonic(self) -> float:
        """Return the current time of the timer."""
        return (time.monotonic() if self._stands_at is None else self._stands_at) + self._ahead

    def advance(self, seconds: float) -> None:
        """Advance the time by *seconds*. Safe to call from any thread."""
        with self._lock:
            self._ahead += seconds
            for timeout, (loop, ends_at) in self._timeouts.items():
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(self._reschedule, loop, timeout, ends_at)

    def _reschedule(self, loop: asyncio.AbstractEventLoop, timeout: asyncio.Timeout, ends_at: float) -> None:
        left = ends_at - self.monotonic()
        if timeout in self._timeouts and not timeout.expired() and (self._stands_at is None or left <= 0):
            timeout.reschedule(loop.time() + max(left, 0))

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        """Return a context manager that raises `TimeoutError` after *seconds*."""
        return asyncio.timeout(None) if seconds is None else self._movable(seconds)

    @property
    def loop_seconds(self) -> float:
        """How long the worker's loop is going to wait, in the task that runs the worker; 0 if it does not wait."""
        with self._lock:
            until = [ends_at for task, (ends_at, _) in self._waiting.items() if _runs_worker(task)]
            return max(until[0] - self.monotonic(), 0.0) if until else 0.0

    @property
    def loop_wait(self) -> object:
        """The current wait of the worker's loop, another object for each; None if it does not wait."""
        with self._lock:
            return next((wait for task, (_, wait) in self._waiting.items() if _runs_worker(task)), None)

    @asynccontextmanager
    async def _movable(self, seconds: float) -> AsyncIterator[None]:
        async with asyncio.timeout(seconds if self._stands_at is None or seconds <= 0 else None) as timeout:
            task = asyncio.current_task()
            with self._lock:
                ends_at = self.monotonic() + seconds
                self._timeouts[timeout] = (asyncio.get_running_loop(), ends_at)
                self._waiting[task] = (ends_at, timeout)
            try:
                yield
            finally:
                with self._lock:
                    del self._timeouts[timeout], self._waiting[task]

    def wait(self, event: threading.Event, until: float) -> bool:
        """Block until *event* is set or the time *until* has come."""
        while not event.is_set() and (left := until - self.monotonic()) > 0:
            event.wait(min(left, _LOOK_SECONDS))
        return event.is_set()

    def call_later(self, seconds: float, function: Callable[[], object]) -> Scheduled:
        """Call *function* in a new thread after *seconds*."""
        call = _Call()
        until = self.monotonic() + seconds
        threading.Thread(target=self._call, args=(call, until, function), daemon=True).start()
        return call

    def _call(self, call: _Call, until: float, function: Callable[[], object]) -> None:
        if not self.wait(call.cancelled, until):
            function()


def _runs_worker(task: asyncio.Task[object] | None) -> bool:
    return task is not None and getattr(task.get_coro(), "__qualname__", "") == "Worker._serve_alone"


class _Call:
    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()
