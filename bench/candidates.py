"""What every candidate is measured through: a session on fresh ground, and the paths it can be timed on.

A session times itself, so that a candidate in another language can answer from its own process.
"""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

Engine: TypeAlias = Literal["sqlite", "postgres"]
Durability: TypeAlias = Literal["full", "relaxed"]
Road: TypeAlias = Literal[
    "single", "threads-8", "threads-32", "threads-64", "bulk", "drain", "one-by-one", "workers-4", "workers-8"
]
Ground: TypeAlias = Any
"""What a session stands on: a folder for SQLite, the URL of a database for PostgreSQL; fresh each time."""

BULK = 1_000
"""Jobs in one call, where a candidate can take many."""
BATCH = 500
"""Jobs claimed and settled together, where a candidate can; what the peers take at once too."""
CEILINGS = frozenset({"bare sqlite3", "pgbench"})
"""No queues: what the engine alone can do."""


def payload(number: int) -> dict[str, Any]:
    """Return the same job body for every candidate: some 200 bytes as JSON."""
    return {
        "number": number,
        "customer": "7d1f0a52-6c1e-4b8f-9a37-0d6a3ef1c2b4",
        "action": "send-invoice",
        "address": {"street": "12 Harbour Road", "town": "Port Example", "country": "XX"},
        "tags": ["monthly", "reminder"],
    }


def handle(body: Any) -> None:
    """Do nothing with a job: what is measured is the queue."""
    del body


class CandidateFailedError(Exception):
    """A candidate broke down, which is told instead of a figure."""


class Session(ABC):
    """One candidate on one ground."""

    @abstractmethod
    def measure(self, road: Road, count: int) -> float:
        """Return the seconds that *count* jobs took on *road*; what has to be there first is not timed."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the ground."""


class Candidate(NamedTuple):
    """One queue with one setting, and where it can be compared."""

    name: str
    durability: Durability
    settings: str
    roads: frozenset[Road]
    open: Callable[[Ground], Session]

    @property
    def label(self) -> str:
        """The name with its durability, as tables show it."""
        return f"{self.name} ({self.durability})"


class PythonSession(Session):
    """A candidate in this process: primitives by the subclass, timing here."""

    @abstractmethod
    def enqueue(self, number: int) -> None:
        """Store one job; when this returns it is committed."""

    def enqueue_bulk(self, first: int, count: int) -> None:
        """Store many jobs, in the quickest way this candidate has."""
        for number in range(first, first + count):
            self.enqueue(number)

    @abstractmethod
    def drain(self, batch: int) -> int:
        """Handle and settle everything that waits, *batch* at a time if it can, and return how many."""

    def measure(self, road: Road, count: int) -> float:
        """Return the seconds that *count* jobs took on *road*."""
        match road:
            case "single":
                return _timed(lambda: self._enqueue_each(0, count))
            case "threads-8" | "threads-32" | "threads-64":
                return self._enqueue_in_threads(count, int(road.removeprefix("threads-")))
            case "bulk":
                return _timed(lambda: self.fill(count))
            case "drain":
                return self._drain(count, BATCH)
            case "one-by-one":
                return self._drain(count, 1)
            case _:
                raise ValueError(f"{type(self).__name__} has no road {road}")

    def _enqueue_each(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            self.enqueue(number)

    def fill(self, count: int) -> None:
        """Store *count* jobs, a thousand for each call."""
        for first in range(0, count, BULK):
            self.enqueue_bulk(first, min(BULK, count - first))

    def _drain(self, count: int, batch: int) -> float:
        self.fill(count)
        handled = 0

        def work() -> None:
            nonlocal handled
            handled = self.drain(batch)

        seconds = _timed(work)
        if handled != count:
            raise CandidateFailedError(f"{type(self).__name__} handled {handled} of {count} jobs")
        return seconds

    def _enqueue_in_threads(self, count: int, threads: int) -> float:
        each = max(1, count // threads)
        start = threading.Barrier(threads + 1)

        def work(place: int) -> None:
            start.wait()
            self._enqueue_each(place * each, each)

        crew = [threading.Thread(target=work, args=(place,)) for place in range(threads)]
        for thread in crew:
            thread.start()
        start.wait()

        def finish() -> None:
            for thread in crew:
                thread.join()

        # Threads share the work evenly; a remainder is made up for by the rate.
        return _timed(finish) * count / (each * threads)


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def as_text(number: int) -> str:
    """Return the job body for candidates that take text only."""
    return json.dumps(payload(number))
