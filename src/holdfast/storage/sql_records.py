"""The part of the storage contract for events, retention, workers and health, by named queries."""

from __future__ import annotations

from typing import Any, Final

from holdfast.domain import strict_json
from holdfast.domain.clock import Now
from holdfast.domain.events import Event
from holdfast.domain.job import State
from holdfast.domain.results import WorkerInfo
from holdfast.storage.contract import EventPosition, cursor_of
from holdfast.storage.sql_queries import Row, SqlQueries

_EVENT_DETAILS: Final = ("state", "attempt", "epoch", "worker", "due_at_ms", "failure_class", "failure_reason")
_WORKER_LISTS: Final = ("lanes", "kinds", "capabilities", "loaded")


class SqlRecords(SqlQueries):
    """The event log, the registry of workers, counts, and retention."""

    __slots__ = ()

    async def event_horizon(self) -> EventPosition:
        """Return the position up to which events were pruned."""
        [[transaction, number]] = await self.query("event_horizon")
        return transaction, number

    async def events_after(self, position: EventPosition, limit: int) -> list[tuple[EventPosition, Event]]:
        """Return events after a position."""
        rows = await self.query("events_after", {**_at(position), "limit": limit})
        return [((row[0], row[1]), _event(row)) for row in rows]

    async def events_held_back(self, position: EventPosition) -> bool:
        """Return whether an open transaction holds events back."""
        [[held_back]] = await self.query("events_held_back", _at(position))
        return bool(held_back)

    async def delete_finished(self, state: State, before_ms: int, now: Now, limit: int) -> int:
        """Delete finished jobs with all their data."""
        values = {"state": state, "before": before_ms, "limit": limit}
        seqs = [seq for (seq,) in await self.query("jobs_to_prune", values)]
        if seqs:
            await self.query("sources_mark_deleted", {"seqs": seqs, "state": state, "now": now.wall_ms})
            await self.query("artifacts_delete", {"seqs": seqs})
            await self.query("attempts_delete", {"seqs": seqs})
            await self.query("jobs_delete", {"seqs": seqs})
        return len(seqs)

    async def count_old_events(self, before_ms: int) -> tuple[int, bool]:
        """Return the number of old events at the start of the log, and whether a newer event follows."""
        [[count, newer_follows]] = await self.query("events_aged", {"before": before_ms})
        return int(count), bool(newer_follows)

    async def oldest_events(self, limit: int) -> list[tuple[EventPosition, int]]:
        """Return the positions and timestamps of the oldest events."""
        rows = await self.query("events_head", {"limit": limit})
        return [((transaction, number), at_ms) for transaction, number, at_ms in rows]

    async def delete_events(self, up_to: EventPosition) -> None:
        """Delete events up to a position."""
        await self.query("events_delete", _at(up_to))
        await self.query("event_horizon_write", _at(up_to))

    async def forget_source_keys(self, before_ms: int, limit: int) -> int:
        """Delete source keys of deleted entries."""
        [[deleted]] = await self.query("sources_delete", {"before": before_ms, "limit": limit})
        return int(deleted)

    async def write_worker(self, worker: WorkerInfo, now: Now) -> None:
        """Store the self-reported status of one start of a worker."""
        values = {
            "worker": worker.worker,
            "incarnation": worker.incarnation,
            "host": worker.host,
            "process": worker.process,
            "version": worker.version,
            "state": worker.state,
            "concurrency": worker.concurrency,
            "running": worker.running,
            "switches": worker.switches,
            **{name: strict_json.compact(list(getattr(worker, name))) for name in _WORKER_LISTS},
            "now": now.wall_ms,
        }
        await self.query("worker_write", values)

    async def delete_worker(self, worker: str, incarnation: str) -> None:
        """Delete the row of one start of a worker."""
        await self.query("worker_delete", {"worker": worker, "incarnation": incarnation})

    async def forget_workers(self, before_ms: int, limit: int) -> None:
        """Delete workers that have not reported since a time."""
        await self.query("workers_delete", {"before": before_ms, "limit": limit})

    async def newest_workers(self, limit: int) -> list[WorkerInfo]:
        """Return the workers that reported last."""
        return [_worker(row) for row in await self.query("workers_newest", {"limit": limit})]

    async def ready_counts(self, maximum: int) -> list[tuple[str, str, str, int]]:
        """Return lane, kind, requirements and the number of ready jobs of each route."""
        rows = await self.query("backlog_ready", {"maximum": maximum})
        return [(lane, kind, requires, count) for lane, kind, requires, count in rows]

    async def oldest_ready(self, priorities: int, fair_keys: int) -> list[tuple[str, str, int]]:
        """Return the due times of the first jobs of each route."""
        rows = await self.query("backlog_oldest", {"priorities": priorities, "fair_keys": fair_keys})
        return [(lane, kind, due_at_ms) for lane, kind, due_at_ms in rows]

    async def unfinished_counts(self, now: Now, maximum: int) -> tuple[int, int, int, int, int]:
        """Return how many jobs are scheduled, blocked, running, expired and suspect."""
        [[scheduled, blocked, running, expired, suspect]] = await self.query(
            "backlog_rest", {"lease_now": now.lease_ms, "maximum": maximum}
        )
        return scheduled, blocked, running, expired, suspect

    async def problem_counts(self, now: Now) -> tuple[int, int, int]:
        """Return how many leases have expired, jobs are suspect, and are due but not ready."""
        values = {"wall_now": now.wall_ms, "lease_now": now.lease_ms}
        [[expired, suspect, due]] = await self.query("report_problems", values)
        return expired, suspect, due


def _at(position: EventPosition) -> dict[str, int]:
    return {"transaction": position[0], "event": position[1]}


def _event(row: Row) -> Event:
    known = row[2 : -len(_EVENT_DETAILS)]
    given = zip(_EVENT_DETAILS, row[-len(_EVENT_DETAILS) :], strict=True)
    details = {name: value for name, value in given if value is not None}
    return Event._make((cursor_of((row[0], row[1])), *known, strict_json.compact(details)))


def _worker(row: Row) -> WorkerInfo:
    info = WorkerInfo._make(row)
    lists: dict[str, Any] = {name: tuple(strict_json.decode(getattr(info, name))) for name in _WORKER_LISTS}
    return info._replace(**lists)
