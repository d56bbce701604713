"""How the SQL engines send named queries: what the parts of `SqlTransaction` build upon."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, TypeAlias

from holdfast.domain.errors import HoldfastError
from holdfast.domain.job import Job
from holdfast.storage.contract import OvertakenError, Transaction
from holdfast.storage.query_names import QueryName

Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = list[Row]

_NO_VALUES: Final[Mapping[str, Any]] = {}


class SqlQueries(Transaction):
    """A transaction that runs named queries."""

    __slots__ = ()

    @abstractmethod
    async def query(
        self, name: QueryName, values: Mapping[str, Any] = _NO_VALUES, many: Sequence[Row] | None = None
    ) -> Rows:
        """Run one named query and return its rows, or one row with the number of rows it changed.

        A list among *values* stands for many, a dict for many pairs. With *many*, the query runs once for each row
        of values.
        """

    async def _jobs(self, name: QueryName, values: Mapping[str, Any]) -> list[Job]:
        return [Job._make(row) for row in await self.query(name, values)]

    async def _change(self, name: QueryName, values: Mapping[str, Any], wanted: int) -> None:
        """Run one query for all rows together and make sure that it changed as many as wanted."""
        [[changed]] = await self.query(name, values)
        if changed != wanted:
            raise OvertakenError(f"{name} changed {changed} of {wanted} rows")

    async def _change_rows(self, name: QueryName, rows: Sequence[Row]) -> None:
        """Run one query for each row of values and make sure that each changed exactly one row."""
        if rows:
            [[changed]] = await self.query(name, many=rows)
            if changed != len(rows):
                raise OvertakenError(f"{name} changed {changed} of {len(rows)} rows")

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        """Undo what the block wrote if it raises an error of ours; any other ends the whole transaction."""
        return self._savepoint()

    @asynccontextmanager
    async def _savepoint(self) -> AsyncIterator[None]:
        await self.query("savepoint")
        try:
            yield
        except HoldfastError:
            await self.query("savepoint_undo")
            await self.query("savepoint_keep")
            raise
        await self.query("savepoint_keep")
