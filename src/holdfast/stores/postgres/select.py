"""Choosing ready jobs on PostgreSQL: heads are read without locks, what was chosen is locked and looked at again.

Workers meet at the same heads. What somebody else has in hand is skipped, never waited for; a claim that got nothing
looks again, past those jobs and a little further than it needs.
"""

from __future__ import annotations

from holdfast.domain.claim import ClaimRequest
from holdfast.domain.job import Job
from holdfast.domain.lane import Route
from holdfast.domain.ordering import Preference
from holdfast.stores.engine import Selection
from holdfast.stores.script import Script, Statement
from holdfast.stores.scripts.ready import (
    Level,
    choose_from,
    first_level,
    is_one_stream,
    offer_of,
    select_stream,
)

# How many more jobs than wanted it looks at, each time that all it had chosen were taken by others.
_SPARES = (16, 64, 256)


def select_ready(
    request: ClaimRequest, preference: Preference, routes: list[Route], limit: int
) -> Script[Selection | None]:
    """Choose and lock up to *limit* ready jobs of the first level that has any for us, in the order of claiming."""
    taken: list[int] = []
    for spare in (limit // 8, *_SPARES):
        level = yield from first_level(request, routes, limit + spare, taken)
        if level is None:
            return None
        if not taken and is_one_stream(level, preference):
            selection = yield from select_stream(level, preference, limit)
            if selection.jobs:
                return selection
        selection, chosen = yield from _select(level, preference, limit)
        if selection.jobs:
            return selection
        taken += chosen
    return None


def _select(level: Level, preference: Preference, limit: int) -> Script[tuple[Selection, list[int]]]:
    """Return what could be locked of those chosen, and which those were."""
    offer = yield from offer_of(level, preference)
    chosen = [candidate.seq for candidate in choose_from(offer, level.limit, preference)]
    rows = []
    if chosen:
        rows = yield Statement("ready_take", {"seqs": chosen, "priority": level.priority, "limit": limit})
    return Selection([Job._make(row) for row in rows], *offer.round), chosen
