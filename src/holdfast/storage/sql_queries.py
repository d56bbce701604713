"""How the SQL engines send named queries; the base of the parts of `SqlTransaction`."""

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

        A list among *values* is bound as many values, a dict as many pairs. With *many*, the query runs once for each
        row of values.
        """

    async def _jobs(self, name: QueryName, values: Mapping[str, Any]) -> list[Job]:
        return [Job._make(row) for row in await self.query(name, values)]

    async def _change(self, name: QueryName, values: Mapping[str, Any], expected: int) -> None:
        """Run one query for all rows together; raise `OvertakenError` unless it changed as many rows as expected."""
        [[changed]] = await self.query(name, values)
        if changed != expected:
            raise OvertakenError(f"{name} changed {changed} of {expected} rows")

    async def _change_rows(self, name: QueryName, rows: Sequence[Row]) -> None:
        """Run one query for each row of values; raise `OvertakenError` unless each changed exactly one row."""
        if rows:
            [[changed]] = await self.query(name, many=rows)
            if changed != len(rows):
                raise OvertakenError(f"{name} changed {changed} of {len(rows)} rows")

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        """Roll back the block's writes if it raises a `HoldfastError`; any other error rolls back the transaction."""
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
