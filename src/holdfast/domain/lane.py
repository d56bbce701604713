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

LANE_STATES: Final[tuple[LaneState, ...]] = ("active", "paused", "draining")
LANE_ORDERS: Final[tuple[LaneOrder, ...]] = ("fair", "strict")
EVENT_SCOPES: Final[tuple[EventScope, ...]] = ("terminal", "all")
DEFAULT_NAME: Final = "default"
_SUBSCRIPTIONS_REMEMBERED: Final = 1_000


class Lane(NamedTuple):
    """A named stream of jobs. Active; paused: nothing is claimed; draining: nothing is enqueued."""

    name: str
    state: LaneState = "active"
    order: LaneOrder = "fair"
    events: EventScope = "terminal"

    def turn_of(self, tenant: str) -> str:
        """Return the turn that a job of *tenant* takes here."""
        return tenant if self.order == "fair" else ""


class RouteKey(NamedTuple):
    """What is interned as one route."""

    lane: str
    kind: str
    requires_json: str
    placed: bool
    """Whether jobs on it name an affinity."""


class Route(NamedTuple):
    """A route and its small number."""

    number: int
    key: RouteKey
    requires: frozenset[str]


class Catalog:
    """Lanes, routes and retired kinds as of one version. Immutable; a change makes another version."""

    def __init__(self, version: int, lanes: Iterable[Lane], routes: Iterable[Route], retired: Iterable[str]) -> None:
        self.version = version
        self.lanes = {lane.name: lane for lane in lanes}
        self.routes = {route.key: route for route in routes}
        self.retired = frozenset(retired)
        self.loud = frozenset(lane.name for lane in self.lanes.values() if lane.events == "all")
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
                and (wanted is None or route.key.kind in wanted)
                and route.key.kind not in self.retired
                and route.requires <= capabilities
            ]
        return found
