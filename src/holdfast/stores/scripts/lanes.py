"""Configuring lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.domain.job import Job
from holdfast.domain.lane import EventScope, Lane, LaneBackoff, LaneOrder, LaneState
from holdfast.stores import script
from holdfast.stores.engine import Engine
from holdfast.stores.script import Script, Signal, Statement, lane_topic, sessions_topic
from holdfast.stores.scripts.catalog import hold_catalog, load_catalog, touch_catalog
from holdfast.stores.scripts.moves import write_rows
from holdfast.stores.scripts.sessions import refresh_sessions, sessions_of


def lanes(engine: Engine) -> Script[list[Lane]]:
    """Return every lane that was configured or used, by name."""
    catalog = yield from load_catalog(engine)
    names = {key.lane for key in catalog.routes} | set(catalog.lanes)
    return [catalog.lane(name) for name in sorted(names)]


class LaneChange(NamedTuple):
    """What to change of a lane; None leaves a property as it is."""

    state: LaneState | None = None
    order: LaneOrder | None = None
    events: EventScope | None = None
    backoff: LaneBackoff | None = None


def set_lane(engine: Engine, name: str, change: LaneChange) -> Script[tuple[Lane, list[int]]]:
    """Change what is given and keep the rest; return the lane and the routes in it."""
    yield from hold_catalog()
    catalog = yield from load_catalog(engine)
    before = catalog.lane(name)
    after = before._replace(**{word: value for word, value in change._asdict().items() if value is not None})
    yield Statement(
        "lane_write",
        {
            "lane": name,
            "state": after.state,
            "lane_order": after.order,
            "events": after.events,
            "backoff": after.backoff,
        },
    )
    yield from touch_catalog()
    yield Signal([lane_topic(name), sessions_topic(name)])
    return after, [route.number for key, route in catalog.routes.items() if key.lane == name]


def rearrange(engine: Engine, seqs: Sequence[int]) -> Script[None]:
    """Put these jobs into the turn their lane's order wants, and have sessions offer what its words let them."""
    catalog = yield from load_catalog(engine)
    rows = yield Statement("jobs_by_seq", {"seqs": list(seqs)})
    jobs = [Job._make(row) for row in rows]
    wanted = [(catalog.lane(job.lane).turn_of(job.tenant), job) for job in jobs]
    yield from write_rows("job_turn", [(turn, job.seq) for turn, job in wanted if turn != job.turn])
    if numbers := sessions_of(jobs):
        yield from refresh_sessions(catalog, numbers, (yield from script.now()))
