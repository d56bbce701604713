"""Upper bounds for any queue on this machine: syncs of the disk, and plain SQLite in a loop."""

from __future__ import annotations

import os
import sqlite3
import time
from functools import partial
from pathlib import Path

from bench.candidates import Candidate, Durability, PythonSession, Scenario, as_text, handle

_PAGE = os.urandom(4096)
_SCENARIOS: frozenset[Scenario] = frozenset({"single", "bulk", "drain", "one-by-one"})
_SCHEMA = """
create table job (
    seq integer primary key autoincrement, id text unique, state text not null, epoch integer not null,
    payload text not null
);
create index job_ready on job (seq) where state = 'ready';
"""
_INSERT = "insert into job (id, state, epoch, payload) values (?, 'ready', 0, ?)"
_CLAIM = """
update job set state = 'running', epoch = epoch + 1
 where seq in (select seq from job where state = 'ready' order by seq limit ?) returning seq, epoch, payload
"""
_SETTLE = "update job set state = 'done' where seq = ? and epoch = ? and state = 'running'"


def overwrite_seconds(folder: Path, count: int) -> float:
    """Return the seconds for *count* overwrites of one page, each with fdatasync."""
    with (folder / "overwritten").open("w+b", buffering=0) as file:
        file.write(_PAGE * count)
        os.fsync(file.fileno())
        started = time.perf_counter()
        for index in range(count):
            os.pwrite(file.fileno(), _PAGE, index * len(_PAGE))
            os.fdatasync(file.fileno())
        return time.perf_counter() - started


def append_seconds(folder: Path, count: int) -> float:
    """Return the seconds for *count* pages appended, each with fdatasync."""
    with (folder / "appended").open("w+b", buffering=0) as file:
        started = time.perf_counter()
        for _ in range(count):
            file.write(_PAGE)
            os.fdatasync(file.fileno())
        return time.perf_counter() - started


class BareSession(PythonSession):
    """One table, one partial index and the standard library's driver."""

    def __init__(self, durability: Durability, folder: Path) -> None:
        self._connection = sqlite3.connect(folder / "bare.db", isolation_level=None)
        self._connection.execute("pragma journal_mode = wal")
        self._connection.execute(f"pragma synchronous = {'full' if durability == 'full' else 'normal'}")
        self._connection.executescript(_SCHEMA)

    def enqueue(self, number: int) -> None:
        """Insert one row and commit."""
        self._connection.execute(_INSERT, (os.urandom(16).hex(), as_text(number)))

    def enqueue_bulk(self, first: int, count: int) -> None:
        """Insert many rows in one commit."""
        self._connection.execute("begin immediate")
        rows = ((os.urandom(16).hex(), as_text(first + index)) for index in range(count))
        self._connection.executemany(_INSERT, rows)
        self._connection.execute("commit")

    def drain(self, batch: int) -> int:
        """Settle the last batch and claim the next in one commit, until no job is left."""
        handled = 0
        done: list[tuple[int, int]] = []
        while True:
            self._connection.execute("begin immediate")
            self._connection.executemany(_SETTLE, done)
            claimed = self._connection.execute(_CLAIM, (batch,)).fetchall()
            self._connection.execute("commit")
            if not claimed:
                return handled
            for _, _, body in claimed:
                handle(body)
            done = [(seq, epoch) for seq, epoch, _ in claimed]
            handled += len(claimed)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def candidates() -> list[Candidate]:
    """Return the bare loop with each durability."""
    return [
        Candidate(
            "bare sqlite3",
            durability,
            f"one table, one index, synchronous={'FULL' if durability == 'full' else 'NORMAL'}; without a queue",
            _SCENARIOS,
            partial(BareSession, durability),
        )
        for durability in ("full", "relaxed")
    ]
