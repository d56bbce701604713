"""Executors: long-lived threads run sync handlers, long-lived asyncio tasks run async handlers.

A slot runs one attempt after the other, so that no thread or task is created for each job. `ExecutorQueue` limits
how many attempts run at once, sync and async together, and reassigns the slot of a handler that does not stop.
"""

import asyncio
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from holdfast.worker.attempt import RunningAttempt
from holdfast.worker.events import Event, EventQueue
from holdfast.worker.timers import Timer

# How long async handlers that never suspend may run before the executor yields to the event loop.
_YIELD_SECONDS = 0.005
# How long cancelled handlers may take to clean up on shutdown.
_CLOSING_SECONDS = 1.0


class Executor(Protocol):
    """Runs handlers of one type: sync, async or isolated."""

    def run(self, attempt: RunningAttempt) -> None:
        """Run the attempt in a free slot, or in a new one. Safe to call from any thread."""
        ...


class ExecutorQueue:
    """A FIFO queue of attempts that runs at most *size* of them at once. Its methods are thread-safe."""

    def __init__(self, size: int, executor_for: Callable[[RunningAttempt], Executor]) -> None:
        self._size = size
        self._executor_for = executor_for
        self._lock = threading.Lock()
        self._waiting: deque[RunningAttempt] = deque()
        self._running = 0

    def put(self, attempts: Sequence[RunningAttempt]) -> None:
        """Run the attempts when slots become free."""
        with self._lock:
            starting = attempts[: self._size - self._running]
            self._running += len(starting)
            self._waiting.extend(attempts[len(starting) :])
        for attempt in starting:
            self._executor_for(attempt).run(attempt)

    def release_slot(self, attempt: RunningAttempt, current: Executor) -> RunningAttempt | None:
        """Free the slot of an ended attempt; return the attempt that the *current* executor runs next, if any."""
        with self._lock:
            next_attempt = self._free(attempt)
        if next_attempt is None or (executor := self._executor_for(next_attempt)) is current:
            return next_attempt
        executor.run(next_attempt)
        return None

    def abandon(self, attempt: RunningAttempt) -> bool:
        """Give the slot of a handler that does not stop to the next attempt; return whether it still had the slot."""
        with self._lock:
            had_slot, next_attempt = not attempt.slot_freed, self._free(attempt)
        if next_attempt is not None:
            self._executor_for(next_attempt).run(next_attempt)
        return had_slot

    def _free(self, attempt: RunningAttempt) -> RunningAttempt | None:
        """Return the attempt that gets the slot of *attempt*; the caller holds the lock."""
        if attempt.slot_freed:
            # It was abandoned, and its slot was reassigned.
            return None
        attempt.slot_freed = True
        if self._waiting:
            return self._waiting.popleft()
        self._running -= 1
        return None


class ThreadExecutor:
    """Runs sync handlers in threads, which it starts on demand."""

    _NAME = "holdfast-slot"

    def __init__(self, executor_queue: ExecutorQueue, events: EventQueue) -> None:
        self._executor_queue = executor_queue
        self._events = events
        self._attempts: queue.SimpleQueue[RunningAttempt | None] = queue.SimpleQueue()
        self._threads = 0
        self._idle = 0
        self._lock = threading.Lock()

    def run(self, attempt: RunningAttempt) -> None:
        """Run the attempt in an idle thread, or in a new one."""
        with self._lock:
            needed = not self._idle
            if needed:
                self._threads += 1
            else:
                self._idle -= 1
        if not needed:
            self._attempts.put(attempt)
            return
        # A thread cannot be stopped: as a daemon it does not keep the process alive if its handler never returns.
        name = f"{self._NAME}-{self._threads}"
        threading.Thread(target=self._work, args=(attempt,), name=name, daemon=True).start()

    def _work(self, attempt: RunningAttempt | None) -> None:
        while attempt is not None:
            event = self._handle(attempt)
            next_attempt = self._executor_queue.release_slot(attempt, self)
            if next_attempt is None:
                with self._lock:
                    self._idle += 1
            if event is None:
                self._events.put_ended(attempt)
            else:
                self._events.put(event)
            attempt = self._attempts.get() if next_attempt is None else next_attempt

    def _handle(self, attempt: RunningAttempt) -> Event | None:
        """Run the attempt; return the event that reports it, or None if its handler has ended."""
        run_blocking(attempt)
        return None

    def close(self) -> None:
        """Make the threads exit when they are idle."""
        for _ in range(self._threads):
            self._attempts.put(None)


def run_blocking(attempt: RunningAttempt) -> None:
    """Run a sync handler in this thread and decide the attempt from its return value or exception."""
    if not attempt.start():
        return
    result: object
    try:
        args, kwargs = attempt.arguments()
        result = attempt.function(*args, **kwargs)
    except BaseException as error:  # every exception of a handler is an outcome, SystemExit too
        result = error
    attempt.ended_at = attempt.timer.monotonic()
    attempt.conclude(result)


