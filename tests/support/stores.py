"""Where the conformance suite gets its stores from: the only place that knows which engines there are."""

from __future__ import annotations

from pathlib import Path

import holdfast
from tests.support.clock import ManualClock

ENGINES = ["sqlite-file", "sqlite-memory"]


class Harness:
    """One fresh store, its clock, and as many clients of it as a test wants."""

    def __init__(self, engine: str, folder: Path) -> None:
        self.clock = ManualClock()
        self._url = ":memory:" if engine == "sqlite-memory" else str(folder / "jobs.db")
        self._shared = engine == "sqlite-file"
        self._opened: list[holdfast.Queue] = []

    def open(self) -> holdfast.Queue:
        """Return another client of the store. An in-memory store has but one, so it is returned again."""
        if self._opened and not self._shared:
            return self._opened[0]
        queue = holdfast.connect(self._url, clock=self.clock)
        self._opened.append(queue)
        return queue

    def open_async(self) -> holdfast.AsyncQueue:
        """Return an awaited client: of the same store, or of a fresh one if that is in memory."""
        return holdfast.connect_async(self._url, clock=self.clock)

    def close(self) -> None:
        for queue in self._opened:
            queue.close()
