"""Choosing ready jobs on SQLite, where nobody else can take them meanwhile."""

from __future__ import annotations

from holdfast.domain.job import Job
from holdfast.stores.engine import Selection, Wanted
from holdfast.stores.script import Script, Statement
from holdfast.stores.scripts.ready import choose_from, first_level, is_one_stream, offer_of, select_stream


def select_ready(wanted: Wanted) -> Script[Selection | None]:
    """Choose up to the limit of ready jobs of the first level that has any, in the order of claiming."""
    request, preference, routes, limit = wanted[:4]
    level = yield from first_level(request, routes, limit)
    if level is None:
        return None
    if is_one_stream(level, preference):
        return (yield from select_stream(level, preference, limit))
    offer = yield from offer_of(level, preference)
    chosen = choose_from(offer, limit, preference)
    rows = yield Statement("jobs_by_seq", {"seqs": [candidate.seq for candidate in chosen]})
    jobs = {job.seq: job for job in map(Job._make, rows)}
    return Selection([jobs[candidate.seq] for candidate in chosen], *offer.round)
