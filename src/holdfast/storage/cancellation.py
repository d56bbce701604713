"""Awaiting work that must not be left half done when the task is cancelled."""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

# How long a cancelled caller waits for its undo, which then continues in the background.
_WAIT_SECONDS: Final = 1.0

_locks: WeakKeyDictionary[object, asyncio.Lock] = WeakKeyDictionary()

# The event loop keeps only weak references to its tasks.
_in_background: set[asyncio.Task[None]] = set()


def retrieve(done: asyncio.Future[Any]) -> None:
    """Mark the error of an abandoned call as retrieved: asyncio would log it."""
    if not done.cancelled():
        done.exception()


async def finish_despite_cancellation(work: Awaitable[T]) -> T:
    """Await *work*; if the task is cancelled, wait for *work* to finish, then raise the cancellation.

    No other caller may use a connection while *work* still uses it.
    """
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            # Ignore further cancellations until the work has finished.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        retrieve(running)
        raise


def lock_of(connection: object) -> asyncio.Lock:
    """Return the lock of the calls that share an async *connection*: their savepoints must not overlap."""
    return _locks.setdefault(connection, asyncio.Lock())


async def undo(work: Coroutine[Any, Any, None]) -> None:
    """Run *work*, which undoes a cancelled call, in a task of its own; wait for it for a short time."""
    undoing = asyncio.create_task(work)
    _in_background.add(undoing)
    undoing.add_done_callback(_in_background.discard)
    # A second cancellation ends the wait, not the undo.
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait([undoing], timeout=_WAIT_SECONDS)


async def in_thread(work: Callable[[], T]) -> T:
    """Run *work* in another thread; if the task is cancelled, wait for the thread, then raise the cancellation."""
    return await finish_despite_cancellation(asyncio.get_running_loop().run_in_executor(None, work))


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """Run *work* in a daemon thread; neither the event loop nor the process waits for it to finish.

    If the task is cancelled, the thread continues and its result is dropped.
    """
    future: Future[T] = Future()
    # Mark the future as running, so that cancelling the task does not cancel it.
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
