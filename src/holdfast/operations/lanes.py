"""Listing and configuring lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.domain.routing import EventScope, Lane, LaneBackoff, LaneOrder, LaneState
from holdfast.operations.sessions import refresh_sessions, sessions_of
from holdfast.storage.contract import Transaction
from holdfast.storage.notifications import lane_topic, sessions_topic


async def lanes(tx: Transaction) -> list[Lane]:
    """Return every lane that was configured or used, sorted by name."""
    routing = await tx.routing()
    names = {key.lane for key in routing.routes} | set(routing.lanes)
    return [routing.lane(name) for name in sorted(names)]


class LaneChange(NamedTuple):
    """New options of a lane; None keeps the current value."""

    state: LaneState | None = None
    order: LaneOrder | None = None
    events: EventScope | None = None
    backoff: LaneBackoff | None = None


async def set_lane(tx: Transaction, name: str, change: LaneChange) -> tuple[Lane, list[int]]:
    """Change the given options of a lane; return the lane and its routes."""
    await tx.lock_routing()
    routing = await tx.routing()
    before = routing.lane(name)
    after = before._replace(**{option: value for option, value in change._asdict().items() if value is not None})
    await tx.set_lane(after)
    tx.notify([lane_topic(name), sessions_topic(name)])
    return after, [route.number for key, route in routing.routes.items() if key.lane == name]


async def apply_lane_options(tx: Transaction, seqs: Sequence[int]) -> None:
    """Set the fairness keys of these jobs and the heads of their sessions by the options of their lanes."""
    routing = await tx.routing()
    jobs = await tx.jobs_by_seq(seqs)
    keyed = [(routing.lane(job.lane).fair_key_of(job.tenant), job) for job in jobs]
    await tx.update_fair_keys([(fair_key, job.seq) for fair_key, job in keyed if fair_key != job.fair_key])
    if numbers := sessions_of(jobs):
        await refresh_sessions(tx, routing, numbers, await tx.now())
