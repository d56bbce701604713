"""Scan positions: where the ready jobs of a route start, to avoid reading index entries of claimed jobs again.

A claimed job leaves its old entry in the index until vacuum may remove it, which it may not while any transaction on
the server is older than the claim. Without a scan position every claim would read all of those entries first.

The same holds for the fair_key served last if only one tenant has jobs: reading it each time would change nothing.

A position hides nothing permanently. It holds for one priority and one fair_key; jobs before it are reached again
after a second at the latest, and at once by a claim that gets fewer jobs than requested. Such a claim starts at a
floor, before which there can be no ready job: a worker that keeps up does not read all entries each time either.
"""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from holdfast.domain import routing
from holdfast.domain.clock import Now
from holdfast.storage.select_ready import Prefix

_LIFE_SECONDS: Final = 1.0
_LOWEST: Final = (-1, -1)
_FAIR_KEYS_KEPT: Final = 1_000
# How long a floor is kept, how often open transactions are stored, and how many times.
_FLOOR_SECONDS: Final = 60.0
_SAMPLE_MS: Final = 100
_EXAMINE_SECONDS: Final = 0.5
_SAMPLES_KEPT: Final = 600
# A job that becomes ready longer than this after it was due is backdated.
LATE_MS: Final = 1_000


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

    def of(self, routes: Iterable[routing.Route]) -> dict[int, ScanPosition]:
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

    def drop(self, routes: Iterable[routing.Route]) -> None:
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


class OpenTransactions(NamedTuple):
    """The transactions of the server at one time, and how often jobs had been made ready that were long due."""

    now: Now
    oldest_open: int
    next_transaction: int
    backdated: int


class ReadyFloors:
    """Due times before which a route has no ready job and gets none, though the server keeps entries of claimed ones.

    A claim that gets fewer jobs than requested has seen all ready jobs, except those of transactions that were open.
    A new job is due when its transaction enqueues it. So once every transaction has ended that was open at a time, no
    job appears any more that was due before that time. Changes that make jobs ready which were due long before are
    counted, and end all floors.

    As a safeguard against clocks that jump, a floor is kept for a minute after a claim has seen everything.
    """

    def __init__(self) -> None:
        self._seen: deque[OpenTransactions] = deque(maxlen=_SAMPLES_KEPT)
        self._floors: dict[int, tuple[ScanPosition, int, float]] = {}
        self._due: tuple[int, int, float] | None = None
        self._examined_at = 0.0

    def record(self, seen: OpenTransactions) -> None:
        """Store what a claim has seen before it looked."""
        if not self._seen or seen.now.wall_ms - self._seen[-1].now.wall_ms >= _SAMPLE_MS:
            self._seen.append(seen)

    def _ended_before(self, seen: OpenTransactions) -> OpenTransactions | None:
        """Return the newest time whose open transactions have all ended."""
        if seen.oldest_open == seen.next_transaction:
            return seen
        return next((one for one in reversed(self._seen) if one.next_transaction <= seen.oldest_open), None)

    def values(self, routes: Sequence[routing.Route]) -> dict[str, Any]:
        """Return the values for a claim."""
        now = time.monotonic()
        found = [self._floors.get(route.number) for route in routes]
        newest = self._seen[-1].backdated if self._seen else None
        valid = [one[0] if one is not None and one[1] == newest and one[2] > now else None for one in found]
        wall_floor, lease_floor = self.due()
        return {
            "floor_priorities": [floor and floor.priority for floor in valid],
            "floor_fair_keys": [floor and floor.fair_key for floor in valid],
            "floor_dues": [floor and floor.due_at_ms for floor in valid],
            "floor_seqs": [floor and floor.seq for floor in valid],
            "floor_backdated": newest,
            "wall_floor": wall_floor,
            "lease_floor": lease_floor,
        }

    def due(self) -> tuple[int, int]:
        """Return the times before which no scheduled job is due and no lease expires."""
        return _LOWEST if self._due is None or self._due[2] <= time.monotonic() else self._due[:2]

    def examines(self) -> bool:
        """Return whether to look closer at the open transactions, because one has been open for long."""
        if len(self._seen) < 2 or time.monotonic() < self._examined_at + _EXAMINE_SECONDS:
            return False
        newest = self._seen[-1]
        ended = self._ended_before(newest)
        if ended is not None and newest.now.wall_ms - ended.now.wall_ms < LATE_MS:
            return False
        self._examined_at = time.monotonic()
        return True

    def raise_due(self, seen: OpenTransactions) -> None:
        """Store that a claim which has seen *seen* found nothing due or expired."""
        ended = self._ended_before(seen)
        if ended is not None:
            until = time.monotonic() + _FLOOR_SECONDS if self._due is None else self._due[2]
            if until > time.monotonic():
                self._due = (ended.now.wall_ms, ended.now.lease_ms, until)
            else:
                self._due = None

    def raise_to(self, seen: OpenTransactions, routes: Iterable[int], first: ScanPosition | None) -> None:
        """Store that a claim has seen all ready jobs of *routes*, of which *first* is the first, if there is one."""
        ended = self._ended_before(seen)
        if ended is None or ended.backdated != seen.backdated:
            return
        safe_ms, now = ended.now.wall_ms - LATE_MS, time.monotonic()
        for route in routes:
            held = self._floors.get(route)
            if held is not None and (held[1] != seen.backdated or held[2] <= now):
                del self._floors[route]
                held = None
            level = first or (held[0] if held is not None else None)
            if level is not None:
                due_at_ms = safe_ms if first is None else min(safe_ms, first.due_at_ms)
                if held is not None and held[0][:2] == level[:2]:
                    due_at_ms = max(due_at_ms, held[0].due_at_ms)
                until = now + _FLOOR_SECONDS if held is None else held[2]
                self._floors[route] = (level._replace(due_at_ms=due_at_ms, seq=-1), seen.backdated, until)


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

    def for_top(self, routes: Sequence[routing.Route]) -> dict[str, Any]:
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
