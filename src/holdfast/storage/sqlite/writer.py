"""The writer: group commit also for tasks, explicit transactions, and closing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeAlias, TypeVar
from weakref import WeakSet

from holdfast.domain import errors
from holdfast.storage import cancellation, notifications, store
from holdfast.storage.sqlite import connection, group_commit
from holdfast.storage.sqlite.errors import translated
from holdfast.storage.sqlite.external_transaction import SqliteSyncExternalTransaction
from holdfast.storage.sqlite.lock_file import INTERRUPTED
from holdfast.storage.sqlite.transaction import Observer, SqliteState

T = TypeVar("T")


class TaskTicket(group_commit.Ticket):
    """A ticket whose caller waits in an event loop."""

    __slots__ = ("_lead", "_waiter", "loop", "queued_at")
    threadless = True

    def __init__(
        self, operation: store.Operation[Any] | None, lead: Callable[[group_commit.Ticket], None] | None = None
    ) -> None:
        super().__init__(operation)
        self._lead = lead
        self.loop = asyncio.get_running_loop()
        self._waiter = self.loop.create_future()
        self.queued_at = time.monotonic()

    def belongs_to(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether the caller is a task of *loop*."""
        return self.loop is loop

    @property
    def loop_closed(self) -> bool:
        """Whether the caller's event loop is closed, so that the caller never runs again."""
        return self.loop.is_closed()

    def prepare_wait(self) -> None:
        """Do nothing: a task ticket can always be woken."""

    async def wait_async(self) -> None:
        """Wait until woken. Spurious wakeups are possible."""
        await self._waiter
        if not self.completed:
            self._waiter = self.loop.create_future()

    def wake(self) -> None:
        """Wake the task, unless its loop is closed."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.set_woken)

    def wake_together(self, tickets: Sequence[TaskTicket]) -> None:
        """Wake tasks of the same loop, for the price of one."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(_wake_tasks, tickets)

    def set_woken(self) -> None:
        """End the wait of the task. Called in its event loop."""
        if not self._waiter.done():
            self._waiter.set_result(None)

    def wake_to_lead(self) -> None:
        """Let another thread lead; a transaction is led by its task."""
        if self._lead is None:
            self.wake()
        else:
            self._lead(self)


class TransactionTicket(TaskTicket):
    """The ticket of a transaction that a task holds open."""

    __slots__ = ("working",)

    def __init__(self) -> None:
        super().__init__(None)
        self.working = threading.RLock()
        """Held by the thread that works for this ticket."""


_POLL_SECONDS = 1.0

_Abandon: TypeAlias = Callable[[TransactionTicket], None]


