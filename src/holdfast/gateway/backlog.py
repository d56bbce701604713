"""The requests that wait: their bound, their positions in claim order, and how long they are likely to wait.

The positions follow the claim order of the worker: priority, the loaded model, then tenants in turn, oldest first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from typing import Final, NamedTuple

RETRY_AFTER_MIN: Final = 1
RETRY_AFTER_MAX: Final = 120
_WEIGHT: Final = 0.3
_SECONDS_UNKNOWN: Final = 10.0


class WaitingRequest(NamedTuple):
    """A request that waits to be run."""

    job_id: str
    tenant: str
    priority: int
    affinity: str | None
    order: int
    """Requests that came earlier have smaller ones."""


class Place(NamedTuple):
    """Where a request is in the queue."""

    position: int
    """How many requests go before it."""
    seconds: float
    """How long it is likely to wait."""


class Durations:
    """Moving averages of how long requests and loads take, by affinity."""

    def __init__(self) -> None:
        self._runs: dict[str | None, float] = {}
        self._loads: dict[str | None, float] = {}

    def note_run(self, affinity: str | None, seconds: float) -> None:
        """Note how long a request ran."""
        _note(self._runs, affinity, seconds)

    def note_load(self, affinity: str | None, seconds: float) -> None:
        """Note how long a load took."""
        _note(self._loads, affinity, seconds)

    def run(self, affinity: str | None) -> float:
        """Return how long a request is likely to run."""
        return self._runs.get(affinity, _mean(self._runs.values()))

    def load(self, affinity: str | None) -> float:
        """Return how long a load is likely to take."""
        return 0.0 if affinity is None else self._loads.get(affinity, _mean(self._loads.values()))


def _note(averages: dict[str | None, float], affinity: str | None, seconds: float) -> None:
    before = averages.get(affinity)
    averages[affinity] = seconds if before is None else before + (seconds - before) * _WEIGHT


def _mean(values: Collection[float]) -> float:
    return sum(values) / len(values) if values else _SECONDS_UNKNOWN


def in_claim_order(waiting: Iterable[WaitingRequest], loaded: Collection[str]) -> Iterator[WaitingRequest]:
    """Yield the requests in the order in which the worker is likely to take them; one model is loaded at a time."""
    current = set(loaded)
    by_priority = sorted(waiting, key=lambda one: (-one.priority, one.order))
    for _, level in groupby(by_priority, key=lambda one: one.priority):
        groups: dict[str | None, list[WaitingRequest]] = {}
        for one in level:
            groups.setdefault(one.affinity, []).append(one)
        while groups:
            # Those of a loaded model first, then the model of the oldest request.
            affinity = next((name for name in groups if name in current), next(iter(groups)))
            yield from _in_turn(groups.pop(affinity))
            if affinity is not None and affinity not in current:
                current = {affinity}


def _in_turn(group: Iterable[WaitingRequest]) -> Iterator[WaitingRequest]:
    """Yield the requests of one level: one of each tenant, then the second of each."""
    queues: dict[str, deque[WaitingRequest]] = {}
    for one in group:
        queues.setdefault(one.tenant, deque()).append(one)
    turn = deque(queues[tenant] for tenant in sorted(queues))
    while turn:
        queue = turn.popleft()
        yield queue.popleft()
        if queue:
            turn.append(queue)


def place_of(
    job_id: str,
    waiting: Iterable[WaitingRequest],
    loaded: Collection[str],
    running: int,
    concurrency: int,
    durations: Durations,
) -> Place | None:
    """Return where a request is; None if it does not wait."""
    seconds, current = 0.0, set(loaded)
    for position, one in enumerate(in_claim_order(waiting, loaded)):
        if one.affinity is not None and one.affinity not in current:
            seconds += durations.load(one.affinity) * concurrency
            current = {one.affinity}
        if one.job_id == job_id:
            busy = durations.run(one.affinity) * min(running, concurrency) / 2
            return Place(position, (seconds + busy) / concurrency)
        seconds += durations.run(one.affinity)
    return None


def retry_after(seconds: float) -> int:
    """Return the value of `Retry-After` for an estimate: clients ignore long ones, or sleep as long as told."""
    return max(RETRY_AFTER_MIN, min(RETRY_AFTER_MAX, round(seconds)))
