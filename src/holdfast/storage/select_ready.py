"""Selecting ready jobs, the part that engines share: seek the heads of each route; the domain's order chooses.

No query scans. Per level (listed kind, priority) it seeks the next fair_keys, then the first jobs of each; the number
of seeks depends on routes, fair_keys and the limit, never on the number of waiting jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from holdfast.domain.claim_order import Preference, ReadyCandidate, choose, fair_order_key, level_of
from holdfast.domain.claims import ClaimRequest
from holdfast.domain.job import Job
from holdfast.domain.routing import Route
from holdfast.storage.contract import ReadyJobs
from holdfast.storage.query_names import QueryName
from holdfast.storage.sql_queries import Row
from holdfast.storage.sql_transaction import SqlTransaction

# How many other affinities a claim looks at when the time of its own has expired.
_AFFINITIES_LOOKED_AT = 256

Place: TypeAlias = tuple[Any, ...]
"""A prefix of the ready index: (route, fair_key) or (route, fair_key, affinity)."""


class Past(Protocol):
    """The jobs that an engine skips when it seeks ready jobs, as additional values for its statements."""

    def at_top(self, routes: Sequence[Route]) -> dict[str, Any]:
        """Return the values for seeking the first level."""
        ...

    def in_level(self) -> dict[str, Any]:
        """Return the values for seeking within a level."""
        ...

    def in_places(self, priority: int, places: Sequence[Place]) -> dict[str, Any]:
        """Return the values for seeking the first jobs of each place."""
        ...


class Level(NamedTuple):
    """The jobs that come first by listed kind and priority."""

    request: ClaimRequest
    listed: int
    priority: int
    routes: list[int]
    plain: list[int]
    """The routes among them whose jobs name no affinity."""
    placed: list[int]
    """The routes among them whose jobs name an affinity."""
    only_fair_key: str | None
    """The only fair_key, or None if there are several."""
    limit: int
    past: Past | None
    """The jobs to skip; None if there is only one writer."""


class _Round(NamedTuple):
    """The fairness position among the jobs of one affinity rank."""

    scope: str | None
    last_fair_key: str | None


class ReadyOffer(NamedTuple):
    """Candidate jobs, and the streams that have more of them."""

    heads: list[ReadyCandidate]
    unfinished: set[Place]
    round: _Round


def is_one_stream(level: Level, preference: Preference) -> bool:
    """Return whether the level is a single stream, with nothing to choose: one route, one fair_key."""
    return (
        len(level.routes) == 1
        and level.only_fair_key is not None
        and level.request.tenant is None
        and not (level.placed and (preference.affinities or preference.most is not None))
    )


async def select_stream(tx: SqlTransaction, level: Level, preference: Preference, limit: int) -> ReadyJobs:
    """Select the first jobs of a level that is a single stream."""
    [route] = level.routes
    scope = scope_of(level, preference)
    last_fair_key = await tx.last_fair_key(scope)
    values = {"route": route, "priority": level.priority, "fair_key": level.only_fair_key, "limit": limit}
    rows = await tx.query("ready_stream", values)
    jobs = sorted(map(Job._make, rows), key=lambda job: (job.due_at_ms, job.seq))
    return ReadyJobs(jobs, scope, last_fair_key)


def scope_of(level: Level, preference: Preference) -> str:
    """Return the scope in which the tenants of a level alternate, if no affinity is preferred."""
    rank = preference.rank(None) if level.plain else 1
    return level.request.fair_scope(level.listed, level.priority, preference, rank)


def choose_from(offer: ReadyOffer, limit: int, preference: Preference) -> list[ReadyCandidate]:
    """Return up to *limit* jobs of the offer, in claim order."""
    last_fair_key = offer.round.last_fair_key
    fair_keys = {} if last_fair_key is None else {level_of(head, preference): last_fair_key for head in offer.heads}
    return choose(offer.heads, limit, preference, fair_keys, offer.unfinished)


# --- the level -----------------------------------------------------------------------------------------------------


async def first_level(
    tx: SqlTransaction, request: ClaimRequest, routes: list[Route], limit: int, past: Past | None = None
) -> Level | None:
    """Return the first level that has any ready job on these routes, skipping *past*."""
    beyond = {} if past is None else past.at_top(routes)
    tops = await _tops(tx, request, {"routes": [route.number for route in routes], **beyond})
    if not tops:
        return None
    keys = {route.number: route.key for route in routes}
    ranked = [((request.rank_of(keys[row[0]].kind), -row[1]), row) for row in tops]
    first = min(rank for rank, _ in ranked)
    there = [row for rank, row in ranked if rank == first]
    numbers = list(dict.fromkeys(row[0] for row in there))
    fair_keys = {fair_key for row in there for fair_key in row[2:]}
    return Level(
        request=request,
        listed=first[0],
        priority=-first[1],
        routes=numbers,
        plain=[number for number in numbers if not keys[number].placed],
        placed=[number for number in numbers if keys[number].placed],
        only_fair_key=fair_keys.pop() if len(fair_keys) == 1 else None,
        limit=limit,
        past=past,
    )


async def _tops(tx: SqlTransaction, request: ClaimRequest, values: dict[str, Any]) -> list[Row]:
    if request.tenant is None:
        rows: list[Row] = await tx.query("ready_tops", values)
        return rows
    # A lane may be fair, strict, or changing from one to the other, so both are looked at.
    values["tenant"] = request.tenant
    fair = await tx.query("ready_tops_of_tenant", values)
    strict = await tx.query("ready_tops_of_tenant_strict", values)
    return [*fair, *strict]


def _beyond(level: Level) -> dict[str, Any]:
    """Return the values that make a statement skip jobs, if the engine's statements take them."""
    return {} if level.past is None else level.past.in_level()


