"""Transactions on one SQLite connection: a sync one, and an async one for aiosqlite."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from holdfast.domain import strict_json
from holdfast.domain.clock import Clock, Now
from holdfast.domain.results import Finding
from holdfast.storage.contract import ReadyJobs, ReadyRequest
from holdfast.storage.query_names import QueryName
from holdfast.storage.select_ready import choose_from, first_level, is_one_stream, offer_of, select_stream
from holdfast.storage.sql_queries import Row, Rows
from holdfast.storage.sql_transaction import RoutingCache, SqlTransaction
from holdfast.storage.sqlite.health import examine
from holdfast.storage.sqlite.sql import FOR_ONE, QUERIES

Observer: TypeAlias = Callable[[str], None]
"""Called with the name of each statement before it runs, and with begin, commit and committed. A test may raise."""


def unobserved(_name: str) -> None:
    """Do nothing."""


def plain_cursor(connection: sqlite3.Connection) -> sqlite3.Cursor:
    """Return a cursor whose rows are tuples; the caller's own connection may use another row factory."""
    cursor = connection.cursor()
    cursor.row_factory = None
    return cursor


def close_connection(cursor: sqlite3.Cursor) -> None:
    """Close *cursor*, then its connection: an open statement would keep the file open."""
    connection = cursor.connection
    with contextlib.suppress(sqlite3.Error):
        cursor.close()
    with contextlib.suppress(sqlite3.Error):
        connection.close()


_NO_VALUES: Mapping[str, Any] = {}


class SqliteState(RoutingCache):
    """The state shared by the transactions of one store."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path


class SqliteTransaction(SqlTransaction):
    """An open transaction on a sync connection.

    All statements of a transaction, including begin and rollback, go through one cursor, which resets the previous
    statement when it runs the next. An interrupt may occur between a statement and fetching its rows; on a separate
    cursor, which the traceback would keep alive, the statement and its snapshot would stay open.
    """

    __slots__ = ("_clock", "_cursor", "_observe", "_path")

    def __init__(self, state: SqliteState, cursor: Any, clock: Clock, observe: Observer) -> None:
        super().__init__(state)
        self._path = state.path
        self._cursor = cursor
        self._clock = clock
        self._observe = observe

    async def now(self) -> Now:
        """Return the store's clock."""
        return self._clock.now()

    async def query(
        self, name: QueryName, values: Mapping[str, Any] = _NO_VALUES, many: Sequence[Row] | None = None
    ) -> Rows:
        """Run one named statement; never suspends."""
        self._observe(name)
        cursor: sqlite3.Cursor = self._cursor
        if many is not None:
            cursor.executemany(QUERIES[name], many)
            return [(cursor.rowcount,)]
        cursor.execute(*self._bind(name, values))
        return cursor.fetchall() if cursor.description is not None else [(cursor.rowcount,)]

    async def select_ready(self, request: ReadyRequest) -> ReadyJobs | None:
        """Choose ready jobs in claim order; there is no other writer to take them."""
        return await select_ready(self, request)

    async def health(self) -> list[Finding]:
        """Return the state of the library, the file and its modes."""
        return await examine(self, self._path)

    def _bind(self, name: QueryName, values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the text and its values. Some statements for many values have a faster text for one."""
        for_one = FOR_ONE.get(name)
        if for_one is not None and (bound := _bound_one(values)) is not None:
            return QUERIES[for_one], bound
        return QUERIES[name], _bound(values)


class AioSqliteTransaction(SqliteTransaction):
    """An open transaction on a connection of aiosqlite."""

    __slots__ = ()

    async def query(
        self, name: QueryName, values: Mapping[str, Any] = _NO_VALUES, many: Sequence[Row] | None = None
    ) -> Rows:
        """Run one named statement, awaiting it."""
        self._observe(name)
        cursor = self._cursor
        if many is not None:
            await cursor.executemany(QUERIES[name], many)
            return [(cursor.rowcount,)]
        await cursor.execute(*self._bind(name, values))
        return list(await cursor.fetchall()) if cursor.description is not None else [(cursor.rowcount,)]


_MANY = frozenset((list, dict))


def _bound(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return *values* with each list or dict as JSON, the form in which SQLite binds many values at once."""
    return {name: strict_json.compact(value) if type(value) in _MANY else value for name, value in values.items()}


def _bound_one(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return *values* with the single entry of the list or dict among them as `value`, or `key` and `value`."""
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


async def select_ready(tx: SqlTransaction, selection_request: ReadyRequest) -> ReadyJobs | None:
    """Choose ready jobs of the first level that has any, up to the limit, in claim order."""
    request, preference, routes, limit = selection_request[:4]
    level = await first_level(tx, request, routes, limit)
    if level is None:
        return None
    if is_one_stream(level, preference):
        return await select_stream(tx, level, preference, limit)
    offer = await offer_of(tx, level, preference)
    chosen = choose_from(offer, limit, preference)
    jobs = {job.seq: job for job in await tx.jobs_by_seq([candidate.seq for candidate in chosen])}
    return ReadyJobs([jobs[candidate.seq] for candidate in chosen], *offer.fair_position)
