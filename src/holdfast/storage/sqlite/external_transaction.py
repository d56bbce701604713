"""An open transaction that operations join, each in its own savepoint: a refused operation changes nothing."""

import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from holdfast.domain import errors
from holdfast.domain.claims import Claim, ClaimRequest
from holdfast.domain.clock import Clock
from holdfast.domain.job import Job
from holdfast.domain.new_job import CheckedJob
from holdfast.domain.outcomes import CheckedOutcome
from holdfast.storage import cancellation, notifications, runners, store
from holdfast.storage.plain_contract import ClaimedJobs, FinishedJobs
from holdfast.storage.query_names import QueryName
from holdfast.storage.sql_queries import Row, Rows
from holdfast.storage.sqlite import fork_safety, transaction
from holdfast.storage.sqlite.connection import MEMORY
from holdfast.storage.sqlite.errors import translated
from holdfast.storage.sqlite.sql import QUERIES

T = TypeVar("T")

_OPEN = "savepoint holdfast_join"
_KEEP = "release holdfast_join"
_UNDO = "rollback to holdfast_join"


class SqliteSyncExternalTransaction:
    """Joins a transaction on a `sqlite3.Connection`; its async methods run in another thread."""

    joined: Final = True
    writes_in_order: Final = False
    translate: Final = None

    def __init__(
        self,
        state: transaction.SqliteState,
        connection: sqlite3.Connection,
        clock: Clock,
        observe: transaction.Observer,
        notifier: notifications.Notifier,
        mutex: threading.RLock,
    ) -> None:
        self.notifier = notifier
        self._state = state
        self._mutex = mutex
        """Held by the thread that uses the connection: savepoints of several threads must not overlap."""
        self.connection = connection
        self.signals: set[str] = set()
        """The topics to notify once the transaction has committed."""
        self._clock = clock
        self._observe = observe
        self._ended = False
        self._process = fork_safety.process

    def check(self, path: str) -> None:
        """Raise if the connection is not open on the queue's own file, or changes the rows that statements return."""
        with translated():
            cursor = transaction.plain_cursor(self.connection)
            for statement, refuse in _checks(path):
                refuse(cursor.execute(statement).fetchall())

    def end(self) -> None:
        """Refuse all further calls."""
        self._ended = True

    def read(self, operation: store.Operation[T]) -> T:
        """Run *operation* in a savepoint."""
        return self.write(operation)

    def write(self, operation: store.Operation[T]) -> T:
        """Run *operation* in a savepoint."""
        fork_safety.refuse_inherited(self._process)
        with self._mutex:
            _refuse_ended(ended=self._ended or not self.connection.in_transaction)
            with translated():
                return self._run(operation)

    def _run(self, operation: store.Operation[T]) -> T:
        cursor = transaction.plain_cursor(self.connection)
        tx = transaction.SqliteTransaction(self._state, cursor, self._clock, self._observe)
        cursor.execute(_OPEN)
        try:
            result = runners.run_sync(operation(tx))
        except BaseException:
            # An error such as a full disk may already have ended the whole transaction.
            if self.connection.in_transaction:
                cursor.execute(_UNDO)
                cursor.execute(_KEEP)
            raise
        cursor.execute(_KEEP)
        self.signals |= tx.topics
        return result

    async def read_async(self, operation: store.Operation[T]) -> T:
        """Run *operation* in a savepoint, in another thread."""
        return await cancellation.in_thread(partial(self.write, operation))

    async def write_async(self, operation: store.Operation[T]) -> T:
        """Run *operation* in a savepoint, in another thread."""
        return await cancellation.in_thread(partial(self.write, operation))

    def execute(self, sql: str, values: Any = ()) -> list[Any]:
        """Run the caller's own SQL."""
        fork_safety.refuse_inherited(self._process)
        with self._mutex:
            _refuse_ended(ended=self._ended)
            with translated():
                return self.connection.execute(sql, values).fetchall()

    async def execute_async(self, sql: str, values: Any = ()) -> list[Any]:
        """Run the caller's own SQL in another thread."""
        return await cancellation.in_thread(lambda: self.execute(sql, values))


