"""Scan positions: where the ready jobs of a route start, to avoid reading index entries of claimed jobs again.

A claimed job leaves its old entry in the index until vacuum may remove it, which it may not while any transaction on
the server is older than the claim. Without a scan position every claim would read all of those entries first.

The same holds for the fair_key served last if only one tenant has jobs: reading it each time would change nothing.

A position hides nothing permanently. It holds for one priority and one fair_key; jobs before it are reached again
after a second at the latest, and at once by a claim that gets fewer jobs than requested.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from holdfast.domain.clock import Now
from holdfast.domain.routing import Route
from holdfast.storage.select_ready import Prefix

_LIFE_SECONDS: Final = 1.0
_LOWEST: Final = (-1, -1)
_FAIR_KEYS_KEPT: Final = 1_000


class ScanPosition(NamedTuple):
    """The first ready job of one route, priority and fair_key, as last seen."""

    priority: int
    fair_key: str
    due_at_ms: int
    seq: int


class ScanPositions:
    """The scan positions of one store. Safe to share between threads: a lost one only costs a longer scan."""

    def __init__(self) -> None:
        self._positions: dict[int, tuple[ScanPosition, float]] = {}
        self._fair_keys: dict[str, tuple[str, float]] = {}

    def of(self, routes: Iterable[Route]) -> dict[int, ScanPosition]:
        """Return the positions of these routes that are still valid."""
        now = time.monotonic()
        stored = ((route.number, self._positions.get(route.number)) for route in routes)
        return {number: held[0] for number, held in stored if held is not None and held[1] > now}

    def move(self, route: int, position: ScanPosition, *, seen_all: bool) -> None:
        """Store where a route begins; its lifetime restarts only if *seen_all*, that is, if no position was used."""
        held = self._positions.get(route)
        if seen_all:
            self._positions[route] = (position, time.monotonic() + _LIFE_SECONDS)
        elif held is not None:
            self._positions[route] = (position, held[1])

    def drop(self, routes: Iterable[Route]) -> None:
        """Drop the positions of these routes."""
        for route in routes:
            self._positions.pop(route.number, None)

    def last_fair_key(self, scope: str) -> str | None:
        """Return the fair_key served last in a scope, if it was stored recently."""
        held = self._fair_keys.get(scope)
        return held[0] if held is not None and held[1] > time.monotonic() else None

    def remember_fair_key(self, scope: str, fair_key: str) -> None:
        """Store the fair_key served last if it was the only one, to avoid reading it each time."""
        held = self._fair_keys.get(scope)
        if held is None or held[0] != fair_key or held[1] <= time.monotonic():
            if len(self._fair_keys) >= _FAIR_KEYS_KEPT:
                self._fair_keys.clear()
            self._fair_keys[scope] = (fair_key, time.monotonic() + _LIFE_SECONDS)


class DueWatermarks:
    """Times up to which nothing was due, expired or late. Claimed, promoted and finished jobs leave entries there.

    Rows committed after their own time has passed are found within a second, and at once by a claim that gets fewer
    jobs than requested.
    """

    def __init__(self) -> None:
        self._low = _LOWEST
        self._until = 0.0

    def start_times(self, *, thorough: bool) -> dict[str, int]:
        """Return the times from which to look."""
        wall_low, lease_low = _LOWEST if thorough or self._until <= time.monotonic() else self._low
        return {"wall_low": wall_low, "lease_low": lease_low}

    def record_look(self, now: Now, *, thorough: bool, found: bool) -> None:
        """Store that nothing was found up to *now*; valid for a second after the last complete look."""
        began = time.monotonic()
        if found:
            self._until = 0.0
        elif thorough or self._until <= began:
            self._low, self._until = (now.wall_ms, now.lease_ms), began + _LIFE_SECONDS


class LockedAndPassed(NamedTuple):
    """The jobs that a claim skips: those locked by other claims, and those before the scan positions."""

    taken: list[int]
    positions: dict[int, ScanPosition]

    def for_top(self, routes: Sequence[Route]) -> dict[str, Any]:
        """Return the values for seeking the first level."""
        positions = [self.positions.get(route.number) for route in routes]
        return {
            "taken": self.taken,
            "position_priorities": [position and position.priority for position in positions],
            "position_fair_keys": [position and position.fair_key for position in positions],
            "position_dues": [position and position.due_at_ms for position in positions],
            "position_seqs": [position and position.seq for position in positions],
        }

    def for_level(self) -> dict[str, Any]:
        """Return the values for seeking within a level."""
        return {"taken": self.taken}

    def for_prefixes(self, priority: int, prefixes: Sequence[Prefix]) -> dict[str, Any]:
        """Return the values for seeking the first jobs of each (route, fair_key)."""
        return {"lows": [list(self.low(priority, prefix[0], prefix[1])) for prefix in prefixes]}

    def low(self, priority: int, route: int, fair_key: str) -> tuple[int, int]:
        """Return the time and number from which the jobs of one route and fair_key start."""
        position = self.positions.get(route)
        if position is None or (position.priority, position.fair_key) != (priority, fair_key):
            return _LOWEST
        return position.due_at_ms, position.seq