# --- candidates ----------------------------------------------------------------------------------------------------


async def offer_of(tx: SqlTransaction, level: Level, preference: Preference) -> ReadyOffer:
    """Return enough candidates of the level: those of the better affinity rank if there are any."""
    if preference.affinities and level.placed:
        favoured = await _round(tx, level, preference, 0)
        if preference.expired:
            offer = await _kept_waiting(tx, level, preference, favoured)
        else:
            offer = await _heads_beside(tx, level, sorted(preference.affinities), favoured)
        if offer.heads:
            return offer
    rank = preference.rank(None) if level.plain else 1
    ordinary = await _round(tx, level, preference, rank)
    return await _heads(tx, level, level.routes, ordinary)


async def _round(tx: SqlTransaction, level: Level, preference: Preference, rank: int) -> _Round:
    if level.request.tenant is not None:
        return _Round(None, None)
    scope = level.request.fair_scope(level.listed, level.priority, preference, rank)
    return _Round(scope, await tx.last_fair_key(scope))


async def _kept_waiting(tx: SqlTransaction, level: Level, preference: Preference, fair_round: _Round) -> ReadyOffer:
    """Return jobs with another affinity or none, for a worker whose preference for its own has expired."""
    first = await _heads(tx, level, level.routes, fair_round)
    heads = choose_from(first, 1, Preference())
    if not heads or (head := heads[0]).affinity not in preference.affinities:
        return first
    values = {
        "routes": level.placed,
        "priority": level.priority,
        "after": head.affinity,
        "limit": _AFFINITIES_LOOKED_AT,
        **_beyond(level),
    }
    named = await tx.query("ready_affinities", values)
    others = list(dict.fromkeys(affinity for (affinity,) in named if affinity not in preference.affinities))
    beside = await _heads_beside(tx, level, others, fair_round)
    plain = await _heads(tx, level, level.plain, fair_round)
    return ReadyOffer([*beside.heads, *plain.heads], beside.unfinished | plain.unfinished, fair_round)


async def _heads(tx: SqlTransaction, level: Level, routes: Sequence[int], fair_round: _Round) -> ReadyOffer:
    tenant = level.request.tenant
    if tenant is None:
        places = await _fair_keys(tx, level, routes, fair_round)
        return await _fetch(tx, level, "ready_heads", places, fair_round)
    places = [(route, fair_key_of) for route in routes for fair_key_of in (tenant, "")]
    fair = await _fetch(tx, level, "ready_heads", places[::2], fair_round)
    strict = await _fetch(tx, level, "ready_heads_of_tenant", places[1::2], fair_round)
    return ReadyOffer([*fair.heads, *strict.heads], fair.unfinished | strict.unfinished, fair_round)


