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
from holdfast.domain.job import JobRow, row_of
from holdfast.domain.new_job import CheckedJob, new_job, plain_job
from holdfast.domain.outcomes import CheckedOutcome
from holdfast.domain.results import Finding
from holdfast.domain.routing import RoutingTable
from holdfast.domain.transitions import Transition
from holdfast.storage.contract import ReadyJobs, ReadyRequest
from holdfast.storage.query_names import QueryName
from holdfast.storage.select_ready import choose_from, first_level, is_one_stream, offer_of, select_stream
from holdfast.storage.sql_queries import Row, Rows
from holdfast.storage.sql_transaction import RoutingCache, SqlTransaction, succeeded
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
        """Run one named statement; never suspends."""
        self._observe(name)
        cursor: sqlite3.Cursor = self._cursor
        if many is not None:
            cursor.executemany(QUERIES[name], many)
            return [(cursor.rowcount,)]
        cursor.execute(*self._bind(name, values))
        return cursor.fetchall() if cursor.description is not None else [(cursor.rowcount,)]

    # --- plain forms ------------------------------------------------------------------------------------------------

    async def insert_plain(self, new: CheckedJob) -> JobRow | None:
        """Store one job by one statement, if the cached routing is current."""
        routing = self._cache.newest
        found = None if routing is None else plain_job(new, routing)
        if routing is None or found is None:
            return None
        new, route = found
        lane = routing.lanes.get(route.key.lane)
        fair_key = new.settings.tenant if lane is None else lane.fair_key_of(new.settings.tenant)
        job = new_job(new, 0, fair_key, self._clock.now())
        seq = await self._insert("job_insert_plain", (job.state, str(routing.version), route.number, *_plain(job)))
        return None if seq is None else job._replace(seq=seq)

    async def _insert(self, name: QueryName, values: Row) -> int | None:
        """Insert a row and return its number, or None if it was ignored."""
        self._observe(name)
        cursor: sqlite3.Cursor = self._cursor
        cursor.execute(QUERIES[name], values)
        return cursor.lastrowid if cursor.rowcount else None

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
            name, values["routes"] = "ready_plain_routes", [route.number for route in routes]
        else:
            return None
        now = self._clock.now()
        values |= {"scope": request.fair_scope_prefix(), "version": str(routing.version)}
        values |= {"wall_now": now.wall_ms, "lease_now": now.lease_ms}
        rows = await self.query(name, values)
        if not rows:
            return None
        jobs = [JobRow._make(row[1:]) for row in rows]
        if len(jobs) > 1:
            jobs.sort(key=_by_due_time)
        return routing, ReadyJobs(jobs, f"{values['scope']}{jobs[0].priority}", rows[0][0])

    async def finish_held(
        self, settlements: Sequence[tuple[Claim, CheckedOutcome]], now: Now
    ) -> dict[int, Transition]:
        """Finish the jobs whose lease is held, with their events, by two statements."""
        claimed = {row.seq: (row, checked) for row, checked in ((row_of(one.job), two) for one, two in settlements)}
        name: QueryName = "job_done_held"
        values: dict[str, Any] = {"now": now.wall_ms, "lease_now": now.lease_ms}
        held = [(row.seq, row.epoch, row.lease_token, checked.result_json) for row, checked in claimed.values()]
        if len(held) == 1:
            name = "job_done_held_one"
            values |= zip(("seq", "epoch", "token", "result"), held[0], strict=True)
        else:
            values["held"] = held
        current = {row[0]: row[1:] for row in await self.query(name, values)}
        done = {seq: one for seq, one in claimed.items() if seq in current}
        await self.append_events(dict.fromkeys(done, "done"), now)
        return {seq: succeeded(row, current[seq], checked, now) for seq, (row, checked) in done.items()}

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
# The columns of `job_insert_plain` after the state, the version and the route.
_plain: Final = attrgetter(
    "id",
    "tenant",
    "fair_key",
    "priority",
    "affinity",
    "payload_json",
    "headers_json",
    "tags_json",
    "enqueued_at_ms",
    "due_at_ms",
    "deadline_at_ms",
    "max_attempts",
    "backoff_json",
)
_by_due_time: Final = attrgetter("due_at_ms", "seq")


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
