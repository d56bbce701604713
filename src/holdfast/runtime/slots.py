"""Where handlers run: long-lived threads for those that block, long-lived tasks for those that are awaited.

Neither is made anew for each job. A slot takes an attempt, runs its handler to the end, and tells the core.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

from holdfast.runtime.attempt import Attempt

Told: TypeAlias = Callable[[Attempt], None]
"""Told of each attempt whose handler has ended."""

# For how long awaited handlers that never give way may keep the loop from everything else.
_TURN_SECONDS = 0.005
# How long handlers that are cancelled because the loop goes down may take to clean up.
_CLOSING_SECONDS = 1.0


class Slots(Protocol):
    """Places in which handlers of one colour run."""

    def put(self, attempt: Attempt) -> None:
        """Let the next free slot run the attempt."""
        ...


class ThreadSlots:
    """Threads for handlers that block, started as they are needed, up to *size*."""

    def __init__(self, size: int, told: Told) -> None:
        self._size = size
        self._told = told
        self._attempts: queue.SimpleQueue[Attempt | None] = queue.SimpleQueue()
        self._threads = 0
        self._lock = threading.Lock()
        self._unended = 0
        """Attempts that run or wait for a thread."""

    def put(self, attempt: Attempt) -> None:
        """Let the next free thread run the attempt."""
        with self._lock:
            self._unended += 1
            needed = self._unended > self._threads and self._threads < self._size
        self._attempts.put(attempt)
        if needed:
            self._threads += 1
            # Nothing can stop a thread: one that never comes to its end must not keep the process alive.
            threading.Thread(target=self._work, name=f"holdfast-slot-{self._threads}", daemon=True).start()

    def _work(self) -> None:
        while (attempt := self._attempts.get()) is not None:
            run_blocking(attempt)
            with self._lock:
                self._unended -= 1
            self._told(attempt)

    def close(self) -> None:
        """Let the threads end once they are free."""
        for _ in range(self._threads):
            self._attempts.put(None)


def run_blocking(attempt: Attempt) -> None:
    """Run a blocking handler in this thread and let what it returns or raises decide."""
    if not attempt.start():
        return
    ended: object
    try:
        args, kwargs = attempt.arguments()
        ended = attempt.task.function(*args, **kwargs)
    except BaseException as error:  # whatever a handler raises is an outcome, an exit of its thread too
        ended = error
    attempt.ended_at = time.monotonic()
    attempt.conclude(ended)


class TaskSlots:
    """Tasks for handlers that are awaited, started as they are needed, up to *size*; used from the loop alone."""

    def __init__(self, size: int, told: Told) -> None:
        self._size = size
        self._told = told
        self._loop = asyncio.get_running_loop()
        self._attempts: deque[Attempt] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def put(self, attempt: Attempt) -> None:
        """Let the next free task run the attempt."""
        self._attempts.append(attempt)
        if self._idle:
            self._wake_one()
        elif len(self._tasks) < self._size:
            task = self._loop.create_task(self._work(), name=f"holdfast-slot-{len(self._tasks) + 1}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _wake_one(self) -> None:
        waiter = self._idle.popleft()
        if not waiter.done():
            waiter.set_result(None)

    async def _work(self) -> None:
        turn_ends_at = 0.0
        while not self._closing:
            while not self._attempts:
                waiter = self._loop.create_future()
                self._idle.append(waiter)
                await waiter
            attempt = self._attempts.popleft()
            await self.run(attempt)
            self._told(attempt)
            if time.monotonic() > turn_ends_at:
                # A handler that never waits for anything would else keep the loop until nothing is left to run.
                await asyncio.sleep(0)
                turn_ends_at = time.monotonic() + _TURN_SECONDS

    async def run(self, attempt: Attempt) -> None:
        """Run an awaited handler in the current task and let what it returns or raises decide."""
        task = asyncio.current_task()
        if task is None or not attempt.start():
            return
        ended: object
        attempt.cancel_handler = self._cancelling(task, attempt)
        try:
            args, kwargs = attempt.arguments()
            ended = await attempt.task.function(*args, **kwargs)
        except asyncio.CancelledError as error:
            if attempt.stopped is None and task.cancelling():
                # Not the handler but the slot is to end: the loop goes down.
                raise
            # Else the handler was told to stop, or has awaited something that somebody cancelled.
            ended = error
        except BaseException as error:  # whatever a handler raises is an outcome
            ended = error
        finally:
            attempt.ended_at = time.monotonic()
            attempt.cancel_handler = None
            while task.cancelling():
                task.uncancel()
        await attempt.conclude_async(ended)

    def _cancelling(self, task: asyncio.Task[Any], attempt: Attempt) -> Callable[[], None]:
        def cancel() -> None:
            # By the time the loop comes to it, the slot may run another attempt.
            if attempt.cancel_handler is not None:
                task.cancel()

        def ask() -> None:
            with suppress(RuntimeError):  # the loop is closed, and the handler with it
                self._loop.call_soon_threadsafe(cancel)

        return ask

    async def close(self) -> None:
        """End the tasks, cancelling what still runs in them; a handler that does not heed is waited for no longer."""
        self._closing = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSING_SECONDS)
