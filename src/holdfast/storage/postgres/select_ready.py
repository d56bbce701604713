"""Choosing ready jobs on PostgreSQL: heads are read without locks; what was chosen is locked, checked and leased.

Workers meet at the same heads. What somebody else has in hand is skipped, never waited for; a claim that got nothing
looks again, past those jobs and a little further than it needs. Where the marks tell where a route begins it starts
there, and looks again without them if that brought less than it wants.
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

# How many more jobs than wanted it looks at, each time that all it had chosen were taken by others.
_SPARES = (16, 64, 256)


class _Look(NamedTuple):
    """What one look brought: the jobs leased, those chosen, and where each route of its level begins."""

    selection: ReadyJobs
    chosen: list[int]
    heads: dict[int, ScanPosition]
    barred: bool = False
    """Whether what comes first would be one affinity too many."""


async def select_ready(tx: SqlTransaction, marks: ScanPositions, wanted: ReadyRequest) -> ReadyJobs | None:
    """Choose and lease up to the limit of ready jobs of the first level that has any for us, in order of claiming."""
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
    """Look once; with fewer jobs than the *least*, lease none."""
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
    """Lease the first jobs of a level that is a single run of jobs."""
    assert level.only_fair_key is not None  # noqa: S101  # that makes it one
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
        # Beside an affinity not every job of the route was looked at.
        first_last = sorted(offer.heads, key=lambda head: (head.due_at_ms, head.seq), reverse=True)
        heads = _heads(level, [(cast(Place, head.stream)[0], head.due_at_ms, head.seq) for head in first_last])
    return _Look(ReadyJobs(jobs, *offer.round, now), chosen, heads, bool(offer.heads) and not chosen)


def _heads(level: Level, seen: Iterable[tuple[int, int, int]]) -> dict[int, ScanPosition]:
    """Return where each route begins, from the jobs *seen* on it, the first of which comes last.

    Only where there is one fair_key: with several, what comes first depends on whose turn it is.
    """
    if level.only_fair_key is None or level.request.tenant is not None:
        return {}
    return {
        route: ScanPosition(level.priority, level.only_fair_key, due_at_ms, seq) for route, due_at_ms, seq in seen
    }


# Where the columns stand that the statements return; the job's own order, but for what they leave out.
_ROUTE, _CLAIM_PLACE = 2, 19


_NO_ENTRY = (None, None, None)


async def lease(
    tx: SqlTransaction, wanted: ReadyRequest, statement: QueryName, values: dict[str, Any]
) -> tuple[list[Job], Now]:
    """Lease what *statement* finds, up to the limit, in the order of claiming; return the jobs and the moment."""
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
    """Return the job of *row* with what every claim of the call has in common, and what its route tells."""
    lane, kind, requires_json = route.key[:3]
    holder = (request.worker, request.incarnation, request.lease_token, lease_until_ms)
    # By place, as this is done once for every claim.
    head = (*row[:_ROUTE], "running", kind, lane, *row[_ROUTE + 1 : 7], requires_json, *row[7:_CLAIM_PLACE])
    attempt = (*holder, row[_CLAIM_PLACE], now.wall_ms, None, None, None, None)
    # No plain claim takes an entry of a session, so that what only those have is not sent.
    return tuple.__new__(Job, (*head, *attempt, *row[_CLAIM_PLACE + 1 : -2], *_NO_ENTRY, *row[-2:]))
