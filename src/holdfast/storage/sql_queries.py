"""How the SQL engines send named queries; the base of the parts of `SqlTransaction`."""

from abc import abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import fields
from typing import Any, Final, TypeAlias, cast

from holdfast.domain import clock, errors, limits, results, strict_json, validation
from holdfast.domain.events import Event
from holdfast.domain.job import JobRow, State
from holdfast.domain.sessions import Head, Session
from holdfast.storage import contract, query_names
from holdfast.storage.plain_contract import Form

Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = list[Row]

_NO_VALUES: Final[Mapping[str, Any]] = {}
_WIDTH: Final = len(JobRow._fields)


def job_rows(rows: Rows) -> list[JobRow]:
    """Return the jobs of *rows*, which may have more columns, for conditions."""
    return [JobRow._make(row[:_WIDTH]) for row in rows]


class SqlQueries(contract.StoreTransaction):
    """A transaction that runs named queries."""

    __slots__ = ()

    @abstractmethod
    async def query(
        self, name: query_names.QueryName, values: Mapping[str, Any] = _NO_VALUES, many: Sequence[Row] | None = None
    ) -> Rows:
        """Run one named query and return its rows, or one row with the number of rows it changed.

        A list among *values* is bound as many values, a dict as many pairs. With *many*, the query runs once for each
        row of values.
        """

    @property
    def knows_time(self) -> bool:
        """Whether the store's clock can be read without a statement."""
        return True

    async def _jobs(self, name: query_names.QueryName, values: Mapping[str, Any]) -> list[JobRow]:
        return job_rows(await self.query(name, values))

    async def query_each(self, queries: Sequence[tuple[query_names.QueryName, Mapping[str, Any]]]) -> list[Rows]:
        """Run named queries, none of which needs the rows of another; return the rows of each."""
        return [await self.query(name, values) for name, values in queries]

    async def read_ahead(
        self, name: query_names.QueryName, make_values: Callable[[], Mapping[str, Any]], *, kept: bool = False
    ) -> None:
        """Let the next statement that is sent also run a read, after it.

        If the statement after that is the same read, it is not sent again. With *kept*, neither is a later one: the
        caller holds a lock on what it reads. An engine without round trips does nothing.
        """

    async def send(
        self,
        name: query_names.QueryName,
        values: Mapping[str, Any] = _NO_VALUES,
        many: Sequence[Row] | None = None,
        expected: int | None = None,
    ) -> None:
        """Run one named query whose rows the caller does not need, at the latest with the next query or the commit.

        Raise `OvertakenError`, then or later, unless it changes as many rows as expected.
        """
        rows = await self.query(name, values, many)
        if expected is not None:
            check_changed(name, rows, expected)

    async def _change(self, name: query_names.QueryName, values: Mapping[str, Any], expected: int) -> None:
        """Run one query for all rows together; raise `OvertakenError` unless it changed as many rows as expected."""
        await self.send(name, values, expected=expected)

    async def _change_rows(self, name: query_names.QueryName, rows: Sequence[Row]) -> None:
        """Run one query for each row of values; raise `OvertakenError` unless each changed exactly one row."""
        if rows:
            await self.send(name, many=rows, expected=len(rows))

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        """Roll back the block's writes if it raises a `HoldfastError`; any other error rolls back the transaction."""
        return self._savepoint()

    @asynccontextmanager
    async def _savepoint(self) -> AsyncIterator[None]:
        await self.send("savepoint")
        try:
            yield
        except errors.HoldfastError:
            await self.send("savepoint_undo")
            await self.send("savepoint_keep")
            raise
        await self.send("savepoint_keep")


def check_changed(name: query_names.QueryName, rows: Rows, expected: int) -> None:
    """Raise `OvertakenError` unless a query has changed as many rows as expected."""
    [[changed]] = rows
    if changed != expected:
        raise contract.OvertakenError(f"{name} changed {changed} of {expected} rows")


_EVENT_DETAILS: Final = ("state", "attempt", "epoch", "worker", "due_at_ms", "failure_class", "failure_reason")
_WORKER_FIELDS: Final = tuple(field.name for field in fields(results.WorkerInfo))
_WORKER_LISTS: Final = ("lanes", "kinds", "capabilities", "loaded")
_WORKER_TIMES: Final = ("started_at", "beat_at")