class TaskExecutor:
    """Runs async handlers in asyncio tasks of the current event loop, which it starts on demand."""

    def __init__(self, executor_queue: ExecutorQueue, events: EventQueue, timer: Timer) -> None:
        self._executor_queue = executor_queue
        self._events = events
        self._owner = asyncio.current_task()
        """The task that closes this executor."""
        self._timer = timer
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._attempts: deque[RunningAttempt] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._yield_at = math.inf
        """When a task of this executor yields to the event loop, unless that has run others since a task began."""

    def run(self, attempt: RunningAttempt) -> None:
        """Run the attempt in an idle task, or in a new one. Safe to call from any thread."""
        if threading.get_ident() == self._thread:
            self._run_here(attempt)
            return
        with suppress(RuntimeError):  # the event loop is closed: the worker has stopped
            self._loop.call_soon_threadsafe(self._run_here, attempt)

    def _run_here(self, attempt: RunningAttempt) -> None:
        self._attempts.append(attempt)
        while self._idle:
            waiter = self._idle.popleft()
            # A done waiter belongs to a cancelled task.
            if not waiter.done():
                waiter.set_result(None)
                return
        self._start_task()

    def _start_task(self) -> None:
        task = self._loop.create_task(self._work(), name=f"holdfast-slot-{len(self._tasks) + 1}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        try:
            await self._run_attempts()
        finally:
            # A handler may schedule a cancellation of its task that arrives after the handler has ended.
            if self._attempts and not self._is_shutting_down():
                self._start_task()

    async def _run_attempts(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # this code runs in a task
        while not self._closing:
            while not self._attempts:
                waiter = self._loop.create_future()
                self._idle.append(waiter)
                await waiter
            attempt = self._attempts.popleft()
            if self._yield_at == math.inf:
                self._yield_at = time.monotonic() + _YIELD_SECONDS
                self._loop.call_soon(self._loop_has_run)
            await run_async(attempt, task, self._is_shutting_down)
            next_attempt = self._executor_queue.release_slot(attempt, self)
            if next_attempt is not None:
                self._attempts.appendleft(next_attempt)
            self._events.put_ended(attempt)
            if time.monotonic() > self._yield_at:
                # Handlers that never suspend would block the event loop as long as there are attempts.
                await asyncio.sleep(0)

    def _loop_has_run(self) -> None:
        # Handlers that suspend by themselves would otherwise be followed by one more step of the event loop each.
        self._yield_at = math.inf

    def _is_shutting_down(self) -> bool:
        """Return whether a cancellation is meant for the executor and not for a single handler."""
        return self._closing or (self._owner is not None and self._owner.cancelling() > 0)

    async def close(self) -> None:
        """Cancel the tasks and wait a limited time for handlers to clean up."""
        self._closing = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            with suppress(TimeoutError):
                async with self._timer.timeout(_CLOSING_SECONDS):
                    await asyncio.wait(tasks)


async def run_async(
    attempt: RunningAttempt, task: asyncio.Task[Any], is_shutting_down: Callable[[], bool] = lambda: False
) -> None:
    """Run an async handler in *task*, the current task; decide the attempt from its return value or exception.

    If *is_shutting_down* returns True, a cancellation of the task was not meant for this handler alone.
    """
    if not attempt.start():
        return
    result: object
    attempt.cancel_handler = partial(_cancel_threadsafe, attempt, task)
    try:
        args, kwargs = attempt.arguments()
        result = await attempt.function(*args, **kwargs)
    except BaseException as error:  # every exception of a handler is an outcome, CancelledError too
        result = error
    attempt.ended_at = attempt.timer.monotonic()
    attempt.cancel_handler = None
    if task.cancelling():
        if is_shutting_down():
            attempt.handler_state.request_stop("shutdown")
        await _clear_cancellation(task)
    if attempt.transaction is None:
        attempt.conclude(result)
    else:
        await attempt.conclude_async(result)


def _cancel_threadsafe(attempt: RunningAttempt, task: asyncio.Task[Any]) -> None:
    with suppress(RuntimeError):  # the event loop is closed: the handler has ended
        task.get_loop().call_soon_threadsafe(_cancel, attempt, task)


def _cancel(attempt: RunningAttempt, task: asyncio.Task[Any]) -> None:
    # When the event loop calls this, the task may already run another attempt.
    if attempt.cancel_handler is not None:
        task.cancel()


async def _clear_cancellation(task: asyncio.Task[Any]) -> None:
    """Remove all cancellation requests from the current *task*."""
    with suppress(asyncio.CancelledError):
        # A requested cancellation that was not raised yet would be raised by the next await of the slot.
        await asyncio.sleep(0)
    while task.cancelling():
        task.uncancel()
