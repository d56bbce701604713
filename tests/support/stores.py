"""Where the conformance suite gets its stores from: the only place that knows which engines there are."""

from __future__ import annotations

from pathlib import Path

import holdfast
from holdfast.client.connect import async_queue_on, queue_on
from holdfast.stores.sqlite.store import SqliteStore
from tests.support.clock import ManualClock
from tests.support.faults import Faults

DURABLE_ENGINES = ["sqlite-file"]
ENGINES = [*DURABLE_ENGINES, "sqlite-memory"]


class Harness:
    """One fresh store, its clock, and as many clients of it as a test wants."""

    def __init__(self, engine: str, folder: Path) -> None:
        self.clock = ManualClock()
        self.faults = Faults()
        self._path = ":memory:" if engine == "sqlite-memory" else str(folder / "jobs.db")
        self._opened: list[holdfast.Queue] = []

    def open(self) -> holdfast.Queue:
        """Return another client of the store. An in-memory store has but one, so it is returned again."""
        if self._opened and self._path == ":memory:":
            return self._opened[0]
        queue = queue_on(self._store())
        self._opened.append(queue)
        return queue

    def open_async(self) -> holdfast.AsyncQueue:
        """Return an awaited client: of the same store, or of a fresh one if that is in memory."""
        return async_queue_on(self._store())

    def reopen(self) -> holdfast.Queue:
        """Return a client as after a crash: the earlier ones are gone without a word."""
        self.close()
        return self.open()

    def close(self) -> None:
        self.faults.calm()
        for queue in self._opened:
            queue.close()
        self._opened.clear()

    def _store(self) -> SqliteStore:
        return SqliteStore(self._path, clock=self.clock, observe=self.faults)
