"""Where handlers run: long-lived threads for those that block, long-lived tasks for those that are awaited.

Neither is made anew for each job. A slot takes an attempt, runs its handler to the end, tells the core and takes the
next. The line bounds how many run at once, of all colours together, and gives away the slot of a handler that does
not stop when it is told to.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

from holdfast.worker.attempt import RunningAttempt
from holdfast.worker.timers import REAL_TIMER, Timer

Told: TypeAlias = Callable[[RunningAttempt], None]
"""Told of each attempt whose handler has ended."""

# For how long awaited handlers that never give way may keep the loop from everything else.
_TURN_SECONDS = 0.005
# How long handlers that are cancelled because the loop goes down may take to clean up.
_CLOSING_SECONDS = 1.0


class Executors(Protocol):
    """Places in which handlers of one colour run."""

    def run(self, attempt: RunningAttempt) -> None:
        """Run the attempt in a place that is free, or in a new one; from any thread."""
        ...


class ExecutorQueue:
    """Attempts in the order in which they came, *size* of them at once, whatever their colour. From any thread."""

    def __init__(self, size: int, slots_of: Callable[[RunningAttempt], Executors]) -> None:
        self._size = size
        self._slots_of = slots_of
        self._lock = threading.Lock()
        self._waiting: deque[RunningAttempt] = deque()
        self._running = 0

    def put(self, attempts: Sequence[RunningAttempt]) -> None:
        """Run the attempts as soon as their turn comes."""
        with self._lock:
            starting = attempts[: self._size - self._running]
            self._running += len(starting)
            self._waiting.extend(attempts[len(starting) :])
        for attempt in starting:
            self._slots_of(attempt).run(attempt)

    def following(self, attempt: RunningAttempt, here: Executors) -> RunningAttempt | None:
        """Free the slot of an attempt that has ended; return what *here* is to run next, if anything."""
        with self._lock:
            following = self._free(attempt)
        if following is None or (slots := self._slots_of(following)) is here:
            return following
        slots.run(following)
        return None

    def abandon(self, attempt: RunningAttempt) -> bool:
        """Give the slot of a handler that does not stop to the next attempt; tell whether it still had it."""
        with self._lock:
            had, following = not attempt.slot_freed, self._free(attempt)
        if following is not None:
            self._slots_of(following).run(following)
        return had

    def _free(self, attempt: RunningAttempt) -> RunningAttempt | None:
        """Return what takes the place of *attempt*; called under the lock."""
        if attempt.slot_freed:
            # It was abandoned, and another has its place.
            return None
        attempt.slot_freed = True
        if self._waiting:
            return self._waiting.popleft()
        self._running -= 1
        return None


class ThreadExecutor:
    """Threads for handlers that block, started as they are needed."""

    _NAME = "holdfast-slot"

    def __init__(self, told: Told) -> None:
        self.line: ExecutorQueue
        self._told = told
        self._attempts: queue.SimpleQueue[RunningAttempt | None] = queue.SimpleQueue()
        self._threads = 0
        self._idle = 0
        self._lock = threading.Lock()

    def run(self, attempt: RunningAttempt) -> None:
        """Run the attempt in a thread that is idle, or in a new one."""
        with self._lock:
            needed = not self._idle
            if needed:
                self._threads += 1
            else:
                self._idle -= 1
        if not needed:
            self._attempts.put(attempt)
            return
        # Nothing can stop a thread: one that never comes to its end must not keep the process alive.
        name = f"{self._NAME}-{self._threads}"
        threading.Thread(target=self._work, args=(attempt,), name=name, daemon=True).start()

    def _work(self, attempt: RunningAttempt | None) -> None:
        while attempt is not None:
            tell = self._handle(attempt)
            following = self.line.following(attempt, self)
            if following is None:
                with self._lock:
                    self._idle += 1
            tell(attempt)
            attempt = self._attempts.get() if following is None else following

    def _handle(self, attempt: RunningAttempt) -> Told:
        """Run the attempt to its end, and return whom to tell of it."""
        run_blocking(attempt)
        return self._told

    def close(self) -> None:
        """Let the threads end once they are free."""
        for _ in range(self._threads):
            self._attempts.put(None)


def run_blocking(attempt: RunningAttempt) -> None:
    """Run a blocking handler in this thread and let what it returns or raises decide."""
    if not attempt.start():
        return
    ended: object
    try:
        args, kwargs = attempt.arguments()
        ended = attempt.function(*args, **kwargs)
    except BaseException as error:  # whatever a handler raises is an outcome, an exit of its thread too
        ended = error
    attempt.ended_at = attempt.timer.monotonic()
    attempt.conclude(ended)


class TaskExecutor:
    """Tasks for handlers that are awaited, started as they are needed, in the loop in which this is made."""

    def __init__(self, told: Told, owner: asyncio.Task[Any] | None = None, timer: Timer = REAL_TIMER) -> None:
        """Call *told* with each attempt that ended; *owner* is the task that closes this."""
        self.line: ExecutorQueue
        self._told = told
        self._owner = owner
        self._timer = timer
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._attempts: deque[RunningAttempt] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def run(self, attempt: RunningAttempt) -> None:
        """Run the attempt in a task that is idle, or in a new one; from any thread."""
        if threading.get_ident() == self._thread:
            self._run_here(attempt)
            return
        with suppress(RuntimeError):  # the loop is closed, and the worker with it
            self._loop.call_soon_threadsafe(self._run_here, attempt)

    def _run_here(self, attempt: RunningAttempt) -> None:
        self._attempts.append(attempt)
        while self._idle:
            waiter = self._idle.popleft()
            # The task of one that is done was cancelled.
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
            # A handler may leave a cancel of its task behind that comes after its end.
            if self._attempts and not self._going_down:
                self._start_task()

    async def _run_attempts(self) -> None:
        turn_ends_at = 0.0
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # this is one
        while not self._closing:
            while not self._attempts:
                waiter = self._loop.create_future()
                self._idle.append(waiter)
                await waiter
            attempt = self._attempts.popleft()
            await self.run_in(task, attempt)
            following = self.line.following(attempt, self)
            if following is not None:
                self._attempts.appendleft(following)
            self._told(attempt)
            if time.monotonic() > turn_ends_at:
                # A handler that never waits for anything would else keep the loop until nothing is left to run.
                await asyncio.sleep(0)
                turn_ends_at = time.monotonic() + _TURN_SECONDS

    async def run_in(self, task: asyncio.Task[Any], attempt: RunningAttempt) -> None:
        """Run an awaited handler in *task*, which is the current one, and let what it returns or raises decide."""
        if not attempt.start():
            return
        ended: object
        attempt.cancel_handler = self._cancelling(task, attempt)
        try:
            args, kwargs = attempt.arguments()
            ended = await attempt.function(*args, **kwargs)
        except BaseException as error:  # whatever a handler raises is an outcome, a cancel of its own task too
            ended = error
        attempt.ended_at = attempt.timer.monotonic()
        attempt.cancel_handler = None
        if task.cancelling():
            if self._going_down:
                attempt.context.ask_to_stop("shutdown")
            await _forget_cancel(task)
        await attempt.conclude_async(ended)

    @property
    def _going_down(self) -> bool:
        """Whether the slots are cancelled, and not the handler in one of them."""
        return self._closing or (self._owner is not None and self._owner.cancelling() > 0)

    def _cancelling(self, task: asyncio.Task[Any], attempt: RunningAttempt) -> Callable[[], None]:
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
            with suppress(TimeoutError):
                async with self._timer.timeout(_CLOSING_SECONDS):
                    await asyncio.wait(tasks)


async def _forget_cancel(task: asyncio.Task[Any]) -> None:
    """Let the current *task* go on as if it had never been cancelled."""
    with suppress(asyncio.CancelledError):
        # A cancel that was asked for and not raised yet would be raised by what the slot awaits next.
        await asyncio.sleep(0)
    while task.cancelling():
        task.uncancel()
