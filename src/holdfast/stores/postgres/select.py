"""Choosing ready jobs on PostgreSQL: heads are read without locks, what was chosen is locked and looked at again.

Workers meet at the same heads. What somebody else has in hand is skipped, never waited for; a claim that got nothing
looks again, past those jobs and a little further than it needs. Where the marks tell where a route begins it starts
there, and looks again without them if that brought less than it wants.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, cast

from holdfast.domain.claim import ClaimRequest
from holdfast.domain.job import Job
from holdfast.domain.lane import Route
from holdfast.domain.ordering import Preference
from holdfast.stores.engine import Selection
from holdfast.stores.postgres.marks import Behind, Mark, Marks
from holdfast.stores.script import Script, Statement
from holdfast.stores.scripts.ready import (
    Level,
    Place,
    choose_from,
    first_level,
    is_one_stream,
    offer_of,
    select_stream,
)

# How many more jobs than wanted it looks at, each time that all it had chosen were taken by others.
_SPARES = (16, 64, 256)


class _Wanted(NamedTuple):
    """What a claim asks for."""

    request: ClaimRequest
    preference: Preference
    routes: list[Route]
    limit: int


class _Look(NamedTuple):
    """What one look brought: the jobs locked, those chosen, and where each route of its level begins."""

    selection: Selection
    chosen: list[int]
    heads: dict[int, Mark]


def select_ready(
    marks: Marks, request: ClaimRequest, preference: Preference, routes: list[Route], limit: int
) -> Script[Selection | None]:
    """Choose and lock up to *limit* ready jobs of the first level that has any for us, in the order of claiming."""
    wanted = _Wanted(request, preference, routes, limit)
    known = marks.of(routes)
    if known:
        look = yield from _look(wanted, Behind([], known), limit // 8)
        if look is not None and len(look.selection.jobs) == limit:
            _move(marks, look, seen_all=False)
            return look.selection
        marks.drop(routes)
    taken: list[int] = []
    for spare in (limit // 8, *_SPARES):
        look = yield from _look(wanted, Behind(taken, {}), spare)
        if look is None:
            return None
        if look.selection.jobs:
            if not taken:
                _move(marks, look, seen_all=True)
            return look.selection
        taken += look.chosen
    return None


def _move(marks: Marks, look: _Look, *, seen_all: bool) -> None:
    for route, mark in look.heads.items():
        marks.move(route, mark, seen_all=seen_all)


def _look(wanted: _Wanted, behind: Behind, spare: int) -> Script[_Look | None]:
    request, preference, routes, limit = wanted
    level = yield from first_level(request, routes, limit + spare, behind)
    if level is None:
        return None
    if not behind.taken and is_one_stream(level, preference):
        selection = yield from select_stream(level, preference, limit)
        if selection.jobs:
            [route] = level.routes
            return _Look(
                selection, [], _heads(level, [(route, job.due_at_ms, job.seq) for job in selection.jobs[:1]])
            )
    return (yield from _choose(level, preference, limit))


def _choose(level: Level, preference: Preference, limit: int) -> Script[_Look]:
    offer = yield from offer_of(level, preference)
    chosen = [candidate.seq for candidate in choose_from(offer, level.limit, preference)]
    rows = []
    if chosen:
        rows = yield Statement("ready_take", {"seqs": chosen, "priority": level.priority, "limit": limit})
    heads = {}
    if not preference.affinities:
        # Beside an affinity not every job of the route was looked at.
        first_last = sorted(offer.heads, key=lambda head: (head.due_at_ms, head.seq), reverse=True)
        heads = _heads(level, [(cast(Place, head.stream)[0], head.due_at_ms, head.seq) for head in first_last])
    return _Look(Selection([Job._make(row) for row in rows], *offer.round), chosen, heads)


def _heads(level: Level, seen: Iterable[tuple[int, int, int]]) -> dict[int, Mark]:
    """Return where each route begins, from the jobs *seen* on it, the first of which comes last.

    Only where there is one turn: with several, what comes first depends on whose turn it is.
    """
    if level.only_turn is None or level.request.tenant is not None:
        return {}
    return {route: Mark(level.priority, level.only_turn, due_at_ms, seq) for route, due_at_ms, seq in seen}
