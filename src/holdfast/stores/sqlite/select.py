"""Choosing ready jobs on SQLite, where nobody else can take them meanwhile."""

from __future__ import annotations

from holdfast.stores.contract import ReadyJobs, ReadyRequest
from holdfast.stores.ready import choose_from, first_level, is_one_stream, offer_of, select_stream
from holdfast.stores.sql_transaction import SqlTransaction


async def select_ready(tx: SqlTransaction, wanted: ReadyRequest) -> ReadyJobs | None:
    """Choose up to the limit of ready jobs of the first level that has any, in the order of claiming."""
    request, preference, routes, limit = wanted[:4]
    level = await first_level(tx, request, routes, limit)
    if level is None:
        return None
    if is_one_stream(level, preference):
        return await select_stream(tx, level, preference, limit)
    offer = await offer_of(tx, level, preference)
    chosen = choose_from(offer, limit, preference)
    jobs = {job.seq: job for job in await tx.jobs_by_seq([candidate.seq for candidate in chosen])}
    return ReadyJobs([jobs[candidate.seq] for candidate in chosen], *offer.round)