class _Watch:
    """The open transactions of all event loops, and the thread that checks their loops while there are any."""

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Clear all state, including the thread: a forked child has neither the loops nor the thread."""
        self._mutex = threading.Lock()
        self._abandoning: dict[TransactionTicket, _Abandon] = {}
        self._running = False

    def add(self, ticket: TransactionTicket, abandon: _Abandon) -> None:
        """Call *abandon* once the loop of *ticket* is closed."""
        with self._mutex:
            self._abandoning[ticket] = abandon
            if not self._running:
                threading.Thread(target=self._run, name="holdfast-loops", daemon=True).start()
                self._running = True

    def discard(self, ticket: TransactionTicket) -> None:
        """Stop checking the loop of *ticket*.

        Takes no lock: the garbage collector may end an abandoned task in any thread at any time, also in this thread
        while it holds the lock, and in the thread that `add` is starting.
        """
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
def abandon_when_closed(ticket: TransactionTicket, abandon: _Abandon) -> Iterator[None]:
    """Call *abandon* in another thread if the event loop of *ticket* is closed within the block."""
    _watch.add(ticket, abandon)
    try:
        yield
    finally:
        _watch.discard(ticket)


def _wake_tasks(tickets: Sequence[TaskTicket]) -> None:
    for ticket in tickets:
        ticket.set_woken()


class Writer(group_commit.GroupWriter):
    """The only path for writes to one database in this process: for threads, tasks and explicit transactions."""

    def __init__(
        self,
        state: SqliteState,
        connector: connection.SqliteConnector,
        notifier: notifications.Notifier,
        observe: Observer,
    ) -> None:
        super().__init__(state, connector, notifier, observe)
        self._threads: ThreadPoolExecutor | None = None
        self._suspending: group_commit.Ticket | None = None
        self._timed: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        """Event loops with a timer for tickets that are queued for too long."""

    # --- operations of tasks ----------------------------------------------------------------------------------------

    async def run_async(self, operation: store.Operation[T]) -> T:
        """Run *operation* as `run` does, in another thread, to completion even if the task is cancelled.

        Only if another program holds the file does a cancelled call give up.
        """
        self.refuse_holder()
        ticket = TaskTicket(operation, self._lead_in_executor)
        if self._queue.join(ticket):
            try:
                self._lead_in_executor(ticket)
            except BaseException:
                self._abandon(ticket)
                raise
        try:
            await self._wait_async(ticket, lambda: ticket.completed)
        except asyncio.CancelledError:
            # The operation runs without its caller, but the process does not wait for other programs to let it.
            ticket.interrupted = True
            raise
        if ticket.error is not None:
            raise ticket.error
        result: T = ticket.result
        return result

    def _wake_all(self, tickets: Iterable[group_commit.Ticket]) -> None:
        """Wake threads, and each event loop once."""
        by_loop: dict[asyncio.AbstractEventLoop, list[TaskTicket]] = {}
        for ticket in tickets:
            if isinstance(ticket, TaskTicket):
                by_loop.setdefault(ticket.loop, []).append(ticket)
            else:
                ticket.wake()
        for tasks in by_loop.values():
            tasks[0].wake_together(tasks)

    async def _wait_async(self, ticket: TaskTicket, done: Callable[[], bool]) -> None:
        """Wait in this task until *done*. Raise if *ticket* is queued for too long."""
        while not done():
            if ticket.loop not in self._timed:
                self._start_timer(ticket.loop, connection.BUSY_SECONDS)
            await ticket.wait_async()
            if not done() and time.monotonic() - ticket.queued_at >= connection.BUSY_SECONDS:
                self._give_up(ticket)

    def _start_timer(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """Wake tickets of *loop* that are queued for too long: by one timer, because most are completed at once."""
        self._timed.add(loop)
        loop.call_later(seconds, self._wake_late, loop)

    def _wake_late(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timed.discard(loop)
        now = time.monotonic()
        queued = [one for one in self._queue.all() if isinstance(one, TaskTicket) and one.loop is loop]
        for ticket in queued:
            if now - ticket.queued_at >= connection.BUSY_SECONDS:
                ticket.set_woken()
        left = [connection.BUSY_SECONDS - (now - ticket.queued_at) for ticket in queued]
        if left:
            # Again after a while for those whose operation runs: they wait for its end.
            self._start_timer(loop, max(min(left), _POLL_SECONDS))

    def _lead_in_executor(self, ticket: group_commit.Ticket) -> None:
        self._threads = self._threads or ThreadPoolExecutor(1, thread_name_prefix="holdfast-writer")
        self._threads.submit(self._lead_in_thread, ticket)

    def _lead_in_thread(self, ticket: group_commit.Ticket) -> None:
        if not self._queue.leads(ticket):
            return  # called twice
        try:
            self._lead(ticket)
        except BaseException as error:
            ticket.error = error
            self._abandon(ticket)

    # --- explicit transactions --------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[SqliteSyncExternalTransaction]:
        """Hold the writer for the block: commit at its end, or roll back if it raises."""
        self.refuse_holder()
        ticket = group_commit.Ticket(None)
        try:
            if not self._queue.join(ticket):
                self._wait_for_lead(ticket)
            joined = self._open_joined(threading.RLock())
            self._hold(ticket)
            yield joined
            self._finish_joined(joined)
            self._finish(ticket)
        except BaseException:
            try:
                self._abandon(ticket)
            finally:
                self._abandon(ticket)
            raise

    @asynccontextmanager
    async def transaction_async(self) -> AsyncIterator[SqliteSyncExternalTransaction]:
        """Hold the writer for the block as `transaction` does, running each call in another thread."""
        self.refuse_holder()
        ticket = TransactionTicket()
        try:
            with abandon_when_closed(ticket, self._abandon):
                if not self._queue.join(ticket):
                    await self._wait_async(ticket, lambda: self._queue.leads(ticket))
                # In threads, because begin and commit may have to wait for other processes.
                joined = await cancellation.in_thread(
                    partial(self._work_for, ticket, self._open_joined, ticket.working)
                )
                self._hold(ticket)
                yield joined
                await cancellation.in_thread(partial(self._work_for, ticket, self._finish_joined, joined))
        finally:
            self._abandon(ticket)

    def _work_for(self, ticket: TransactionTicket, work: Callable[..., T], *arguments: Any) -> T:
        """Do *work* in this thread, unless *ticket* lost the lead because its event loop was closed."""
        with ticket.working:
            if not self._queue.leads(ticket):
                raise errors.Misconfigured("the event loop of this transaction was closed; nothing was stored")
            return work(*arguments)

    def _hold(self, ticket: group_commit.Ticket) -> None:
        self._holder = group_commit.current_caller()
        group_commit.open_transactions.set({**group_commit.open_transactions.get({}), id(self): ticket})

    def _open_joined(self, mutex: threading.RLock) -> SqliteSyncExternalTransaction:
        with translated():
            cursor = self._lock_and_open()
            self._connector.check_unmoved()
            self._begin(cursor)
        clock = self._connector.clock
        self._joined = SqliteSyncExternalTransaction(
            self._state, cursor.connection, clock, self._observe, self._notifier, mutex
        )
        return self._joined

    def _finish_joined(self, joined: SqliteSyncExternalTransaction) -> None:
        joined.end()
        if not joined.connection.in_transaction:
            raise errors.Misconfigured(
                "the transaction was ended by SQL run in it; leave commit and rollback to the block"
            )
        assert self._cursor is not None  # noqa: S101  # opened with the transaction
        self._commit(self._cursor, joined.signals)

    # --- interrupting -----------------------------------------------------------------------------------------------

    def interrupt(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Make calls that wait for other writers raise `StoreBusy`: those of the tasks of *loop*, or all."""
        for ticket in self._queue.all():
            if loop is None or ticket.belongs_to(loop):
                ticket.interrupted = True
                # A leader checks the flag itself, and so does a transaction as soon as it leads.
                if ticket.operation is not None and self._queue.withdraw(ticket):
                    ticket.error, ticket.completed = errors.StoreBusy(INTERRUPTED), True
                    ticket.wake()

    # --- closing and suspending -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection while holding the write lock, because the last close also checkpoints."""
        self.refuse_holder()
        ticket = group_commit.Ticket(None)
        try:
            if not self._queue.join(ticket):
                self._wait_for_lead(ticket)
            self._close_all()
        finally:
            try:
                self._abandon(ticket)
            finally:
                self._abandon(ticket)

    def suspend(self, seconds: float) -> bool:
        """Take the lead and close everything, until `resume`; return whether the lead became free in time."""
        if self._holder is not None:
            return False
        ticket = group_commit.Ticket(None)
        self._suspending = ticket
        try:
            if self._queue.join(ticket) or self._queue.wait(ticket, seconds):
                self._close_all()
                return True
        except Exception:
            self._abandon(ticket)
        except BaseException:
            try:
                self._abandon(ticket)
            finally:
                self._abandon(ticket)
            raise
        self._abandon(ticket)
        return False

    def resume(self) -> None:
        """Continue after `suspend`."""
        if self._suspending is not None:
            self._abandon(self._suspending)

    def open_connections(self) -> list[sqlite3.Connection]:
        """Return the connection, if it is open."""
        return [cursor.connection for cursor in (self._cursor, self._dropped) if cursor is not None]

    def _close_all(self) -> None:
        if self._cursor is not None:
            if self._lock_file is not None:
                self._lock_file.lock(connection.BUSY_SECONDS, self._interrupted)
            self._drop()
        lock_file = self._lock_file
        if lock_file is not None:
            lock_file.unlock()
            self._lock_file = None
            lock_file.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None
