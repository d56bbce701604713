"""The queue for the writer: one caller leads at a time; the others wait, in threads or in tasks.

A signal handler may run, and raise, in the main thread after any call. So the state records the progress of each
step, and an interrupted step can be repeated. `Condition`, `Event` and `Future` are not used: their internal locks
stay locked if an interrupt arrives while they are released.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from holdfast.storage.transaction import Operation


class Ticket:
    """An operation to run, or a caller that needs the writer exclusively, waiting in a thread."""

    __slots__ = ("_woken", "completed", "error", "interrupted", "operation", "result")
    threadless = False
    """Whether the caller waits without a thread, so that another thread has to do the work."""

    def __init__(self, operation: Operation[Any] | None) -> None:
        self.operation = operation
        self.completed = False
        self.interrupted = False
        """Whether it no longer waits for other writers."""
        self.result: Any = None
        self.error: BaseException | None = None
        self._woken: Any = None

    def belongs_to(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether the caller is a task of *loop*."""
        return False

    def prepare_wait(self) -> None:
        """Prepare to be woken."""
        woken = threading.Lock()
        woken.acquire()  # released by `wake`
        self._woken = woken

    def wait(self, seconds: float) -> bool:
        """Wait until woken; return whether that was in time. Spurious wakeups are possible."""
        wait_async: bool = self._woken.acquire(timeout=seconds)
        return wait_async

    def wake(self) -> None:
        """Wake the caller, which then checks the state."""
        if self._woken is not None and self._woken.locked():
            self._woken.release()

    def wake_to_lead(self) -> None:
        """Wake the caller to lead."""
        self.wake()


