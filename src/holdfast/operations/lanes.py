"""Configuring lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.domain.routing import EventScope, Lane, LaneBackoff, LaneOrder, LaneState
from holdfast.operations.sessions import refresh_sessions, sessions_of
from holdfast.storage.contract import Transaction
from holdfast.storage.notifications import lane_topic, sessions_topic


async def lanes(tx: Transaction) -> list[Lane]:
    """Return every lane that was configured or used, by name."""
    catalog = await tx.routing()
    names = {key.lane for key in catalog.routes} | set(catalog.lanes)
    return [catalog.lane(name) for name in sorted(names)]


class LaneChange(NamedTuple):
    """What to change of a lane; None leaves a property as it is."""

    state: LaneState | None = None
    order: LaneOrder | None = None
    events: EventScope | None = None
    backoff: LaneBackoff | None = None


async def set_lane(tx: Transaction, name: str, change: LaneChange) -> tuple[Lane, list[int]]:
    """Change what is given and keep the rest; return the lane and the routes in it."""
    await tx.lock_routing()
    catalog = await tx.routing()
    before = catalog.lane(name)
    after = before._replace(**{word: value for word, value in change._asdict().items() if value is not None})
    await tx.set_lane(after)
    tx.notify([lane_topic(name), sessions_topic(name)])
    return after, [route.number for key, route in catalog.routes.items() if key.lane == name]


async def rearrange(tx: Transaction, seqs: Sequence[int]) -> None:
    """Put these jobs into the turn their lane's order wants, and have sessions offer what its words let them."""
    catalog = await tx.routing()
    jobs = await tx.jobs_by_seq(seqs)
    wanted = [(catalog.lane(job.lane).turn_of(job.tenant), job) for job in jobs]
    await tx.update_fair_keys([(turn, job.seq) for turn, job in wanted if turn != job.turn])
    if numbers := sessions_of(jobs):
        await refresh_sessions(tx, catalog, numbers, await tx.now())