class SqlRecords(SqlQueries):
    """The event log, the registry of workers, counts, and retention."""

    __slots__ = ()

    async def event_horizon(self) -> contract.EventPosition:
        """Return the position up to which events were pruned."""
        [[transaction, number]] = await self.query("event_horizon")
        return transaction, number

    async def events_after(
        self, position: contract.EventPosition, limit: int
    ) -> list[tuple[contract.EventPosition, Event]]:
        """Return events after a position."""
        rows = await self.query("events_after", {**_at(position), "limit": limit})
        return [((row[0], row[1]), _event(row)) for row in rows]

    async def events_held_back(self, position: contract.EventPosition) -> bool:
        """Return whether an open transaction holds events back."""
        [[held_back]] = await self.query("events_held_back", _at(position))
        return bool(held_back)

    async def delete_finished(
        self, state: State, after: contract.JobPosition, before_ms: int, now: clock.Now, limit: int
    ) -> tuple[int, contract.JobPosition]:
        """Delete finished jobs with all their data."""
        values = {"state": state, "finished_after": after[0], "after": after[1], "before": before_ms, "limit": limit}
        found = await self._limit_output(await self.query("jobs_to_prune", values))
        seqs = [seq for _, seq in found]
        if seqs:
            await self.query("outputs_delete", {"seqs": seqs})
            await self.query("message_ids_mark_deleted", {"seqs": seqs, "state": state, "now": now.wall_ms})
            await self.query("kept_keys_mark_deleted", {"seqs": seqs, "state": state, "now": now.wall_ms})
            await self.query("uploads_of_jobs_expire", {"seqs": seqs, "now": now.wall_ms})
            await self.query("artifacts_delete", {"seqs": seqs})
            await self.query("attempts_delete", {"seqs": seqs})
            await self.query("tags_delete", {"seqs": seqs})
            await self.query("edges_delete", {"seqs": seqs})
            await self.query("limit_keys_delete", {"seqs": seqs})
            await self._delete_jobs(seqs, after)
            after = (found[-1][0], found[-1][1])
        return len(seqs), after

    async def _delete_jobs(self, seqs: list[int], after: contract.JobPosition) -> None:
        """Delete the rows of finished jobs; those before *after* were deleted before."""
        await self.query("jobs_delete", {"seqs": seqs, "finished_after": after[0]})

    async def _limit_output(self, found: Rows) -> Rows:
        """Return the first of the jobs *found*, as many as have a limited number of output chunks in total."""
        if not found:
            return found
        ends = await self.query("output_ends", {"seqs": [seq for _, seq in found]})
        numbers = {seq: number for seq, number, *_ in ends}
        chunks = 0
        for index, (_, seq) in enumerate(found):
            chunks += numbers.get(seq, 0)
            if chunks > limits.OUTPUT_CHUNKS_PRUNED and index:
                return found[:index]
        return found

    async def count_old_events(self, horizon: contract.EventPosition, before_ms: int) -> tuple[int, bool]:
        """Return the number of old events after the horizon, and whether a newer event follows."""
        [[count, newer_follows]] = await self.query("events_aged", {**_at(horizon), "before": before_ms})
        return int(count), bool(newer_follows)

    async def oldest_events(
        self, horizon: contract.EventPosition, limit: int
    ) -> list[tuple[contract.EventPosition, int]]:
        """Return the positions and timestamps of the first events after the horizon."""
        rows = await self.query("events_head", {**_at(horizon), "limit": limit})
        return [((transaction, number), at_ms) for transaction, number, at_ms in rows]

    async def delete_events(self, horizon: contract.EventPosition, events: Sequence[contract.EventPosition]) -> None:
        """Delete the first events after the horizon and move the horizon to the last of them."""
        after = {"after_transaction": horizon[0], "after_event": horizon[1], "limit": len(events)}
        await self.query("events_delete", {**after, **_at(events[-1])})
        await self.query("event_horizon_write", _at(events[-1]))

    async def forget_message_ids(self, before_ms: int, limit: int) -> int:
        """Delete message ids of deleted entries."""
        [[deleted]] = await self.query("message_ids_delete", {"before": before_ms, "limit": limit})
        return int(deleted)

    async def write_worker(
        self, worker: results.WorkerInfo, forms: Mapping[Form, int], now: clock.Now
    ) -> results.WorkerRequest | None:
        """Store the status of one start of a worker, and what the process has counted; return what was requested."""
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
            "switches_saved": worker.switches_saved,
            "hold_left_ms": None if worker.hold_left is None else round(1000 * worker.hold_left),
            "forms": strict_json.compact(dict(forms)),
            **{name: strict_json.compact(list(getattr(worker, name))) for name in _WORKER_LISTS},
            "now": now.wall_ms,
        }
        [[requested]] = await self.query("worker_write", values)
        return cast("results.WorkerRequest | None", requested)

    async def forms_of_workers(self, since_ms: int, limit: int) -> dict[Form, int]:
        """Return how often calls took each form, over processes of workers that have reported since a time."""
        rows = await self.query("workers_forms", {"since": since_ms, "limit": limit})
        total: Counter[Form] = Counter()
        # Workers of one process report the same counts.
        for text in {row[:2]: row[2] for row in reversed(rows)}.values():
            total.update(strict_json.decode(text))
        return total

    async def request_worker(self, worker: str, requested: results.WorkerRequest) -> None:
        """Request every start of a worker to drain or stop; a request to stop is not replaced."""
        await self.query("worker_request", {"worker": worker, "requested": requested})

    async def workers_of_name(self, worker: str) -> list[results.WorkerInfo]:
        """Return every start of a worker."""
        return [_worker(row) for row in await self.query("workers_of_name", {"worker": worker})]

    async def delete_worker(self, worker: str, incarnation: str) -> None:
        """Delete the row of one start of a worker."""
        await self.query("worker_delete", {"worker": worker, "incarnation": incarnation})

    async def forget_workers(self, before_ms: int, limit: int) -> None:
        """Delete workers that have not reported since a time."""
        await self.query("workers_delete", {"before": before_ms, "limit": limit})

    async def newest_workers(self, limit: int) -> list[results.WorkerInfo]:
        """Return the workers that reported last."""
        return [_worker(row) for row in await self.query("workers_newest", {"limit": limit})]

    async def ready_counts(self, maximum: int) -> list[tuple[str, str, str, int]]:
        """Return lane, kind, requirements and the number of ready jobs of each route."""
        rows = await self.query("backlog_ready", {"maximum": maximum})
        return [(lane, kind, requires, count) for lane, kind, requires, count in rows]

    async def oldest_ready(self, priorities: int, fair_keys: int, heads: int) -> list[tuple[str, str, int]]:
        """Return lane, kind and due time of ready jobs, among them the oldest of each lane and kind."""
        bounds = {"priorities": priorities, "fair_keys": fair_keys, "heads": heads}
        rows = await self.query("backlog_oldest", bounds)
        return [(lane, kind, due_at_ms) for lane, kind, due_at_ms in rows]

    async def ready_affinities(self, affinities: int, maximum: int) -> list[tuple[str, int]]:
        """Return the affinities of ready jobs."""
        rows = await self.query("backlog_affinities", {"most": affinities, "maximum": maximum})
        return [(affinity, count) for affinity, count in rows]

    async def unfinished_counts(self, now: clock.Now, maximum: int) -> tuple[int, ...]:
        """Return how many jobs are scheduled, blocked, running, expired, suspect, dependent and parked."""
        [counts] = await self.query("backlog_rest", {"lease_now": now.lease_ms, "maximum": maximum})
        return tuple(counts)

    async def problem_counts(self, now: clock.Now) -> tuple[int, int, int]:
        """Return how many leases have expired, jobs are suspect, and are due but not ready."""
        values = {"wall_now": now.wall_ms, "lease_now": now.lease_ms}
        [[expired, suspect, due]] = await self.query("report_problems", values)
        return expired, suspect, due


