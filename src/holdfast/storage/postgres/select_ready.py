"""Select ready jobs on PostgreSQL: heads are read without locks; chosen jobs are locked, checked and leased.

Workers compete for the same heads. Jobs locked by another claim are skipped, never waited for; a claim that got
nothing looks again, past those jobs and a little further than it needs. If scan positions are known it starts there,
and looks again without them if it found fewer jobs than requested.
"""

from collections.abc import Iterable
from operator import attrgetter
from typing import Any, NamedTuple, cast

from holdfast.domain import routing
from holdfast.domain.claims import ClaimRequest
from holdfast.domain.clock import Now
from holdfast.domain.job import JobRow
from holdfast.storage.contract import ReadyJobs, ReadyRequest
from holdfast.storage.postgres import sql
from holdfast.storage.postgres.scan_positions import LockedAndPassed, ScanPosition, ScanPositions
from holdfast.storage.query_names import QueryName
from holdfast.storage.select_ready import Level, Prefix, choose_from, first_level, is_one_stream, offer_of, scope_of
from holdfast.storage.sql_queries import Row, job_rows
from holdfast.storage.sql_transaction import SqlTransaction

# How many extra jobs to look at after each time that other claims took all chosen ones.
_SPARES = (16, 64, 256)


class _Selected(NamedTuple):
    """The result of one look: the leased jobs, the chosen ones, and where each route of the level begins."""

    selection: ReadyJobs
    chosen: list[int]
    heads: dict[int, ScanPosition]
    barred: bool = False
    """Whether the first job would exceed the limit of affinities."""


