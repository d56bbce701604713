"""Writing: one transaction at a time, many operations in each (group commit).

A caller that finds no writer becomes the leader: it takes the write lock, runs its operation, then the operations
that other callers have queued, each in its own savepoint, commits once and completes all of them. The next queued
caller leads the next group. No call returns, even with an error, before the commit that its result depends on.

An interrupt may occur in the leader after any call. The open transaction and its members are stored in fields, so
that `_finish`, which every leader runs at the end, can clean up from any state, and can itself be repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

from holdfast.domain.errors import HoldfastError, Misconfigured, OutcomeUnknown, StoreBusy
from holdfast.storage.cancellation import in_thread
from holdfast.storage.notifications import Notifier
from holdfast.storage.sqlite.connection import BUSY_SECONDS, SqliteConnector, trim_log, wait_while_busy
from holdfast.storage.sqlite.errors import translate, translated
from holdfast.storage.sqlite.external_transaction import SqliteSyncExternalTransaction
from holdfast.storage.sqlite.lock_file import INTERRUPTED, LockFile
from holdfast.storage.sqlite.transaction import (
    Observer,
    SqliteState,
    SqliteTransaction,
    close_connection,
    plain_cursor,
)
from holdfast.storage.sqlite.writer_queue import TaskTicket, Ticket, WriterQueue, abandon_when_closed
from holdfast.storage.transaction import Operation, run_sync

T = TypeVar("T")

# The maximum number of operations in one commit, and how long it collects them.
_GROUP_MAX = 256
_GROUP_SECONDS = 0.02

# How often the length of the log is checked.
_COMMITS_BETWEEN_CHECKS = 32

# The maximum number of interrupts that `_abandon` tolerates.
_INTERRUPTS_MAX = 100

_SAVEPOINT_OPEN = "savepoint holdfast_group"
_SAVEPOINT_KEEP = "release holdfast_group"
_SAVEPOINT_UNDO = "rollback to holdfast_group"

# By writer id: the newest transaction opened by this task or thread, or by one that started it.
_transactions: ContextVar[dict[int, Ticket]] = ContextVar("holdfast_transactions")


class Writer:
    """The only path for writes to one database in this process: for threads, tasks and explicit transactions."""

    def __init__(self, state: SqliteState, connector: SqliteConnector, notifier: Notifier, observe: Observer) -> None:
        self._state = state
        self._connector = connector
        self._notifier = notifier
        self._observe = observe
        self._queue = WriterQueue()
        self._cursor: sqlite3.Cursor | None = None
        """Runs every statement of the writing connection; see `SqliteTransaction`."""
        self._dropped: sqlite3.Cursor | None = None
        """A cursor that is no longer used, but may not be closed yet."""
        self._lock_file: LockFile | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._commits = 0
        # State of the current leader:
        self._group: list[Ticket] = []
        self._commit_sent = False
        self._all_decided = False
        """Whether every member of the group has a result or error that does not depend on a commit."""
        self._holder: object = None
        self._joined: SqliteSyncExternalTransaction | None = None
        self._suspending: Ticket | None = None

    # --- operations -------------------------------------------------------------------------------------------------

    def run(self, operation: Operation[T]) -> T:
        """Run *operation* in a transaction and return its result once that has committed."""
        self.refuse_holder()
        ticket = Ticket(operation)
        try:
            if self._queue.join(ticket) or self._wait_for_lead(ticket):
                self._lead(ticket)
        except BaseException:
            try:
                self._abandon(ticket)
            finally:
                self._abandon(ticket)  # again, in case an interrupt stopped the first call
            raise
        if ticket.error is not None:
            raise ticket.error
        result: T = ticket.result
        return result

    async def run_async(self, operation: Operation[T]) -> T:
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

    # --- waiting for the lead --------------------------------------------------------------------------------------

    def _wait_for_lead(self, ticket: Ticket) -> bool:
        """Block until *ticket* leads (return True) or is completed (return False). Raise after too long."""
        while not self._queue.wait(ticket, BUSY_SECONDS):
            if ticket.completed:
                return False
            self._give_up(ticket)
        return True

    async def _wait_async(self, ticket: TaskTicket, done: Callable[[], bool]) -> None:
        """Wait in this task until *done*. Raise if *ticket* is queued for too long."""
        deadline = time.monotonic() + BUSY_SECONDS
        while not done():
            await ticket.wait_async(BUSY_SECONDS)
            if not done() and time.monotonic() >= deadline:
                self._give_up(ticket)

    def _give_up(self, ticket: Ticket) -> None:
        """Remove *ticket* from the queue and raise, unless it leads or its operation is running."""
        leader = self._queue.leader
        if not self._queue.withdraw(ticket):
            return
        if leader is _transactions.get({}).get(id(self)):
            raise Misconfigured(
                "a transaction of this queue is open in the task that started this one, and was still open after"
                f" {BUSY_SECONDS:g} s; inside a transaction, call the methods of the transaction"
            )
        raise StoreBusy(
            f"another caller of this queue held its writer for more than {BUSY_SECONDS:g} s; try again, and keep"
            " transactions short"
        )

    def _lead_in_executor(self, ticket: Ticket) -> None:
        self._threads = self._threads or ThreadPoolExecutor(1, thread_name_prefix="holdfast-writer")
        self._threads.submit(self._lead_in_thread, ticket)

    def _lead_in_thread(self, ticket: Ticket) -> None:
        if not self._queue.leads(ticket):
            return  # called twice
        try:
            self._lead(ticket)
        except BaseException as error:
            ticket.error = error
            self._abandon(ticket)

    # --- one group -------------------------------------------------------------------------------------------------

    def _lead(self, ticket: Ticket) -> None:
        """Run *ticket* and queued operations in one transaction, complete all of them, and pass the lead on."""
        self._group, self._commit_sent, self._all_decided = [ticket], False, False
        try:
            self._write_group()
        except Exception as error:
            self._set_errors(ticket, error)
        self._finish(ticket)

    def _write_group(self) -> None:
        cursor, group, signals = self._lock_and_open(), self._group, set[str]()
        self._run_member(cursor, group[0], signals)
        if self._queue.queue:
            deadline = time.monotonic() + _GROUP_SECONDS
            while len(group) < _GROUP_MAX and (member := self._queue.take_next(group)) is not None:
                self._run_member(cursor, member, signals)
                if time.monotonic() > deadline:
                    break
        if cursor.connection.in_transaction:
            self._commit(cursor)
            self._notify_listeners(signals)
            self._observe("committed")
        else:
            self._all_decided = True

    def _run_member(self, cursor: sqlite3.Cursor, member: Ticket, signals: set[str]) -> None:
        """Run one operation. If it fails its writes are rolled back; other members of the group are unaffected."""
        assert member.operation is not None  # noqa: S101  # only operations are taken into a group
        # A member requeued after a failed commit may hold the result of the rolled-back run; clear it.
        member.result = member.error = None
        first = not cursor.connection.in_transaction
        if first:
            self._begin(cursor)
        else:
            cursor.execute(_SAVEPOINT_OPEN)
        tx = SqliteTransaction(self._state, cursor, self._connector.clock, self._observe)
        try:
            member.result = run_sync(member.operation(tx))
        except Exception as error:
            if not cursor.connection.in_transaction:
                # SQLite rolled back the whole transaction, including the writes of other members.
                raise
            member.error = translate(error)
            cursor.execute("rollback" if first else _SAVEPOINT_UNDO)
        else:
            signals |= tx.topics
        if not first:
            cursor.execute(_SAVEPOINT_KEEP)

    def _set_errors(self, leader: Ticket, error: Exception) -> None:
        """Set a store error for all members of the group; any other error is raised in the leader only."""
        translated_error = translate(error)
        if isinstance(translated_error, HoldfastError | sqlite3.Error) and not self._committed():
            for member in self._group:
                member.error = translated_error
            self._all_decided = True
        leader.error = translated_error

    # --- finishing a lead ------------------------------------------------------------------------------------------

    def _finish(self, ticket: Ticket) -> None:
        """Clean up after the lead of *ticket* in any state, complete its group and pass the lead on."""
        if self._queue.leader is not ticket:
            return
        decided = self._all_decided or self._committed()
        if not decided:
            # Otherwise the rollback below would be taken for a commit if `_finish` is repeated.
            self._commit_sent = False
        self._roll_back()
        if self._dropped is not None:
            self._drop()
        self._holder = None
        if self._joined is not None:
            self._joined.end()
            self._joined = None
        if self._lock_file is not None:
            self._lock_file.unlock()
        if len(self._group) > 1 or ticket.threadless:
            self._complete_group(ticket, decided=decided)
        self._group = []
        self._queue.pass_on(ticket)

    def _complete_group(self, leader: Ticket, *, decided: bool) -> None:
        """Complete the group if *decided*; otherwise complete only the leader and requeue the others."""
        others = [member for member in self._group if member is not leader]
        if not decided:
            self._queue.put_back(others)
            others = []
        for member in [*others, leader]:
            member.completed = True
            member.wake()

    def _committed(self) -> bool:
        """Return whether the commit has happened, even if an interrupt occurred as it returned."""
        return self._commit_sent and self._cursor is not None and not self._cursor.connection.in_transaction

    def _abandon(self, ticket: Ticket) -> None:
        """Leave the queue, or finish the lead, regardless of further interrupts."""
        for _ in range(_INTERRUPTS_MAX):
            try:
                self._queue.withdraw(ticket)
                self._finish(ticket)
            except BaseException:  # noqa: S112  # the first interrupt propagates to the caller
                continue
            return

    # --- explicit transactions -------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[SqliteSyncExternalTransaction]:
        """Hold the writer for the block: commit at its end, or roll back if it raises."""
        self.refuse_holder()
        ticket = Ticket(None)
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
        ticket = TaskTicket(None)
        try:
            with abandon_when_closed(ticket, self._abandon):
                if not self._queue.join(ticket):
                    await self._wait_async(ticket, lambda: self._queue.leads(ticket))
                # In threads, because begin and commit may have to wait for other processes.
                joined = await in_thread(partial(self._work_for, ticket, self._open_joined, ticket.working))
                self._hold(ticket)
                yield joined
                await in_thread(partial(self._work_for, ticket, self._finish_joined, joined))
        finally:
            self._abandon(ticket)

    def _work_for(self, ticket: TaskTicket, work: Callable[..., T], *arguments: Any) -> T:
        """Do *work* in this thread, unless *ticket* lost the lead because its event loop was closed."""
        with ticket.working:
            if not self._queue.leads(ticket):
                raise Misconfigured("the event loop of this transaction was closed; nothing was stored")
            return work(*arguments)

    def _hold(self, ticket: Ticket) -> None:
        self._holder = _current_caller()
        _transactions.set({**_transactions.get({}), id(self): ticket})

    def refuse_holder(self) -> None:
        """Raise if the caller already holds this queue's transaction and would wait for itself."""
        if self._holder is not None and self._holder == _current_caller():
            raise Misconfigured("a transaction of this queue is open here: call the methods of the transaction")

    def _open_joined(self, mutex: threading.RLock) -> SqliteSyncExternalTransaction:
        with translated():
            cursor = self._lock_and_open()
            self._begin(cursor)
        clock = self._connector.clock
        self._joined = SqliteSyncExternalTransaction(
            self._state, cursor.connection, clock, self._observe, self._notifier, mutex
        )
        return self._joined

    def _finish_joined(self, joined: SqliteSyncExternalTransaction) -> None:
        joined.end()
        if not joined.connection.in_transaction:
            raise Misconfigured("the transaction was ended by SQL run in it; leave commit and rollback to the block")
        assert self._cursor is not None  # noqa: S101  # opened with the transaction
        self._commit(self._cursor)
        self._notify_listeners(joined.signals)
        self._observe("committed")

    # --- lock, begin, commit, roll back ----------------------------------------------------------------------------

    def _lock_and_open(self) -> sqlite3.Cursor:
        """Take the write lock shared by all processes, and return the cursor of the open connection."""
        if self._lock_file is None and not self._connector.in_memory:
            self._lock_file = self._wait_while_busy(self._connector.open_lock_file)
            self._notifier.refresh()
        if self._lock_file is not None:
            self._lock_file.lock(BUSY_SECONDS, self._interrupted)
            self._connector.check_unmoved()
        # Only needed if the last leader was interrupted too often to clean up.
        self._roll_back()
        if self._cursor is None:
            self._cursor = plain_cursor(self._wait_while_busy(self._connector.writing_connection))
        return self._cursor

    def _begin(self, cursor: sqlite3.Cursor) -> None:
        self._observe("begin")
        self._wait_while_busy(partial(cursor.execute, "begin immediate"))

    def _wait_while_busy(self, call: Callable[[], T]) -> T:
        return wait_while_busy(call, self._interrupted)

    def _interrupted(self) -> bool:
        """Return whether the leader no longer waits for other writers."""
        leader = self._queue.leader
        return leader is not None and leader.interrupted

    def _commit(self, cursor: sqlite3.Cursor) -> None:
        # Checked again, because the caller's transaction may have been open for a long time.
        self._connector.check_unmoved()
        self._observe("commit")
        self._commit_sent = True
        try:
            cursor.execute("commit")
        except sqlite3.Error as error:
            # Reset first: SQLite may have rolled back by itself, which must not be taken for a commit.
            self._commit_sent = False
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_IOERR:
                # The commit may or may not be on disk. The connection's state can no longer be trusted.
                self._drop()
                raise OutcomeUnknown(f"the commit was not confirmed; send the same call again ({error})") from error
            raise translate(error) from error

    def _roll_back(self) -> None:
        try:
            if self._cursor is not None and self._cursor.connection.in_transaction:
                self._cursor.execute("rollback")
        except sqlite3.Error:
            self._drop()

    def _notify_listeners(self, signals: set[str]) -> None:
        """Notify listeners in this and other processes, and keep the log short. Requires the write lock.

        Errors are harmless here: listeners poll, and the next commit checks the log again.
        """
        if self._connector.in_memory:
            self._notifier.publish(signals)
            return
        with contextlib.suppress(Exception):
            if signals:
                self._notifier.publish(signals)
                if self._lock_file is not None:
                    self._lock_file.notify(signals)
            if self._commits % _COMMITS_BETWEEN_CHECKS == 0 and self._cursor is not None:
                trim_log(self._cursor.connection, self._connector.path)
            self._commits += 1

    # --- interrupting ----------------------------------------------------------------------------------------------

    def interrupt(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Make calls that wait for other writers raise `StoreBusy`: those of the tasks of *loop*, or all."""
        for ticket in self._queue.all():
            if loop is None or ticket.belongs_to(loop):
                ticket.interrupted = True
                # A leader checks the flag itself, and so does a transaction as soon as it leads.
                if ticket.operation is not None and self._queue.withdraw(ticket):
                    ticket.error, ticket.completed = StoreBusy(INTERRUPTED), True
                    ticket.wake()

    # --- closing and suspending ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection while holding the write lock, because the last close also checkpoints."""
        self.refuse_holder()
        ticket = Ticket(None)
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
        ticket = Ticket(None)
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

    def _close_all(self) -> None:
        if self._cursor is not None:
            if self._lock_file is not None:
                self._lock_file.lock(BUSY_SECONDS, self._interrupted)
            self._drop()
        lock_file = self._lock_file
        if lock_file is not None:
            lock_file.unlock()
            self._lock_file = None
            lock_file.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None

    def _drop(self) -> None:
        if self._cursor is not None:
            self._dropped, self._cursor = self._cursor, None
        if self._dropped is not None:
            close_connection(self._dropped)
            self._dropped = None


def _current_caller() -> object:
    """Return the running task, or the running thread if there is no task."""
    try:
        return asyncio.current_task() or threading.get_ident()
    except RuntimeError:
        return threading.get_ident()
