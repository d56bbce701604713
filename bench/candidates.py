"""The interface of a candidate: a session on a new store, and the scenarios it supports.

A session measures its own time, because a candidate in another language runs in its own process.
"""

from __future__ import annotations

import gc
import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

Engine: TypeAlias = Literal["sqlite", "postgres"]
Durability: TypeAlias = Literal["full", "relaxed"]
Scenario: TypeAlias = Literal[
    "single",
    "threads-8",
    "threads-32",
    "threads-64",
    "bulk",
    "drain",
    "one-by-one",
    "workers-4",
    "workers-8",
    "pick-up",
]
Location: TypeAlias = Any
"""The store of a session, new each time: a folder for SQLite, the URL of a database for PostgreSQL."""

BULK = 1_000
"""Jobs per call, if a candidate supports bulk enqueue."""
BATCH = 500
"""Jobs claimed and settled together, if a candidate supports that; also the batch size of the peers."""
BASELINES = ("statements alone", "bare sqlite3", "pgbench")
"""Not queues: the statements of Holdfast without Holdfast, and the engine alone."""


def payload(number: int) -> dict[str, Any]:
    """Return the job body, the same for every candidate: about 200 bytes as JSON."""
    return {
        "number": number,
        "customer": "7d1f0a52-6c1e-4b8f-9a37-0d6a3ef1c2b4",
        "action": "send-invoice",
        "address": {"street": "12 Harbour Road", "town": "Port Example", "country": "XX"},
        "tags": ["monthly", "reminder"],
    }


def handle(body: Any) -> None:
    """Do nothing: the bench measures the queue."""
    del body


class CandidateFailedError(Exception):
    """A candidate failed; the tables show the reason instead of a figure."""


class Session(ABC):
    """One candidate on one store."""

    @abstractmethod
    def measure(self, scenario: Scenario, count: int) -> float:
        """Return the seconds for *count* jobs of *scenario*, without the preparation."""

    @abstractmethod
    def close(self) -> None:
        """Close the store."""


class Candidate(NamedTuple):
    """One queue with one durability, and the scenarios it supports."""

    name: str
    durability: Durability
    settings: str
    scenarios: frozenset[Scenario]
    open: Callable[[Location], Session]

    @property
    def label(self) -> str:
        """The name with its durability, as in the tables."""
        return f"{self.name} ({self.durability})"


class PythonSession(Session):
    """A candidate in this process. The subclass implements the calls; this class measures."""

    @abstractmethod
    def enqueue(self, number: int) -> None:
        """Enqueue one job and commit."""

    def enqueue_bulk(self, first: int, count: int) -> None:
        """Enqueue many jobs in the candidate's fastest way."""
        for number in range(first, first + count):
            self.enqueue(number)

    @abstractmethod
    def drain(self, batch: int) -> int:
        """Handle and settle all jobs, *batch* at a time if supported, and return their number."""

    def measure(self, scenario: Scenario, count: int) -> float:
        """Return the seconds for *count* jobs of *scenario*."""
        match scenario:
            case "single":
                return timed(lambda: self._enqueue_each(0, count))
            case "threads-8" | "threads-32" | "threads-64":
                return self._enqueue_in_threads(count, int(scenario.removeprefix("threads-")))
            case "bulk":
                return timed(lambda: self.fill(count))
            case "drain":
                return self._drain(count, BATCH)
            case "one-by-one":
                return self._drain(count, 1)
            case _:
                raise ValueError(f"{type(self).__name__} has no scenario {scenario}")

    def _enqueue_each(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            self.enqueue(number)

    def fill(self, count: int) -> None:
        """Enqueue *count* jobs, a thousand per call."""
        for first in range(0, count, BULK):
            self.enqueue_bulk(first, min(BULK, count - first))

    def _drain(self, count: int, batch: int) -> float:
        self.fill(count)
        handled = 0

        def work() -> None:
            nonlocal handled
            handled = self.drain(batch)

        seconds = timed(work)
        if handled != count:
            raise CandidateFailedError(f"{type(self).__name__} handled {handled} of {count} jobs")
        return seconds

    def _enqueue_in_threads(self, count: int, threads: int) -> float:
        each = max(1, count // threads)
        start = threading.Barrier(threads + 1)

        def work(index: int) -> None:
            start.wait()
            self._enqueue_each(index * each, each)

        crew = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
        for thread in crew:
            thread.start()

        def finish() -> None:
            start.wait()
            for thread in crew:
                thread.join()

        # Each thread enqueues the same number; scale the time for a remainder.
        return timed(finish) * count / (each * threads)


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that *work* takes."""
    # A full collection takes 15 ms after all imports, as long as 1,000 jobs: whether one is due must not decide.
    gc.collect()
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def as_text(number: int) -> str:
    """Return the job body as text, for candidates that accept only text."""
    return json.dumps(payload(number))
