"""Selecting ready jobs, the part that engines share: seek the heads of each route; the domain's order chooses.

No query scans. Per level (listed kind, priority) it seeks the next fair_keys, then the first jobs of each; the number
of seeks depends on routes, fair_keys and the limit, never on the number of waiting jobs.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from holdfast.domain import claim_order, claims, routing
from holdfast.storage import query_names, sql_queries
from holdfast.storage.contract import ReadyJobs, ReadyRequest
from holdfast.storage.sql_transaction import SqlTransaction

# How many other affinities a claim looks at when the time of its own has expired.
_OTHER_AFFINITIES_MAX = 256

Prefix: TypeAlias = tuple[Any, ...]
"""A prefix of the ready index: (route, fair_key) or (route, fair_key, affinity)."""


class SkippedJobs(Protocol):
    """The jobs that an engine skips when it seeks ready jobs, as additional values for its statements."""

    def for_top(self, routes: Sequence[routing.Route]) -> dict[str, Any]:
        """Return the values for seeking the first level."""
        ...

    def for_level(self) -> dict[str, Any]:
        """Return the values for seeking within a level."""
        ...

    def for_prefixes(self, priority: int, prefixes: Sequence[Prefix]) -> dict[str, Any]:
        """Return the values for seeking the first jobs of each prefix."""
        ...


class Level(NamedTuple):
    """The jobs that come first by listed kind and priority."""

    request: claims.ClaimRequest
    listed: int
    priority: int
    routes: list[int]
    plain: list[int]
    """The routes among them whose jobs name no affinity."""
    with_affinity: list[int]
    """The routes among them whose jobs name an affinity."""
    only_fair_key: str | None
    """The only fair_key, or None if there are several."""
    limit: int
    skip: SkippedJobs | None
    """The jobs to skip; None if there is only one writer."""


class _FairPosition(NamedTuple):
    """The fairness position among the jobs of one affinity rank."""

    scope: str | None
    last_fair_key: str | None


class ReadyOffer(NamedTuple):
    """Candidate jobs, and the streams that have more of them."""

    heads: list[claim_order.ReadyCandidate]
    unfinished: set[Prefix]
    fair_position: _FairPosition


def is_one_stream(level: Level, preference: claim_order.Preference) -> bool:
    """Return whether the level is a single stream, with nothing to choose: one route, one fair_key."""
    return (
        len(level.routes) == 1
        and level.only_fair_key is not None
        and level.request.tenant is None
        and not (level.with_affinity and (preference.affinities or preference.affinities_max is not None))
    )


async def select_stream(
    tx: SqlTransaction, level: Level, preference: claim_order.Preference, limit: int
) -> ReadyJobs:
    """Select the first jobs of a level that is a single stream."""
    [route] = level.routes
    scope = scope_of(level, preference)
    last_fair_key = await tx.last_fair_key(scope)
    values = {"route": route, "priority": level.priority, "fair_key": level.only_fair_key, "limit": limit}
    rows = await tx.query("ready_stream", values)
    jobs = sorted(sql_queries.job_rows(rows), key=lambda job: (job.due_at_ms, job.seq))
    return ReadyJobs(jobs, scope, last_fair_key)


def scope_of(level: Level, preference: claim_order.Preference) -> str:
    """Return the scope in which the tenants of a level alternate, if no affinity is preferred."""
    rank = preference.rank(None) if level.plain else 1
    return level.request.fair_scope(level.listed, level.priority, preference, rank)


def choose_from(
    offer: ReadyOffer, limit: int, preference: claim_order.Preference
) -> list[claim_order.ReadyCandidate]:
    """Return up to *limit* jobs of the offer, in claim order."""
    last_fair_key = offer.fair_position.last_fair_key
    fair_keys = (
        {}
        if last_fair_key is None
        else {claim_order.level_of(head, preference): last_fair_key for head in offer.heads}
    )
    return claim_order.choose(offer.heads, limit, preference, fair_keys, offer.unfinished)


async def select_alone(tx: SqlTransaction, selection_request: ReadyRequest) -> ReadyJobs | None:
    """Choose ready jobs of the first level that has any, up to the limit, in claim order, without locks."""
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


# --- the level -----------------------------------------------------------------------------------------------------


async def first_level(
    tx: SqlTransaction,
    request: claims.ClaimRequest,
    routes: list[routing.Route],
    limit: int,
    skip: SkippedJobs | None = None,
) -> Level | None:
    """Return the first level that has any ready job on these routes, skipping *skip*."""
    tops = await _tops(tx, request, tops_values(routes, skip))
    if not tops:
        return None
    keys = {route.number: route.key for route in routes}
    ranked = [((request.rank_of(keys[row[0]].kind), -row[1]), row) for row in tops]
    first = min(rank for rank, _ in ranked)
    first_rows = [row for rank, row in ranked if rank == first]
    numbers = list(dict.fromkeys(row[0] for row in first_rows))
    fair_keys = {fair_key for row in first_rows for fair_key in row[2:]}
    return Level(
        request=request,
        listed=first[0],
        priority=-first[1],
        routes=numbers,
        plain=[number for number in numbers if not keys[number].has_affinity],
        with_affinity=[number for number in numbers if keys[number].has_affinity],
        only_fair_key=fair_keys.pop() if len(fair_keys) == 1 else None,
        limit=limit,
        skip=skip,
    )


def tops_values(routes: Sequence[routing.Route], skip: SkippedJobs | None) -> dict[str, Any]:
    """Return the values for seeking the first level."""
    return {"routes": [route.number for route in routes], **({} if skip is None else skip.for_top(routes))}


async def _tops(tx: SqlTransaction, request: claims.ClaimRequest, values: dict[str, Any]) -> list[sql_queries.Row]:
    if request.tenant is None:
        rows: list[sql_queries.Row] = await tx.query("ready_tops", values)
        return rows
    # A lane may be fair, strict, or changing from one to the other, so both are looked at.
    values["tenant"] = request.tenant
    fair = await tx.query("ready_tops_of_tenant", values)
    strict = await tx.query("ready_tops_of_tenant_strict", values)
    return [*fair, *strict]


def _skip_values(level: Level) -> dict[str, Any]:
    """Return the values that make a statement skip jobs, if the engine's statements take them."""
    return {} if level.skip is None else level.skip.for_level()