class TaskTicket(Ticket):
    """A ticket whose caller waits in an event loop."""

    __slots__ = ("_lead", "_loop", "_waiter", "working")
    threadless = True

    def __init__(self, operation: Operation[Any] | None, lead: Callable[[Ticket], None] | None = None) -> None:
        super().__init__(operation)
        self._lead = lead
        self._loop = asyncio.get_running_loop()
        self._waiter = self._loop.create_future()
        self.working = threading.RLock()
        """Held by the thread that works for this ticket."""

    def belongs_to(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether the caller is a task of *loop*."""
        return self._loop is loop

    @property
    def loop_closed(self) -> bool:
        """Whether the caller's event loop is closed, so that the caller never runs again."""
        return self._loop.is_closed()

    def prepare_wait(self) -> None:
        """Do nothing: a task ticket can always be woken."""

    async def wait_async(self, seconds: float) -> None:
        """Wait until woken, at most *seconds*. Spurious wakeups are possible."""
        timer = self._loop.call_later(seconds, self._set_woken)
        try:
            await self._waiter
        finally:
            timer.cancel()
        self._waiter = self._loop.create_future()

    def wake(self) -> None:
        """Wake the task, unless its loop is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._set_woken)

    def _set_woken(self) -> None:
        if not self._waiter.done():
            self._waiter.set_result(None)

    def wake_to_lead(self) -> None:
        """Let another thread lead; a transaction is led by its task."""
        if self._lead is None:
            self.wake()
        else:
            self._lead(self)


class WriterQueue:
    """The queue for the lead. Some methods may be called only by the leader."""

    def __init__(self) -> None:
        # Reentrant: the garbage collector may end an abandoned transaction within one of these blocks.
        self._mutex = threading.RLock()
        self.leader: Ticket | None = None
        self.queue: deque[Ticket] = deque()

    def join(self, ticket: Ticket) -> bool:
        """Enter the queue; return whether it was empty, so that *ticket* leads at once."""
        with self._mutex:
            if self.leader is None:
                self.leader = ticket
                return True
            ticket.prepare_wait()
            self.queue.append(ticket)
            return False

    def wait(self, ticket: Ticket, seconds: float = -1) -> bool:
        """Block; return whether *ticket* leads. If not, it is completed or the time has passed."""
        while ticket.wait(seconds):
            if ticket.completed:
                return False
            if self.leads(ticket):
                return True
        return False

    def leads(self, ticket: Ticket) -> bool:
        """Return whether *ticket* leads, after any handover in progress has finished."""
        with self._mutex:
            return self.leader is ticket

    def all(self) -> list[Ticket]:
        """Return the leader and the waiting tickets."""
        with self._mutex:
            return [*([] if self.leader is None else [self.leader]), *self.queue]

    def withdraw(self, ticket: Ticket) -> bool:
        """Leave the queue; return whether *ticket* was in it. An operation in a group runs without its caller."""
        with self._mutex:
            if ticket not in self.queue:
                return False
            self.queue.remove(ticket)
            return True

    # --- for the leader --------------------------------------------------------------------------------------------

    def take_next(self, group: list[Ticket]) -> Ticket | None:
        """Move the operation that has waited longest into *group*, unless an exclusive caller waits before it."""
        with self._mutex:
            if not self.queue or self.queue[0].operation is None:
                return None
            ticket = self.queue[0]
            group.append(ticket)
            del self.queue[0]
            return ticket

    def put_back(self, tickets: Iterable[Ticket]) -> None:
        """Put *tickets* at the front of the queue; those already in the queue are not duplicated."""
        with self._mutex:
            tickets = list(tickets)
            self.queue = deque([*tickets, *(ticket for ticket in self.queue if ticket not in tickets)])

    def pass_on(self, ticket: Ticket) -> None:
        """Pass the lead of *ticket* to the ticket that has waited longest."""
        with self._mutex:
            while self.leader is ticket:
                if not self.queue:
                    self.leader = None
                    return
                successor = self.queue[0]
                try:
                    # Before it leads: if interrupted here, it is woken again, and checks the state only within the
                    # mutex.
                    successor.wake_to_lead()
                except RuntimeError as error:  # no thread can be started; the caller must not wait forever
                    successor.error, successor.completed = error, True
                    successor.wake()
                    del self.queue[0]
                    continue
                self.leader = successor
                del self.queue[0]


_POLL_SECONDS = 1.0

_Abandon: TypeAlias = Callable[[TaskTicket], None]


class _Watch:
    """The open transactions of all event loops, and the thread that checks their loops while there are any."""

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Clear all state, including the thread: a forked child has neither the loops nor the thread."""
        self._mutex = threading.Lock()
        self._abandoning: dict[TaskTicket, _Abandon] = {}
        self._running = False

    def add(self, ticket: TaskTicket, abandon: _Abandon) -> None:
        """Call *abandon* once the loop of *ticket* is closed."""
        with self._mutex:
            self._abandoning[ticket] = abandon
            if not self._running:
                threading.Thread(target=self._run, name="holdfast-loops", daemon=True).start()
                self._running = True

    def discard(self, ticket: TaskTicket) -> None:
        """Stop checking the loop of *ticket*."""
        with self._mutex:
            self._abandoning.pop(ticket, None)

    def _run(self) -> None:
        while self._check():
            time.sleep(_POLL_SECONDS)

    def _check(self) -> bool:
        """Abandon the transactions of closed loops; return whether there are any to check again."""
        with self._mutex:
            self._running = bool(self._abandoning)
            watched = list(self._abandoning.items())
        for ticket, abandon in watched:
            # If a thread still works for the transaction, the next check tries again.
            if ticket.loop_closed and ticket.working.acquire(blocking=False):
                try:
                    abandon(ticket)
                finally:
                    ticket.working.release()
                self.discard(ticket)
        return bool(watched)


_watch = _Watch()

os.register_at_fork(after_in_child=_watch.start_over)


@contextmanager
def abandon_when_closed(ticket: TaskTicket, abandon: _Abandon) -> Iterator[None]:
    """Call *abandon* in another thread if the event loop of *ticket* is closed within the block."""
    _watch.add(ticket, abandon)
    try:
        yield
    finally:
        _watch.discard(ticket)
