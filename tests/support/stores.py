"""The stores of the conformance suite: the only module that knows which engines exist."""

from __future__ import annotations

import functools
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from urllib.parse import quote
from weakref import WeakKeyDictionary

import holdfast
from holdfast.client.connect import async_queue_on, queue_on
from holdfast.client.queue_state import state_of
from holdfast.storage.postgres.store import PostgresStore
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.storage.store import Store
from tests.support import postgres_connections, postgres_schemas
from tests.support.clock import ManualClock
from tests.support.faults import Faults
from tests.support.postgres_server import database_url

DURABLE_ENGINES = ["sqlite-file", "postgres"]
ENGINES = [*DURABLE_ENGINES, "sqlite-memory"]
CHEAPEST_ENGINE = "sqlite-memory"
# The number of random examples that an engine can afford: on a server every call takes longer.
SHARE_OF_LONG_TESTS = {"sqlite-file": 1.0, "postgres": 0.15}

harnesses: WeakKeyDictionary[holdfast.Queue, Harness] = WeakKeyDictionary()


def statements_of(queue: holdfast.Queue) -> list[str]:
    """Return the names of the statements that *queue*, opened by a harness, has sent."""
    return harnesses[queue].faults.seen


def store_of(queue: holdfast.Queue) -> Store:
    """Return the store of *queue*, opened by a harness: over HTTP the one behind the server, opened beside it."""
    return harnesses[queue].store_of(queue)


@functools.cache
def migrated_file() -> bytes:
    """Return the bytes of an empty, migrated SQLite file: migrating one takes as long as a short test."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.db"
        with holdfast.connect(path) as queue:
            queue.migrate()
        return path.read_bytes()


class Harness:
    """One new store, its clock, and as many clients as a test needs."""

    def __init__(self, engine: str, folder: Path) -> None:
        self.clock = ManualClock()
        self.faults = Faults()
        self._in_memory = engine == "sqlite-memory"
        self._path = ":memory:" if self._in_memory else str(folder / "jobs.db")
        self.on_server = engine == "postgres"
        self._schema: str | None = None
        self._opened: list[holdfast.Queue] = []

    def open(self) -> holdfast.Queue:
        """Return another client of the store. A store in memory has only one, so it is returned again."""
        if self._opened and self._in_memory:
            return self._opened[0]
        queue = queue_on(self._store())
        harnesses[queue] = self
        self._opened.append(queue)
        return queue

    def open_async(self) -> holdfast.AsyncQueue:
        """Return an async client: of the same store, or of a new one if it is in memory."""
        return async_queue_on(self._store())

    def reopen(self) -> holdfast.Queue:
        """Return a client as after a crash: the earlier ones are dropped without being closed."""
        self._close_clients()
        return self.open()

    def store_of(self, queue: holdfast.Queue) -> Store:
        """Return the store of a client, for what no client does."""
        return state_of(queue).store

    def rows(self) -> object:
        """Return all rows of a durable store, read without its clients."""
        if self._schema is not None:
            return postgres_schemas.rows(self._schema)
        with closing(sqlite3.connect(self._path)) as connection:
            tables = connection.execute(
                "select name from sqlite_schema where type = 'table' order by name"
            ).fetchall()
            return {name: connection.execute(f"select * from {name}").fetchall() for (name,) in tables}

    def close(self, *, trusted: bool = True) -> None:
        """Close the clients. After a failed test the store is not *trusted*, and no other test gets it."""
        self._close_clients()
        if self._schema is not None:
            postgres_schemas.give_back(self._schema, trusted=trusted)
            self._schema = None

    def _close_clients(self) -> None:
        self.faults.calm()
        for queue in self._opened:
            store = state_of(queue).store
            if isinstance(store, PostgresStore) and self._schema is not None:
                postgres_connections.keep(self._schema, store)
            queue.close()
        self._opened.clear()

    def _store(self) -> Store:
        if not self.on_server:
            if not self._in_memory and not Path(self._path).exists():
                Path(self._path).write_bytes(migrated_file())
            return SqliteStore(self._path, clock=self.clock, observe=self.faults)
        self._schema = self._schema or postgres_schemas.take()
        # Tables that a test creates are in the store's schema, and are dropped with it.
        url = f"{database_url()}?options={quote(f'-csearch_path={self._schema}')}"
        store = PostgresStore(url, schema=self._schema, clock=self.clock, observe=self.faults)
        postgres_connections.reuse(self._schema, store, lambda: self.faults.is_dead)
        return store
