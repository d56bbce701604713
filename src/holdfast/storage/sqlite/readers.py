"""Reading: each operation on one consistent snapshot, concurrently with the writer and other readers.

As in `group_commit`, each step can be repeated after an interrupt, and no `Condition` is used.
"""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from holdfast.storage import runners, store
from holdfast.storage.sqlite import errors, transaction
from holdfast.storage.sqlite.connection import SqliteConnector, wait_while_busy

T = TypeVar("T")

_IDLE_MAX = 4
# How often to check whether a suspension has begun or ended.
_POLL_SECONDS = 0.001


class _Loan:
    """The cursor that runs all statements of one operation, once it is open."""

    __slots__ = ("broken", "cursor", "interrupted", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self.cursor: sqlite3.Cursor | None = None
        self.broken = False
        self.interrupted = False
        """Whether it no longer waits for other programs."""
        self.loop = loop
        """The event loop of the caller, if it is a task."""


class Readers:
    """Read-only connections. One is lent to each operation; a few are kept for the next."""

    def __init__(
        self,
        state: transaction.SqliteState,
        connector: SqliteConnector,
        observe: transaction.Observer,
        make_ready: Callable[[], object],
    ) -> None:
        self._state = state
        self._connector = connector
        self._observe = observe
        self._make_ready = make_ready
        self._mutex = threading.Lock()
        self._idle: list[sqlite3.Cursor] = []
        self._loans: set[_Loan] = set()
        self._suspended = False

    def run(self, operation: store.Operation[T]) -> T:
        """Run *operation* on one snapshot of the store and return its result."""
        return self._run(_Loan(None), operation)

    async def run_async(self, operation: store.Operation[T]) -> T:
        """Run *operation* as `run` does, in another thread."""
        loan = _Loan(asyncio.get_running_loop())
        try:
            return await asyncio.to_thread(self._run, loan, operation)
        finally:
            # If the task is cancelled, the thread must not keep the event loop and the process from ending.
            loan.interrupted = True

    def _run(self, loan: _Loan, operation: store.Operation[T]) -> T:
        try:
            with errors.translated():
                self._lend(loan)
                return wait_while_busy(lambda: self._read(loan, operation), lambda: loan.interrupted)
        finally:
            try:
                self._take_back(loan)
            finally:
                # Again, because an interrupt may have stopped the first call.
                self._take_back(loan)

    def _read(self, loan: _Loan, operation: store.Operation[T]) -> T:
        if loan.cursor is None:
            loan.cursor = transaction.plain_cursor(self._open())
        else:
            self._connector.check_unmoved()
        cursor = loan.cursor
        loan.broken = not _rolled_back(cursor)  # open if this is a repetition
        try:
            self._observe("begin")
            cursor.execute("begin")
            tx = transaction.SqliteTransaction(self._state, cursor, self._connector.clock, self._observe)
            return runners.run_sync(operation(tx))
        except sqlite3.Error:
            # The connection's state can no longer be trusted.
            loan.broken = True
            raise

    def _lend(self, loan: _Loan) -> None:
        while True:
            with self._mutex:
                if not self._suspended:
                    self._loans.add(loan)
                    if self._idle:
                        loan.cursor = self._idle[-1]
                        del self._idle[-1]
                    return
            time.sleep(_POLL_SECONDS)

    def _take_back(self, loan: _Loan) -> None:
        """End the loan in any state; harmless if it has ended."""
        if loan not in self._loans:
            return
        cursor = loan.cursor
        reusable = cursor is not None and not loan.broken and _rolled_back(cursor)
        with self._mutex:
            if cursor is not None and not (reusable and len(self._idle) < _IDLE_MAX and not self._suspended):
                transaction.close_connection(cursor)
                cursor = None
            # Before it is idle: if this is repeated after an interrupt, another loan may have the cursor.
            loan.cursor = None
            if cursor is not None:
                self._idle.append(cursor)
            self._loans.discard(loan)

    def interrupt(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Make calls that wait for other programs raise `StoreBusy`: those of the tasks of *loop*, or all."""
        with self._mutex:
            for loan in self._loans:
                loan.interrupted = loan.interrupted or loop is None or loan.loop is loop

    def suspend(self, seconds: float) -> bool:
        """Stop lending, wait until all connections are returned and close them; return whether that was in time."""
        with self._mutex:
            self._suspended = True
        deadline = time.monotonic() + seconds
        while self._loans:
            if time.monotonic() > deadline:
                self._suspended = False
                return False
            time.sleep(_POLL_SECONDS)
        self.close()
        return True

    def resume(self) -> None:
        """Lend connections again."""
        self._suspended = False

    def open_connections(self) -> list[sqlite3.Connection]:
        """Return the connections that are open."""
        lent = [loan.cursor for loan in self._loans if loan.cursor is not None]
        return [cursor.connection for cursor in (*self._idle, *lent)]

    def _open(self) -> sqlite3.Connection:
        connection = self._connector.reading_connection()
        if connection is None:
            # The file has to be created or migrated first.
            self._make_ready()
            connection = self._connector.reading_connection()
        assert connection is not None  # noqa: S101  # the file exists now
        return connection

    def close(self) -> None:
        """Close idle connections; lent ones are kept or closed when they are returned."""
        with self._mutex:
            idle, self._idle = self._idle, []
        for cursor in idle:
            transaction.close_connection(cursor)


def _rolled_back(cursor: sqlite3.Cursor) -> bool:
    """Roll back if a transaction is open; return whether the connection can still be used."""
    try:
        if cursor.connection.in_transaction:
            cursor.execute("rollback")
    except sqlite3.Error:
        return False
    return True
