"""Choosing ready jobs on SQLite: seek the heads of each route, let the domain's order choose among them.

Nothing here scans. Per level (listed kind, priority) it seeks the turns that come next, then the first jobs of each;
the number of seeks depends on routes, turns and the limit, never on how many jobs wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast.domain.claim import ClaimRequest
from holdfast.domain.lane import Route
from holdfast.domain.ordering import Candidate, Preference, choose, turn_key
from holdfast.stores.script import Row, Script, Statement

# How many other affinities a claim looks at when its own has used up its time.
_AFFINITIES_LOOKED_AT = 256


class _Level(NamedTuple):
    """The jobs that come first by listed kind and priority, and what is known of them."""

    request: ClaimRequest
    listed: int
    priority: int
    plain: list[int]
    """Routes whose jobs name no affinity."""
    placed: list[int]
    """Routes whose jobs name one."""
    only_turn: str | None
    """The one turn there is, if there is but one."""
    last_turn: str | None
    limit: int

    @property
    def routes(self) -> list[int]:
        return self.plain + self.placed


def select_ready(
    request: ClaimRequest, preference: Preference, routes: list[Route], last_turn: str | None, limit: int
) -> Script[list[int]]:
    """Return up to *limit* ready jobs of the first level that has any, in the order of claiming."""
    level = yield from _first_level(request, routes, last_turn, limit)
    if level is None:
        return []
    found = yield from _candidates(level, preference)
    heads = [_candidate(level, row) for row in found.rows]
    streams = _full_streams(heads, found.window)
    return [candidate.seq for candidate in choose(heads, limit, preference, last_turn, streams)]


class _Found(NamedTuple):
    rows: list[Row]
    window: int
    """How many jobs of each stream were asked for; one that has as many may have more."""


def _candidate(level: _Level, row: Row) -> Candidate:
    seq, route, affinity, turn, due_at_ms = row
    return Candidate(level.listed, level.priority, affinity, turn, due_at_ms, seq, route)


def _full_streams(heads: list[Candidate], window: int) -> set[tuple[int, int, str | None, str]]:
    counted: dict[tuple[int, int, str | None, str], int] = {}
    for head in heads:
        counted[head.stream] = counted.get(head.stream, 0) + 1
    return {stream for stream, number in counted.items() if number >= window}


# --- the level -----------------------------------------------------------------------------------------------------


def _first_level(
    request: ClaimRequest, routes: list[Route], last_turn: str | None, limit: int
) -> Script[_Level | None]:
    tops = yield from _tops(request, [route.number for route in routes])
    if not tops:
        return None
    by_number = {route.number: route for route in routes}
    ranked = [((request.rank_of(by_number[row[0]].key.kind), -row[1]), row) for row in tops]
    first = min(key for key, _ in ranked)
    there = [row for key, row in ranked if key == first]
    numbers = list(dict.fromkeys(row[0] for row in there))
    turns = {turn for row in there for turn in row[2:]}
    return _Level(
        request=request,
        listed=first[0],
        priority=-first[1],
        plain=[number for number in numbers if not by_number[number].key.placed],
        placed=[number for number in numbers if by_number[number].key.placed],
        only_turn=turns.pop() if len(turns) == 1 else None,
        last_turn=last_turn,
        limit=limit,
    )


def _tops(request: ClaimRequest, routes: list[int]) -> Script[list[Row]]:
    if request.tenant is None:
        rows: list[Row] = yield Statement("ready_tops", {"routes": routes})
        return rows
    # A lane may be fair or strict, or on its way from one to the other, so both places are looked at.
    fair = yield Statement("ready_tops_of_tenant", {"routes": routes, "tenant": request.tenant})
    strict = yield Statement("ready_tops_of_tenant_strict", {"routes": routes, "tenant": request.tenant})
    return [*fair, *strict]


# --- the candidates ------------------------------------------------------------------------------------------------


def _candidates(level: _Level, preference: Preference) -> Script[_Found]:
    """Return enough of the level's jobs to choose from, those of the better affinity rank if there are any."""
    favoured = sorted(preference.affinities)
    if not favoured or not level.placed:
        return (yield from _heads(level, level.routes))
    if not preference.expired:
        beside = yield from _heads_beside(level, favoured)
        return beside if beside.rows else (yield from _heads(level, level.routes))
    waiting = yield from _kept_waiting(level, favoured)
    return waiting if waiting.rows else (yield from _heads(level, level.routes))


