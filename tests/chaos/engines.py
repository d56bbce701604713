"""Engine-specific parts of the chaos tests, selected by URL."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import psycopg
from psycopg import sql

import holdfast
from holdfast import Transaction
from tests.support.postgres_invariants import VIOLATIONS

# The engines' names; the fixture `store_url` creates a new store of each.
ENGINES = ["sqlite", "postgres"]


class Own(Protocol):
    """A connection of the caller, or a transaction of the queue, that executes SQL."""

    def execute(self, sql: Any, values: Any = ...) -> Any: ...


class Engine(Protocol):
    """A store with an additional table of the caller."""

    queue: holdfast.Queue
    one_writer: bool
    """Whether one transaction at a time reads the clock and writes; the event log is then in commit order."""

    def prepare(self) -> None:
        """Create the schema and the caller's table."""
        ...

    def own_transaction(self) -> AbstractContextManager[tuple[Transaction, Own]]:
        """Open a transaction on a connection of the caller and join it."""
        ...

    def write_ledger(self, own: Own, job: str, epoch: int) -> None:
        """Write to the caller's table within the open transaction."""
        ...

    def ledger(self) -> list[tuple[str, int]]:
        """Return the rows of the caller's table."""
        ...

    def damage(self) -> list[str]:
        """Return inconsistencies that the engine finds in its data."""
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
            # Checkpoints require the write lock, which this connection does not take.
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


# Checks beyond constraints: rows without a job, and jobs on missing routes.
_STRAYS = """
    select 'attempt', seq::text from holdfast.attempt where seq not in (select seq from holdfast.job)
    union all
    select 'artifact', seq::text from holdfast.artifact where seq not in (select seq from holdfast.job)
    union all
    select 'upload', upload from holdfast.upload
     where expires_at_ms is null and upload not in (select upload from holdfast.artifact)
    union all
    select 'chunk', upload from holdfast.upload_chunk where upload not in (select upload from holdfast.upload)
    union all
    select 'output', seq::text from holdfast.output where seq not in (select seq from holdfast.job)
    union all
    select 'route', id from holdfast.job where route not in (select route from holdfast.route)
    union all
    select 'event', id from holdfast.event, unnest(job_ids) as id group by id, number having count(*) > 1"""


class PostgresDatabase:
    """A PostgreSQL database, the queue in its schema `holdfast`."""

    # Transactions are ordered by their first write, and see later commits of others.
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
        # The driver's own connection takes the driver's placeholders.
        values = "(%s, %s)" if isinstance(own, psycopg.Connection) else "(?, ?)"
        own.execute(f"insert into ledger values {values}", (job, epoch))

    def ledger(self) -> list[tuple[str, int]]:
        with self.queue.transaction() as transaction:
            return [(job, epoch) for job, epoch in transaction.execute("select job, epoch from ledger")]

    def damage(self) -> list[str]:
        with psycopg.connect(self._url) as connection:
            found = [f"stray {what} of {which}" for what, which in connection.execute(_STRAYS)]
            violations = sql.SQL(VIOLATIONS).format(schema=sql.Identifier("holdfast"))
            return found + [f"job {seq}: {what}" for what, seq in connection.execute(violations)]


def open_engine(url: str) -> Engine:
    """Open the store at *url*."""
    return PostgresDatabase(url) if url.startswith("postgresql:") else SqliteFile(url)
