"""Writing: one transaction at a time, many operations in each (group commit).

A caller that finds no leader becomes it: it takes the write lock, runs its operation, then the operations that other
callers have queued, commits once and completes all of them. The next queued caller leads the next group. No call
returns, even with an error, before the commit that its result depends on.

Operations rarely fail after they have written, so they run without savepoints: a savepoint costs two statements and a
copy of every page that is changed. If one does, the group is rolled back and runs again, each operation in its own
savepoint.

An interrupt may occur in the leader after any call, because a signal handler may run and raise in the main thread.
The open transaction and its members are stored in fields, so that `_finish`, which every leader runs at the end, can
clean up from any state, and can itself be repeated. `Condition`, `Event` and `Future` are not used: their internal
locks stay locked if an interrupt arrives while they are released.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

from holdfast.domain import errors
from holdfast.storage import notifications, runners, store
from holdfast.storage.sqlite import connection, external_transaction, fork_safety, lock_file, transaction
from holdfast.storage.sqlite.errors import translate

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
open_transactions: ContextVar[dict[int, Ticket]] = ContextVar("holdfast_transactions")


class Ticket:
    """An operation to run, or a caller that needs the writer exclusively, waiting in a thread."""

    __slots__ = ("_woken", "completed", "error", "interrupted", "operation", "result")
    threadless = False
    """Whether the caller waits without a thread, so that another thread has to do the work."""

    def __init__(self, operation: store.Operation[Any] | None) -> None:
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


class GroupWriter:
    """Runs the operations of threads in groups, each group in one transaction."""

    def __init__(
        self,
        state: transaction.SqliteState,
        connector: connection.SqliteConnector,
        notifier: notifications.Notifier,
        observe: transaction.Observer,
    ) -> None:
        self._state = state
        self._connector = connector
        self._process = fork_safety.process
        self._notifier = notifier
        self._observe = observe
        self._queue = WriterQueue()
        self._cursor: sqlite3.Cursor | None = None
        """Runs every statement of the writing connection; see `SqliteTransaction`."""
        self._tx: Any = None
        """The transaction of that cursor, which every operation uses."""
        self._dropped: sqlite3.Cursor | None = None
        """A cursor that is no longer used, but may not be closed yet."""
        self._lock_file: lock_file.LockFile | None = None
        self._commits = 0
        # State of the current leader:
        self._group: list[Ticket] = []
        self._commit_sent = False
        self._all_decided = False
        """Whether every member of the group has a result or error that does not depend on a commit."""
        self._holder: object = None
        self._joined: external_transaction.SqliteSyncExternalTransaction | None = None

    # --- operations -------------------------------------------------------------------------------------------------

    def run(self, operation: store.Operation[T]) -> T:
        """Run *operation* in a transaction and return its result once that has committed."""
        if self._holder is not None:
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

    def refuse_holder(self) -> None:
        """Raise if the caller already holds this queue's transaction and would wait for itself."""
        if self._holder is not None and self._holder == current_caller():
            raise errors.Misconfigured(
                "a transaction of this queue is open here: call the methods of the transaction"
            )

    # --- waiting for the lead ---------------------------------------------------------------------------------------

    def _wait_for_lead(self, ticket: Ticket) -> bool:
        """Block until *ticket* leads (return True) or is completed (return False). Raise after too long."""
        while not self._queue.wait(ticket, connection.BUSY_SECONDS):
            if ticket.completed:
                return False
            self._give_up(ticket)
        return True

    def _give_up(self, ticket: Ticket) -> None:
        """Remove *ticket* from the queue and raise, unless it leads or its operation is running."""
        leader = self._queue.leader
        if not self._queue.withdraw(ticket):
            return
        if leader is open_transactions.get({}).get(id(self)):
            raise errors.Misconfigured(
                "a transaction of this queue is open in the task that started this one, and was still open after"
                f" {connection.BUSY_SECONDS:g} s; inside a transaction, call the methods of the transaction"
            )
        raise errors.StoreBusy(
            f"another caller of this queue held its writer for more than {connection.BUSY_SECONDS:g} s; try again,"
            " and keep transactions short"
        )

    # --- one group --------------------------------------------------------------------------------------------------

    def _lead(self, ticket: Ticket) -> None:
        """Run *ticket* and queued operations in one transaction, complete all of them, and pass the lead on."""
        self._group, self._commit_sent, self._all_decided = [ticket], False, False
        try:
            cursor = self._lock_and_open()
            topics = self._run_members(cursor)
            if topics is None:
                self._roll_back()
                topics = self._run_members(cursor, separately=True) or set()
            if cursor.connection.in_transaction:
                self._commit(cursor, topics)
            else:
                self._all_decided = True
        except Exception as error:
            self._set_errors(ticket, error)
        self._finish(ticket)

    def _run_members(self, cursor: sqlite3.Cursor, *, separately: bool = False) -> set[str] | None:
        """Run the group and queued operations, which join it; return their topics.

        If an operation fails its writes are rolled back; with *separately*, other members of the group are never
        affected. Return None if one has failed and its writes could not be told from those of others.
        """
        group, opened, tx, deadline = self._group, cursor.connection, self._tx, 0.0
        topics: set[str] = set()
        for member in group:
            operation = member.operation
            assert operation is not None  # noqa: S101  # only operations are taken into a group
            # A member requeued after a failed commit may hold the result of the rolled-back run; clear it.
            member.result = member.error = None
            first = not opened.in_transaction
            if first:
                self._begin(cursor)
            elif separately:
                cursor.execute(_SAVEPOINT_OPEN)
            changes = 0 if first else opened.total_changes
            tx.topics = set()
            try:
                member.result = runners.run_sync(operation(tx))
                topics = topics | tx.topics if topics else tx.topics
            except Exception as error:
                if not opened.in_transaction:
                    # SQLite rolled back the whole transaction, including the writes of other members.
                    raise
                member.error = translate(error)
                if first:
                    cursor.execute("rollback")
                elif separately:
                    cursor.execute(_SAVEPOINT_UNDO)
                elif opened.total_changes != changes:
                    return None
            if separately and not first:
                cursor.execute(_SAVEPOINT_KEEP)
            if self._queue.queue and member is group[-1] and len(group) < _GROUP_MAX:
                deadline = deadline or time.monotonic() + _GROUP_SECONDS
                if time.monotonic() <= deadline:
                    # The loop goes on with it.
                    self._queue.take_next(group)
        return topics

    def _set_errors(self, leader: Ticket, error: Exception) -> None:
        """Set a store error for all members of the group; any other error is raised in the leader only."""
        translated_error = translate(error)
        if isinstance(translated_error, errors.HoldfastError | sqlite3.Error) and not self._committed():
            for member in self._group:
                member.error = translated_error
            self._all_decided = True
        leader.error = translated_error

    # --- finishing a lead -------------------------------------------------------------------------------------------

    def _finish(self, ticket: Ticket) -> None:
        """Clean up after the lead of *ticket* in any state, complete its group and pass the lead on."""
        if self._queue.leader is not ticket:
            return
        if self._process != fork_safety.process:
            # This process was forked within the lead: the connection and the lock are those of its parent.
            return
        cursor = self._cursor
        in_transaction = cursor is not None and cursor.connection.in_transaction
        decided = self._all_decided or (self._commit_sent and cursor is not None and not in_transaction)
        if not decided:
            # Otherwise the rollback below would be taken for a commit if `_finish` is repeated.
            self._commit_sent = False
        if in_transaction:
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
        ended = [*others, leader]
        for member in ended:
            member.completed = True
        self._wake_all(ended)

    def _wake_all(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            ticket.wake()

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

    # --- lock, begin, commit, roll back -----------------------------------------------------------------------------

    def _lock_and_open(self) -> sqlite3.Cursor:
        """Take the write lock shared by all processes, and return the cursor of the open connection."""
        if self._lock_file is None and not self._connector.in_memory:
            self._lock_file = self._wait_while_busy(self._connector.open_lock_file)
            self._notifier.refresh()
        if self._lock_file is not None:
            self._lock_file.lock(connection.BUSY_SECONDS, self._interrupted)
        if self._cursor is not None and self._cursor.connection.in_transaction:
            # The last leader was interrupted too often to clean up.
            self._roll_back()
        if self._cursor is None:
            cursor = transaction.plain_cursor(self._wait_while_busy(self._connector.writing_connection))
            self._tx = transaction.SqliteTransaction(self._state, cursor, self._connector.clock, self._observe)
            self._cursor = cursor
        return self._cursor

    def _begin(self, cursor: sqlite3.Cursor) -> None:
        self._observe("begin")
        try:
            cursor.execute("begin immediate")
        except sqlite3.OperationalError:
            # Another program holds the file: wait for it.
            self._wait_while_busy(partial(cursor.execute, "begin immediate"))

    def _wait_while_busy(self, call: Callable[[], T]) -> T:
        return connection.wait_while_busy(call, self._interrupted)

    def _interrupted(self) -> bool:
        """Return whether the leader no longer waits for other writers."""
        leader = self._queue.leader
        return leader is not None and leader.interrupted

    def _commit(self, cursor: sqlite3.Cursor, topics: set[str]) -> None:
        """Commit, and notify the listeners of *topics*."""
        if self._process != fork_safety.process:
            fork_safety.refuse_inherited(self._process)
        # As late as possible: a caller's transaction may have been open for a long time.
        self._connector.check_unmoved()
        observe = self._observe
        observe("commit")
        self._commit_sent = True
        try:
            cursor.execute("commit")
        except sqlite3.Error as error:
            # Reset first: SQLite may have rolled back by itself, which must not be taken for a commit.
            self._commit_sent = False
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_IOERR:
                # The commit may or may not be on disk. The connection's state can no longer be trusted.
                self._drop()
                raise errors.OutcomeUnknown(
                    f"the commit was not confirmed; send the same call again ({error})"
                ) from error
            raise translate(error) from error
        self._notify_listeners(topics)
        observe("committed")

    def _roll_back(self) -> None:
        try:
            if self._cursor is not None and self._cursor.connection.in_transaction:
                self._cursor.execute("rollback")
        except sqlite3.Error:
            self._drop()

    def _drop(self) -> None:
        if self._cursor is not None:
            self._dropped, self._cursor = self._cursor, None
        if self._dropped is not None:
            transaction.close_connection(self._dropped)
            self._dropped = None

    def _notify_listeners(self, topics: set[str]) -> None:
        """Notify listeners in this and other processes, and keep the log short. Requires the write lock.

        Errors are harmless here: listeners poll, and the next commit checks the log again.
        """
        if self._connector.in_memory:
            self._notifier.publish(topics)
            return
        try:
            if topics:
                if self._notifier.listeners:
                    self._notifier.publish(topics)
                if self._lock_file is not None:
                    self._lock_file.notify(topics)
            if self._commits % _COMMITS_BETWEEN_CHECKS == 0 and self._cursor is not None:
                connection.trim_log(self._cursor.connection, self._connector.path)
            self._commits += 1
        except Exception:  # noqa: S110
            pass


def current_caller() -> object:
    """Return the running task, or the running thread if there is no task."""
    try:
        return asyncio.current_task() or threading.get_ident()
    except RuntimeError:
        return threading.get_ident()