# --- candidates ----------------------------------------------------------------------------------------------------


async def offer_of(tx: SqlTransaction, level: Level, preference: claim_order.Preference) -> ReadyOffer:
    """Return enough candidates of the level: those of the better affinity rank if there are any."""
    if preference.affinities and level.with_affinity:
        if level.only_fair_key is not None and level.request.tenant is None and not preference.expired:
            # These do not depend on the fairness position, and are read with it.
            prefixes = _prefixes_beside(level, level.only_fair_key, sorted(preference.affinities))
            await tx.read_ahead("ready_heads_beside", lambda: _head_values(level, "ready_heads_beside", prefixes))
        preferred = await _fair_position(tx, level, preference, 0)
        if preference.expired:
            offer = await _other_affinities(tx, level, preference, preferred)
        else:
            offer = await _heads_beside(tx, level, sorted(preference.affinities), preferred)
        if offer.heads:
            return offer
    rank = preference.rank(None) if level.plain else 1
    if level.only_fair_key is not None and level.request.tenant is None:
        streams = [(route, level.only_fair_key) for route in level.routes]
        await tx.read_ahead("ready_heads", lambda: _head_values(level, "ready_heads", streams))
    fair_position = await _fair_position(tx, level, preference, rank)
    return await _heads(tx, level, level.routes, fair_position)


async def _fair_position(
    tx: SqlTransaction, level: Level, preference: claim_order.Preference, rank: int
) -> _FairPosition:
    if level.request.tenant is not None:
        return _FairPosition(None, None)
    scope = level.request.fair_scope(level.listed, level.priority, preference, rank)
    return _FairPosition(scope, await tx.last_fair_key(scope))


async def _other_affinities(
    tx: SqlTransaction, level: Level, preference: claim_order.Preference, fair_position: _FairPosition
) -> ReadyOffer:
    """Return jobs with another affinity or none, for a worker whose preference for its own has expired."""
    first = await _heads(tx, level, level.routes, fair_position)
    heads = choose_from(first, 1, claim_order.Preference())
    if not heads or (head := heads[0]).affinity not in preference.affinities:
        return first
    values = {
        "routes": level.with_affinity,
        "priority": level.priority,
        "after": head.affinity,
        "limit": _OTHER_AFFINITIES_MAX,
        **_skip_values(level),
    }
    rows = await tx.query("ready_affinities", values)
    others = list(dict.fromkeys(affinity for (affinity,) in rows if affinity not in preference.affinities))
    beside = await _heads_beside(tx, level, others, fair_position)
    plain = await _heads(tx, level, level.plain, fair_position)
    return ReadyOffer([*beside.heads, *plain.heads], beside.unfinished | plain.unfinished, fair_position)


async def _heads(tx: SqlTransaction, level: Level, routes: Sequence[int], fair_position: _FairPosition) -> ReadyOffer:
    tenant = level.request.tenant
    if tenant is None:
        prefixes = await _fair_keys(tx, level, routes, fair_position)
        return await _fetch(tx, level, "ready_heads", prefixes, fair_position)
    prefixes = [(route, fair_key_of) for route in routes for fair_key_of in (tenant, "")]
    fair = await _fetch(tx, level, "ready_heads", prefixes[::2], fair_position)
    strict = await _fetch(tx, level, "ready_heads_of_tenant", prefixes[1::2], fair_position)
    return ReadyOffer([*fair.heads, *strict.heads], fair.unfinished | strict.unfinished, fair_position)


