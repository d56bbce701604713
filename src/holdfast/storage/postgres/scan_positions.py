"""Scan positions: where the ready jobs of a route start, to avoid reading index entries of claimed jobs again.

A claimed job leaves its old entry in the index until vacuum may remove it, which it may not while any transaction on
the server is older than the claim. Without a scan position every claim would read all of those entries first.

The same holds for the fair_key served last if only one tenant has jobs: reading it each time would change nothing.

A position hides nothing permanently. It holds for one priority and one fair_key; jobs before it are reached again
after a second at the latest, and at once by a claim that gets fewer jobs than requested. A worker that keeps up does
not read all entries each time either: it starts at a floor, a number before which there can be no ready job.
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
# No transaction is open that could have drawn the number of a job.
_BEFORE_ALL: Final = 2**63 - 1
_FAIR_KEYS_KEPT: Final = 1_000
# How long a floor is kept, how often open transactions are stored, and how many times.
_FLOOR_SECONDS: Final = 60.0
_SAMPLE_MS: Final = 100
_EXAMINE_SECONDS: Final = 0.5
_SAMPLES_KEPT: Final = 600
# How long a claim does not look at new jobs by number after there were too many.
_CROWDED_SECONDS: Final = 0.2
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
    """What a claim has seen of other transactions before it looked for jobs."""

    now: Now
    oldest_open: int
    """The transactions before this one have ended."""
    backdated: int
    """How often jobs had become ready that were long due."""
    last_seq: int
    """The last number drawn for a job, by a transaction before the next one."""
    own: int | None
    """The number of the claim's own transaction, which it got later; None if it has written nothing."""


class _Floor(NamedTuple):
    """Where the ready jobs of a route start: new ones by number, others by due time until one is backdated."""

    seq: int
    due_at_ms: int
    backdated: int
    until: float


class ReadyFloors:
    """Where the ready jobs of routes start, of all tenants, though the server keeps entries of claimed ones.

    A claim that has seen all ready jobs has not seen those of transactions that were open. A transaction has its
    number before it draws numbers for its jobs, so if it has drawn one before a claim began, its number is lower than
    that which the claim gets when it writes. Once all transactions with lower numbers have ended, no new job appears
    any more whose number had been drawn when that claim began.

    Jobs that become ready in another way, after a delay or a lost lease, have old numbers. They are found by due
    time, in an index of their own: it is the time at which they become ready. Changes that make jobs ready which were
    due long before are counted, and end these floors.

    As a safeguard against clocks that jump and servers that lose commits, a floor is kept for a minute after a claim
    has seen everything.
    """

    def __init__(self) -> None:
        # The newest, and those of claims that have a number, at intervals.
        self._newest: OpenTransactions | None = None
        self._seen: deque[OpenTransactions] = deque(maxlen=_SAMPLES_KEPT)
        self._floors: dict[int, _Floor] = {}
        self._due: tuple[int, int, float] | None = None
        self._examined_at = 0.0
        self._crowded_until = 0.0

    def clear(self) -> None:
        """Forget everything."""
        self._newest = None
        self._seen.clear()
        self._floors.clear()
        self._due = None

    def record(self, seen: OpenTransactions) -> None:
        """Store what a claim has seen before it looked."""
        self._newest = seen
        if seen.own is None:
            return
        if not self._seen or seen.now.wall_ms - self._seen[-1].now.wall_ms >= _SAMPLE_MS:
            self._seen.append(seen)

    def _ended_before(self, seen: OpenTransactions) -> OpenTransactions | None:
        """Return the newest claim before which all transactions have ended that had drawn numbers when it began.

        Their own numbers are lower than that of the claim.
        """
        if seen.oldest_open == _BEFORE_ALL:
            return seen
        return next((one for one in reversed(self._seen) if one.own is None or one.own <= seen.oldest_open), None)

    def start(self, routes: Sequence[routing.Route], *, marked: bool) -> dict[str, Any]:
        """Return the values for a claim; without a number if there were too many new jobs a moment ago.

        Even then a claim with scan positions, if it is *marked*, looks there once it gets fewer jobs than requested.
        Without a floor it looks from the first number on. To pass the entries of claimed jobs may take so long that
        as many jobs as requested arrive in the meantime; a claim that stops there has not seen all.
        """
        now = time.monotonic()
        found = [self._floors.get(route.number) for route in routes]
        newest = None if self._newest is None else self._newest.backdated
        valid = [floor for floor in found if floor is not None and floor.until > now]
        floors = valid if len(valid) == len(found) else []
        dues = ((floor.due_at_ms if floor.backdated == newest else -1) for floor in floors)
        looks = marked or now >= self._crowded_until
        wall_floor, lease_floor = self.due()
        return {
            "floor_seq": min((floor.seq for floor in floors), default=0) if looks else None,
            "floor_due": min(dues, default=-1),
            "floor_backdated": newest,
            "wall_floor": wall_floor,
            "lease_floor": lease_floor,
        }

    def is_crowded(self) -> bool:
        """Return whether there were too many new jobs a moment ago to look at all of them."""
        return time.monotonic() < self._crowded_until

    def record_crowd(self) -> None:
        """Store that there are too many new jobs to look at all of them."""
        self._crowded_until = time.monotonic() + _CROWDED_SECONDS

    def due(self) -> tuple[int, int]:
        """Return the times before which no scheduled job is due and no lease expires."""
        return _LOWEST if self._due is None or self._due[2] <= time.monotonic() else self._due[:2]

    def examines(self) -> bool:
        """Return whether to look closer at the open transactions, because one has been open for long."""
        newest = self._newest
        if newest is None or len(self._seen) < 2 or time.monotonic() < self._examined_at + _EXAMINE_SECONDS:
            return False
        ended = self._ended_before(newest)
        if ended is not None and self._seen[-1].now.wall_ms - ended.now.wall_ms < LATE_MS:
            return False
        self._examined_at = time.monotonic()
        return True

    def raise_due(self, seen: OpenTransactions) -> None:
        """Store that a claim which has seen *seen* found nothing due or expired."""
        ended = self._ended_before(seen)
        if ended is not None:
            until = time.monotonic() + _FLOOR_SECONDS if self._due is None else self._due[2]
            if until > time.monotonic():
                self._due = (ended.now.wall_ms - LATE_MS, ended.now.lease_ms - LATE_MS, until)
            else:
                self._due = None

    def raise_to(
        self, seen: OpenTransactions, routes: Iterable[int], first_seq: int, first_due: int | None, *, complete: bool
    ) -> None:
        """Store that a claim has seen all ready jobs of *routes*; *complete* if it did not start at a floor.

        Of those that it has left, *first_seq* is the first number of a new one, 0 if there is none, and *first_due*
        the first due time of the others.
        """
        self._crowded_until = 0.0
        ended = self._ended_before(seen)
        if ended is None:
            return
        now = time.monotonic()
        seq = min(ended.last_seq + 1, first_seq or ended.last_seq + 1)
        due_at_ms = ended.now.wall_ms - LATE_MS if ended.backdated == seen.backdated else -1
        if first_due is not None:
            due_at_ms = min(due_at_ms, first_due)
        for route in routes:
            held = self._floors.get(route)
            if held is None or held.until <= now:
                self._floors.pop(route, None)
                if complete:
                    self._floors[route] = _Floor(seq, due_at_ms, seen.backdated, now + _FLOOR_SECONDS)
            else:
                held_due = held.due_at_ms if held.backdated == seen.backdated else -1
                self._floors[route] = _Floor(max(seq, held.seq), max(due_at_ms, held_due), seen.backdated, held.until)


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
