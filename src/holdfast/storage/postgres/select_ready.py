"""Select ready jobs on PostgreSQL: heads are read without locks; chosen jobs are locked, checked and leased.

Workers compete for the same heads. Jobs locked by another claim are skipped, never waited for; a claim that got
nothing looks again, past those jobs and a little further than it needs. If scan positions are known it starts there,
and looks again without them if it found fewer jobs than requested.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any, NamedTuple, cast

from holdfast.domain.claims import ClaimRequest
from holdfast.domain.clock import Now
from holdfast.domain.job import Job
from holdfast.domain.routing import Route
from holdfast.storage.contract import ReadyJobs, ReadyRequest
from holdfast.storage.postgres.scan_positions import Behind, ScanPosition, ScanPositions
from holdfast.storage.query_names import QueryName
from holdfast.storage.select_ready import Level, Place, choose_from, first_level, is_one_stream, offer_of, scope_of
from holdfast.storage.sql_queries import Row
from holdfast.storage.sql_transaction import SqlTransaction

# How many extra jobs to look at after each time that other claims took all chosen ones.
_SPARES = (16, 64, 256)


class _Look(NamedTuple):
    """The result of one look: the leased jobs, the chosen ones, and where each route of the level begins."""

    selection: ReadyJobs
    chosen: list[int]
    heads: dict[int, ScanPosition]
    barred: bool = False
    """Whether the first job would exceed the limit of affinities."""


async def select_ready(tx: SqlTransaction, marks: ScanPositions, wanted: ReadyRequest) -> ReadyJobs | None:
    """Choose and lease ready jobs of the first level that has any available, up to the limit, in claim order."""
    limit, known = wanted.limit, marks.of(wanted.routes)
    if known:
        look = await _look(tx, marks, wanted, Behind([], known), limit // 8, least=limit)
        if look is not None and look.selection.jobs:
            _move(marks, look, seen_all=False)
            return look.selection
        marks.drop(wanted.routes)
    taken: list[int] = []
    for spare in (limit // 8, *_SPARES):
        look = await _look(tx, marks, wanted, Behind(taken, {}), spare)
        if look is None:
            return None
        if look.selection.jobs or look.barred:
            if not taken:
                _move(marks, look, seen_all=True)
            return look.selection
        taken += look.chosen
    return None


def _move(marks: ScanPositions, look: _Look, *, seen_all: bool) -> None:
    for route, mark in look.heads.items():
        marks.move(route, mark, seen_all=seen_all)


async def _look(
    tx: SqlTransaction, marks: ScanPositions, wanted: ReadyRequest, behind: Behind, spare: int, least: int = 0
) -> _Look | None:
    """Look once; if fewer jobs than *least* are available, lease none."""
    level = await first_level(tx, wanted.request, wanted.routes, wanted.limit + spare, behind)
    if level is None:
        return None
    if not behind.taken and is_one_stream(level, wanted.preference):
        selection = await _take_stream(tx, marks, wanted, level, behind, least)
        if selection.jobs:
            [route] = level.routes
            return _Look(
                selection, [], _heads(level, [(route, job.due_at_ms, job.seq) for job in selection.jobs[:1]])
            )
    return await _choose(tx, wanted, level, least)


async def _take_stream(
    tx: SqlTransaction, marks: ScanPositions, wanted: ReadyRequest, level: Level, behind: Behind, least: int
) -> ReadyJobs:
    """Lease the first jobs of a level that is a single stream."""
    assert level.only_fair_key is not None  # noqa: S101  # true for a single stream
    [route] = level.routes
    scope = scope_of(level, wanted.preference)
    last_fair_key = (
        level.only_fair_key if marks.last_fair_key(scope) == level.only_fair_key else (await tx.last_fair_key(scope))
    )
    due_low, seq_low = behind.low(level.priority, route, level.only_fair_key)
    values = {
        "route": route,
        "priority": level.priority,
        "fair_key": level.only_fair_key,
        "due_low": due_low,
        "seq_low": seq_low,
        "least": least,
    }
    jobs, now = await lease(tx, wanted, "ready_lease_stream", values)
    if jobs:
        marks.remember_fair_key(scope, level.only_fair_key)
    return ReadyJobs(jobs, scope, last_fair_key, now)


async def _choose(tx: SqlTransaction, wanted: ReadyRequest, level: Level, least: int) -> _Look:
    preference = wanted.preference
    offer = await offer_of(tx, level, preference)
    chosen = [candidate.seq for candidate in choose_from(offer, level.limit, preference)]
    jobs: list[Job] = []
    now = None
    if chosen:
        values = {"seqs": chosen, "priority": level.priority, "least": least}
        jobs, now = await lease(tx, wanted, "ready_lease", values)
    heads = {}
    if not preference.affinities:
        # With an affinity, not every job of the route was read.
        first_last = sorted(offer.heads, key=lambda head: (head.due_at_ms, head.seq), reverse=True)
        heads = _heads(level, [(cast(Place, head.stream)[0], head.due_at_ms, head.seq) for head in first_last])
    return _Look(ReadyJobs(jobs, *offer.round, now), chosen, heads, bool(offer.heads) and not chosen)


def _heads(level: Level, seen: Iterable[tuple[int, int, int]]) -> dict[int, ScanPosition]:
    """Return where each route begins, from the jobs *seen* on it, the first of which is last.

    Only for a single fair_key: with several, the first job depends on the fairness position.
    """
    if level.only_fair_key is None or level.request.tenant is not None:
        return {}
    return {
        route: ScanPosition(level.priority, level.only_fair_key, due_at_ms, seq) for route, due_at_ms, seq in seen
    }


# The columns that the statements return: those of a job in order, except for omitted ones.
_ROUTE, _CLAIM_PLACE = 2, 19


_NO_ENTRY = (None, None, None)


async def lease(
    tx: SqlTransaction, wanted: ReadyRequest, statement: QueryName, values: dict[str, Any]
) -> tuple[list[Job], Now]:
    """Lease the jobs that *statement* finds, up to the limit, in claim order; return the jobs and the time."""
    request, now = wanted.request, (await tx.now())
    lease_until_ms = now.lease_ms + request.lease_ms
    values |= {
        "limit": wanted.limit,
        "place": wanted.place,
        "loud": [route.number for route in wanted.routes if route.key.lane in wanted.loud],
        "worker": request.worker,
        "incarnation": request.incarnation,
        "lease_token": request.lease_token,
        "lease_until_ms": lease_until_ms,
        "acknowledged": request.acknowledged,
        "now": now.wall_ms,
    }
    rows = await tx.query(statement, values)
    routes = {route.number: route for route in wanted.routes}
    jobs = [_leased(row, routes[row[_ROUTE]], request, lease_until_ms, now) for row in rows]
    return sorted(jobs, key=attrgetter("claim_place")), now


def _leased(row: Row, route: Route, request: ClaimRequest, lease_until_ms: int, now: Now) -> Job:
    """Return the job of *row*, completed with the values common to the claim and those of its route."""
    lane, kind, requires_json = route.key[:3]
    holder = (request.worker, request.incarnation, request.lease_token, lease_until_ms)
    # By index, because this runs once for every claimed job.
    head = (*row[:_ROUTE], "running", kind, lane, *row[_ROUTE + 1 : 7], requires_json, *row[7:_CLAIM_PLACE])
    attempt = (*holder, row[_CLAIM_PLACE], now.wall_ms, None, None, None, None)
    # A plain claim takes no session entries, so their columns are not sent.
    return tuple.__new__(Job, (*head, *attempt, *row[_CLAIM_PLACE + 1 : -2], *_NO_ENTRY, *row[-2:]))
