"""Transactions on a connection of aiosqlite."""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.storage.query_names import QueryName
from holdfast.storage.sql_queries import Row, Rows
from holdfast.storage.sqlite import sql
from holdfast.storage.sqlite.transaction import SqliteTransaction


class AioSqliteTransaction(SqliteTransaction):
    """An open transaction on a connection of aiosqlite."""

    __slots__ = ()

    async def _send_many(self, name: QueryName, rows: Sequence[Row]) -> int:
        self._observe(name)
        await self._cursor.executemany(sql.QUERIES[name], rows)
        return int(self._cursor.rowcount)

    async def _send(self, text: str, values: Mapping[str, Any], name: QueryName) -> Rows:
        self._observe(name)
        cursor = self._cursor
        await cursor.execute(text, values)
        return list(await cursor.fetchall()) if cursor.description is not None else [(cursor.rowcount,)]

    async def _insert(self, name: QueryName, values: Row) -> int | None:
        self._observe(name)
        cursor = self._cursor
        await cursor.execute(sql.QUERIES[name], values)
        return cursor.lastrowid if cursor.rowcount else None
