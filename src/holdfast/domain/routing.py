"""Lanes, routes and the catalog of kinds: the small tables that determine how jobs are accepted and claimed.

A *route* is a numbered combination of lane, kind, required capabilities and whether the job names an affinity. There
are few of them regardless of the number of jobs, and a claim queries only the routes its worker can serve.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from holdfast.domain.gates import LimitRow
from holdfast.domain.kinds import KindRow

LaneState: TypeAlias = Literal["active", "paused", "draining"]
"""Whether jobs of a lane are claimed and enqueued: both, only enqueued, only claimed."""
LaneOrder: TypeAlias = Literal["fair", "strict"]
"""Whether the tenants of a lane alternate, or the claim order applies to all its jobs."""
EventScope: TypeAlias = Literal["terminal", "all"]
"""Which transitions are recorded as events: the final ones, or all."""
LaneBackoff: TypeAlias = Literal["block", "skip"]
"""Whether a session entry that waits for another attempt blocks those behind it, or is skipped."""

LANE_STATES: Final[tuple[LaneState, ...]] = ("active", "paused", "draining")
LANE_ORDERS: Final[tuple[LaneOrder, ...]] = ("fair", "strict")
EVENT_SCOPES: Final[tuple[EventScope, ...]] = ("terminal", "all")
LANE_BACKOFFS: Final[tuple[LaneBackoff, ...]] = ("block", "skip")
DEFAULT_NAME: Final = "default"
_SUBSCRIPTIONS_REMEMBERED: Final = 1_000


@dataclass(frozen=True, slots=True)
class Lane:
    """A named stream of jobs."""

    name: str
    """Its name."""
    state: LaneState = "active"
    """`paused`: no job is claimed; `draining`: no job is enqueued."""
    order: LaneOrder = "fair"
    """`fair`: tenants alternate; `strict`: the claim order applies to all jobs."""
    events: EventScope = "terminal"
    """`all` records every transition of its jobs, `terminal` only the final ones."""
    backoff: LaneBackoff = "block"
    """`block`: a session entry that waits for another attempt blocks those behind it; `skip`: they overtake it."""
    max_waiting: int | None = None
    """How many ready and parked jobs each tenant may have in it; None if any number."""
    target_age: float | None = None
    """For how many seconds its oldest ready job should be due at most; None if there is no target."""
    late: bool = False
    """Whether the oldest was older when it was looked at last; event `late`. It ends at half the target."""


def fair_key_of(lane: Lane, tenant: str) -> str:
    """Return the fair_key of a job of *tenant* in *lane*."""
    return tenant if lane.order == "fair" else ""


_LOOK_MS_MIN: Final = 1_000
_LOOK_MS_MAX: Final = 60_000


class AgeLook(NamedTuple):
    """What follows from the age of the oldest ready job of a lane."""

    late: bool
    """Whether the lane is late."""
    next_at_ms: int
    """When to look again."""


def look_at_age(target_ms: int, oldest_due_at_ms: int | None, now_ms: int, *, late: bool) -> AgeLook:
    """Decide whether a lane with this target is late, which it was before if *late*.

    A lane that is late stays so until its oldest ready job is younger than half the target: one whose age stays near
    the target is late once. The next look is when the oldest job would miss the target, or soon if the lane is late.
    """
    age_ms = 0 if oldest_due_at_ms is None else now_ms - oldest_due_at_ms
    late = age_ms > (target_ms // 2 if late else target_ms)
    wait_ms = target_ms // 4 if late else target_ms - age_ms + 1
    return AgeLook(late, now_ms + min(max(wait_ms, _LOOK_MS_MIN), _LOOK_MS_MAX))


class RouteKey(NamedTuple):
    """The properties that identify a route."""

    lane: str
    kind: str
    requires_json: str
    has_affinity: bool
    """Whether jobs on it name an affinity."""
    session: bool = False
    """Whether jobs on it are session entries, which plain claims ignore."""


class Route(NamedTuple):
    """A route and its number."""

    number: int
    key: RouteKey
    requires: frozenset[str]


class RoutingTable:
    """Lanes, routes and the catalog of kinds of one version. Immutable; a change creates another version."""

    def __init__(
        self,
        version: int,
        lanes: Iterable[Lane],
        routes: Iterable[Route],
        kinds: Iterable[KindRow],
        *,
        has_edges: bool = False,
        has_limits: bool = False,
        limits: Sequence[LimitRow] = (),
    ) -> None:
        self.version = version
        self.has_edges = has_edges
        """Whether a job may depend on others."""
        self.has_limits = has_limits
        """Whether a job may be at a gate."""
        self.limits = {limit.number: limit for limit in limits}
        self.has_weights = any(limit.weight is not None for limit in limits)
        """Whether a limit counts something else than starts."""
        self.lanes = {lane.name: lane for lane in lanes}
        self.routes = {route.key: route for route in routes}
        self.by_number = {route.number: route for route in self.routes.values()}
        self.kinds = {kind.name: kind for kind in kinds}
        self.retired = frozenset(kind.name for kind in self.kinds.values() if kind.retired_at_ms is not None)
        self.publications = {kind.name: kind.publication for kind in self.kinds.values() if kind.publication}
        self.recorded_lanes = frozenset(lane.name for lane in self.lanes.values() if lane.events == "all")
        """The lanes in which every transition is recorded."""
        self.bounded_lanes = frozenset(lane.name for lane in self.lanes.values() if lane.max_waiting is not None)
        """The lanes in which the number of waiting jobs has a bound."""
        self.waiting: dict[tuple[str, str], tuple[int, int]] = {}
        """What this process has counted in bounded lanes: the time and the number of jobs, by lane and tenant."""
        self._limits_of: dict[tuple[str, str], tuple[LimitRow, ...]] = {}
        self._gated = frozenset(
            route.number
            for route in (self.routes.values() if self.limits else ())
            if self.limits_of(route.key.lane, route.key.kind)
        )
        self._configured = dict(self.lanes)
        self._serving: dict[tuple[object, ...], list[Route]] = {}

    def lane(self, name: str) -> Lane:
        """Return the lane; an unconfigured one has the defaults."""
        found = self._configured.get(name)
        if found is None:
            found = self._configured[name] = Lane(name)
        return found

    def routes_of(self, lane: str) -> list[int]:
        """Return the numbers of the routes of a lane."""
        return [route.number for key, route in self.routes.items() if key.lane == lane]

    def is_gated(self, routes: Iterable[Route]) -> bool:
        """Return whether jobs on any of these routes may need room at a gate."""
        return bool(self._gated) and any(route.number in self._gated for route in routes)

    def limits_of(self, lane: str, kind: str) -> tuple[LimitRow, ...]:
        """Return the limits of jobs of one lane and kind."""
        found = self._limits_of.get((lane, kind))
        if found is None:
            found = tuple(one for one in self.limits.values() if one.concerns(lane, kind))
            self._limits_of[lane, kind] = found
        return found

    def serving(self, lanes: Sequence[str], kinds: Sequence[str] | None, capabilities: frozenset[str]) -> list[Route]:
        """Return the routes a worker may claim from: active lanes, kinds that are not retired, its capabilities."""
        key = (tuple(lanes), None if kinds is None else tuple(kinds), capabilities)
        found = self._serving.get(key)
        if found is None:
            if len(self._serving) >= _SUBSCRIPTIONS_REMEMBERED:
                self._serving.clear()
            open_lanes = {lane for lane in lanes if self.lane(lane).state != "paused"}
            kinds_taken = None if kinds is None else frozenset(kinds)
            found = self._serving[key] = [
                route
                for route in self.routes.values()
                if route.key.lane in open_lanes
                and not route.key.session
                and (kinds_taken is None or route.key.kind in kinds_taken)
                and route.key.kind not in self.retired
                and route.requires <= capabilities
            ]
        return found

    def serving_sessions(
        self, lanes: Sequence[str] | None, kinds: Sequence[str] | None, capabilities: frozenset[str]
    ) -> list[Route]:
        """Return the routes of session entries that a worker may claim, like `serving`; no lanes means any."""
        key = ("sessions", None if lanes is None else tuple(lanes), kinds, capabilities)
        found = self._serving.get(key)
        if found is None:
            if len(self._serving) >= _SUBSCRIPTIONS_REMEMBERED:
                self._serving.clear()
            found = self._serving[key] = [
                route
                for key, route in self.routes.items()
                if key.session
                and (lanes is None or key.lane in lanes)
                and self.lane(key.lane).state != "paused"
                and (kinds is None or key.kind in kinds)
                and key.kind not in self.retired
                and route.requires <= capabilities
            ]
        return found
