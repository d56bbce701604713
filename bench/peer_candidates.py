"""The peers in Python, each with its best documented settings.

If a peer has a worker with threads, its loop runs without them, which can only favour the peer.
"""

from __future__ import annotations

import logging
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.candidates import Candidate, Durability, PythonSession, Scenario, as_text, handle, payload

_COMMON: frozenset[Scenario] = frozenset({"single", "drain", "one-by-one", "pick-up"})


class HueySession(PythonSession):
    """huey: the row is deleted before the work runs, so one commit per job is enough."""

    def __init__(self, folder: Path) -> None:
        logging.getLogger("huey").setLevel(logging.ERROR)
        self.huey: Any = import_module("huey").SqliteHuey(
            filename=str(folder / "huey.db"), fsync=True, cache_mb=64, results=False
        )
        self._task: Any = self.huey.task()(handle)

    def enqueue(self, number: int) -> None:
        """Enqueue one task."""
        self._task(payload(number))

    def drain(self, batch: int) -> int:
        """Run tasks until none is left; huey takes one at a time."""
        del batch
        handled = 0
        while (task := self.huey.dequeue()) is not None:
            self.huey.execute(task)
            handled += 1
        return handled

    def close(self) -> None:
        """Close this thread's connection."""
        self.huey.storage.close()


class LiteQueueSession(PythonSession):
    """litequeue: pop and done, a commit each."""

    def __init__(self, durability: Durability, folder: Path) -> None:
        self.queue: Any = import_module("litequeue").LiteQueue(str(folder / "litequeue.db"))
        if durability == "full":
            # litequeue has no option for this and sets NORMAL; its connection is public.
            self.queue.conn.execute("pragma synchronous = full")

    def enqueue(self, number: int) -> None:
        """Enqueue one message."""
        self.queue.put(as_text(number))

    def drain(self, batch: int) -> int:
        """Pop, handle and mark done until none is left; litequeue takes one at a time."""
        del batch
        handled = 0
        while (message := self.queue.pop()) is not None:
            handle(message.data)
            self.queue.done(message.message_id)
            handled += 1
        return handled

    def close(self) -> None:
        """Close the connection."""
        self.queue.conn.close()


class PersistQueueSession(PythonSession):
    """persist-queue: get and ack, a commit each."""

    def __init__(self, folder: Path) -> None:
        self.queue: Any = import_module("persistqueue").SQLiteAckQueue(
            str(folder / "persistqueue"), multithreading=True, auto_commit=True
        )

    def enqueue(self, number: int) -> None:
        """Enqueue one item."""
        self.queue.put(payload(number))

    def drain(self, batch: int) -> int:
        """Get, handle and acknowledge until none is left; persist-queue takes one at a time."""
        del batch
        handled = 0
        while self.queue.qsize():
            item = self.queue.get(block=False, raw=True)
            handle(item["data"])
            self.queue.ack(id=item["pqid"])
            handled += 1
        return handled

    def close(self) -> None:
        """Close the connections."""
        self.queue.close()


def candidates() -> list[Candidate]:
    """Return the peers that are installed."""
    known = [
        (
            "huey",
            Candidate(
                "huey",
                "full",
                "SqliteHuey(fsync=True, cache_mb=64, results=False); dequeue and execute in one thread",
                _COMMON | {"threads-8", "threads-64"},
                HueySession,
            ),
        ),
        (
            "litequeue",
            Candidate(
                "litequeue",
                "full",
                "LiteQueue with pragma synchronous=FULL set on its connection; pop and done",
                _COMMON,
                partial(LiteQueueSession, "full"),
            ),
        ),
        (
            "litequeue",
            Candidate(
                "litequeue",
                "relaxed",
                "LiteQueue with its defaults (WAL, NORMAL); pop and done",
                _COMMON,
                partial(LiteQueueSession, "relaxed"),
            ),
        ),
        (
            "persistqueue",
            Candidate(
                "persist-queue",
                "full",
                "SQLiteAckQueue(multithreading=True, auto_commit=True); get and ack",
                _COMMON,
                PersistQueueSession,
            ),
        ),
    ]
    return [candidate for module, candidate in known if find_spec(module) is not None]