def _at(position: contract.EventPosition) -> dict[str, int]:
    return {"transaction": position[0], "event": position[1]}


def _event(row: Row) -> Event:
    name, at_ms, job_id, number, kind, lane, tenant, tags_json = row[2 : -len(_EVENT_DETAILS)]
    given = zip(_EVENT_DETAILS, row[-len(_EVENT_DETAILS) :], strict=True)
    details = {detail: value for detail, value in given if value is not None}
    cursor, tags = contract.cursor_of((row[0], row[1])), strict_json.decode(tags_json)
    return Event(cursor, name, validation.datetime_of(at_ms), job_id, number, kind, lane, tenant, tags, details)


def _worker(row: Row) -> results.WorkerInfo:
    values = dict(zip(_WORKER_FIELDS, row, strict=True))
    values |= {name: tuple(strict_json.decode(values[name])) for name in _WORKER_LISTS}
    values |= {name: validation.datetime_of(values[name]) for name in _WORKER_TIMES}
    values["hold_left"] = None if values["hold_left"] is None else values["hold_left"] / 1000
    return results.WorkerInfo(**values)


class SqlSessions(SqlQueries):
    """Sessions: their rows, lines, heads, leases and message ids."""

    __slots__ = ()

    async def session_number(self, tenant: str, name: str) -> int | None:
        """Return the number of a session."""
        rows = await self.query("session_number", {"tenant": tenant, "name": name})
        return rows[0][0] if rows else None

    async def session_by_name(self, tenant: str, name: str) -> Session | None:
        """Return one session."""
        rows = await self.query("session_by_name", {"tenant": tenant, "name": name})
        return Session._make(rows[0]) if rows else None

    async def sessions_page(self, tenant: str | None, after: contract.SessionName, limit: int) -> list[Session]:
        """Return sessions after one."""
        position = {"tenant": after[0], "name": after[1], "limit": limit}
        if tenant is None:
            return _sessions(await self.query("sessions_page", position))
        return _sessions(await self.query("sessions_page_of_tenant", {**position, "tenant": tenant}))

    async def sessions_by_name(self, names: Collection[contract.SessionName]) -> list[Session]:
        """Return these sessions."""
        return _sessions(await self.query("sessions_by_name", {"names": [list(name) for name in names]}))

    async def sessions_by_number(self, numbers: Sequence[int]) -> list[Session]:
        """Return these sessions."""
        return _sessions(await self.query("sessions_by_number", {"numbers": list(numbers)}))

    async def create_session(self, tenant: str, name: str) -> None:
        """Store a session unless it exists."""
        await self.query("session_create", {"tenant": tenant, "name": name})

    async def free_sessions(self, numbers: Sequence[int]) -> set[int]:
        """Lock the unlocked ones among these sessions."""
        return {number for (number,) in await self.query("sessions_unlocked", {"numbers": list(numbers)})}

    async def pick_session(self, numbers: Sequence[int]) -> Session | None:
        """Lock and return the first unlocked one of these sessions."""
        rows = await self.query("session_first_ready", {"numbers": list(numbers)})
        return Session._make(rows[0]) if rows else None

    async def session_line(self, session: int, after: int, limit: int) -> list[contract.LineRow]:
        """Return entries of a session's line."""
        rows = await self.query("session_entries_in_order", {"session": session, "after": after, "limit": limit})
        return [contract.LineRow._make(row) for row in rows]

    async def session_fronts(self, sessions: Sequence[int]) -> dict[int, contract.SessionFront]:
        """Return the front of each session."""
        rows = await self.query("session_first_entries", {"sessions": list(sessions)})
        return {
            number: contract.SessionFront(bool(running), contract.LineRow._make(first))
            for number, running, *first in rows
        }

    async def session_running(self, session: int) -> list[JobRow]:
        """Return the running entries of a session."""
        return await self._jobs("session_running", {"session": session})

    async def session_running_seqs(self, session: int) -> set[int]:
        """Return the numbers of the running entries of a session."""
        return {seq for seq, _ in await self.query("session_running_entries", {"session": session})}

    async def session_waiting(self, session: int, after: int, limit: int) -> list[int]:
        """Return the numbers of the waiting entries of a session."""
        values = {"session": session, "after": after, "limit": limit}
        return [seq for (seq,) in await self.query("session_entries_waiting", values)]

    async def session_due(self, session: int, now: clock.Now, limit: int) -> list[JobRow]:
        """Return the scheduled entries of a session that have become due."""
        return await self._jobs("session_due", {"session": session, "now": now.wall_ms, "limit": limit})

    async def session_expired(self, session: int, now: clock.Now, limit: int) -> list[JobRow]:
        """Return the running entries of a session whose lease has expired."""
        return await self._jobs("session_expired", {"session": session, "now": now.lease_ms, "limit": limit})

    async def take_entries(self, seqs: Sequence[int]) -> list[JobRow]:
        """Lock the unlocked ones among these entries."""
        return await self._jobs("session_entries_ready", {"seqs": list(seqs)})

    async def expired_sessions(self, now: clock.Now, limit: int) -> list[Session]:
        """Return sessions whose owner's lease has expired."""
        return _sessions(await self.query("sessions_expired", {"now": now.lease_ms, "limit": limit}))

    async def next_session_expiry(self) -> int | None:
        """Return when the next session lease expires."""
        [[lease_until_ms]] = await self.query("session_next_time")
        return None if lease_until_ms is None else int(lease_until_ms)

    async def session_heads(
        self, prefixes: Sequence[tuple[int, str]], fair_key: str, limit: int
    ) -> list[tuple[int, int]]:
        """Return the first heads of each prefix of one fairness key."""
        values = {"prefixes": [[*prefix, fair_key] for prefix in prefixes], "limit": limit}
        return [(seq, number) for seq, number in await self.query("session_heads", values)]

    async def session_heads_of_tenant(
        self, prefixes: Sequence[tuple[int, str]], tenant: str, limit: int
    ) -> list[tuple[int, int]]:
        """Return the first heads of each prefix of one tenant in strict lanes."""
        values = {"prefixes": [list(prefix) for prefix in prefixes], "tenant": tenant, "limit": limit}
        return [(seq, number) for seq, number in await self.query("session_heads_of_tenant", values)]

    async def next_session_fair_keys(self, prefixes: Sequence[tuple[int, str]], last: str) -> set[str]:
        """Return the next fairness keys with heads."""
        values = {"prefixes": [list(prefix) for prefix in prefixes], "last_fair_key": last}
        return {key for row in await self.query("session_fair_keys", values) for key in row if key is not None}

    async def write_session_lengths(self, lengths: Sequence[tuple[int, int]]) -> None:
        """Write the position of the newest entry of each session."""
        await self.query("session_enqueue_seq_write", many=lengths)

    async def write_session_heads(self, heads: Sequence[tuple[Head, int]]) -> None:
        """Write the head that each session offers."""
        if heads:
            await self.query("session_heads_write", many=[(*head, number) for head, number in heads])

    async def write_session_lease(self, session: Session) -> None:
        """Write the lease of a session's owner."""
        values = {
            "number": session.number,
            "generation": session.generation,
            "lease_token": session.lease_token,
            "lease_worker": session.lease_worker,
            "lease_incarnation": session.lease_incarnation,
            "lease_until_ms": session.lease_until_ms,
        }
        await self.query("session_lease_write", values)

    async def write_session_claim(self, session: Session) -> None:
        """Write the newest claim of a session."""
        values = {"number": session.number, "fence": session.fence, "claim_id": session.claim_id}
        await self.query("session_claim_write", values)

    async def message_ids_seen(self, session: int, message_ids: Sequence[str]) -> list[contract.MessageIdRow]:
        """Return the stored records of these message ids of a session."""
        rows = await self.query("message_ids_seen", {"session": session, "message_ids": list(message_ids)})
        return [contract.MessageIdRow._make(row) for row in rows]

    async def jobs_seen(self, seqs: Sequence[int]) -> list[JobRow]:
        """Return jobs without locking them."""
        return await self._jobs("jobs_unlocked", {"seqs": list(seqs)})

    async def insert_message_ids(self, entries: Sequence[tuple[JobRow, int]]) -> None:
        """Store the message ids of new entries."""
        if entries:
            await self.query("message_id_insert", many=[_message_id_row(job, route) for job, route in entries])


def _sessions(rows: Iterable[Row]) -> list[Session]:
    return [Session._make(row) for row in rows]


def _message_id_row(job: JobRow, route: int) -> Row:
    entry = job.entry
    return (
        job.session_number,
        None if entry is None else entry.message_id,
        job.seq,
        job.id,
        route,
        job.entry_json,
        job.enqueue_seq,
        job.enqueued_at_ms,
    )
