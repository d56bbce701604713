"""The limit of calls on SQLite: their statements, the lock and the check of the file, and nothing else.

A minimal program for each call: it sends the statements of the plain form with values that are known before, locks
the lock file, checks that the database is still there, and wakes listeners. It validates nothing, decides nothing and
returns nothing; what a call takes beyond it is Python. The same program is a candidate: it hands jobs from one
process to another, which shows how much of a pick-up are wake-ups and statements, and settles and claims one job at a
time.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import holdfast
from bench.candidates import Candidate, Durability, PythonSession, Scenario, as_text, handle
from holdfast.client import ids
from holdfast.domain import limits
from holdfast.storage.sqlite import sql
from holdfast.storage.sqlite.notify import write_waiter

Row: TypeAlias = tuple[Any, ...]
TOKEN = "0" * 32
_WAKE_BYTE = 32_768
# Values are bound by position, as the store does.
_USUAL = ("", "", "", 0, 0, None, 0, 0, "", "", 0, None, 0, None, None)
_INSERT = sql.with_nulls(sql.QUERIES["job_insert_plain"], _USUAL)[0]
_PLACE = ("route", "scope", "version")
_, _NEXT = sql.numbered("ready_plain_next", *_PLACE, "wall_now", "lease_now", "chosen_token", "worker", "incarnation")
_, _CLAIM = sql.numbered(
    "job_claim_next_plain", "seq", "holder", "lease_token", "lease_until_ms", "started_at_ms", "acknowledged"
)
_, _DONE = sql.numbered("job_done_plain", "seq", "result", "now", "epoch", "token", "lease_now", "priority")
_, _APPEND = sql.numbered("events_append_done_one", "seq", "at_ms")
_CLAIM_NAMES = ("wall_now", "lease_now", "chosen_token", "worker", "incarnation", "limit")
_, _NEXT_MANY = sql.numbered("ready_plain_lone", *_PLACE, *_CLAIM_NAMES)


class Statements:
    """The statements of single calls on a database in which the kind and the worker are known."""

    def __init__(self, path: str, payload: Any, result: Any, durability: Durability = "relaxed") -> None:
        self._path = path
        self._payload, self._result = json.dumps(payload), json.dumps(result)
        self._lock = os.open(f"{path}-holdfast", os.O_RDWR)
        connection = sqlite3.connect(path, isolation_level=None, cached_statements=256, check_same_thread=False)
        connection.execute(f"pragma synchronous = {'full' if durability == 'full' else 'normal'}")
        self._cursor = connection.cursor()
        self._now = time.time_ns() // 1_000_000
        self._version = self._read("select value from holdfast_meta where name = 'routing_version'")
        self._route = self._read("select route from holdfast_route")
        scope, separator, _ = self._read("select scope from holdfast_fair_key").rpartition(":")
        self._scope = scope + separator
        self._held: list[tuple[int, int]] = []

    def _read(self, query: str) -> Any:
        return self._cursor.execute(query).fetchone()[0]

    def close(self) -> None:
        """Close the files."""
        self._cursor.connection.close()
        os.close(self._lock)

    def commit_nothing(self, count: int) -> None:
        """Begin and commit without statements in between."""
        for _ in range(count):
            self._commit()

    def enqueue(self, count: int) -> None:
        """Store jobs, one commit for each."""
        drawn = [ids.job_id() for _ in range(count)]
        for job_id in drawn:
            self._commit(partial(self._insert, job_id))

    def enqueue_many(self, count: int, payload: str | None = None) -> None:
        """Store jobs in one commit, with this payload if one is given."""
        self._payload = self._payload if payload is None else payload
        self._commit(*(partial(self._insert, ids.job_id()) for _ in range(count)))

    def claim(self, count: int) -> None:
        """Lease the next jobs, one commit for each."""
        for _ in range(count):
            self._commit(self._lease)

    def settle(self, count: int) -> None:
        """Finish leased jobs, one commit for each."""
        for _ in range(count):
            self._commit(self._finish)

    def settle_and_claim(self, count: int) -> None:
        """Finish a leased job and lease the next, one commit for both."""
        for _ in range(count):
            self._commit(self._finish, self._lease)

    def drain(self, batch: int) -> None:
        """Lease and finish all ready jobs, which have consecutive numbers, a batch at a time."""
        held = self.exchange([], batch)
        while held:
            held = self.exchange(held, batch)

    def exchange(self, held: Sequence[Row], batch: int, result: str | None = None) -> list[Row]:
        """Finish the leased jobs *held* with one result, and lease the next, which have consecutive numbers."""
        leased: list[Row] = []
        finish = partial(self._finish_range, held, self._result if result is None else result)
        self._commit(finish, partial(self._lease_range, batch, leased))
        return leased

    def put(self, payload: str) -> None:
        """Store one job with this payload."""
        self._payload = payload
        self.enqueue(1)

    def take(self) -> str | None:
        """Lease the next job and return its payload; None if there is none."""
        found: list[str] = []
        self._commit(partial(self._lease, found))
        return found[0] if found else None

    def exchange_one(self) -> str | None:
        """Finish the leased job, if there is one, lease the next and return its payload; None if there is none."""
        found: list[str] = []
        lease = partial(self._lease, found)
        self._commit(*((self._finish, lease) if self._held else (lease,)))
        return found[0] if found else None

    def _commit(self, *writes: Callable[[], None]) -> None:
        execute = self._cursor.execute
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        execute("begin immediate")
        for write in writes:
            write()
        os.stat(self._path)  # noqa: PTH116  # as the store does
        execute("commit")
        os.pwrite(self._lock, b"\1", _WAKE_BYTE)
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _insert(self, job_id: str) -> None:
        now = self._now
        placed = (5, self._route, "default", "default", 0, limits.MAX_ATTEMPTS_DEFAULT)
        self._cursor.execute(_INSERT, (self._version, job_id, self._payload, now, now, *placed))

    def _lease(self, payloads: list[str] | None = None) -> None:
        cursor, now = self._cursor, self._now
        cursor.execute(_NEXT, (self._route, self._scope, self._version, now, 1, "", "w", "i"))
        row = cursor.fetchone()
        if payloads is not None:
            if row is None:
                return
            payloads.append(row[5])
        cursor.execute(_CLAIM, (row[1], 1, TOKEN, now, now, 1))
        self._held.append((row[1], row[7] + 1))

    def _finish(self) -> None:
        seq, epoch = self._held.pop()
        self._cursor.execute(_DONE, (seq, self._result, self._now, epoch, TOKEN, 1, 0))
        self._cursor.execute(_APPEND, (seq, self._now))

    def _lease_range(self, batch: int, leased: list[Row]) -> None:
        if not batch:
            return
        cursor, now = self._cursor, self._now
        values = (self._route, self._scope, self._version, now, 1, "", "w", "i", batch)
        leased += cursor.execute(_NEXT_MANY, values).fetchall()
        if leased:
            held = {"holder": 1, "lease_token": TOKEN, "lease_until_ms": now, "started_at_ms": now}
            place = {"first": leased[0][1], "last": leased[-1][1], "acknowledged": batch}
            cursor.execute(sql.QUERIES["job_claim_range_plain"], held | place)

    def _finish_range(self, held: Sequence[Row], result: str) -> None:
        if not held:
            return
        cursor, now = self._cursor, self._now
        of = {"first": held[0][1], "last": held[-1][1], "epoch": held[0][7] + 1, "token": TOKEN, "priority": 0}
        cursor.execute("savepoint part")
        cursor.execute(sql.QUERIES["job_done_range_plain"], of | {"result": result, "now": now, "lease_now": 1})
        cursor.execute("release part")
        place = {"first": held[0][1], "last": held[-1][1]}
        cursor.execute(sql.QUERIES["events_append_done_range"], place | {"at_ms": now})


def prepared(path: str, durability: Durability) -> Statements:
    """Return the statements on a new or prepared database."""
    with holdfast.connect(path, durability=durability) as queue:
        queue.migrate()
        queue.enqueue("kind")
        claim = queue.claim(worker="w")
        if claim is not None:
            queue.settle(claim, holdfast.Done())
    return Statements(path, None, None, durability)


class StatementsSession(PythonSession):
    """Settles and claims one job at a time, or hands jobs to another process.

    There the lock file wakes the receiver's only thread, which then leases the job.
    """

    def __init__(self, durability: Durability, folder: Path) -> None:
        path = str(folder / "jobs.db")
        self._statements = prepared(path, durability)
        self._opened = ExitStack()
        self._wait = self._opened.enter_context(write_waiter(f"{path}-holdfast"))

    def enqueue(self, number: int) -> None:
        """Store one job."""
        self._statements.put(as_text(number))

    def enqueue_bulk(self, first: int, count: int) -> None:
        """Store jobs in one commit."""
        self._statements.enqueue_many(count, as_text(first))

    def drain(self, batch: int) -> int:
        """Finish a job and lease the next in one commit, until none is left; for batches see `bench.call_cost`."""
        if batch != 1:
            raise NotImplementedError
        handled = 0
        while (body := self._statements.exchange_one()) is not None:
            handle(body)
            handled += 1
        return handled

    def send(self, stamp: int) -> None:
        """Store one job with a timestamp."""
        self._statements.put(str(stamp))

    def receive(self, note: Callable[[int], None]) -> bool:
        """Lease a job, waiting up to a second, and finish it."""
        payload = self._statements.take()
        if payload is None:
            self._wait(1.0)
            payload = self._statements.take()
        if payload is None:
            return False
        note(int(payload))
        self._statements.settle(1)
        return True

    def close(self) -> None:
        """Close the files."""
        self._opened.close()
        self._statements.close()


def candidates() -> list[Candidate]:
    """Return the program with each durability."""
    settings = (
        "the statements of each commit; in a pick-up woken by the lock file; without Holdfast's calls and threads"
    )
    scenarios: frozenset[Scenario] = frozenset({"one-by-one", "pick-up"})
    both: tuple[Durability, Durability] = ("full", "relaxed")
    return [
        Candidate("statements alone", mode, settings, scenarios, partial(StatementsSession, mode)) for mode in both
    ]
