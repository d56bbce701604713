"""Flow control, by named queries."""

from collections.abc import Sequence
from typing import Any

from holdfast.domain import strict_json
from holdfast.domain.clock import Now
from holdfast.domain.dependencies import OnFailed
from holdfast.domain.job import STATE_NUMBERS, JobRow, State
from holdfast.domain.schedules import Definition, StoredSchedule, Timing
from holdfast.storage.flow_contract import Edge, JobState, Wake, WakeTarget
from holdfast.storage.query_names import QueryName
from holdfast.storage.sql_queries import Row, SqlQueries


class SqlFlow(SqlQueries):
    """Wake rows, schedules and dependencies."""

    __slots__ = ()

    async def due_wakes(self, now: Now, limit: int) -> list[Wake]:
        """Return wake rows that are due."""
        return [Wake(*row) for row in await self.query("wakes_due", {"now": now.wall_ms, "limit": limit})]

    async def add_wake(self, target: WakeTarget, number: int, at_ms: int) -> None:
        """Append a wake row."""
        await self.query("wake_insert", {"target": target, "number": number, "at_ms": at_ms})

    async def delete_wakes(self, wakes: Sequence[int]) -> None:
        """Delete wake rows."""
        if wakes:
            await self.query("wake_delete", {"wakes": list(wakes)})

    async def move_wakes(self, wakes: Sequence[int], at_ms: int) -> None:
        """Make wake rows due at another time."""
        if wakes:
            await self.query("wake_move", {"wakes": list(wakes), "at_ms": at_ms})

    async def delete_wakes_of(self, target: WakeTarget, number: int) -> None:
        """Delete all wake rows of one target."""
        await self.query("wake_of_target", {"target": target, "number": number})

    async def add_wakes(self, target: WakeTarget, numbers: Sequence[int]) -> None:
        """Append wake rows that ask to look at once."""
        if numbers:
            await self.query("wakes_insert", {"target": target, "numbers": list(numbers)})

    async def look_at_later_wakes(self, now: Now) -> None:
        """Make wake rows due, and append some for gates, which know the times of theirs."""
        await self.query("wakes_hasten", {"now": now.wall_ms})
        await self.query("wakes_of_gates", {"now": now.wall_ms})

    async def noted_time(self) -> int:
        """Return the time that was noted last."""
        [[noted_ms]] = await self.query("noted_time")
        return int(noted_ms)

    async def note_time(self, now: Now) -> None:
        """Note the time."""
        await self.query("note_time", {"now": str(now.wall_ms)})

    async def wake_awaited(self, seqs: Sequence[int]) -> None:
        """Append wake rows of jobs that others wait for."""
        await self.query("wake_awaited", {"seqs": list(seqs)})

    async def late_lanes(self) -> set[str]:
        """Return the lanes that are late."""
        return {lane for (lane,) in await self.query("lanes_late")}

    async def set_late(self, lane: str, *, late: bool) -> None:
        """Record whether a lane is late."""
        await self.query("lane_late", {"lane": lane, "late": int(late)})

    async def oldest_on_routes(
        self, routes: Sequence[int], priorities: int, fair_keys: int
    ) -> tuple[int, int] | None:
        """Return number and due time of the oldest ready job on routes."""
        values = {"routes": list(routes), "priorities": priorities, "fair_keys": fair_keys}
        rows = await self.query("lane_oldest", values) if routes else []
        return (rows[0][0], rows[0][1]) if rows else None

    async def count_waiting(self, routes: Sequence[int], tenant: str, priorities: int, maximum: int) -> int:
        """Return how many jobs of a tenant are ready or parked."""
        values = {"routes": list(routes), "tenant": tenant, "priorities": priorities, "maximum": maximum}
        [[count]] = await self.query("lane_waiting", values)
        return int(count)

    async def unfinished_of_tree(self, root: str, after: int, limit: int) -> list[int]:
        """Return unfinished jobs of a tree."""
        rows = await self.query("tree_unfinished", {"root": root, "after": after, "limit": limit})
        return [seq for (seq,) in rows]

    async def cancelled_children(self, seqs: Sequence[int], limit: int) -> list[int]:
        """Return jobs that were cancelled because of these."""
        rows = await self.query("children_cancelled", {"seqs": list(seqs), "limit": limit})
        return [seq for (seq,) in rows]

    async def reopen_edges(self, children: Sequence[int]) -> None:
        """Record that the ends of parents were not counted."""
        await self.query("edges_reopen", {"children": list(children)})

    async def ready_before(self, job: JobRow, routes: Sequence[int], maximum: int) -> int:
        """Return how many ready jobs are claimed before a job."""
        values = {"routes": list(routes), "priority": job.priority, "fair_key": job.fair_key, "maximum": maximum}
        [[higher, earlier]] = await self.query("why_ready", {**values, "due_at_ms": job.due_at_ms, "seq": job.seq})
        return min(int(higher) + int(earlier), maximum)

    async def waiting_tenants(self, route: int, priority: int, maximum: int) -> int:
        """Return how many tenants have ready jobs."""
        [[count]] = await self.query("why_tenants", {"route": route, "priority": priority, "maximum": maximum})
        return int(count)

    async def entries_before(self, session: int, enqueue_seq: int, maximum: int) -> int:
        """Return how many unfinished entries of a session are before one."""
        values = {"session": session, "enqueue_seq": enqueue_seq, "maximum": maximum}
        [[count]] = await self.query("why_entries", values)
        return int(count)

    async def recent_durations(self, route: int, limit: int) -> list[int]:
        """Return how long jobs have run that finished last."""
        return [duration for (duration,) in await self.query("why_durations", {"route": route, "limit": limit})]

    async def is_wake_due(self, now: Now) -> bool:
        """Return whether a wake row is due."""
        [[due]] = await self.query("wake_is_due", {"now": now.wall_ms})
        return bool(due)

    async def jobs_named(self, ids: Sequence[str]) -> dict[str, tuple[int, str]]:
        """Return the numbers and tenants of jobs by id."""
        rows = await self.query("jobs_named", {"ids": list(ids)}) if ids else []
        return {job_id: (seq, tenant) for job_id, seq, tenant in rows}

    async def insert_edges(self, edges: Sequence[tuple[int, int, int, OnFailed]]) -> None:
        """Store dependencies."""
        if edges:
            await self.query("edge_insert", many=list(edges))

    async def await_jobs(self, seqs: Sequence[int]) -> None:
        """Record that others wait for jobs."""
        if seqs:
            await self.query("jobs_await", {"seqs": list(seqs)})

    async def dependent_jobs(self, seqs: Sequence[int]) -> list[JobRow]:
        """Lock dependent jobs."""
        return await self._jobs("jobs_dependent", {"seqs": list(seqs)}) if seqs else []

    async def states_of(self, seqs: Sequence[int]) -> dict[int, JobState]:
        """Return the states of jobs."""
        return await self._states("jobs_states", seqs)

    async def unlocked_states(self, seqs: Sequence[int]) -> dict[int, JobState]:
        """Lock jobs and return their states."""
        return await self._states("parents_unlocked", seqs)

    async def _states(self, name: QueryName, seqs: Sequence[int]) -> dict[int, JobState]:
        rows = await self.query(name, {"seqs": list(seqs)}) if seqs else []
        return {seq: JobState(job_id, state) for seq, job_id, state in rows if state is not None}

    async def edges_of_children(self, seqs: Sequence[int]) -> list[Edge]:
        """Return the dependencies of jobs."""
        return [Edge(*row) for row in await self.query("edges_of_children", {"seqs": list(seqs)})]

    async def edges_of_parents(self, seqs: Sequence[int], limit: int) -> list[Edge]:
        """Return dependencies on jobs."""
        rows = await self.query("edges_of_parents", {"seqs": list(seqs), "limit": limit})
        return [Edge(*row) for row in rows]

    async def end_edges(self, ended: Sequence[tuple[State, Edge]]) -> None:
        """Record that the ends of parents were counted."""
        if ended:
            rows = [(STATE_NUMBERS[state], edge.child, edge.parent) for state, edge in ended]
            await self.query("edge_end", many=rows)

    async def pending_children(self, seqs: Sequence[int]) -> set[int]:
        """Return jobs that still depend on others."""
        return {seq for (seq,) in await self.query("pending_children", {"seqs": list(seqs)})}

    async def parents_of(self, seq: int) -> list[JobRow]:
        """Return the jobs on which a job depends."""
        return await self._jobs("parents_of_job", {"seq": seq})

    async def insert_schedule(self, stored: StoredSchedule) -> int | None:
        """Store a new schedule."""
        values = _values(stored)
        del values["number"]
        rows = await self.query("schedule_insert", values)
        return rows[0][0] if rows else None

    async def write_schedule(self, stored: StoredSchedule) -> None:
        """Store a changed schedule."""
        values = _values(stored)
        del values["tenant"], values["name"]
        await self.query("schedule_write", values)

    async def delete_schedule(self, number: int) -> None:
        """Delete a schedule."""
        await self.query("schedule_delete", {"number": number})

    async def schedule_by_name(self, tenant: str, name: str) -> StoredSchedule | None:
        """Return one schedule."""
        rows = await self.query("schedule_by_name", {"tenant": tenant, "name": name})
        return _stored(rows[0]) if rows else None

    async def schedules(self, tenant: str | None, limit: int) -> list[StoredSchedule]:
        """Return schedules in order."""
        return [_stored(row) for row in await self.query("schedules_by_name", {"tenant": tenant, "limit": limit})]

    async def schedules_to_fire(self, numbers: Sequence[int]) -> list[StoredSchedule]:
        """Return those of these schedules that are not paused."""
        return [_stored(row) for row in await self.query("schedules_to_fire", {"numbers": list(numbers)})]


