"""Send statements to the server over a psycopg connection, sync or async, through the same coroutine methods.

Begin, commit, retry and rollback are written once as coroutines over a `ServerIO`. The methods of `SyncIO` block
instead of suspending, so `run_sync` can run any of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import psycopg
from psycopg.abc import PQGen
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.generators import fetch, send
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import tuple_row

from holdfast.storage.postgres.binding import copied
from holdfast.storage.sql_queries import Row, Rows


class AfterCommitError(Exception):
    """The transaction has committed; a statement after the commit failed, for the reason in ``__cause__``."""

    def __init__(self, rows: Rows) -> None:
        super().__init__("a statement after the commit failed")
        self.rows = rows


class ServerIO(Protocol):
    """Sends statements over one connection and returns their rows."""

    connection: Any

    async def message(self, text: str) -> Rows:
        """Send several statements without values in one message; return the rows of all of them."""
        ...

    async def query(
        self, text: str, values: Mapping[str, Any] | Sequence[Any] | None, *, prepare: bool | None = None
    ) -> Rows:
        """Send one statement with its values.

        *prepare* is False if a pooler would lose prepared statements; with None the driver prepares statements that
        it has sent often enough.
        """
        ...

    async def copy(self, text: str, rows: Sequence[Row]) -> Rows:
        """Insert many rows into one table with COPY."""
        ...

    async def commit(self, text: str, after: str = "") -> Rows:
        """Send statements that end with COMMIT and, in the same message, statements that follow it.

        An error after the server has confirmed COMMIT raises `AfterCommitError`.
        """
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait without sending anything."""
        ...


class SyncIO:
    """Sends over a sync connection; never suspends."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection: Any = connection
        self._cursor = psycopg.Cursor(connection, row_factory=tuple_row)

    async def message(self, text: str) -> Rows:
        """Send several statements without values in one message."""
        cursor = self._cursor
        cursor.execute(text.encode(), prepare=False)
        rows = cursor.fetchall() if _has_rows(cursor) else []
        while cursor.nextset():
            rows += cursor.fetchall() if _has_rows(cursor) else []
        return rows

    async def query(
        self, text: str, values: Mapping[str, Any] | Sequence[Any] | None, *, prepare: bool | None = None
    ) -> Rows:
        """Send one statement with its values."""
        cursor = self._cursor
        cursor.execute(text.encode(), values, prepare=prepare)
        return cursor.fetchall() if _has_rows(cursor) else [(cursor.rowcount,)]

    async def copy(self, text: str, rows: Sequence[Row]) -> Rows:
        """Insert many rows into one table with COPY."""
        with self._cursor.copy(text.encode()) as copy:
            for lines in copied(rows):
                copy.write(lines)
        return [(self._cursor.rowcount,)]

    async def commit(self, text: str, after: str = "") -> Rows:
        """Send a commit and the statements that follow it."""
        results: list[PGresult] = []
        try:
            self.connection.wait(_exchange(self.connection.pgconn, text, after, results))
        except psycopg.Error as error:
            return _committed(self.connection, results, error)
        return _committed(self.connection, results)

    async def sleep(self, seconds: float) -> None:
        """Wait without sending anything."""
        time.sleep(seconds)  # noqa: ASYNC251  # a sync connection blocks


class AsyncIO:
    """Sends over an async connection."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self.connection: Any = connection
        self._cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)

    async def message(self, text: str) -> Rows:
        """Send several statements without values in one message."""
        cursor = self._cursor
        await cursor.execute(text.encode(), prepare=False)
        rows = await cursor.fetchall() if _has_rows(cursor) else []
        while cursor.nextset():
            rows += await cursor.fetchall() if _has_rows(cursor) else []
        return rows

    async def query(
        self, text: str, values: Mapping[str, Any] | Sequence[Any] | None, *, prepare: bool | None = None
    ) -> Rows:
        """Send one statement with its values."""
        cursor = self._cursor
        await cursor.execute(text.encode(), values, prepare=prepare)
        return await cursor.fetchall() if _has_rows(cursor) else [(cursor.rowcount,)]

    async def copy(self, text: str, rows: Sequence[Row]) -> Rows:
        """Insert many rows into one table with COPY."""
        async with self._cursor.copy(text.encode()) as copy:
            for lines in copied(rows):
                await copy.write(lines)
        return [(self._cursor.rowcount,)]

    async def commit(self, text: str, after: str = "") -> Rows:
        """Send a commit and the statements that follow it."""
        results: list[PGresult] = []
        try:
            await self.connection.wait(_exchange(self.connection.pgconn, text, after, results))
        except psycopg.Error as error:
            return _committed(self.connection, results, error)
        return _committed(self.connection, results)

    async def sleep(self, seconds: float) -> None:
        """Wait without sending anything."""
        await asyncio.sleep(seconds)


def _has_rows(cursor: psycopg.Cursor[Row] | psycopg.AsyncCursor[Row]) -> bool:
    # Not `cursor.description`, which is rebuilt column by column for every result.
    return cursor.pgresult is not None and cursor.pgresult.status == ExecStatus.TUPLES_OK


def _exchange(connection: PGconn, text: str, after: str, results: list[PGresult]) -> PQGen[None]:
    """Send a commit and collect its results as they arrive; an error must not hide the results before it."""
    connection.send_query((f"{text}; {after}" if after else text).encode())
    yield from send(connection)
    while (result := (yield from fetch(connection))) is not None:
        results.append(result)


def _committed(connection: Any, results: list[PGresult], lost: psycopg.Error | None = None) -> Rows:
    """Return the rows of a commit, or raise the error that occurred before or after it."""
    refused = [result for result in results if result.status == ExecStatus.FATAL_ERROR]
    error = error_from_result(refused[0], encoding="utf-8") if refused else lost
    rows: Rows = []
    for result in results:
        if result.status == ExecStatus.TUPLES_OK:
            reader = Transformer(connection)
            reader.set_pgresult(result)
            rows += reader.load_rows(0, result.ntuples, tuple)
    if error is None:
        return rows
    if any(result.command_status == b"COMMIT" for result in results):
        raise AfterCommitError(rows) from error
    raise error
