"""Plain forms: the common case of a call as statements that are a whole transaction, in one round trip.

The statements call functions of the schema, whose plans are cached. Their guard comes first: if the case is not the
common one, they write nothing, and the full form of the operation runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import psycopg

from holdfast.domain import alike_jobs, limits, new_job, outcomes, strict_json
from holdfast.domain.claim_order import Preference
from holdfast.domain.claims import (
    Claim,
    ClaimRequest,
    JobFence,
    Note,
    count_done,
    fence_of,
    held_by,
    held_together,
    job_id_of,
    number_of,
    taken_with,
)
from holdfast.domain.clock import Now
from holdfast.domain.job import Job, JobRow, columns_of, job_of
from holdfast.domain.lazy_rows import LazyRow, UsualColumns
from holdfast.domain.rollups import CountedEnd
from holdfast.domain.routing import Route, RoutingTable, fair_key_of
from holdfast.storage import notifications
from holdfast.storage.plain_contract import ClaimedJobs, FinishedJobs
from holdfast.storage.postgres import binding, select_ready, sql
from holdfast.storage.postgres.scan_positions import (
    DueWatermarks,
    LockedAndPassed,
    OpenTransactions,
    ReadyFloors,
    ScanPosition,
    ScanPositions,
)
from holdfast.storage.query_names import QueryName
from holdfast.storage.sql_queries import Row, Rows

Sent: TypeAlias = tuple[QueryName, Mapping[str, Any]]
Settled: TypeAlias = tuple[Claim, outcomes.CheckedOutcome]

ROUTES_MAX: Final = 32
_ALIKE_MAX: Final = 256
_NO_PREFERENCE: Final = Preference()
# The error code of a plain form that was undone because a lease is lost.
UNDONE: Final = "HF001"
# That of a claim that was undone because a job of a later level has no room, and how many claims then have a
# savepoint: without one a claim takes less time, but it fails as a whole, which the server logs.
_NO_ROOM: Final = "HF002"
_SAVEPOINTS: Final = 1_000


class StoreMemory(Protocol):
    """What a store remembers between transactions."""

    newest: RoutingTable | None
    scan_positions: ScanPositions
    due_watermarks: DueWatermarks
    ready_floors: ReadyFloors
    savepoints_left: int
    alike_jobs: dict[int, AlikeJobs]


class PlainTransaction(Protocol):
    """A transaction that has not begun."""

    topics: set[str]

    async def run_alone(self, statements: Sequence[Sent], topics: Collection[str] = ()) -> list[Rows]:
        """Run statements as the whole transaction, and notify the listeners of *topics* in the same message."""
        ...

    def bound_insert(self, values: Mapping[str, Any]) -> list[bytes | None]:
        """Return the values of `job_insert_plain` or `jobs_insert_alike` that are alike, as they are sent."""
        ...

    async def insert_alone(
        self, name: QueryName, bound: Sequence[bytes | None], ids: bytes, payloads: bytes, topics: Collection[str]
    ) -> list[Rows]:
        """Run one of these as the whole transaction, with ids and payloads in binary format."""
        ...

    async def notify_alone(self, topics: set[str]) -> None:
        """Notify the listeners of *topics* after a plain form has committed."""
        ...


# --- enqueue -------------------------------------------------------------------------------------------------------


class AlikeJobs(NamedTuple):
    """What inserts of jobs with the same settings have in common while the routing is the same."""

    routing: RoutingTable
    settings: new_job.JobSettings
    bound: list[bytes | None]
    """Their values in `job_insert_plain` or `jobs_insert_alike`, as they are sent."""
    fair_key: str
    topics: frozenset[str]


async def insert(tx: PlainTransaction, memory: StoreMemory, new: new_job.CheckedJob) -> Job | None:
    """Store one job that is due at once and has no deadline, if the cached routing is current."""
    found = _alike(tx, memory, new)
    if found is None:
        return None
    new, alike = found
    job_id, payload = new.id.encode(), new.payload_json.encode()
    [[[stored]]] = await tx.insert_alone("job_insert_plain", alike.bound, job_id, payload, alike.topics)
    if stored is None:
        return None
    seq, now_ms = stored
    tx.topics |= alike.topics
    return job_of(new_job.NewRow(new, seq, alike.fair_key, Now(now_ms, now_ms)))


async def insert_alike(
    tx: PlainTransaction, memory: StoreMemory, jobs: Sequence[new_job.CheckedJob]
) -> Sequence[Job] | None:
    """Store jobs as `insert` does, all or none, if they differ only in id and payload."""
    together = alike_jobs.as_alike(jobs)
    found = None if together is None else _alike(tx, memory, together.model)
    if together is None or found is None or found[0] is not together.model:
        return None
    _, alike = found
    ids, payloads = binding.text_array(together.ids), binding.text_array(together.payloads)
    [[[seqs, now_ms]]] = await tx.insert_alone("jobs_insert_alike", alike.bound, ids, payloads, alike.topics)
    if seqs is None:
        return None
    tx.topics |= alike.topics
    return together.stored(seqs, alike.fair_key, Now(now_ms, now_ms))


def _alike(
    tx: PlainTransaction, memory: StoreMemory, new: new_job.CheckedJob
) -> tuple[new_job.CheckedJob, AlikeJobs] | None:
    """Return a job with its published options, and what it has in common with others; None if it is not plain."""
    routing = memory.newest
    if routing is None:
        return None
    # By the identity of the settings, which the value keeps from being reused.
    known = memory.alike_jobs.get(id(new.settings))
    if known is not None and known.routing is routing and known.settings is new.settings and new_job.is_plain(new):
        return new, known
    found = new_job.plain_job(new, routing)
    if found is None:
        return None
    published, route = found
    settings = published.settings
    if settings.delay_ms or settings.run_at_ms is not None:
        return None
    if settings.deadline_in_ms is not None or settings.deadline_at_ms is not None:
        return None
    fair_key = fair_key_of(routing.lane(settings.route.lane), settings.tenant)
    values: dict[str, Any] = {
        "version": routing.version,
        "route": route.number,
        "tenant": settings.tenant,
        "fair_key": fair_key,
        "priority": settings.priority,
        "affinity": settings.affinity,
        "headers": settings.headers_json,
        "tags": settings.tags_json,
        "max_attempts": settings.max_attempts,
        "backoff": settings.backoff_json,
    }
    topics = frozenset((notifications.lane_topic(settings.route.lane),))
    alike = AlikeJobs(routing, settings, tx.bound_insert(values), fair_key, topics)
    if settings.route.kind not in routing.publications:
        if len(memory.alike_jobs) >= _ALIKE_MAX:
            memory.alike_jobs.clear()
        memory.alike_jobs[id(settings)] = alike
    return published, alike


# --- settle --------------------------------------------------------------------------------------------------------


async def settle(tx: PlainTransaction, settlements: Sequence[Settled]) -> FinishedJobs | None:
    """Finish jobs, all of them, if their leases are held and none has a dedupe key or is a session entry."""
    if any(map(_is_linked, settlements)):
        return None
    try:
        [rows] = await tx.run_alone([settling(settlements, ())], job_topics(settlements))
    except psycopg.Error as error:
        if error.sqlstate == UNDONE:
            return None
        raise
    return finished(rows)


def _is_linked(settled: Settled) -> bool:
    taken, leased = taken_with(settled[0])
    if type(taken) is LeasedJobs:
        # No job need be made of what the claim has read; it takes no session entries.
        return leased[_FEW] is not None and _few(leased).dedupe_key is not None
    row = columns_of(settled[0].job)
    return row.dedupe_key is not None or row.session_number is not None


def session_of(settlements: Sequence[Settled]) -> int | None:
    """Return the session of the entries; None if a job is in the call twice."""
    if len({fence_of(claim).seq for claim, _ in settlements}) < len(settlements):
        return None
    return columns_of(settlements[0][0].job).session_number


def job_topics(settlements: Sequence[Settled]) -> list[str]:
    """Return the topics of jobs that are settled."""
    topic = notifications.JOB_TOPIC
    return [topic + job_id_of(claim) for claim, _ in settlements]


def settling(settlements: Sequence[Settled], started: Sequence[JobFence]) -> Sent:
    """Return the statement that finishes jobs and acknowledges claims."""
    # In order, so that two calls with the same jobs wait for each other instead of deadlocking.
    held = sorted([(number_of(claim), *held_by(claim), checked.result_json) for claim, checked in settlements])
    seqs, *lists = map(list, zip(*held, strict=True)) if held else ([], [], [], [])
    epochs, tokens, results = map(_common, lists)
    return "plain_settle", {
        "seqs": seqs,
        "epochs": epochs,
        "tokens": binding.column(tokens),
        "results": binding.column(results),
        "started_seqs": [fence.seq for fence in started],
        "started_epochs": [fence.epoch for fence in started],
        "started_tokens": [fence.lease_token for fence in started],
    }


def _common(values: list[Any]) -> list[Any]:
    """Return one value instead of many that are the same."""
    return values[:1] if len(values) > 1 and values.count(values[0]) == len(values) else values


def finished(rows: Rows) -> FinishedJobs:
    """Return what the statement has finished."""
    at_ms = rows[0][0] if rows else 0
    jobs: dict[int, tuple[Any, ...]] = {}
    for _, seqs, *current in rows:
        jobs |= dict.fromkeys(seqs, (*current, False))
    return FinishedJobs(Now(at_ms, at_ms), jobs)


# --- heartbeat -----------------------------------------------------------------------------------------------------


async def renew(
    tx: PlainTransaction, held: Sequence[tuple[JobFence, int]], notes: Mapping[int, Note], started: Collection[int]
) -> dict[int, tuple[int, bool]] | None:
    """Extend leases if all of them are held and no job is in the call twice."""
    if len({fence.seq for fence, _ in held}) < len(held):
        return None
    ordered = sorted(held)
    noted = [notes.get(fence.seq, Note()) for fence, _ in ordered]
    values = {
        "seqs": [fence.seq for fence, _ in ordered],
        "epochs": [fence.epoch for fence, _ in ordered],
        "tokens": [fence.lease_token for fence, _ in ordered],
        "lengths": [lease_ms for _, lease_ms in ordered],
        "acknowledges": [int(fence.seq in started) for fence, _ in ordered],
        "phases": [note.phase for note in noted],
        "percents": [note.percent for note in noted],
    }
    try:
        [rows] = await tx.run_alone([("plain_heartbeat", values)])
    except psycopg.Error as error:
        if error.sqlstate == UNDONE:
            return None
        raise
    return {seq: (lease_until_ms, bool(cancel_requested)) for seq, lease_until_ms, cancel_requested in rows}


# --- claim ---------------------------------------------------------------------------------------------------------


async def claim(tx: PlainTransaction, memory: StoreMemory, request: ClaimRequest) -> ClaimedJobs | None:
    """Claim jobs, if the cached routing is current and no maintenance is due."""
    plan = _plan(memory, request)
    if plan is None:
        return None
    try:
        [[guard], rows] = await tx.run_alone(plan.statements)
    except psycopg.Error as error:
        if _is_undone(memory, error):
            return None
        raise
    claims = _claims(memory, request, plan, guard, rows)
    return None if claims is None else ClaimedJobs(plan.routing, claims)


async def settle_and_claim(
    tx: PlainTransaction,
    memory: StoreMemory,
    settlements: Sequence[Settled],
    started: Sequence[JobFence],
    request: ClaimRequest,
) -> tuple[FinishedJobs, list[Claim]] | None:
    """Settle and claim, if both can be plain."""
    plan = _plan(memory, request)
    if plan is None or any(map(_is_linked, settlements)):
        return None
    guarding, claiming = plan.statements
    settles = [settling(settlements, started)] if settlements or started else []
    try:
        [[guard], *settled, rows] = await tx.run_alone([guarding, *settles, claiming], job_topics(settlements))
    except psycopg.Error as error:
        if _is_undone(memory, error):
            return None
        raise
    claims = _claims(memory, request, plan, guard, rows)
    return None if claims is None else (finished(*settled or [[]]), claims)


def _is_undone(memory: StoreMemory, error: psycopg.Error) -> bool:
    if error.sqlstate == _NO_ROOM:
        memory.savepoints_left = _SAVEPOINTS
    return error.sqlstate in {UNDONE, _NO_ROOM}


class _ClaimPlan(NamedTuple):
    """The routing and its routes for a claim, where it starts, and the guard and claim to send."""

    routing: RoutingTable
    routes: dict[int, Route]
    positions: dict[int, ScanPosition]
    floor_seq: int | None
    statements: list[Sent]


def _plan(memory: StoreMemory, request: ClaimRequest) -> _ClaimPlan | None:
    """Return how to claim in one message; None if the full form has to do it."""
    routing = memory.newest
    if routing is None or request.tenant is not None or request.listed or request.preference != _NO_PREFERENCE:
        return None
    routes = routing.serving(request.lanes, request.kinds, request.capabilities)
    if len(routes) > ROUTES_MAX or not routing.recorded_lanes.isdisjoint(request.lanes):
        return None
    gated = routing.is_gated(routes)
    limited = _limits(routing, routes) if gated else {}
    if limited is None:
        return None
    positions = memory.scan_positions.of(routes)
    floors = memory.ready_floors.start(routes, marked=bool(positions))
    if floors["floor_seq"] and not memory.ready_floors.is_crowded():
        # All ready jobs are after the floor, and few.
        positions = {}
    times = memory.due_watermarks.start_times(thorough=False)
    guard = {
        "version": routing.version,
        "worker": request.worker,
        "chosen_token": request.lease_token if request.resent else None,
        "examines": memory.ready_floors.examines(),
        "wall_low": max(times["wall_low"], floors["wall_floor"]),
        "lease_low": max(times["lease_low"], floors["lease_floor"]),
    }
    claiming = {
        "routes": [route.number for route in routes],
        "limit": request.limit,
        "worker": request.worker,
        "incarnation": request.incarnation,
        "lease_token": request.lease_token,
        "lease_ms": request.lease_ms,
        "acknowledged": request.acknowledged,
        "scope": request.fair_scope_prefix(),
        **LockedAndPassed([], positions).for_top(routes),
        **floors,
        **limited,
    }
    form: QueryName = "plain_claim_gated" if gated else "plain_claim"
    if gated and memory.savepoints_left:
        memory.savepoints_left -= 1
        form = "plain_claim_gated_undoing"
    sent: list[Sent] = [("plain_guard", guard), (form, claiming)]
    return _ClaimPlan(routing, {route.number: route for route in routes}, positions, floors["floor_seq"], sent)


def _limits(routing: RoutingTable, routes: Sequence[Route]) -> dict[str, Any] | None:
    """Return the limits of routes; None if a limit counts weights or joins keys, which the full form decides."""
    found = [(route.number, limit) for route in routes for limit in routing.limits_of(route.key.lane, route.key.kind)]
    if any(limit.weight is not None or "+" in limit.key_source for _, limit in found):
        return None
    rates = [(limit.rate is not None, limit) for _, limit in found]
    return {
        "limit_routes": [route for route, _ in found],
        "limit_numbers": [limit.number for _, limit in found],
        "key_sources": [limit.key_source for _, limit in found],
        "concurrencies": [limit.concurrency for _, limit in found],
        "start_costs_us": [limit.cost_us(1) if has_rate else None for has_rate, limit in rates],
        "burst_costs_us": [limit.burst_us if has_rate else None for has_rate, limit in rates],
    }


def _claims(
    memory: StoreMemory,
    request: ClaimRequest,
    plan: _ClaimPlan,
    guard: Row,
    rows: Rows,
) -> list[Claim] | None:
    """Return the claims, in order; None if the full form has to claim."""
    refused, wall_ms, lease_ms, oldest_open, backdated, last_seq = guard
    *rows, header = rows
    now = Now(wall_ms, lease_ms)
    started_at_ms, extent, first_seq, first_due, only_key, own = strict_json.decode(header[_FEW])
    seen = OpenTransactions(now, oldest_open, backdated, last_seq, own)
    if plan.floor_seq is not None and seen.last_seq < plan.floor_seq - 1:
        # The server was restored, or has lost commits.
        memory.ready_floors.clear()
    memory.ready_floors.record(seen)
    if refused in {None, "due"}:
        memory.due_watermarks.record_look(now, thorough=False, found=refused is not None)
    if header[_ID] == "refused":
        return None
    if len(rows) < request.limit:
        memory.due_watermarks.record_look(now, thorough=True, found=False)
        memory.ready_floors.raise_due(seen)
    if extent == "all":
        memory.ready_floors.raise_to(seen, plan.routes, first_seq, first_due, complete=not plan.floor_seq)
    elif extent == "crowded":
        memory.ready_floors.record_crowd()
    leased_at = Now(started_at_ms, lease_ms + started_at_ms - wall_ms)
    rows.sort(key=_by_claim_index)
    held = [(row[_SEQ], row[_ID], row[_EPOCH], row) for row in rows]
    taken = LeasedJobs(plan.routes, rows, request, leased_at)
    claims = held_together(taken, held, request.lease_token, request.lease_ms)
    if rows and only_key is not None:
        _move_positions(memory, rows, only_key, seen_all=not plan.positions or len(rows) < request.limit)
    elif not rows:
        memory.scan_positions.drop(plan.routes.values())
    return claims


_SEQ, _ID, _ROUTE, _TENANT, _PRIORITY, _PAYLOAD, _DUE, _EPOCH, _MAX_ATTEMPTS, _CLAIM_INDEX, _UNACKNOWLEDGED, _FEW = (
    range(len(sql.CLAIMED))
)
_by_claim_index: Final = itemgetter(_CLAIM_INDEX)
_few_of: Final = itemgetter(_FEW)


class Few(NamedTuple):
    """The columns of a claimed job that are one column of its row, because most jobs have the same values in them."""

    fair_key: str
    affinity: str | None
    headers_json: str
    tags_json: str
    result_json: str | None
    enqueued_at_ms: int
    deadline_at_ms: int | None
    finished_at_ms: int | None
    attempt: int
    backoff_json: str | None
    cancel_requested: int
    suspect: int
    deferrals: int
    deferred_since_ms: int | None
    releases: int
    failure_class: str | None
    failure_reason: str | None
    failure_message: str | None
    failure_traceback: str | None
    dedupe_key: str | None
    dedupe_kind: str | None
    predecessor: int | None
    digest: str | None
    parent: str | None
    root: str | None
    record_all: int
    event_count: int


_ALL: Final = (*sql.CLAIMED[:_FEW], *Few._fields)
_in_leased_order: Final = itemgetter(*map(_ALL.index, sql.LEASED))


def _few(row: Row) -> Few:
    packed, none = row[_FEW], None
    if packed is not None:
        return Few(*strict_json.decode(packed))
    due_at_ms, epoch = row[_DUE], row[_EPOCH]
    placed = (row[_TENANT], none, "{}", "{}", none, due_at_ms, none, none, epoch, none, 0, 0, 0, none, 0)
    return Few(*placed, *(none,) * 10, 0, 0)


class LeasedRow(LazyRow):
    """The row of a job after a plain claim, from what the claim has read of it."""

    __slots__ = ("_now", "_request", "_route", "_row")

    def __init__(self, row: Row, route: Route, request: ClaimRequest, now: Now) -> None:
        self._row = row
        self._route = route
        self._request = request
        self._now = now

    session_number = None
    seq = property(lambda self: self._row[_SEQ])
    id = property(lambda self: self._row[_ID])
    tenant = property(lambda self: self._row[_TENANT])
    payload_json = property(lambda self: self._row[_PAYLOAD])
    dedupe_key = property(lambda self: None if self._row[_FEW] is None else _few(self._row).dedupe_key)
    suspect = property(lambda self: 0 if self._row[_FEW] is None else _few(self._row).suspect)
    due_at_ms = property(lambda self: self._row[_DUE])
    started_at_ms = property(lambda self: self._now.wall_ms)
    failure_reason = property(lambda self: None if self._row[_FEW] is None else _few(self._row).failure_reason)
    unacknowledged = property(lambda self: self._row[_UNACKNOWLEDGED])
    kind = property(lambda self: self._route.key.kind)
    lane = property(lambda self: self._route.key.lane)
    lease_until_ms = property(lambda self: self._now.lease_ms + self._request.lease_ms)

    def make(self) -> JobRow:
        """Return the row."""
        lease_until_ms = self._now.lease_ms + self._request.lease_ms
        row = _in_leased_order((*self._row[:_FEW], *_few(self._row)))
        return select_ready.leased(row, self._route, self._request, lease_until_ms, self._now)

    def usual(self) -> UsualColumns | None:
        """Return the columns if the job has none of the values that few jobs have."""
        row, request, none = self._row, self._request, None
        epoch, due_at_ms = row[_EPOCH], row[_DUE]
        if row[_FEW] is not None or row[_MAX_ATTEMPTS] != limits.MAX_ATTEMPTS_DEFAULT:
            return None
        lane, kind, requires_json, *_ = self._route.key
        place = ("running", kind, lane, row[_TENANT], row[_PRIORITY], requires_json, row[_PAYLOAD])
        held = (self._now.wall_ms, none, self.lease_until_ms, epoch, request.worker, request.incarnation)
        return tuple.__new__(UsualColumns, (row[_SEQ], row[_ID], *place, none, due_at_ms, *held, none))


class LeasedJobs:
    """What the jobs of one plain claim have in common."""

    __slots__ = ("_now", "_request", "_routes", "are_usual")

    def __init__(self, routes: Mapping[int, Route], rows: Sequence[Row], request: ClaimRequest, now: Now) -> None:
        self.are_usual = not any(map(_few_of, rows))
        """Whether none of them has one of the values that few jobs have."""
        self._routes = routes
        self._request = request
        self._now = now

    def job_of(self, row: Row, _index: int) -> Job:
        """Return the job of a row."""
        return job_of(LeasedRow(row, self._routes[row[_ROUTE]], self._request, self._now))

    def done_at(self, rows: Iterable[Row], now_ms: int) -> list[CountedEnd]:
        """Return what is counted of jobs that are done."""
        return count_done(map(_route_and_due_time, rows), self._routes, self._now.wall_ms, now_ms)

    def one_done_at(self, row: Row, now_ms: int) -> CountedEnd:
        """Return the same for one of them."""
        [counted] = self.done_at((row,), now_ms)
        return counted


_route_and_due_time: Final = itemgetter(_ROUTE, _DUE)


def _move_positions(memory: StoreMemory, rows: Rows, only_key: str, *, seen_all: bool) -> None:
    """Store where the routes of the first level begin, which has one fair_key."""
    first: dict[int, Row] = {}
    for row in rows:
        if row[_ROUTE] not in first or (row[_DUE], row[_SEQ]) < (first[row[_ROUTE]][_DUE], first[row[_ROUTE]][_SEQ]):
            first[row[_ROUTE]] = row
    highest = max(row[_PRIORITY] for row in rows)
    for route, row in first.items():
        if row[_PRIORITY] == highest:
            position = ScanPosition(highest, only_key, row[_DUE], row[_SEQ])
            memory.scan_positions.move(route, position, seen_all=seen_all)
