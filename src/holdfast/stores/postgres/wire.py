"""Talking to the server without colour: a talk yields what to send and receives the rows, or the error, in answer.

Beginning, committing, running again and undoing are written once as talks; the two functions here run them on a
connection that blocks, or on one that is awaited.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.generators import fetch, send
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import tuple_row

from holdfast.stores.postgres.binding import copied
from holdfast.stores.script import Row, Rows

T = TypeVar("T")


class Message(NamedTuple):
    """Several statements without values, sent together; answered with the rows of all of them."""

    text: str


class Query(NamedTuple):
    """One statement with its values."""

    text: str
    values: Mapping[str, Any] | Sequence[Any] | None
    prepare: bool | None = None
    """False where a pooler would lose it; None where the driver prepares what it has met often enough."""


class Copy(NamedTuple):
    """Many rows for one table."""

    text: str
    rows: Sequence[Row]


class Commit(NamedTuple):
    """Statements that end with COMMIT and, in the same message, statements that follow it.

    An error after the server has answered COMMIT raises `AfterCommitError`.
    """

    text: str
    after: str = ""


class Pause(NamedTuple):
    """Nothing to send for a while."""

    seconds: float


class AfterCommitError(Exception):
    """The transaction has committed; a statement after the commit failed, for the reason in ``__cause__``."""

    def __init__(self, rows: Rows) -> None:
        super().__init__("a statement after the commit failed")
        self.rows = rows


Request: TypeAlias = Message | Query | Copy | Commit | Pause
Talk: TypeAlias = Generator[Request, Rows, T]


def talk(what: Talk[T], connection: psycopg.Connection[Any]) -> T:
    """Run a talk to its end on a connection that blocks."""
    answer: Any = None
    error: BaseException | None = None
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)
    try:
        while True:
            request = what.send(answer) if error is None else what.throw(error)
            error = None
            try:
                answer = _ask(cursor, request)
            except BaseException as raised:  # the talk knows what it means
                error = raised
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        what.close()


def _ask(cursor: psycopg.Cursor[Row], request: Request) -> Rows:
    match request:
        case Query(text, values, prepare):
            cursor.execute(text.encode(), values, prepare=prepare)
            return cursor.fetchall() if _has_rows(cursor) else [(cursor.rowcount,)]
        case Copy(text, rows):
            with cursor.copy(text.encode()) as copy:
                for lines in copied(rows):
                    copy.write(lines)
            return [(cursor.rowcount,)]
        case Message(text):
            cursor.execute(text.encode(), prepare=False)
            rows = cursor.fetchall() if _has_rows(cursor) else []
            while cursor.nextset():
                rows += cursor.fetchall() if _has_rows(cursor) else []
            return rows
        case Pause(seconds):
            time.sleep(seconds)
            return []
        case Commit():
            results: list[PGresult] = []
            try:
                cursor.connection.wait(_exchange(cursor.connection.pgconn, request, results))
            except psycopg.Error as error:
                return _committed(cursor, results, error)
            return _committed(cursor, results)


def _has_rows(cursor: psycopg.Cursor[Row] | psycopg.AsyncCursor[Row]) -> bool:
    # Not by the cursor's description, which it makes anew, column by column, for every answer.
    return cursor.pgresult is not None and cursor.pgresult.status == ExecStatus.TUPLES_OK


async def talk_async(what: Talk[T], connection: psycopg.AsyncConnection[Any]) -> T:
    """Run a talk to its end on a connection that is awaited."""
    answer: Any = None
    error: BaseException | None = None
    cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
    try:
        while True:
            request = what.send(answer) if error is None else what.throw(error)
            error = None
            try:
                answer = await _ask_async(cursor, request)
            except BaseException as raised:  # the talk knows what it means
                error = raised
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        what.close()


async def _ask_async(cursor: psycopg.AsyncCursor[Row], request: Request) -> Rows:
    match request:
        case Query(text, values, prepare):
            await cursor.execute(text.encode(), values, prepare=prepare)
            return await cursor.fetchall() if _has_rows(cursor) else [(cursor.rowcount,)]
        case Copy(text, rows):
            async with cursor.copy(text.encode()) as copy:
                for lines in copied(rows):
                    await copy.write(lines)
            return [(cursor.rowcount,)]
        case Message(text):
            await cursor.execute(text.encode(), prepare=False)
            rows = await cursor.fetchall() if _has_rows(cursor) else []
            while cursor.nextset():
                rows += await cursor.fetchall() if _has_rows(cursor) else []
            return rows
        case Pause(seconds):
            await asyncio.sleep(seconds)
            return []
        case Commit():
            results: list[PGresult] = []
            try:
                await cursor.connection.wait(_exchange(cursor.connection.pgconn, request, results))
            except psycopg.Error as error:
                return _committed(cursor, results, error)
            return _committed(cursor, results)


# --- committing ----------------------------------------------------------------------------------------------------


def _exchange(connection: PGconn, request: Commit, results: list[PGresult]) -> PQGen[None]:
    """Send a commit and collect its results as they arrive: an error must not hide those that came before it."""
    connection.send_query((f"{request.text}; {request.after}" if request.after else request.text).encode())
    yield from send(connection)
    while (result := (yield from fetch(connection))) is not None:
        results.append(result)


def _committed(
    cursor: psycopg.Cursor[Row] | psycopg.AsyncCursor[Row], results: list[PGresult], lost: psycopg.Error | None = None
) -> Rows:
    """Return the rows of a commit, or raise what went wrong: before the commit, or only after it."""
    refused = [result for result in results if result.status == ExecStatus.FATAL_ERROR]
    error = error_from_result(refused[0], encoding="utf-8") if refused else lost
    rows: Rows = []
    for result in results:
        if result.status == ExecStatus.TUPLES_OK:
            reader = Transformer(cursor.connection)
            reader.set_pgresult(result)
            rows += reader.load_rows(0, result.ntuples, tuple)
    if error is None:
        return rows
    if any(result.command_status == b"COMMIT" for result in results):
        raise AfterCommitError(rows) from error
    raise error
