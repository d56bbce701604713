"""The page Flow: lanes, limits, schedules and groups."""

from typing import NamedTuple

from starlette.responses import Response

from holdfast.dashboard import rendering
from holdfast.dashboard.visits import Visit
from holdfast.domain import access
from holdfast.domain.results import Backlog, Waiting
from holdfast.domain.routing import Lane
from holdfast.operations import overview as overview_operations

_SCHEDULES_MAX = 200
_GROUPS_MAX = 30


class LaneRow(NamedTuple):
    """A lane with what waits in it."""

    lane: Lane
    jobs: int | None
    """Ready jobs; None if the viewer may not see those of all tenants."""
    oldest_seconds: float | None
    kinds: tuple[Waiting, ...]


def lane_rows(lanes: list[Lane], backlog: Backlog | None, grants: access.Grants) -> list[LaneRow]:
    """Return the lanes that the viewer may see; those in which jobs wait first, longest wait first."""
    rows = []
    for lane in lanes:
        if grants.lanes is not None and lane.name not in grants.lanes:
            continue
        if backlog is None:
            rows.append(LaneRow(lane, None, None, ()))
            continue
        waiting = tuple(one for one in backlog.ready if one.lane == lane.name)
        oldest = max((one.oldest_age_seconds for one in waiting), default=None)
        rows.append(LaneRow(lane, sum(one.jobs for one in waiting), oldest, waiting))
    return sorted(rows, key=lambda row: (-(row.oldest_seconds or -1), row.lane.name))


async def show(visit: Visit) -> Response:
    """Show lanes, limits, schedules and groups."""
    backlog = None
    if visit.may("backlog"):
        backlog = await visit.shared.read("backlog", lambda: visit.service.runner.read(overview_operations.backlog))
    lanes = lane_rows(await visit.queue.lanes.list(), backlog, visit.grants)
    schedules = None
    if visit.may("list_schedules"):
        schedules = await visit.queue.schedules.list(tenant=visit.tenant, limit=_SCHEDULES_MAX)
    limits = await visit.queue.limits.list() if visit.may("list_limits") else None
    groups = None
    if visit.may("list_groups"):
        groups = await visit.queue.groups.list(tenant=visit.tenant, limit=_GROUPS_MAX)
    return rendering.page(
        visit, "flow.html", "Flow", lanes=lanes, backlog=backlog, limits=limits, schedules=schedules, groups=groups
    )
