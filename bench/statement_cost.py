"""The limit of single calls on SQLite: their statements, the lock and the check of the file, and nothing else.

A minimal program for each call: it sends the statements of the plain form with values that are known before, locks
the lock file, checks that the database is still there, and wakes listeners. It validates nothing, decides nothing and
returns nothing; what a call takes beyond it is Python.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.client import ids
from holdfast.domain import limits
from holdfast.storage.sqlite import sql

_TOKEN = "0" * 32
_WAKE_BYTE = 32_768
# Values are bound by position, as the store does.
_INSERT = sql.QUERIES["job_insert_plain"]
_PLACE = ("route", "scope", "version")
_, _NEXT = sql.numbered("ready_plain_next", *_PLACE, "wall_now", "lease_now", "chosen_token", "worker", "incarnation")
_, _CLAIM = sql.numbered(
    "job_claim_next_plain", "seq", "holder", "lease_token", "lease_until_ms", "started_at_ms", "acknowledged"
)
_, _DONE = sql.numbered("job_done_plain", "seq", "result", "now", "epoch", "token", "lease_now", "priority")
_, _APPEND = sql.numbered("events_append_done_one", "seq", "at_ms")


class Statements:
    """The statements of single calls on a database in which the kind and the worker are known."""

    def __init__(self, path: str, payload: Any, result: Any) -> None:
        self._path = path
        self._payload, self._result = json.dumps(payload), json.dumps(result)
        self._lock = os.open(f"{path}-holdfast", os.O_RDWR)
        connection = sqlite3.connect(path, isolation_level=None, cached_statements=256)
        connection.execute("pragma synchronous = normal")
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

    def enqueue(self, count: int) -> None:
        """Store jobs, one commit for each."""
        drawn = [ids.job_id() for _ in range(count)]
        for job_id in drawn:
            self._commit(partial(self._insert, job_id))

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

    def _commit(self, *writes: Callable[[], None]) -> None:
        execute = self._cursor.execute
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        execute("begin immediate")
        for write in writes:
            write()
        os.stat(self._path)  # noqa: PTH116  # as the store does
        execute("commit")
        os.pwrite(self._lock, b"\1", _WAKE_BYTE)
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _insert(self, job_id: str) -> None:
        now = self._now
        placed = (5, self._route, "default", "default", 0, None, limits.MAX_ATTEMPTS_DEFAULT, None, None)
        self._cursor.execute(_INSERT, (self._version, job_id, self._payload, now, now, None, *placed))

    def _lease(self) -> None:
        cursor, now = self._cursor, self._now
        cursor.execute(_NEXT, (self._route, self._scope, self._version, now, 1, None, "w", "i"))
        row = cursor.fetchone()
        cursor.execute(_CLAIM, (row[1], 1, _TOKEN, now, now, 1))
        self._held.append((row[1], row[7] + 1))

    def _finish(self) -> None:
        seq, epoch = self._held.pop()
        self._cursor.execute(_DONE, (seq, self._result, self._now, epoch, _TOKEN, 1, 0))
        self._cursor.execute(_APPEND, (seq, self._now))
