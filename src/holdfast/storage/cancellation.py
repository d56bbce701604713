"""Awaited work that is never left behind half done."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def finish_despite_cancellation(work: Awaitable[T]) -> T:
    """Await *work*; if the task is cancelled meanwhile, let it come to its end before giving way.

    A connection must not be touched by anybody else while something still uses it.
    """
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            # A further cancellation changes nothing.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        raise


async def in_thread(work: Callable[[], T]) -> T:
    """Run *work* in another thread; if the task is cancelled meanwhile, wait for the thread before giving way."""
    return await finish_despite_cancellation(asyncio.get_running_loop().run_in_executor(None, work))


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """Run *work* in a thread for which neither the end of the event loop nor that of the process waits.

    It goes on if the task is cancelled, and its result is dropped.
    """
    future: Future[T] = Future()
    # From here on a cancelled task does not cancel it.
    future.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            result = context.run(work)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="holdfast-call", daemon=True).start()
    return await asyncio.wrap_future(future)
