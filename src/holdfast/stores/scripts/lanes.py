"""Configuring lanes."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.domain.job import Job
from holdfast.domain.lane import EventScope, Lane, LaneOrder, LaneState
from holdfast.stores.engine import Engine
from holdfast.stores.script import Script, Signal, Statement, lane_topic
from holdfast.stores.scripts.catalog import hold_catalog, load_catalog, touch_catalog
from holdfast.stores.scripts.moves import write_rows


def lanes(engine: Engine) -> Script[list[Lane]]:
    """Return every lane that was configured or used, by name."""
    catalog = yield from load_catalog(engine)
    names = {key.lane for key in catalog.routes} | set(catalog.lanes)
    return [catalog.lane(name) for name in sorted(names)]


def set_lane(
    engine: Engine, name: str, state: LaneState | None, order: LaneOrder | None, events: EventScope | None
) -> Script[tuple[Lane, list[int]]]:
    """Change what is given and keep the rest; return the lane and the routes in it."""
    yield from hold_catalog()
    catalog = yield from load_catalog(engine)
    before = catalog.lane(name)
    after = Lane(name, state or before.state, order or before.order, events or before.events)
    yield Statement(
        "lane_write",
        {"lane": name, "state": after.state, "lane_order": after.order, "events": after.events},
    )
    yield from touch_catalog()
    yield Signal([lane_topic(name)])
    return after, [route.number for key, route in catalog.routes.items() if key.lane == name]


def rearrange(engine: Engine, seqs: Sequence[int]) -> Script[None]:
    """Put these jobs into the turn their lane's order wants."""
    catalog = yield from load_catalog(engine)
    rows = yield Statement("jobs_by_seq", {"seqs": list(seqs)})
    wanted = [(catalog.lane(job.lane).turn_of(job.tenant), job) for job in map(Job._make, rows)]
    yield from write_rows("job_turn", [(turn, job.seq) for turn, job in wanted if turn != job.turn])