async def _heads_beside(tx: SqlTransaction, level: Level, affinities: list[str], fair_round: _Round) -> ReadyOffer:
    tenant = level.request.tenant
    if tenant is None:
        places = await _fair_keys_beside(tx, level, affinities, fair_round)
        return await _fetch(tx, level, "ready_heads_beside", places, fair_round)
    beside = [(route, affinity) for route in level.placed for affinity in affinities]
    fair_places = [(route, tenant, affinity) for route, affinity in beside]
    strict_places = [(route, "", affinity) for route, affinity in beside]
    fair = await _fetch(tx, level, "ready_heads_beside", fair_places, fair_round)
    strict = await _fetch(tx, level, "ready_heads_of_tenant_beside", strict_places, fair_round)
    return ReadyOffer([*fair.heads, *strict.heads], fair.unfinished | strict.unfinished, fair_round)


async def _fetch(
    tx: SqlTransaction, level: Level, statement: QueryName, places: Sequence[Place], fair_round: _Round
) -> ReadyOffer:
    """Return the first jobs of each place: up to the limit of a single one, fewer of each if there are many."""
    if not places:
        return ReadyOffer([], set(), fair_round)
    fair_keys = len({place[1] for place in places})
    of_each_key = -(-level.limit // fair_keys)
    # One fair_key may have many places; twice its even share of each is nearly always enough.
    window = min(level.limit, of_each_key, 1 + 2 * of_each_key * fair_keys // len(places))
    values: dict[str, Any] = {
        "places": [list(place) for place in places],
        "priority": level.priority,
        "limit": window,
        **_beyond(level),
    }
    if statement == "ready_heads" and level.past is not None:
        values |= level.past.in_places(level.priority, places)
    if statement.startswith("ready_heads_of_tenant"):
        values["tenant"] = level.request.tenant
    rows = await tx.query(statement, values)
    width = len(places[0])
    heads = [_candidate(level, row, width) for row in rows]
    counted = Counter(head.stream for head in heads)
    return ReadyOffer(heads, {place for place in places if counted[place] >= window}, fair_round)


def _candidate(level: Level, row: Row, width: int) -> ReadyCandidate:
    seq, route, affinity, fair_key, due_at_ms = row
    # A claim for one tenant ignores fair_keys: jobs of a strict lane must not always come first.
    taken = fair_key if level.request.tenant is None else ""
    return ReadyCandidate(
        level.listed, level.priority, affinity, taken, due_at_ms, seq, (route, fair_key, affinity)[:width]
    )


# --- the next fair_keys --------------------------------------------------------------------------------------------


async def _fair_keys(tx: SqlTransaction, level: Level, routes: Sequence[int], fair_round: _Round) -> list[Place]:
    if level.only_fair_key is not None:
        return [(route, level.only_fair_key) for route in routes]
    rows = await tx.query("ready_fair_keys", {"routes": list(routes), **_next(level, fair_round)})
    return _within_reach(rows, level, fair_round)


async def _fair_keys_beside(
    tx: SqlTransaction, level: Level, affinities: list[str], fair_round: _Round
) -> list[Place]:
    if level.only_fair_key is not None:
        return [(route, level.only_fair_key, affinity) for route in level.placed for affinity in affinities]
    values = {"routes": level.placed, "affinities": affinities, **_next(level, fair_round)}
    rows = await tx.query("ready_fair_keys_beside", values)
    return _within_reach(rows, level, fair_round)


def _next(level: Level, fair_round: _Round) -> dict[str, object]:
    return {
        "priority": level.priority,
        "last_fair_key": fair_round.last_fair_key or "",
        "limit": level.limit,
        **_beyond(level),
    }


def _within_reach(places: Iterable[Place], level: Level, fair_round: _Round) -> list[Place]:
    """Return the places of the fair_keys that the limit can reach."""
    found = list(dict.fromkeys(places))
    fair_keys = sorted({place[1] for place in found}, key=lambda name: fair_order_key(name, fair_round.last_fair_key))
    reached = set(fair_keys[: level.limit])
    return [place for place in found if place[1] in reached]