def _values(stored: StoredSchedule) -> dict[str, Any]:
    one = stored.definition
    return {
        "number": stored.number,
        "tenant": one.tenant,
        "name": one.name,
        "kind": one.kind,
        "payload": one.payload_json,
        "options": one.options_json,
        **one.timing._asdict(),
        "missed": one.missed,
        "overlap": one.overlap,
        "owner": stored.owner,
        "ticks": strict_json.compact(list(stored.ticks)),
        "last_at_ms": stored.last_at_ms,
        "last_tick_ms": stored.last_tick_ms,
        "last_job_id": stored.last_job_id,
        "paused": int(stored.paused),
        "problem": stored.problem,
        "set_at_ms": stored.set_at_ms,
        "declared_at_ms": stored.declared_at_ms,
    }


def _stored(row: Row) -> StoredSchedule:
    number, tenant, name, kind, payload, options, expression, every_ms, zone, missed, overlap, owner, *rest = row
    ticks, last_at_ms, last_tick_ms, last_job_id, paused, problem, set_at_ms, declared_at_ms = rest
    timing = Timing(expression, every_ms, zone)
    definition = Definition(tenant, name, kind, payload, options, timing, missed, overlap)
    times = (tuple(strict_json.decode(ticks)), last_at_ms, last_tick_ms, last_job_id)
    return StoredSchedule(number, definition, owner, *times, bool(paused), problem, set_at_ms, declared_at_ms)
