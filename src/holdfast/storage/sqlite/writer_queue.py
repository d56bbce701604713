"""Whose turn it is to write: one leads at a time, and the others wait, in threads or in tasks.

A signal may be handled, and its handler raise, in the main thread after any call. So the state says how far a step
has come, and a step that was interrupted can be begun again. `Condition`, `Event` and `Future` are not used: their
own locks stay shut for ever if an interrupt strikes as they are let go of.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.storage.transaction import Operation


class Ticket:
    """A script that wants to be run, or somebody who wants the writer for himself, waiting in a thread."""

    __slots__ = ("_bell", "answered", "error", "interrupted", "operation", "result")
    threadless = False
    """Whether its caller waits without a thread, so that another one has to do the work."""

    def __init__(self, operation: Operation[Any] | None) -> None:
        self.operation = operation
        self.answered = False
        self.interrupted = False
        """Whether it waits no longer for other writers."""
        self.result: Any = None
        self.error: BaseException | None = None
        self._bell: Any = None

    def belongs_to(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether its caller is a task of *loop*."""
        return False

    def expect(self) -> None:
        """Make ready to be rung."""
        bell = threading.Lock()
        bell.acquire()  # let go of by whoever rings
        self._bell = bell

    def wait(self, seconds: float) -> bool:
        """Wait to be rung; tell whether that came in time. It may be rung for nothing."""
        rung: bool = self._bell.acquire(timeout=seconds)
        return rung

    def ring(self) -> None:
        """Wake the caller to look at what has changed."""
        if self._bell is not None and self._bell.locked():
            self._bell.release()

    def summon(self) -> None:
        """Wake whoever is to lead."""
        self.ring()


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
        """Return whether its caller is a task of *loop*."""
        return self._loop is loop

    @property
    def loop_closed(self) -> bool:
        """Whether the caller's event loop is closed, so that the caller never runs again."""
        return self._loop.is_closed()

    def expect(self) -> None:
        """Make ready to be rung: it is from its beginning."""

    async def rung(self, seconds: float) -> None:
        """Wait to be rung, *seconds* at most. It may be rung for nothing."""
        timer = self._loop.call_later(seconds, self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
        self._waiter = self._loop.create_future()

    def ring(self) -> None:
        """Wake the task, unless its loop is gone."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self._waiter.done():
            self._waiter.set_result(None)

    def summon(self) -> None:
        """Have another thread lead; a transaction is led by its task."""
        if self._lead is None:
            self.ring()
        else:
            self._lead(self)


class WriterQueue:
    """The queue for the lead. What only the leader may call says so."""

    def __init__(self) -> None:
        # Entered twice if the collector ends a transaction that was left open, within one of these blocks.
        self._mutex = threading.RLock()
        self.leader: Ticket | None = None
        self.queue: deque[Ticket] = deque()

    def join(self, ticket: Ticket) -> bool:
        """Queue up; tell whether there was nobody, so that *ticket* leads at once."""
        with self._mutex:
            if self.leader is None:
                self.leader = ticket
                return True
            ticket.expect()
            self.queue.append(ticket)
            return False

    def wait(self, ticket: Ticket, seconds: float = -1) -> bool:
        """Wait in this thread; tell whether *ticket* leads. Else it has its answer, or the time is over."""
        while ticket.wait(seconds):
            if ticket.answered:
                return False
            if self.leads(ticket):
                return True
        return False

    def leads(self, ticket: Ticket) -> bool:
        """Tell whether *ticket* leads, not before a handing over that is under way has come to its end."""
        with self._mutex:
            return self.leader is ticket

    def all(self) -> list[Ticket]:
        """Return the leader and those that wait."""
        with self._mutex:
            return [*([] if self.leader is None else [self.leader]), *self.queue]

    def withdraw(self, ticket: Ticket) -> bool:
        """Leave the queue; return whether *ticket* was in it. A script in a group is run without its caller."""
        with self._mutex:
            if ticket not in self.queue:
                return False
            self.queue.remove(ticket)
            return True

    # --- for the leader --------------------------------------------------------------------------------------------

    def take_next(self, group: list[Ticket]) -> Ticket | None:
        """Move the script that has waited longest into *group*, unless somebody before it wants to lead alone."""
        with self._mutex:
            if not self.queue or self.queue[0].operation is None:
                return None
            ticket = self.queue[0]
            group.append(ticket)
            del self.queue[0]
            return ticket

    def put_back(self, tickets: Iterable[Ticket]) -> None:
        """Let *tickets* be the next again; those that are in the queue already stay there once."""
        with self._mutex:
            tickets = list(tickets)
            self.queue = deque([*tickets, *(ticket for ticket in self.queue if ticket not in tickets)])

    def pass_on(self, ticket: Ticket) -> None:
        """Give the lead of *ticket* to whoever has waited longest."""
        with self._mutex:
            while self.leader is ticket:
                if not self.queue:
                    self.leader = None
                    return
                successor = self.queue[0]
                try:
                    # Before it leads: interrupted here it is summoned again, and finds out only within the mutex.
                    successor.summon()
                except RuntimeError as error:  # no thread can be started any more; nobody must wait for ever
                    successor.error, successor.answered = error, True
                    successor.ring()
                    del self.queue[0]
                    continue
                self.leader = successor
                del self.queue[0]
