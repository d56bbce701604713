"""Lanes, routes and retired kinds: the small tables that say how jobs may be taken in and handed out.

A *route* is an interned combination of lane, kind, required capabilities and whether the job names an affinity.
There are few of them however many jobs there are, so a claim asks only the routes its worker can serve.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

LaneState: TypeAlias = Literal["active", "paused", "draining"]
LaneOrder: TypeAlias = Literal["fair", "strict"]
EventScope: TypeAlias = Literal["terminal", "all"]
LaneBackoff: TypeAlias = Literal["block", "skip"]

LANE_STATES: Final[tuple[LaneState, ...]] = ("active", "paused", "draining")
LANE_ORDERS: Final[tuple[LaneOrder, ...]] = ("fair", "strict")
EVENT_SCOPES: Final[tuple[EventScope, ...]] = ("terminal", "all")
LANE_BACKOFFS: Final[tuple[LaneBackoff, ...]] = ("block", "skip")
DEFAULT_NAME: Final = "default"
_SUBSCRIPTIONS_REMEMBERED: Final = 1_000


class Lane(NamedTuple):
    """A named stream of jobs. Active; paused: nothing is claimed; draining: nothing is enqueued."""

    name: str
    state: LaneState = "active"
    order: LaneOrder = "fair"
    events: EventScope = "terminal"
    backoff: LaneBackoff = "block"
    """Whether a session's entry that waits for another attempt holds up those behind it."""

    def fair_key_of(self, tenant: str) -> str:
        """Return the fair_key that a job of *tenant* takes here."""
        return tenant if self.order == "fair" else ""


class RouteKey(NamedTuple):
    """What is interned as one route."""

    lane: str
    kind: str
    requires_json: str
    has_affinity: bool
    """Whether jobs on it name an affinity."""
    session: bool = False
    """Whether jobs on it are entries of sessions, which plain claims never ask for."""


class Route(NamedTuple):
    """A route and its small number."""

    number: int
    key: RouteKey
    requires: frozenset[str]


class RoutingTable:
    """Lanes, routes and retired kinds as of one version. Immutable; a change makes another version."""

    def __init__(self, version: int, lanes: Iterable[Lane], routes: Iterable[Route], retired: Iterable[str]) -> None:
        self.version = version
        self.lanes = {lane.name: lane for lane in lanes}
        self.routes = {route.key: route for route in routes}
        self.by_number = {route.number: route for route in self.routes.values()}
        self.retired = frozenset(retired)
        self.recorded_lanes = frozenset(lane.name for lane in self.lanes.values() if lane.events == "all")
        """The lanes that ask for every transition to be recorded."""
        self._known = dict(self.lanes)
        self._serving: dict[tuple[object, ...], list[Route]] = {}

    def lane(self, name: str) -> Lane:
        """Return the lane; one that was never configured has the defaults."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = Lane(name)
        return found

    def serving(self, lanes: Sequence[str], kinds: Sequence[str] | None, capabilities: frozenset[str]) -> list[Route]:
        """Return the routes a worker may claim from: no paused lane, no retired kind, nothing beyond its means."""
        asked = (tuple(lanes), None if kinds is None else tuple(kinds), capabilities)
        found = self._serving.get(asked)
        if found is None:
            if len(self._serving) >= _SUBSCRIPTIONS_REMEMBERED:
                self._serving.clear()
            open_lanes = {lane for lane in lanes if self.lane(lane).state != "paused"}
            wanted = None if kinds is None else frozenset(kinds)
            found = self._serving[asked] = [
                route
                for route in self.routes.values()
                if route.key.lane in open_lanes
                and not route.key.session
                and (wanted is None or route.key.kind in wanted)
                and route.key.kind not in self.retired
                and route.requires <= capabilities
            ]
        return found

    def serving_sessions(
        self, lanes: Sequence[str] | None, kinds: Sequence[str] | None, capabilities: frozenset[str]
    ) -> list[Route]:
        """Return the routes of entries that a worker may claim, as `serving` does of jobs; no lanes means any."""
        asked = ("sessions", None if lanes is None else tuple(lanes), kinds, capabilities)
        found = self._serving.get(asked)
        if found is None:
            if len(self._serving) >= _SUBSCRIPTIONS_REMEMBERED:
                self._serving.clear()
            found = self._serving[asked] = [
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
