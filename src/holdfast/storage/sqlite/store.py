"""The SQLite store: one file, opened lazily, one writer at a time, readers beside it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar

from holdfast.domain import errors, masking
from holdfast.domain.clock import Clock
from holdfast.storage import contract, store
from holdfast.storage.notifications import Notifier
from holdfast.storage.plain_contract import Form
from holdfast.storage.rollup_buffer import RollupBuffer
from holdfast.storage.sqlite import fork_safety, notify
from holdfast.storage.sqlite.connection import MEMORY, SqliteConnector
from holdfast.storage.sqlite.external_transaction import SqliteAsyncExternalTransaction, SqliteSyncExternalTransaction
from holdfast.storage.sqlite.readers import Readers
from holdfast.storage.sqlite.transaction import Observer, SqliteState, unobserved
from holdfast.storage.sqlite.writer import Writer

T = TypeVar("T")

# Inherited across a fork with a transaction open. Closing it could harm the parent's, so it is kept untouched.
_orphans: list[object] = []
# How long a fork waits for open transactions.
_SUSPEND_SECONDS = 5.0


class SqliteStore:
    """One SQLite database. Safe to share between threads and tasks; reopens in a forked child.

    *path* is a result of `resolve_path`; every connection, fork and child process opens the file by it.
    """

    joined: Final = False
    writes_in_order: Final = True
    translate: Final = None

    def __init__(
        self,
        path: str,
        *,
        relaxed: bool = False,
        migrates: bool = True,
        network_files: bool = False,
        clock: Clock | None = None,
        observe: Observer = unobserved,
    ) -> None:
        self._state = SqliteState(path)
        self._settings: dict[str, Any] = {
            "relaxed": relaxed,
            "migrates": migrates,
            "network_files": network_files,
            "clock": clock,
            "observe": observe,
        }
        self._connector = SqliteConnector(
            path, relaxed=relaxed, migrates=migrates, network_files=network_files, clock=clock
        )
        self._observe = observe
        self._closed_in_memory = False
        self._start()
        if not self._connector.in_memory:
            fork_safety.suspend_at_fork(self)

    def __repr__(self) -> str:
        return f"<SqliteStore {masking.mask_url(self._connector.path)}>"

    def _start(self) -> None:
        self._process = os.getpid()
        self._notifier: Notifier = (
            Notifier() if self._connector.in_memory else notify.notifier_for(self._connector.path)
        )
        self._writer = Writer(self._state, self._connector, self._notifier, self._observe)
        self._readers = Readers(self._state, self._connector, self._observe, self.migrate)

    @property
    def notifier(self) -> Notifier:
        """The notifier of committed changes."""
        self._check_process()
        return self._notifier

    def _check_process(self) -> None:
        if self._closed_in_memory:
            raise errors.Misconfigured(
                "this queue was in memory and has been closed, so its jobs are gone; connect again for an empty"
                " queue, or use a file"
            )
        if os.getpid() != self._process:
            if self._connector.in_memory:
                raise errors.Misconfigured(
                    "this queue is in memory and belongs to the process that created it; use a file"
                )
            _orphans.append((self._writer, self._readers))
            self._start()

    # --- single transactions ---------------------------------------------------------------------------------------

    def read(self, operation: store.Operation[T]) -> T:
        """Run *operation* on one consistent view of the store."""
        self._check_process()
        # In memory there is only one connection, so readers queue with the writers.
        return (self._writer if self._connector.in_memory else self._readers).run(operation)

    def write(self, operation: store.Operation[T]) -> T:
        """Run *operation* in one transaction and return its result once that has committed."""
        if self._closed_in_memory or fork_safety.process != self._process:
            self._check_process()
        return self._writer.run(operation)

    def read_async(self, operation: store.Operation[T]) -> Coroutine[Any, Any, T]:
        """Run *operation* in another thread."""
        self._check_process()
        if self._connector.in_memory:
            return self.write_async(operation)
        return self._readers.run_async(operation)

    def write_async(self, operation: store.Operation[T]) -> Coroutine[Any, Any, T]:
        """Run *operation* in another thread, to completion even if the task is cancelled."""
        self._check_process()
        # Checked here, in the caller's task: another task may run the coroutine.
        self._writer.refuse_holder()
        return self._writer.run_async(operation)

    # --- transactions of the caller --------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[store.ExternalTransaction]:
        """Open a write transaction for the block."""
        self._check_process()
        with self._writer.transaction() as joined:
            yield joined

    @asynccontextmanager
    async def transaction_async(self) -> AsyncIterator[store.ExternalTransaction]:
        """Open a write transaction for the block, running each of its calls in another thread."""
        self._check_process()
        async with self._writer.transaction_async() as joined:
            yield joined

    def within(self, connection: Any) -> store.ExternalTransaction:
        """Join the write transaction that is open on the caller's own connection."""
        self._check_process()
        if not getattr(connection, "in_transaction", False):
            raise errors.InvalidInput(
                "connection", "has no open transaction; begin one, preferably with BEGIN IMMEDIATE"
            )
        self._connector.check_unmoved()
        path = self._connector.path
        if isinstance(connection, sqlite3.Connection):
            if path == MEMORY:
                raise errors.InvalidInput("connection", "a queue in memory has no connection but its own")
            clock = self._connector.read_clock()
            joined = SqliteSyncExternalTransaction(
                self._state, connection, clock, self._observe, self.notifier, threading.RLock()
            )
            joined.check(path)
            return joined
        if hasattr(connection, "execute_fetchall"):
            return SqliteAsyncExternalTransaction(
                self._state, connection, path, self._connector.read_clock(), self._observe, self.notifier
            )
        raise errors.InvalidInput(
            "connection", f"must be a sqlite3 or aiosqlite connection, not {type(connection).__name__}"
        )

    # --- forks -----------------------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """The path of the database."""
        return self._connector.path

    @property
    def forms(self) -> Mapping[Form, int]:
        """How many jobs this store has enqueued and settled, and how many calls claimed, by form."""
        return self._state.forms

    def suspend(self) -> bool:
        """Close all connections once no transaction is open, until `resume`; return whether that succeeded."""
        if os.getpid() != self._process:
            # Not used in this process yet, so nothing is open.
            self._start()
        if not self._writer.suspend(_SUSPEND_SECONDS):
            return False
        if not self._readers.suspend(_SUSPEND_SECONDS):
            self._writer.resume()
            return False
        return True

    def resume(self) -> None:
        """Continue after `suspend`."""
        self._readers.resume()
        self._writer.resume()

    def open_connections(self) -> list[object]:
        """Return the connections that are open because `suspend` did not succeed."""
        return [*self._writer.open_connections(), *self._readers.open_connections()]

    # --- opening and closing ---------------------------------------------------------------------------------------

    @property
    def rollups(self) -> RollupBuffer:
        """What this process has counted in this store and not yet written."""
        return self._state.rollups

    def clone(self) -> SqliteStore:
        """Return another store on the same file with its own connections; a store in memory returns itself."""
        return self if self._connector.in_memory else SqliteStore(self.path, **self._settings)

    def description(self) -> str:
        """Return the path of the file, or a note that it is in memory."""
        return "memory" if self._connector.in_memory else self._connector.path

    def address(self) -> dict[str, Any] | None:
        """Return the arguments to open the file in another process; None in memory or with an injected clock."""
        if self._connector.in_memory or self._settings["clock"] is not None:
            return None
        options = {option: self._settings[option] for option in ("relaxed", "migrates", "network_files")}
        return {"path": self.path, **options}

    def interrupt(self) -> None:
        """Make calls that wait for other writers raise `StoreBusy`."""
        self._writer.interrupt()
        self._readers.interrupt()

    async def interrupt_async(self) -> None:
        """Make calls in this event loop that wait for other writers raise `StoreBusy`."""
        self._writer.interrupt(asyncio.get_running_loop())
        self._readers.interrupt(asyncio.get_running_loop())

    def migrate(self) -> list[str]:
        """Open the file, migrate its schema and return the migrations that this opening applied."""
        self._connector.applied = []
        self.write(_do_nothing)
        return self._connector.applied

    def close(self) -> None:
        """Close the connections once they are unused. A database in memory is lost."""
        if os.getpid() == self._process:
            self._readers.close()
            self._writer.close()
            self._connector.forget_file()
            self._closed_in_memory = self._connector.in_memory


async def _do_nothing(tx: contract.StoreTransaction) -> None:
    """Do nothing in a transaction."""
