"""Transactions on a connection of aiosqlite."""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.domain.claims import Claim, ClaimRequest
from holdfast.domain.job import Job
from holdfast.domain.new_job import CheckedJob
from holdfast.domain.outcomes import CheckedOutcome
from holdfast.storage.plain_contract import ClaimedJobs, FinishedJobs
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
