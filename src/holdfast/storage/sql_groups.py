"""Groups, by named queries."""

from collections.abc import Sequence
from typing import Any

from holdfast.domain import callbacks
from holdfast.domain.groups import GROUP_EVENTS, Counts, StoredGroup
from holdfast.domain.job import STATE_NUMBERS, State
from holdfast.storage.query_names import QueryName
from holdfast.storage.sql_queries import Row, SqlQueries


class SqlGroups(SqlQueries):
    """Groups and their members."""

    __slots__ = ()

    async def group_by_name(self, tenant: str, name: str) -> StoredGroup | None:
        """Lock and return a group."""
        return next(iter(await self._groups("group_by_name", {"tenant": tenant, "name": name})), None)

    async def group_of_name(self, tenant: str, name: str) -> StoredGroup | None:
        """Return a group without locking it."""
        return next(iter(await self._groups("group_of_name", {"tenant": tenant, "name": name})), None)

    async def newest_groups(self, tenant: str | None, limit: int) -> list[StoredGroup]:
        """Return groups, newest first."""
        return await self._groups("groups_newest", {"tenant": tenant, "limit": limit})

    async def groups_to_fold(self, numbers: Sequence[int]) -> list[StoredGroup]:
        """Lock and return groups that others have not locked."""
        return await self._groups("groups_to_fold", {"numbers": list(numbers)}) if numbers else []

    async def existing_groups(self, numbers: Sequence[int]) -> set[int]:
        """Return those of these groups that exist."""
        rows = await self.query("groups_existing", {"numbers": list(numbers)}) if numbers else []
        return {number for (number,) in rows}

    async def groups_of_member(self, seq: int) -> list[StoredGroup]:
        """Lock and return the groups of a job that have not ended."""
        return await self._groups("groups_of_members", {"seq": seq})

    async def insert_group(self, stored: StoredGroup) -> int | None:
        """Store a new group."""
        values = _values(stored)
        del values["number"]
        rows = await self.query("group_insert", values)
        return rows[0][0] if rows else None

    async def write_group(self, stored: StoredGroup) -> None:
        """Store a changed group."""
        values = _values(stored)
        del values["tenant"], values["name"], values["created_at_ms"]
        await self.query("group_write", values)

    async def delete_groups(self, before_ms: int, limit: int) -> None:
        """Delete old groups that are empty."""
        rows = await self.query("groups_delete", {"before": before_ms, "limit": limit})
        if rows:
            # Of members that had been deleted when they were added.
            await self.query("edges_delete", {"seqs": [-number for (number,) in rows]})

    async def insert_members(self, number: int, seqs: Sequence[int], place: int) -> list[int]:
        """Make jobs members of a group."""
        rows = await self.query("members_insert", {"number": number, "seqs": list(seqs), "place": place})
        return [seq for (seq,) in rows]

    async def unfinished_members(self, number: int, after: int, limit: int) -> list[int]:
        """Return members of a group whose ends were not counted."""
        rows = await self.query("group_members", {"number": number, "after": after, "limit": limit})
        return [seq for (seq,) in rows]

    async def end_members(self, number: int, seqs: Sequence[int], state: State) -> int:
        """Record that members of a group have ended."""
        values = {"number": number, "seqs": list(seqs), "state": STATE_NUMBERS[state]}
        return len(await self.query("members_end", values))

    async def reopen_members(self, seq: int, numbers: Sequence[int]) -> list[int]:
        """Record that a member of these groups has not ended."""
        rows = await self.query("members_reopen", {"seq": seq, "numbers": list(numbers)}) if numbers else []
        return [number for (number,) in rows]

    async def _groups(self, name: QueryName, values: dict[str, Any]) -> list[StoredGroup]:
        return [_stored(row) for row in await self.query(name, values)]


def _values(stored: StoredGroup) -> dict[str, Any]:
    return {
        "number": stored.number,
        "tenant": stored.tenant,
        "name": stored.name,
        "sealed": int(stored.sealed),
        "members": stored.members,
        **stored.counts._asdict(),
        **{event: callbacks.to_json(stored.callback(event)) for event in GROUP_EVENTS},
        "token": stored.token,
        "problem": stored.problem,
        "created_at_ms": stored.created_at_ms,
        "ended_at_ms": stored.ended_at_ms,
    }


def _stored(row: Row) -> StoredGroup:
    number, tenant, name, sealed, members, *rest = row
    counts = Counts(*rest[:4])
    called: Any = [callbacks.from_json(text) for text in rest[4:7]]
    return StoredGroup(number, tenant, name, bool(sealed), members, counts, *called, *rest[7:])