async def _heads_beside(
    tx: SqlTransaction, level: Level, affinities: list[str], fair_position: _FairPosition
) -> ReadyOffer:
    tenant = level.request.tenant
    if tenant is None:
        prefixes = await _fair_keys_beside(tx, level, affinities, fair_position)
        return await _fetch(tx, level, "ready_heads_beside", prefixes, fair_position)
    beside = [(route, affinity) for route in level.with_affinity for affinity in affinities]
    fair_prefixes = [(route, tenant, affinity) for route, affinity in beside]
    strict_prefixes = [(route, "", affinity) for route, affinity in beside]
    fair = await _fetch(tx, level, "ready_heads_beside", fair_prefixes, fair_position)
    strict = await _fetch(tx, level, "ready_heads_of_tenant_beside", strict_prefixes, fair_position)
    return ReadyOffer([*fair.heads, *strict.heads], fair.unfinished | strict.unfinished, fair_position)


async def _fetch(
    tx: SqlTransaction,
    level: Level,
    statement: query_names.QueryName,
    prefixes: Sequence[Prefix],
    fair_position: _FairPosition,
) -> ReadyOffer:
    """Return the first jobs of each prefix: up to the limit of a single one, fewer of each if there are many."""
    if not prefixes:
        return ReadyOffer([], set(), fair_position)
    values = _head_values(level, statement, prefixes)
    rows = await tx.query(statement, values)
    width = len(prefixes[0])
    heads = [_candidate(level, row, width) for row in rows]
    counted = Counter(head.stream for head in heads)
    return ReadyOffer(heads, {prefix for prefix in prefixes if counted[prefix] >= values["limit"]}, fair_position)


def _head_values(level: Level, statement: query_names.QueryName, prefixes: Sequence[Prefix]) -> dict[str, Any]:
    """Return the values for seeking the first jobs of each prefix."""
    fair_keys = len({prefix[1] for prefix in prefixes})
    of_each_key = -(-level.limit // fair_keys)
    # One fair_key may have many prefixes; twice its even share of each is nearly always enough.
    window = min(level.limit, of_each_key, 1 + 2 * of_each_key * fair_keys // len(prefixes))
    values: dict[str, Any] = {
        "prefixes": [list(prefix) for prefix in prefixes],
        "priority": level.priority,
        "limit": window,
        **_skip_values(level),
    }
    if statement == "ready_heads" and level.skip is not None:
        values |= level.skip.for_prefixes(level.priority, prefixes)
    if statement.startswith("ready_heads_of_tenant"):
        values["tenant"] = level.request.tenant
    return values


def _candidate(level: Level, row: sql_queries.Row, width: int) -> claim_order.ReadyCandidate:
    seq, route, affinity, fair_key, due_at_ms = row
    # A claim for one tenant ignores fair_keys: jobs of a strict lane must not always come first.
    key = fair_key if level.request.tenant is None else ""
    return claim_order.ReadyCandidate(
        level.listed, level.priority, affinity, key, due_at_ms, seq, (route, fair_key, affinity)[:width]
    )


# --- the next fair_keys --------------------------------------------------------------------------------------------


async def _fair_keys(
    tx: SqlTransaction, level: Level, routes: Sequence[int], fair_position: _FairPosition
) -> list[Prefix]:
    if level.only_fair_key is not None:
        return [(route, level.only_fair_key) for route in routes]
    rows = await tx.query("ready_fair_keys", {"routes": list(routes), **_next(level, fair_position)})
    return _within_reach(rows, level, fair_position)


async def _fair_keys_beside(
    tx: SqlTransaction, level: Level, affinities: list[str], fair_position: _FairPosition
) -> list[Prefix]:
    if level.only_fair_key is not None:
        return _prefixes_beside(level, level.only_fair_key, affinities)
    values = {"routes": level.with_affinity, "affinities": affinities, **_next(level, fair_position)}
    rows = await tx.query("ready_fair_keys_beside", values)
    return _within_reach(rows, level, fair_position)


def _prefixes_beside(level: Level, fair_key: str, affinities: Sequence[str]) -> list[Prefix]:
    return [(route, fair_key, affinity) for route in level.with_affinity for affinity in affinities]


def _next(level: Level, fair_position: _FairPosition) -> dict[str, object]:
    return {
        "priority": level.priority,
        "last_fair_key": fair_position.last_fair_key or "",
        "limit": level.limit,
        **_skip_values(level),
    }


def _within_reach(prefixes: Iterable[Prefix], level: Level, fair_position: _FairPosition) -> list[Prefix]:
    """Return the prefixes of the fair_keys that the limit can reach."""
    found = list(dict.fromkeys(prefixes))
    fair_keys = sorted(
        {prefix[1] for prefix in found},
        key=lambda name: claim_order.fair_order_key(name, fair_position.last_fair_key),
    )
    reachable = set(fair_keys[: level.limit])
    return [prefix for prefix in found if prefix[1] in reachable]
