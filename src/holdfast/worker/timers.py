"""The worker's time: every part of a worker reads the clock and waits through one `Timer`.

A test passes its own timer to `Worker` and advances time itself, instead of waiting for leases, timeouts and grace
periods. Waits for the operating system, such as for the exit of a process, do not use the timer.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Final, Protocol


class Scheduled(Protocol):
    """A scheduled call."""

    def cancel(self) -> object:
        """Cancel the call if it has not run yet."""
        ...


class Timer:
    """Real time, by the monotonic clock."""

    monotonic = staticmethod(time.monotonic)

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        """Return a context manager that raises `TimeoutError` after *seconds*, like `asyncio.timeout`."""
        return asyncio.timeout(seconds)

    def wait(self, event: threading.Event, until: float) -> bool:
        """Block until *event* is set or the time *until* has come; return whether it is set."""
        return event.wait(max(until - self.monotonic(), 0))

    def call_later(self, seconds: float, function: Callable[[], object]) -> Scheduled:
        """Call *function* in a new thread after *seconds*."""
        timer = threading.Timer(seconds, function)
        timer.daemon = True
        timer.start()
        return timer

    async def sleep(self, seconds: float) -> None:
        """Wait for *seconds*."""
        await self.wait_async(asyncio.Event(), seconds)

    async def wait_async(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait until *event* is set or *seconds* have passed; return whether it is set."""
        with suppress(TimeoutError):
            async with self.timeout(max(seconds, 0)):
                await event.wait()
        return event.is_set()


REAL_TIMER: Final = Timer()