class SqliteAsyncExternalTransaction:
    """Joins a transaction on an `aiosqlite.Connection`, awaiting each statement."""

    joined: Final = True
    writes_in_order: Final = False
    translate: Final = None

    def __init__(
        self,
        state: transaction.SqliteState,
        connection: Any,
        path: str,
        clock: Clock,
        observe: transaction.Observer,
        notifier: notifications.Notifier,
    ) -> None:
        self.notifier = notifier
        self._state = state
        self._unchecked_path: str | None = path
        self.connection = connection
        self._lock = cancellation.lock_of(connection)
        self._clock = clock
        self._observe = observe

    def read(self, operation: store.Operation[T]) -> T:
        """Raise `TypeError`: this connection is async."""
        raise TypeError("an async connection needs an AsyncQueue")

    def write(self, operation: store.Operation[T]) -> T:
        """Raise `TypeError`: this connection is async."""
        raise TypeError("an async connection needs an AsyncQueue")

    async def read_async(self, operation: store.Operation[T]) -> T:
        """Run *operation* in a savepoint."""
        return await self._run(operation)

    async def write_async(self, operation: store.Operation[T]) -> T:
        """Run *operation* in a savepoint."""
        return await self._run(operation)

    async def _run(self, operation: store.Operation[T]) -> T:
        async with self._lock:
            return await self._run_alone(operation)

    async def _run_alone(self, operation: store.Operation[T]) -> T:
        _refuse_ended(ended=not self.connection.in_transaction)
        with translated():
            cursor = await self.connection.cursor()
            cursor.row_factory = None
            await self._check(cursor)
            await cursor.execute(_OPEN)
            try:
                tx = AioSqliteTransaction(self._state, cursor, self._clock, self._observe)
                result = await operation(tx)
            except BaseException:
                if self.connection.in_transaction:
                    await cursor.execute(_UNDO)
                    await cursor.execute(_KEEP)
                raise
            await cursor.execute(_KEEP)
            return result

    async def _check(self, cursor: Any) -> None:
        if self._unchecked_path is not None:
            for statement, refuse in _checks(self._unchecked_path):
                await cursor.execute(statement)
                refuse(list(await cursor.fetchall()))
            self._unchecked_path = None

    def execute(self, sql: str, values: Any = ()) -> list[Any]:  # part of the protocol
        """Raise `TypeError`: this connection is async."""
        raise TypeError("an async connection needs an AsyncQueue")

    async def execute_async(self, sql: str, values: Any = ()) -> list[Any]:
        """Run the caller's own SQL."""
        async with self._lock:
            with translated():
                return list(await self.connection.execute_fetchall(sql, values))


def _refuse_ended(*, ended: bool) -> None:
    if ended:
        raise errors.Misconfigured("the transaction that this would join has ended")


# --- checks of the caller's own connection -------------------------------------------------------------------------


def _checks(path: str) -> list[tuple[str, Callable[[list[Any]], None]]]:
    """Return statements to run on the caller's connection, each with a function that raises on invalid rows."""
    return [
        ("pragma database_list", partial(_refuse_other_file, path)),
        (QUERIES["schema_ledger"], _refuse_converted),
        ("pragma count_changes", _refuse_counting),
    ]


def _refuse_converted(rows: list[Any]) -> None:
    """Raise if the connection's `text_factory` or converters change integers or text, with which all rows begin."""
    for row in rows:
        if [type(value) for value in row[:2]] != [int, str]:
            raise errors.InvalidInput(
                "connection",
                "does not return integers as int and text as str; set its text_factory to str, and open it without"
                " detect_types or without converters for INTEGER and TEXT",
            )


def _refuse_counting(setting: list[Any]) -> None:
    if setting and setting[0][0]:
        raise errors.InvalidInput(
            "connection", "has `pragma count_changes` on; run `pragma count_changes = 0` before"
        )


def _refuse_other_file(path: str, databases: list[Any]) -> None:
    _refuse_converted(databases)
    opened = next((row[2] for row in databases if row[1] == "main"), "")
    if not opened or path == MEMORY or not Path(opened).samefile(path):
        raise errors.InvalidInput("connection", f"is open on {opened or ':memory:'!r}, not on this queue's {path!r}")


class AioSqliteTransaction(transaction.SqliteTransaction):
    """An open transaction on a connection of aiosqlite."""

    __slots__ = ()
    fuses_max = 0

    async def _send_many(self, name: QueryName, rows: Sequence[Row]) -> int:
        self._observe(name)
        await self._cursor.executemany(QUERIES[name], rows)
        return int(self._cursor.rowcount)

    async def _send(self, text: str, values: Mapping[str, Any] | Row, name: QueryName) -> Rows:
        self._observe(name)
        cursor = self._cursor
        await cursor.execute(text, values)
        return list(await cursor.fetchall()) if cursor.description is not None else [(cursor.rowcount,)]

    async def insert_plain(self, new: CheckedJob) -> Job | None:
        """Return None: only sync connections have plain forms of single calls."""
        return None

    async def claim_plain(self, request: ClaimRequest) -> ClaimedJobs | None:
        """Return None."""
        return None

    async def finish_held(self, settlements: Sequence[tuple[Claim, CheckedOutcome]]) -> FinishedJobs:
        """Finish none."""
        return FinishedJobs(await self.now(), {})
