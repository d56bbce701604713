"""Transactions on one SQLite connection: a sync one, and an async one for aiosqlite."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, TypeAlias

from holdfast.domain import strict_json
from holdfast.domain.claim_order import Preference
from holdfast.domain.claims import Claim, ClaimRequest
from holdfast.domain.clock import Clock, Now
from holdfast.domain.job import STATE_NUMBERS, JobRow, row_of
from holdfast.domain.new_job import CheckedJob, JobSettings, new_job, plain_job, times_of
from holdfast.domain.outcomes import CheckedOutcome
from holdfast.domain.results import Finding
from holdfast.domain.routing import Route, RouteKey, RoutingTable
from holdfast.domain.transitions import Transition, succeeded
from holdfast.storage.contract import OvertakenError, ReadyJobs, ReadyRequest
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
        # Not by super().__init__: it is created for every operation.
        self.topics = set()
        self._cache = state
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
        """Run one named statement."""
        if many is None:
            return await self._send(*self._bind(name, values), name)
        return [(await self._send_many(name, many),)]

    # The next three send statements. On a sync connection they never suspend.

    async def _send_many(self, name: QueryName, rows: Sequence[Row]) -> int:
        """Run a statement for each of *rows* and return how many rows it changed."""
        self._observe(name)
        cursor: sqlite3.Cursor = self._cursor
        return cursor.executemany(QUERIES[name], rows).rowcount

    async def _send(self, text: str, values: Mapping[str, Any], name: QueryName) -> Rows:
        self._observe(name)
        cursor: sqlite3.Cursor = self._cursor
        cursor.execute(text, values)
        return cursor.fetchall() if cursor.description is not None else [(cursor.rowcount,)]

    async def _insert(self, name: QueryName, values: Row) -> int | None:
        """Insert a row and return its number, or None if it was ignored."""
        self._observe(name)
        cursor: sqlite3.Cursor = self._cursor
        cursor.execute(QUERIES[name], values)
        return cursor.lastrowid if cursor.rowcount else None

    # --- plain forms ------------------------------------------------------------------------------------------------

    async def insert_plain(self, new: CheckedJob) -> JobRow | None:
        """Store one job by one statement, if the cached routing is current."""
        routing = self._cache.newest
        found = None if routing is None else plain_job(new, routing)
        if routing is None or found is None:
            return None
        new, route = found
        settings, payload = new.settings, new.payload_json
        lane = routing.lanes.get(route.key.lane)
        fair_key = settings.tenant if lane is None else lane.fair_key_of(settings.tenant)
        now = self._clock.now()
        due_at_ms, deadline_at_ms = times_of(settings, now)
        values = (
            _READY if due_at_ms <= now.wall_ms else _SCHEDULED,
            str(routing.version),
            route.number,
            new.id,
            settings.tenant,
            fair_key,
            settings.priority,
            settings.affinity,
            now.wall_ms,
            due_at_ms,
            deadline_at_ms,
            settings.max_attempts,
            _extra_of_settings(settings),
            payload if len(payload) <= _PAYLOAD_CHARS_MAX else None,
        )
        seq = await self._insert("job_insert_plain", values)
        if seq is None:
            return None
        if len(payload) > _PAYLOAD_CHARS_MAX:
            await self.query("job_insert_body", many=[(seq, payload)])
        return new_job(new, seq, fair_key, now)

    async def select_plain(self, request: ClaimRequest) -> tuple[RoutingTable, ReadyJobs] | None:
        """Read the next jobs by one statement, if the cached routing is current and no maintenance is due."""
        routing = self._cache.newest
        if routing is None or request.tenant is not None or request.listed or request.preference != _NO_PREFERENCE:
            return None
        routes = routing.serving(request.lanes, request.kinds, request.capabilities)
        name: QueryName = "ready_plain_next"
        values: dict[str, Any] = {}
        if len(routes) == 1:
            values["route"] = routes[0].number
            if request.limit > 1:
                name, values["limit"] = "ready_plain_stream", request.limit
        elif routes and request.limit == 1 and len(routes) <= _PLAIN_ROUTES_MAX:
            name = "ready_plain_routes"
            values["routes"] = strict_json.compact([route.number for route in routes])
        else:
            return None
        now = self._clock.now()
        values["scope"] = request.fair_scope_prefix()
        values["version"] = str(routing.version)
        values["wall_now"], values["lease_now"] = now.wall_ms, now.lease_ms
        rows = await self._send(QUERIES[name], values, name)
        if not rows:
            return None
        keys = {route.number: route.key for route in routes}
        jobs = [_ready_job(keys, row) for row in rows]
        if len(jobs) > 1:
            jobs.sort(key=_by_due_time)
        return routing, ReadyJobs(jobs, f"{values['scope']}{jobs[0].priority}", rows[0][0])

    async def finish_held(
        self, settlements: Sequence[tuple[Claim, CheckedOutcome]], now: Now
    ) -> dict[int, Transition]:
        """Finish the jobs whose lease is held, with their events, by two statements."""
        if len(settlements) == 1:
            [(claim, checked)] = settlements
            row = row_of(claim.job)
            values = {
                "seq": row.seq,
                "epoch": row.epoch,
                "token": row.lease_token,
                "result": checked.result_json,
                "now": now.wall_ms,
                "lease_now": now.lease_ms,
            }
            found = await self._send(QUERIES["job_done_held_one"], values, "job_done_held_one")
            if not found:
                return {}
            event = {"key": row.seq, "value": "done", "at_ms": now.wall_ms}
            await self._send(QUERIES["events_append_one"], event, "events_append_one")
            return {row.seq: succeeded(row, found[0][1:], checked, now)}
        claimed = {row.seq: (row, checked) for row, checked in ((row_of(one.job), two) for one, two in settlements)}
        held = [(row.seq, row.epoch, row.lease_token, checked.result_json) for row, checked in claimed.values()]
        rows = await self.query("job_done_held", {"held": held, "now": now.wall_ms, "lease_now": now.lease_ms})
        current = {row[0]: row[1:] for row in rows}
        done = {seq: one for seq, one in claimed.items() if seq in current}
        await self.append_events(dict.fromkeys(done, "done"), now)
        return {seq: succeeded(row, current[seq], checked, now) for seq, (row, checked) in done.items()}

    async def write_claims(self, jobs: Sequence[JobRow]) -> None:
        """Write claims of ready jobs."""
        job = jobs[0]
        if len(jobs) > 1 or job.unacknowledged:
            await super().write_claims(jobs)
            return
        values = {
            "key": job.seq,
            "value": job.claim_index,
            "counted": 0,
            "acknowledged": (job.claim_index or 0) + 1,
            "worker": job.worker,
            "incarnation": job.incarnation,
            "lease_token": job.lease_token,
            "lease_until_ms": job.lease_until_ms,
            "started_at_ms": job.started_at_ms,
        }
        [[changed]] = await self._send(QUERIES["job_claim_one"], values, "job_claim_one")
        if not changed:
            # The first claim of this start of the worker.
            await super().write_claims(jobs)

    # --- the narrow row ---------------------------------------------------------------------------------------------

    async def insert_jobs(self, jobs: Sequence[tuple[Route, JobRow]]) -> None:
        """Store new jobs, and large payloads apart from them."""
        await self._change_rows("job_insert", [_new_row(route.number, job) for route, job in jobs])
        bodies = [(job.seq, job.payload_json) for _, job in jobs if len(job.payload_json) > _PAYLOAD_CHARS_MAX]
        if bodies:
            await self.query("job_insert_body", many=bodies)

    async def update_content(self, job: JobRow) -> None:
        """Write the content that a duplicate replaced."""
        large = len(job.payload_json) > _PAYLOAD_CHARS_MAX
        values = {"seq": job.seq, "extra": _extra_of(job), "event_count": job.event_count}
        await self.query("job_payload_write", {**values, "payload": None if large else job.payload_json})
        if large:
            await self.query("job_insert_body", many=[(job.seq, job.payload_json)])
        else:
            await self.query("bodies_delete", {"seqs": [job.seq]})

    async def _write_others(self, decided: Sequence[Transition]) -> None:
        rows = [
            (STATE_NUMBERS[after.state], *_moved(after), _extra_of(after), after.seq, before.epoch)
            for before, after, _ in decided
        ]
        await self._change_rows("job_transition", rows)

    async def _write_claims(self, values: Mapping[str, Any], expected: int) -> None:
        [[changed]] = await self.query("job_claim", values)
        if not changed:
            # The first claim of this start of the worker.
            await self.query("holder_insert", {name: values[name] for name in ("worker", "incarnation")})
            await self._change("job_claim", values, expected)
        elif changed != expected:
            raise OvertakenError(f"job_claim changed {changed} of {expected} rows")

    async def clear_suspicion(self, jobs: Sequence[JobRow]) -> None:
        """Store that jobs are no longer suspect."""
        await self._change_rows(
            "job_clear_suspicion", [(job.suspect, _extra_of(job), job.seq, job.epoch) for job in jobs]
        )

    async def _delete_jobs(self, seqs: list[int]) -> None:
        for name in _DELETIONS:
            await self.query(name, {"seqs": seqs})

    # --- selecting --------------------------------------------------------------------------------------------------

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


_NO_PREFERENCE: Final = Preference()
_PLAIN_ROUTES_MAX: Final = 32
_by_due_time: Final = attrgetter("due_at_ms", "seq")
# The last leaves a tombstone of the job with the highest number.
_DELETIONS: Final[tuple[QueryName, ...]] = ("bodies_delete", "jobs_delete", "jobs_delete_highest")


# --- the narrow row ------------------------------------------------------------------------------------------------

_PAYLOAD_CHARS_MAX: Final = 1_024
"""Larger payloads are stored apart."""
_READY, _SCHEDULED = STATE_NUMBERS["ready"], STATE_NUMBERS["scheduled"]

# The values of a job that are in `extra` if they differ from these.
RARE: Final[Mapping[str, Any]] = {
    "headers_json": "{}",
    "tags_json": "{}",
    "backoff_json": None,
    "record_all": 0,
    "digest": None,
    "entry_json": None,
    "outcome": None,
    "settle_digest": None,
    "deferrals": 0,
    "deferred_since_ms": None,
    "releases": 0,
    "failure_class": None,
    "failure_reason": None,
    "failure_message": None,
    "failure_traceback": None,
}
_rare: Final = attrgetter(*RARE)
_USUAL: Final = tuple(RARE.values())
# The columns of `job_transition` after the state, in its order.
MOVED: Final = (
    "fair_key",
    "due_at_ms",
    "deadline_at_ms",
    "finished_at_ms",
    "attempt",
    "lease_until_ms",
    "phase",
    "percent",
    "cancel_requested",
    "suspect",
    "predecessor",
    "event_count",
    "result_json",
    "unacknowledged",
)
# The columns of `job_insert` after number, id, state and route, in its order; followed by `extra` and the payload.
NEW: Final = (
    "tenant",
    "fair_key",
    "priority",
    "affinity",
    "enqueued_at_ms",
    "due_at_ms",
    "deadline_at_ms",
    "max_attempts",
    "dedupe_key",
    "dedupe_kind",
    "predecessor",
    "session_number",
    "enqueue_seq",
    "event_count",
)
_moved: Final = attrgetter(*MOVED)
_added: Final = attrgetter(*NEW)


def _extra_of(job: JobRow) -> str | None:
    """Return the rare values of *job* as JSON, None if it has none."""
    values = _rare(job)
    if values == _USUAL:
        return None
    return strict_json.compact(
        {name: value for (name, usual), value in zip(RARE.items(), values, strict=True) if value != usual}
    )


def _extra_of_settings(settings: JobSettings) -> str | None:
    """Return the same for a plain new job."""
    if settings.headers_json == settings.tags_json == "{}" and settings.backoff_json is None:
        return None
    values = {name: getattr(settings, name) for name in ("headers_json", "tags_json", "backoff_json")}
    return strict_json.compact({name: value for name, value in values.items() if value != RARE[name]})


def _new_row(route: int, job: JobRow) -> Row:
    payload = job.payload_json
    stored = payload if len(payload) <= _PAYLOAD_CHARS_MAX else None
    return (job.seq, job.id, STATE_NUMBERS[job.state], route, *_added(job), _extra_of(job), stored)


def _ready_job(keys: Mapping[int, RouteKey], row: Row) -> JobRow:
    """Return the ready job of a row of a plain claim, without its last attempt, which the claim overwrites."""
    _, seq, job_id, tenant, fair_key, priority, affinity, payload, enqueued_at_ms, due_at_ms = row[:10]
    deadline_at_ms, attempt, max_attempts, epoch, unacknowledged, cancel_requested, suspect = row[10:17]
    key, kind, events, route, extra = row[17:]
    lane, job_kind, requires_json, _, _ = keys[route]
    rare = _USUAL if extra is None else (*map({**RARE, **strict_json.decode(extra)}.__getitem__, RARE),)
    headers, tags, backoff, record_all, digest, _, _, _, deferrals, deferred_since_ms, releases, *failure = rare
    none = None
    return tuple.__new__(
        JobRow,
        (
            *(seq, job_id, "ready", job_kind, lane, tenant, fair_key, priority, affinity, requires_json, payload),
            *(headers, tags, none, enqueued_at_ms, due_at_ms, deadline_at_ms, none, attempt, max_attempts, backoff),
            *(epoch, none, none, none, none, none, none, none, none, none, none, unacknowledged, cancel_requested),
            *(suspect, deferrals, deferred_since_ms, releases, *failure, key, kind, none, digest, none, none, none),
            *(record_all, events),
        ),
    )


class AioSqliteTransaction(SqliteTransaction):
    """An open transaction on a connection of aiosqlite."""

    __slots__ = ()

    async def _send_many(self, name: QueryName, rows: Sequence[Row]) -> int:
        self._observe(name)
        await self._cursor.executemany(QUERIES[name], rows)
        return int(self._cursor.rowcount)

    async def _send(self, text: str, values: Mapping[str, Any], name: QueryName) -> Rows:
        self._observe(name)
        cursor = self._cursor
        await cursor.execute(text, values)
        return list(await cursor.fetchall()) if cursor.description is not None else [(cursor.rowcount,)]

    async def _insert(self, name: QueryName, values: Row) -> int | None:
        self._observe(name)
        cursor = self._cursor
        await cursor.execute(QUERIES[name], values)
        return cursor.lastrowid if cursor.rowcount else None


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
