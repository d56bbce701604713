"""Talking to the server without colour: a talk yields what to send and receives the rows, or the error, in answer.

Beginning, committing, running again and undoing are written once as talks; the two functions here run them on a
connection that blocks, or on one that is awaited.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import psycopg
from psycopg.pq import ExecStatus
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


Talk: TypeAlias = Generator[Message | Query | Copy, Rows, T]


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


def _ask(cursor: psycopg.Cursor[Row], request: Message | Query | Copy) -> Rows:
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


async def _ask_async(cursor: psycopg.AsyncCursor[Row], request: Message | Query | Copy) -> Rows:
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
