"""What the chaos needs of a store beyond the public face, by URL: the only place here that knows an engine."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import holdfast
from holdfast import Transaction

_LEDGER = "create table if not exists ledger (job text not null, epoch integer not null)"


class SqliteFile:
    """A SQLite file with a table of the caller's own beside the queue's."""

    def __init__(self, url: str) -> None:
        self.queue = holdfast.connect(url)
        self._url = url

    def prepare(self) -> None:
        """Make the schema and the caller's own table."""
        self.queue.migrate()
        with self.queue.transaction() as transaction:
            transaction.execute(_LEDGER)

    @contextmanager
    def own_transaction(self) -> Iterator[tuple[Transaction, sqlite3.Connection]]:
        """Open a transaction on a connection of the caller's own and join it."""
        connection = sqlite3.connect(self._url, timeout=30, isolation_level=None)
        try:
            # Checkpoints belong behind the gate, which this connection does not pass.
            connection.execute("pragma wal_autocheckpoint = 0")
            connection.execute("begin immediate")
            yield self.queue.within(connection), connection
            connection.execute("commit")
        finally:
            connection.close()

    def ledger(self) -> list[tuple[str, int]]:
        with self.queue.transaction() as transaction:
            return [(job, epoch) for job, epoch in transaction.execute("select job, epoch from ledger")]

    def damage(self) -> list[str]:
        """Return what the engine itself finds wrong with its file."""
        with self.queue.transaction() as transaction:
            found = [row[0] for row in transaction.execute("pragma integrity_check")]
            found += [str(row) for row in transaction.execute("pragma foreign_key_check")]
        return [line for line in found if line != "ok"]


def write_ledger(connection: sqlite3.Connection | Transaction, job: str, epoch: int) -> None:
    """Write to the caller's own table, within whichever transaction is open."""
    connection.execute("insert into ledger values (?, ?)", (job, epoch))


def open_engine(url: str) -> SqliteFile:
    """Open the store at *url*."""
    return SqliteFile(url)
