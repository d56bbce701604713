"""Answering what scripts ask, on one connection: a blocking way, and an awaiting one for aiosqlite."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from holdfast.domain import strict_json
from holdfast.domain.clock import Clock
from holdfast.stores.drivers import answer_beside
from holdfast.stores.script import Request, Rows, Statement
from holdfast.stores.sqlite.statements import statements

Observer: TypeAlias = Callable[[str], None]
"""Told the name of each statement before it runs, and of begin, commit and committed. A test may raise here."""


def unobserved(_name: str) -> None:
    """Let everything pass."""


def plain_cursor(connection: sqlite3.Connection) -> sqlite3.Cursor:
    """Return a cursor whose rows are tuples; the caller's own connection may shape its rows in other ways."""
    cursor = connection.cursor()
    cursor.row_factory = None
    return cursor


def close_connection(cursor: sqlite3.Cursor) -> None:
    """Close the connection of *cursor*, and that before it: a statement left open would keep the file open too."""
    connection = cursor.connection
    with contextlib.suppress(sqlite3.Error):
        cursor.close()
    with contextlib.suppress(sqlite3.Error):
        connection.close()


class Answers:
    """Answers requests and collects the signals to send once the transaction has committed.

    All statements of a transaction, its begin and its rollback included, go through one cursor, which resets the
    last one when it runs the next. An interrupt may strike between a statement and the fetching of its rows; on a
    cursor of its own, kept by the traceback, the statement would stay open, and with it the view it reads.
    """

    def __init__(self, cursor: Any, clock: Clock, observe: Observer) -> None:
        self.signals: set[str] = set()
        self._cursor = cursor
        self._clock = clock
        self._observe = observe
        self._texts = statements()

    def blocking(self, request: Request) -> Any:
        """Answer in this thread."""
        if type(request) is Statement:
            return self._execute(request)
        return answer_beside(request, self._clock, self.signals)

    async def awaiting(self, request: Request) -> Any:
        """Answer through a connection whose methods are awaited."""
        if type(request) is Statement:
            return await self._execute_async(request)
        return answer_beside(request, self._clock, self.signals)

    def _execute(self, statement: Statement) -> Rows:
        self._observe(statement.name)
        cursor: sqlite3.Cursor = self._cursor
        if statement.many is not None:
            cursor.executemany(self._texts[statement.name], statement.many)
            return [(cursor.rowcount,)]
        cursor.execute(*self._worded(statement))
        return cursor.fetchall() if cursor.description is not None else [(cursor.rowcount,)]

    async def _execute_async(self, statement: Statement) -> Rows:
        self._observe(statement.name)
        cursor = self._cursor
        if statement.many is not None:
            await cursor.executemany(self._texts[statement.name], statement.many)
            return [(cursor.rowcount,)]
        await cursor.execute(*self._worded(statement))
        return list(await cursor.fetchall()) if cursor.description is not None else [(cursor.rowcount,)]

    def _worded(self, statement: Statement) -> tuple[str, dict[str, Any]]:
        """Return the text and its values. Some statements for many have a quicker text for one."""
        for_one = self._texts.get(f"{statement.name}_one")
        if for_one is not None and (values := _bound_one(statement.values)) is not None:
            return for_one, values
        return self._texts[statement.name], _bound(statement.values)


_MANY = frozenset((list, dict))


def _bound(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return *values* with each list or dict as JSON, the form in which SQLite takes many at once."""
    return {name: strict_json.compact(value) if type(value) in _MANY else value for name, value in values.items()}


def _bound_one(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return *values* with the one entry of the list or dict among them as `value`, or `key` and `value`."""
    bound: dict[str, Any] = {}
    for name, value in values.items():
        if type(value) not in _MANY:
            bound[name] = value
        elif len(value) != 1:
            return None
        elif type(value) is list:
            bound["value"] = value[0]
        else:
            [(bound["key"], bound["value"])] = value.items()
    return bound
