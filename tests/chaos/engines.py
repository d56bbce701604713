"""What the chaos needs of a store beyond the public face, by URL: the only place here that knows an engine."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import psycopg

import holdfast
from holdfast import Transaction

# What a test calls the engines by, and where it gets a fresh store of each: see the fixture `store_url`.
ENGINES = ["sqlite", "postgres"]


class Own(Protocol):
    """A connection of the caller's own, or a transaction of ours: what runs his statements."""

    def execute(self, sql: Any, values: Any = ...) -> Any: ...


class Engine(Protocol):
    """A store with a table of the caller's own beside the queue's."""

    queue: holdfast.Queue
    one_writer: bool
    """Whether one transaction at a time reads the clock and writes, so that the event log is in commit order."""

    def prepare(self) -> None:
        """Make the schema and the caller's own table."""
        ...

    def own_transaction(self) -> AbstractContextManager[tuple[Transaction, Own]]:
        """Open a transaction on a connection of the caller's own and join it."""
        ...

    def write_ledger(self, own: Own, job: str, epoch: int) -> None:
        """Write to the caller's own table, within whichever transaction is open."""
        ...

    def ledger(self) -> list[tuple[str, int]]:
        """Return what the caller's own table holds."""
        ...

    def damage(self) -> list[str]:
        """Return what the engine itself finds wrong with what it keeps."""
        ...


_LEDGER = "create table if not exists ledger (job text not null, epoch integer not null)"


class SqliteFile:
    """A SQLite file."""

    one_writer = True

    def __init__(self, url: str) -> None:
        self.queue = holdfast.connect(url)
        self._url = url

    def prepare(self) -> None:
        self.queue.migrate()
        with self.queue.transaction() as transaction:
            transaction.execute(_LEDGER)

    @contextmanager
    def own_transaction(self) -> Iterator[tuple[Transaction, Own]]:
        connection = sqlite3.connect(self._url, timeout=30, isolation_level=None)
        try:
            # Checkpoints belong behind the gate, which this connection does not pass.
            connection.execute("pragma wal_autocheckpoint = 0")
            connection.execute("begin immediate")
            yield self.queue.within(connection), connection
            connection.execute("commit")
        finally:
            connection.close()

    def write_ledger(self, own: Own, job: str, epoch: int) -> None:
        own.execute("insert into ledger values (?, ?)", (job, epoch))

    def ledger(self) -> list[tuple[str, int]]:
        with self.queue.transaction() as transaction:
            return [(job, epoch) for job, epoch in transaction.execute("select job, epoch from ledger")]

    def damage(self) -> list[str]:
        with self.queue.transaction() as transaction:
            found = [row[0] for row in transaction.execute("pragma integrity_check")]
            found += [str(row) for row in transaction.execute("pragma foreign_key_check")]
        return [line for line in found if line != "ok"]


# What no constraint can say: rows that belong to no job, and jobs on routes that are not there.
_STRAYS = """
    select 'attempt', seq::text from holdfast.attempt where seq not in (select seq from holdfast.job)
    union all
    select 'artifact', seq::text from holdfast.artifact where seq not in (select seq from holdfast.job)
    union all
    select 'route', id from holdfast.job where route not in (select route from holdfast.route)
    union all
    select 'event', job_id from holdfast.event group by job_id, number having count(*) > 1"""


class PostgresDatabase:
    """A PostgreSQL database, the queue in its schema `holdfast`."""

    # Transactions are ordered by when they began to write, and see what others commit after that.
    one_writer = False

    def __init__(self, url: str) -> None:
        self.queue = holdfast.connect(url)
        self._url = url

    def prepare(self) -> None:
        self.queue.migrate()
        with self.queue.transaction() as transaction:
            transaction.execute(_LEDGER)

    @contextmanager
    def own_transaction(self) -> Iterator[tuple[Transaction, Own]]:
        with psycopg.connect(self._url) as connection:
            yield self.queue.within(connection), connection

    def write_ledger(self, own: Own, job: str, epoch: int) -> None:
        own.execute("insert into ledger values (%s, %s)", (job, epoch))

    def ledger(self) -> list[tuple[str, int]]:
        with self.queue.transaction() as transaction:
            return [(job, epoch) for job, epoch in transaction.execute("select job, epoch from ledger")]

    def damage(self) -> list[str]:
        with psycopg.connect(self._url) as connection:
            return [f"stray {what} of {which}" for what, which in connection.execute(_STRAYS)]


def open_engine(url: str) -> Engine:
    """Open the store at *url*."""
    return PostgresDatabase(url) if url.startswith("postgresql:") else SqliteFile(url)
