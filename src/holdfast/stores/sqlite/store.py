"""The SQLite store: one file, opened lazily, one writer at a time, readers beside it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from holdfast.domain.clock import Clock
from holdfast.domain.errors import (
    InvalidInput,
    Misconfigured,
    OutcomeUnknown,
    SchemaMismatch,
    StoreUnreachable,
    UnsupportedStore,
)
from holdfast.stores.drivers import run_script
from holdfast.stores.engine import Engine, Joined
from holdfast.stores.script import Read, Script, Write
from holdfast.stores.signals import Hub
from holdfast.stores.sqlite import migrate as migrations
from holdfast.stores.sqlite.answers import Answers, Observer, unobserved
from holdfast.stores.sqlite.clock import known_clock, set_clock
from holdfast.stores.sqlite.doctor import examine
from holdfast.stores.sqlite.errors import translate, translated
from holdfast.stores.sqlite.gate import Gate
from holdfast.stores.sqlite.joined import AwaitingJoined, BlockingJoined
from holdfast.stores.sqlite.select import select_ready
from holdfast.stores.sqlite.threads import in_thread

T = TypeVar("T")

_MEMORY = ":memory:"
_OLDEST_SQLITE = (3, 37, 0)  # strict tables
_BUSY_SECONDS = 10.0
_STATEMENTS_KEPT = 256

# One hub for each file, so that all queues of this process that are open on it wake each other.
_hubs: weakref.WeakValueDictionary[str, Hub] = weakref.WeakValueDictionary()
_hubs_lock = threading.Lock()
# Connections that came over a fork. Closing them would harm the parent's, so they are kept and never touched.
_orphans: list[sqlite3.Connection] = []


class SqliteStore:
    """One SQLite database. Safe to share between threads and tasks; opened again in a forked child."""

    def __init__(
        self,
        path: str,
        *,
        relaxed: bool = False,
        migrates: bool = True,
        clock: Clock | None = None,
        observe: Observer = unobserved,
    ) -> None:
        self.engine = Engine(select_ready=select_ready, examine=examine)
        self.hub = _hub(path)
        self._path = path
        self._relaxed = relaxed
        self._migrates = migrates
        self._given_clock = clock
        self._observe = observe
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._writing = Gate()
        # In memory there is but one connection, so that readers pass the writers' gate.
        self._reading = self._writing if self._path == _MEMORY else Gate()
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._clock: Clock | None = self._given_clock
        self._applied: list[str] = []
        self._holder: object = None

    # --- single transactions ---------------------------------------------------------------------------------------

    def run(self, step: Read[T] | Write[T]) -> T:
        """Run one script in one transaction and return its result once that has committed."""
        gate = self._gate_for(step)
        gate.acquire()
        try:
            return self._transact(step)
        finally:
            gate.release()

    async def run_async(self, step: Read[T] | Write[T]) -> T:
        """Run one script in one transaction in another thread; it goes on to its end if the task is cancelled."""
        gate = self._gate_for(step)
        await gate.acquire_async()
        return await self._hand_over(lambda: self._transact(step), gate)

    async def _hand_over(self, work: Callable[[], T], gate: Gate) -> T:
        """Run *work* in another thread, which opens *gate* when it has ended, whatever became of the task."""

        def run() -> T:
            try:
                return work()
            finally:
                gate.release()

        try:
            running = asyncio.get_running_loop().run_in_executor(None, run)
        except BaseException:
            gate.release()
            raise
        # Shielded, because a cancelled task must not keep work from starting that is to open the gate.
        return await asyncio.shield(running)

    def _gate_for(self, step: Read[Any] | Write[Any]) -> Gate:
        if os.getpid() != self._process:
            _orphans.extend(filter(None, (self._writer, self._reader)))
            self._reset()
        gate = self._writing if isinstance(step, Write) else self._reading
        if gate is self._writing:
            self._refuse_holder()
        return gate

    def _refuse_holder(self) -> None:
        """Refuse to wait for oneself for ever."""
        if self._holder is not None and self._holder == _self():
            raise Misconfigured("a transaction of this queue is open here: call the methods of the transaction")

    def _transact(self, step: Read[T] | Write[T]) -> T:
        with translated():
            connection = self._connection(step)
            answers = self._answers(connection)
            self._begin(connection, "begin immediate" if isinstance(step, Write) else "begin")
            try:
                result = run_script(step.script(), answers.blocking)
            except BaseException:
                self._roll_back(connection)
                raise
            self._commit(connection)
        self.hub.publish(answers.signals)
        self._observe("committed")
        return result

    def _answers(self, connection: sqlite3.Connection) -> Answers:
        assert self._clock is not None  # noqa: S101  # opening sets it
        return Answers(connection, self._clock, self._observe)

    # --- begin, commit, roll back ----------------------------------------------------------------------------------

    def _begin(self, connection: sqlite3.Connection, how: str) -> None:
        self._observe("begin")
        connection.execute(how)

    def _commit(self, connection: sqlite3.Connection) -> None:
        try:
            self._observe("commit")
            connection.execute("commit")
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_IOERR:
                # The disk may or may not have it. The connection's view is not to be trusted any more.
                self._drop(connection)
                raise OutcomeUnknown(f"the commit was not confirmed; send the same call again ({error})") from error
            self._roll_back(connection)
            raise translate(error) from error
        except BaseException:
            self._roll_back(connection)
            raise

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        if connection.in_transaction:
            try:
                connection.execute("rollback")
            except sqlite3.Error:
                self._drop(connection)

    def _drop(self, connection: sqlite3.Connection) -> None:
        with contextlib.suppress(sqlite3.Error):
            connection.close()
        if connection is self._writer:
            self._writer = None
        if connection is self._reader:
            self._reader = None

    # --- transactions of the caller --------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[Joined]:
        """Open a write transaction for the block."""
        gate = self._gate_for(Write(_nothing))
        gate.acquire()
        try:
            joined = self._open_joined()
            self._holder = _self()
            try:
                yield joined
            finally:
                self._holder = None
                joined.end()
            self._finish_joined(joined)
        finally:
            # Whatever cut the block short, the next one must find no transaction open.
            if self._writer is not None:
                self._roll_back(self._writer)
            gate.release()

    @asynccontextmanager
    async def transaction_async(self) -> AsyncIterator[Joined]:
        """Open a write transaction for the block, running each of its calls in another thread."""
        gate = self._gate_for(Write(_nothing))
        await gate.acquire_async()
        try:
            joined = await in_thread(self._open_joined)
            self._holder = _self()
            try:
                yield joined
            finally:
                self._holder = None
                joined.end()
            await in_thread(partial(self._finish_joined, joined))
        finally:
            # Whatever cut the block short, the next one must find no transaction open.
            if self._writer is not None:
                self._roll_back(self._writer)
            gate.release()

    def _open_joined(self) -> BlockingJoined:
        with translated():
            connection = self._connection(Write(_nothing))
            self._begin(connection, "begin immediate")
            assert self._clock is not None  # noqa: S101  # opening sets it
            return BlockingJoined(connection, self._clock, self._observe, self.hub)

    def _finish_joined(self, joined: BlockingJoined) -> None:
        if not joined.connection.in_transaction:
            raise Misconfigured("the transaction was ended by SQL run in it; leave commit and rollback to the block")
        with translated():
            self._commit(joined.connection)
        self.hub.publish(joined.signals)
        self._observe("committed")

    def within(self, connection: Any) -> Joined:
        """Join the write transaction that is open on the caller's own connection."""
        self._gate_for(Read(_nothing))
        if not getattr(connection, "in_transaction", False):
            raise InvalidInput("connection", "has no open transaction; begin one, preferably with BEGIN IMMEDIATE")
        if isinstance(connection, sqlite3.Connection):
            joined = BlockingJoined(connection, self._open_clock(), self._observe, self.hub)
            joined.check_file(self._path)
            return joined
        if hasattr(connection, "execute_fetchall"):
            return AwaitingJoined(connection, self._path, self._open_clock(), self._observe, self.hub)
        raise InvalidInput(
            "connection", f"must be a sqlite3 or aiosqlite connection, not {type(connection).__name__}"
        )

    def _open_clock(self) -> Clock:
        """Return the clock without writing: the caller's transaction may hold up every other writer."""
        if self._clock is None:
            connection = self._new_connection()
            try:
                if migrations.pending(connection):
                    raise SchemaMismatch("this database has no current schema; call queue.migrate() before you begin")
                self._clock = known_clock(connection)
            finally:
                connection.close()
        if self._clock is None:
            raise Misconfigured(
                "the file was not used since this machine started; call queue.migrate() before you begin"
            )
        return self._clock

    # --- opening and closing ---------------------------------------------------------------------------------------

    def migrate(self) -> list[str]:
        """Open the file, bring its schema up to date and return the migrations that this store applied."""
        self._applied = []
        self.run(Write(_nothing))
        return self._applied

    def close(self) -> None:
        """Close the connections once nobody uses them."""
        if os.getpid() != self._process:
            return
        self._refuse_holder()
        for gate in dict.fromkeys((self._reading, self._writing)):
            gate.acquire()
            try:
                connection = self._reader if gate is not self._writing else self._writer
                if connection is not None:
                    self._drop(connection)
            finally:
                gate.release()

    def _connection(self, step: Read[Any] | Write[Any]) -> sqlite3.Connection:
        if isinstance(step, Write) or self._path == _MEMORY:
            if self._writer is None:
                self._writer = self._open_writer()
            return self._writer
        if self._reader is None:
            self._reader = self._open_reader()
        return self._reader

    def _open_writer(self) -> sqlite3.Connection:
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            needed = ".".join(map(str, _OLDEST_SQLITE))
            raise UnsupportedStore(f"this Python links SQLite {sqlite3.sqlite_version}; {needed} or later is needed")
        connection = self._new_connection()
        try:
            self._refuse_foreign(connection)
            _use_wal(connection)
            self._applied = migrations.migrate(connection)
            self._clock = self._given_clock or _file_clock(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _open_reader(self) -> sqlite3.Connection:
        connection = self._new_connection()
        try:
            self._clock = self._clock or (None if migrations.pending(connection) else known_clock(connection))
            if self._clock is None or migrations.pending(connection):
                # The writer creates and migrates; whoever comes to read first brings it about.
                self.migrate()
            connection.execute("pragma query_only = 1")
        except BaseException:
            connection.close()
            raise
        return connection

    def _refuse_foreign(self, connection: sqlite3.Connection) -> None:
        if not self._migrates and (missing := migrations.pending(connection)):
            raise SchemaMismatch(
                f"this database lacks {missing[0].name} of the Holdfast schema; run `holdfast migrate`"
            )

    def _new_connection(self) -> sqlite3.Connection:
        if not self._migrates and self._path != _MEMORY and not Path(self._path).exists():
            raise StoreUnreachable(f"there is no file {self._path!r}, and this queue does not create one")
        connection = sqlite3.connect(
            self._path,
            timeout=_BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_STATEMENTS_KEPT,
        )
        connection.execute(f"pragma synchronous = {'normal' if self._relaxed else 'full'}")
        return connection


def _hub(path: str) -> Hub:
    if path == _MEMORY:
        return Hub()
    with _hubs_lock:
        return _hubs.setdefault(os.path.realpath(path), Hub())


def _self() -> object:
    """Return the task, or else the thread, that is running."""
    try:
        return asyncio.current_task() or threading.get_ident()
    except RuntimeError:
        return threading.get_ident()


def _nothing() -> Script[None]:
    """Do nothing in a transaction."""
    yield from ()


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to the write-ahead log. SQLite does not wait for a lock here by itself, so this does."""
    patience = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > patience:
                raise
            time.sleep(0.005)
        else:
            return


def _file_clock(connection: sqlite3.Connection) -> Clock:
    clock = known_clock(connection)
    if clock is None:
        connection.execute("begin immediate")
        set_clock(connection)
        connection.execute("commit")
        clock = known_clock(connection)
    assert clock is not None  # noqa: S101  # it was set above
    return clock
