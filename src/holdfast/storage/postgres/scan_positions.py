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
from holdfast.storage.select_ready import Place

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
        self._marks: dict[int, tuple[ScanPosition, float]] = {}
        self._fair_keys: dict[str, tuple[str, float]] = {}

    def of(self, routes: Iterable[Route]) -> dict[int, ScanPosition]:
        """Return the positions of these routes that are still valid."""
        now = time.monotonic()
        known = ((route.number, self._marks.get(route.number)) for route in routes)
        return {number: held[0] for number, held in known if held is not None and held[1] > now}

    def move(self, route: int, mark: ScanPosition, *, seen_all: bool) -> None:
        """Store where a route begins; its lifetime restarts only if *seen_all*, that is, if no position was used."""
        held = self._marks.get(route)
        if seen_all:
            self._marks[route] = (mark, time.monotonic() + _LIFE_SECONDS)
        elif held is not None:
            self._marks[route] = (mark, held[1])

    def drop(self, routes: Iterable[Route]) -> None:
        """Drop the positions of these routes."""
        for route in routes:
            self._marks.pop(route.number, None)

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


class PastMoments:
    """Times up to which nothing was due, expired or late. Claimed, promoted and finished jobs leave entries there.

    Rows committed after their own time has passed are found within a second, and at once by a claim that gets fewer
    jobs than requested.
    """

    def __init__(self) -> None:
        self._low = _LOWEST
        self._until = 0.0

    def lows(self, *, whole: bool) -> dict[str, int]:
        """Return the times from which to look."""
        wall_low, lease_low = _LOWEST if whole or self._until <= time.monotonic() else self._low
        return {"wall_low": wall_low, "lease_low": lease_low}

    def looked(self, now: Now, *, whole: bool, found: bool) -> None:
        """Store that nothing was found up to *now*; valid for a second after the last complete look."""
        began = time.monotonic()
        if found:
            self._until = 0.0
        elif whole or self._until <= began:
            self._low, self._until = (now.wall_ms, now.lease_ms), began + _LIFE_SECONDS


class Behind(NamedTuple):
    """The jobs that a claim skips: those locked by other claims, and those before the scan positions."""

    taken: list[int]
    marks: dict[int, ScanPosition]

    def at_top(self, routes: Sequence[Route]) -> dict[str, Any]:
        """Return the values for seeking the first level."""
        marks = [self.marks.get(route.number) for route in routes]
        return {
            "taken": self.taken,
            "mark_priorities": [mark and mark.priority for mark in marks],
            "mark_fair_keys": [mark and mark.fair_key for mark in marks],
            "mark_dues": [mark and mark.due_at_ms for mark in marks],
            "mark_seqs": [mark and mark.seq for mark in marks],
        }

    def in_level(self) -> dict[str, Any]:
        """Return the values for seeking within a level."""
        return {"taken": self.taken}

    def in_places(self, priority: int, places: Sequence[Place]) -> dict[str, Any]:
        """Return the values for seeking the first jobs of each (route, fair_key)."""
        return {"lows": [list(self.low(priority, place[0], place[1])) for place in places]}

    def low(self, priority: int, route: int, fair_key: str) -> tuple[int, int]:
        """Return the time and number from which the jobs of one route and fair_key start."""
        mark = self.marks.get(route)
        if mark is None or (mark.priority, mark.fair_key) != (priority, fair_key):
            return _LOWEST
        return mark.due_at_ms, mark.seq