def _kept_waiting(level: _Level, favoured: list[str]) -> Script[_Found]:
    """Return jobs with another affinity or none, for a worker that has favoured its own for long enough."""
    unplaced = (yield from _heads(level, level.plain)) if level.plain else _Found([], level.limit)
    placed = yield from _heads(level, level.placed)
    others = [row for row in placed.rows if row[2] not in favoured]
    if not others:
        named = yield Statement("ready_affinities", {"after": favoured[0], "limit": _AFFINITIES_LOOKED_AT})
        rest = [affinity for (affinity,) in named if affinity not in favoured]
        others = (yield from _heads_beside(level, rest)).rows if rest else []
    # One job is asked for at a time here, so that windows need not match.
    return _Found([*unplaced.rows, *others], level.limit)


def _heads(level: _Level, routes: Sequence[int]) -> Script[_Found]:
    tenant = level.request.tenant
    if tenant is None:
        turns = yield from _turns(level, routes)
        pairs = _next_in_turn(turns, level)
        return (yield from _fetch(level, "ready_heads", pairs, {"pairs": [list(pair) for pair in pairs]}))
    pairs = [(route, tenant) for route in routes]
    fair = yield from _fetch(level, "ready_heads", pairs, {"pairs": [list(pair) for pair in pairs]}, streams=2)
    values = {"routes": list(routes), "tenant": tenant}
    strict = yield from _fetch(level, "ready_heads_of_tenant", pairs, values, streams=2)
    return _Found([*fair.rows, *strict.rows], fair.window)


def _heads_beside(level: _Level, affinities: list[str]) -> Script[_Found]:
    tenant = level.request.tenant
    if tenant is None:
        turns = yield from _turns_beside(level, affinities)
        triples = _next_in_turn(turns, level)
        values = {"triples": [list(triple) for triple in triples]}
        return (yield from _fetch(level, "ready_heads_beside", triples, values))
    triples = [(route, tenant, affinity) for route in level.placed for affinity in affinities]
    values = {"triples": [list(triple) for triple in triples]}
    fair = yield from _fetch(level, "ready_heads_beside", triples, values, streams=2)
    named = {"routes": level.placed, "affinities": affinities, "tenant": tenant}
    strict = yield from _fetch(level, "ready_heads_of_tenant_beside", triples, named, streams=2)
    return _Found([*fair.rows, *strict.rows], fair.window)


def _fetch(
    level: _Level, statement: str, places: Sequence[object], values: Mapping[str, object], streams: int = 1
) -> Script[_Found]:
    """Return the first jobs of each place: all that may be needed of one, fewer of each where there are many."""
    count = max(len(places) * streams, 1)
    window = min(level.limit, max(4, -(-2 * level.limit // count)))
    rows = yield Statement(statement, {**values, "priority": level.priority, "limit": window})
    return _Found(rows, window)


def _turns(level: _Level, routes: Sequence[int]) -> Script[list[tuple[int, str]]]:
    if level.only_turn is not None:
        return [(route, level.only_turn) for route in routes]
    rows = yield Statement("ready_turns", {"routes": list(routes), **_round(level)})
    return [(route, turn) for route, turn in rows]


def _turns_beside(level: _Level, affinities: list[str]) -> Script[list[tuple[int, str, str]]]:
    if level.only_turn is not None:
        return [(route, level.only_turn, affinity) for route in level.placed for affinity in affinities]
    values = {"routes": level.placed, "affinities": affinities, **_round(level)}
    rows = yield Statement("ready_turns_beside", values)
    return [(route, turn, affinity) for route, affinity, turn in rows]


def _round(level: _Level) -> dict[str, object]:
    return {"priority": level.priority, "last_turn": level.last_turn or "", "limit": level.limit}


def _next_in_turn(places: Iterable[tuple[int, str, *tuple[str, ...]]], level: _Level) -> list[tuple[object, ...]]:
    """Keep the places of those turns that can be reached within the limit."""
    found = list(dict.fromkeys(places))
    turns = sorted({place[1] for place in found}, key=lambda turn: turn_key(turn, level.last_turn))
    reached = set(turns[: level.limit])
    return [place for place in found if place[1] in reached]