async def select_ready(
    tx: SqlTransaction, positions: ScanPositions, selection_request: ReadyRequest
) -> ReadyJobs | None:
    """Choose and lease ready jobs of the first level that has any available, up to the limit, in claim order."""
    limit, known = selection_request.limit, positions.of(selection_request.routes)
    if known:
        selected = await _select_once(
            tx, positions, selection_request, LockedAndPassed([], known), limit // 8, least=limit
        )
        if selected is not None and selected.selection.jobs:
            _move(positions, selected, seen_all=False)
            return selected.selection
        positions.drop(selection_request.routes)
    taken: list[int] = []
    for spare in (limit // 8, *_SPARES):
        selected = await _select_once(tx, positions, selection_request, LockedAndPassed(taken, {}), spare)
        if selected is None:
            return None
        if selected.selection.jobs or selected.barred:
            if not taken:
                _move(positions, selected, seen_all=True)
            return selected.selection
        taken += selected.chosen
    return None


def _move(positions: ScanPositions, selected: _Selected, *, seen_all: bool) -> None:
    for route, position in selected.heads.items():
        positions.move(route, position, seen_all=seen_all)


async def _select_once(
    tx: SqlTransaction,
    positions: ScanPositions,
    selection_request: ReadyRequest,
    skip: LockedAndPassed,
    spare: int,
    least: int = 0,
) -> _Selected | None:
    """Look once; if fewer jobs than *least* are available, lease none."""
    level = await first_level(
        tx, selection_request.request, selection_request.routes, selection_request.limit + spare, skip
    )
    if level is None:
        return None
    if not skip.taken and selection_request.leases and is_one_stream(level, selection_request.preference):
        selection = await _take_stream(tx, positions, selection_request, level, skip, least)
        if selection.jobs:
            [route] = level.routes
            return _Selected(
                selection, [], _heads(level, [(route, job.due_at_ms, job.seq) for job in selection.jobs[:1]])
            )
    return await _choose(tx, selection_request, level, least)


async def _take_stream(
    tx: SqlTransaction,
    positions: ScanPositions,
    selection_request: ReadyRequest,
    level: Level,
    skip: LockedAndPassed,
    least: int,
) -> ReadyJobs:
    """Lease the first jobs of a level that is a single stream."""
    assert level.only_fair_key is not None  # noqa: S101  # true for a single stream
    [route] = level.routes
    scope = scope_of(level, selection_request.preference)
    last_fair_key = (
        level.only_fair_key
        if positions.last_fair_key(scope) == level.only_fair_key
        else (await tx.last_fair_key(scope))
    )
    due_low, seq_low = skip.low(level.priority, route, level.only_fair_key)
    values = {
        "route": route,
        "priority": level.priority,
        "fair_key": level.only_fair_key,
        "due_low": due_low,
        "seq_low": seq_low,
        "least": least,
    }
    jobs, now = await lease(tx, selection_request, "ready_lease_stream", values)
    if jobs:
        positions.remember_fair_key(scope, level.only_fair_key)
    return ReadyJobs(jobs, scope, last_fair_key, now)


async def _choose(tx: SqlTransaction, selection_request: ReadyRequest, level: Level, least: int) -> _Selected:
    preference = selection_request.preference
    offer = await offer_of(tx, level, preference)
    chosen = [candidate.seq for candidate in choose_from(offer, level.limit, preference)]
    jobs: list[JobRow] = []
    now = None
    if chosen and selection_request.leases:
        values = {"seqs": chosen, "priority": level.priority, "least": least}
        jobs, now = await lease(tx, selection_request, "ready_lease", values)
    elif chosen:
        found = {"seqs": chosen, "priority": level.priority, "limit": selection_request.limit}
        jobs = job_rows(await tx.query("ready_lock", {**found, "now": (await tx.now()).wall_ms}))
        jobs = jobs if len(jobs) >= least else []
    heads = {}
    if not preference.affinities:
        # With an affinity, not every job of the route was read.
        first_last = sorted(offer.heads, key=lambda head: (head.due_at_ms, head.seq), reverse=True)
        heads = _heads(level, [(cast(Prefix, head.stream)[0], head.due_at_ms, head.seq) for head in first_last])
    return _Selected(ReadyJobs(jobs, *offer.fair_position, now), chosen, heads, bool(offer.heads) and not chosen)


def _heads(level: Level, seen: Iterable[tuple[int, int, int]]) -> dict[int, ScanPosition]:
    """Return where each route begins, from the jobs *seen* on it, the first of which is last.

    Only for a single fair_key: with several, the first job depends on the fairness position.
    """
    if level.only_fair_key is None or level.request.tenant is not None:
        return {}
    return {
        route: ScanPosition(level.priority, level.only_fair_key, due_at_ms, seq) for route, due_at_ms, seq in seen
    }


_ROUTE, _PAYLOAD, _CLAIM_INDEX, _AFTER_ENTRY = map(
    sql.LEASED.index, ("route", "payload_json", "claim_index", "record_all")
)
_NO_ENTRY = (None, None, None)


async def lease(
    tx: SqlTransaction, selection_request: ReadyRequest, statement: QueryName, values: dict[str, Any]
) -> tuple[list[JobRow], Now]:
    """Lease the jobs that *statement* finds, up to the limit, in claim order; return the jobs and the time."""
    request, now = selection_request.request, (await tx.now())
    lease_until_ms = now.lease_ms + request.lease_ms
    values |= {
        "limit": selection_request.limit,
        "first_index": selection_request.first_index,
        "recorded_routes": [
            route.number for route in selection_request.routes if route.key.lane in selection_request.recorded_lanes
        ],
        "worker": request.worker,
        "incarnation": request.incarnation,
        "lease_token": request.lease_token,
        "lease_until_ms": lease_until_ms,
        "acknowledged": request.acknowledged,
        "now": now.wall_ms,
    }
    rows = await tx.query(statement, values)
    routes = {route.number: route for route in selection_request.routes}
    jobs = [leased(row, routes[row[_ROUTE]], request, lease_until_ms, now) for row in rows]
    return sorted(jobs, key=attrgetter("claim_index")), now


def leased(row: Row, route: routing.Route, request: ClaimRequest, lease_until_ms: int, now: Now) -> JobRow:
    """Return the job of *row*, completed with the values common to the claim and those of its route."""
    lane, kind, requires_json = route.key[:3]
    holder = (request.worker, request.incarnation, request.lease_token, lease_until_ms)
    # By index, because this runs once for every claimed job.
    known = (*row[_ROUTE + 1 : _PAYLOAD], requires_json, *row[_PAYLOAD:_CLAIM_INDEX])
    head = (*row[:_ROUTE], "running", kind, lane, *known)
    attempt = (*holder, row[_CLAIM_INDEX], now.wall_ms, None, None, None, None)
    # A plain claim takes no session entries, so their columns are not sent.
    rest = (*row[_CLAIM_INDEX + 1 : _AFTER_ENTRY], *_NO_ENTRY, *row[_AFTER_ENTRY:])
    return tuple.__new__(JobRow, (*head, *attempt, *rest))
