"""The PostgreSQL store: one schema of one database, opened lazily, many writers at once."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar

import psycopg

from holdfast.domain.clock import Clock
from holdfast.domain.errors import Misconfigured, StoreUnreachable
from holdfast.domain.masking import mask_url
from holdfast.domain.new_job import CheckedJob
from holdfast.storage.cancellation import finish_despite_cancellation, in_daemon_thread, retrieve
from holdfast.storage.notifications import Notifier
from holdfast.storage.postgres.connection import PostgresConnector, described
from holdfast.storage.postgres.errors import translated
from holdfast.storage.postgres.external_transaction import (
    PostgresAsyncExternalTransaction,
    PostgresSyncExternalTransaction,
    join,
)
from holdfast.storage.postgres.io import AsyncIO, ServerIO, SyncIO
from holdfast.storage.postgres.notify import notifier_for
from holdfast.storage.postgres.plain_forms import UnconfirmedError, plain_enqueue, run_plain, still_unknown
from holdfast.storage.postgres.pool import AsyncPool, SyncPool
from holdfast.storage.postgres.transaction import (
    Observer,
    PostgresSettings,
    PostgresState,
    StaleConnectionError,
    begin,
    commit,
    refuse_ended,
    roll_back,
    run_transaction,
    unobserved,
)
from holdfast.storage.runners import run_sync
from holdfast.storage.store import ExternalTransaction, Operation, PlainForm

T = TypeVar("T")

_SCHEMA_DEFAULT = "holdfast"
# How long interrupted calls may take to finish by themselves.
_INTERRUPT_SECONDS = 0.25
# Connections inherited across a fork. The parent still uses them, so they are kept here and never touched.
_orphans: list[object] = []


class PostgresStore:
    """One schema of a PostgreSQL database. Safe to share between threads and event loops; reopens after a fork."""

    joined: Final = False
    translate: Final = None

    def __init__(
        self,
        url: str,
        *,
        schema: str = _SCHEMA_DEFAULT,
        listen_url: str | None = None,
        migrates: bool = True,
        clock: Clock | None = None,
        observe: Observer = unobserved,
    ) -> None:
        self._state = PostgresState(judged_by_server=clock is None)
        self._settings = PostgresSettings(schema, clock, observe)
        self._url, self._listen_url, self._migrates = url, listen_url or url, migrates
        self._start()

    def __repr__(self) -> str:
        return f"<PostgresStore {mask_url(self._url)} schema={self._settings.schema}>"

    def _start(self) -> None:
        self._process = os.getpid()
        self._notifier: Notifier = notifier_for(self._listen_url, self._settings.channel)
        self._connector = PostgresConnector(self._url, self._settings, migrates=self._migrates)
        self._threads = SyncPool(self._connector.connect)
        self._loops: dict[asyncio.AbstractEventLoop, AsyncPool] = {}
        self._loops_lock = threading.Lock()
        self._begun: set[asyncio.Future[Any]] = set()
        self._holders: set[object] = set()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            _orphans.append((self._threads, self._loops, self._notifier))
            self._start()

    @property
    def notifier(self) -> Notifier:
        """The notifier of committed changes."""
        self._check_process()
        return self._notifier

    # --- single transactions ---------------------------------------------------------------------------------------

    def read(self, operation: Operation[T]) -> T:
        """Run *operation* on one consistent view of the store."""
        self._check_process()
        self._make_ready()
        with translated(self._settings.schema):
            return self._run(operation, None, writes=False)[0]

    def write(self, operation: Operation[T], plain: Callable[[], PlainForm | None] | None = None) -> T:
        """Run *operation* in one transaction and return its result once that has committed."""
        self._check_process()
        self._refuse_holder()
        self._make_ready()
        with translated(self._settings.schema):
            result, topics = self._run(operation, plain, writes=True)
        self._notify_listeners(topics)
        return result

    def _run(
        self, operation: Operation[T], plain: Callable[[], PlainForm | None] | None, *, writes: bool
    ) -> tuple[T, set[str]]:
        for fresh in (False, True):
            connection = self._threads.take(fresh=fresh, additional=self._holds())
            try:
                return run_sync(self._attempt(operation, plain, SyncIO(connection), writes=writes))
            except StaleConnectionError as error:
                if fresh:
                    raise _unreachable(error) from error
            except UnconfirmedError as error:
                with still_unknown(error):
                    return self._run(error.again, None, writes=True)
            finally:
                self._threads.put_back(connection)
        raise AssertionError("unreachable")

    async def read_async(self, operation: Operation[T]) -> T:
        """Run *operation* on one consistent view of the store."""
        self._check_process()
        await self._make_ready_async()
        result, _ = await self._run_to_completion(operation, None, writes=False)
        return result

    def write_async(
        self, operation: Operation[T], plain: Callable[[], PlainForm | None] | None = None
    ) -> Coroutine[Any, Any, T]:
        """Run *operation* in one transaction, to completion even if the task is cancelled."""
        self._check_process()
        # Checked here, in the caller's task: another task may run the coroutine.
        self._refuse_holder()
        return self._write_async(operation, plain)

    async def _write_async(self, operation: Operation[T], plain: Callable[[], PlainForm | None] | None) -> T:
        await self._make_ready_async()
        result, _ = await self._run_to_completion(operation, plain, writes=True)
        return result

    async def _run_to_completion(
        self, operation: Operation[T], plain: Callable[[], PlainForm | None] | None, *, writes: bool
    ) -> tuple[T, set[str]]:
        running = asyncio.ensure_future(self._run_async(operation, plain, writes=writes, additional=self._holds()))
        self._begun.add(running)
        running.add_done_callback(self._begun.discard)
        # If the caller is cancelled, nothing else would retrieve an error, and asyncio would log it.
        running.add_done_callback(retrieve)
        return await asyncio.shield(running)

    async def _run_async(
        self, operation: Operation[T], plain: Callable[[], PlainForm | None] | None, *, writes: bool, additional: bool
    ) -> tuple[T, set[str]]:
        pool = self._pool()
        with translated(self._settings.schema):
            for fresh in (False, True):
                connection = await pool.take(fresh=fresh, additional=additional)
                try:
                    outcome = await self._attempt(operation, plain, AsyncIO(connection), writes=writes)
                except StaleConnectionError as error:
                    if fresh:
                        raise _unreachable(error) from error
                except UnconfirmedError as error:
                    with still_unknown(error):
                        return await self._run_async(error.again, None, writes=True, additional=additional)
                else:
                    if writes:
                        self._notify_listeners(outcome[1])
                    return outcome
                finally:
                    pool.put_back(connection)
        raise AssertionError("unreachable")

    async def _attempt(
        self,
        operation: Operation[T],
        plain: Callable[[], PlainForm | None] | None,
        io: ServerIO,
        *,
        writes: bool,
    ) -> tuple[T, set[str]]:
        """Run one transaction, in its plain form if it has one; return its result and the topics to notify."""
        form = plain() if plain is not None else None
        if form is not None:
            result = await run_plain(self._settings, form, io)
            if result is not None:
                return result, set(form.topics)
        return await run_transaction(self._state, self._settings, operation, io, writes=writes)

    def plain_enqueue(self, new: CheckedJob, again: Operation[Any]) -> PlainForm | None:
        """Return one message that stores the job, if it is plain."""
        return plain_enqueue(new, self._state.newest, again)

    def _make_ready(self) -> None:
        if not self._connector.ready:
            self._connector.make_ready()

    async def _make_ready_async(self) -> None:
        if not self._connector.ready:
            # In a daemon thread: a server that does not respond must not keep the process from exiting.
            await in_daemon_thread(self._connector.make_ready)

    def _notify_listeners(self, topics: set[str]) -> None:
        """Wake listeners in this process at once; the server notifies other processes."""
        if topics:
            self._notifier.publish(topics)
        self._settings.observe("committed")

    def _pool(self) -> AsyncPool:
        loop = asyncio.get_running_loop()
        pool = self._loops.get(loop)
        if pool is None:
            pool = AsyncPool(self._connector.connect_async)
            with self._loops_lock:
                for ended in [known for known in self._loops if known.is_closed()]:
                    self._loops.pop(ended).close()
                self._loops[loop] = pool
        return pool

    # --- transactions of the caller --------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[ExternalTransaction]:
        """Open a write transaction for the block."""
        self._check_process()
        self._refuse_holder()
        self._make_ready()
        connection = self._open()
        joined = PostgresSyncExternalTransaction(
            self._state, SyncIO(connection), self._settings, self.notifier, own=True
        )
        try:
            try:
                with self._held(joined):
                    yield joined
                with translated(self._settings.schema):
                    run_sync(self._finish(joined))
            finally:
                run_sync(roll_back(joined.io, resets=joined.ran_sql))
        finally:
            self._threads.put_back(connection)

    def _open(self) -> psycopg.Connection[Any]:
        for fresh in (False, True):
            connection = self._threads.take(fresh=fresh)
            try:
                with translated(self._settings.schema):
                    run_sync(begin(self._settings, SyncIO(connection), self._settings.begin_sharing))
            except StaleConnectionError as error:
                self._threads.put_back(connection)
                if fresh:
                    raise _unreachable(error) from error
            except BaseException:
                self._threads.put_back(connection)
                raise
            else:
                return connection
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def transaction_async(self) -> AsyncIterator[ExternalTransaction]:
        """Open a write transaction for the block."""
        self._check_process()
        self._refuse_holder()
        await self._make_ready_async()
        pool = self._pool()
        connection = await self._open_async(pool)
        joined = PostgresAsyncExternalTransaction(
            self._state, AsyncIO(connection), self._settings, self.notifier, own=True
        )
        try:
            try:
                with self._held(joined):
                    yield joined
                with translated(self._settings.schema):
                    await finish_despite_cancellation(self._finish(joined))
            finally:
                await finish_despite_cancellation(roll_back(joined.io, resets=joined.ran_sql))
        finally:
            pool.put_back(connection)

    async def _open_async(self, pool: AsyncPool) -> psycopg.AsyncConnection[Any]:
        for fresh in (False, True):
            connection = await pool.take(fresh=fresh)
            try:
                with translated(self._settings.schema):
                    await begin(self._settings, AsyncIO(connection), self._settings.begin_sharing)
            except StaleConnectionError as error:
                pool.put_back(connection)
                if fresh:
                    raise _unreachable(error) from error
            except BaseException:
                pool.put_back(connection)
                raise
            else:
                return connection
        raise AssertionError("unreachable")

    async def _finish(self, joined: PostgresSyncExternalTransaction | PostgresAsyncExternalTransaction) -> None:
        refuse_ended(joined.connection)
        await commit(self._settings, joined.io, joined.signals, resets=joined.ran_sql)
        joined.ran_sql = False
        self._notifier.publish(joined.signals)
        self._settings.observe("committed")

    def within(self, connection: Any) -> ExternalTransaction:
        """Join the transaction that is open on the caller's own connection."""
        self._check_process()
        self._make_ready()
        return join(self._state, connection, self._settings, self.notifier)

    @contextmanager
    def _held(self, joined: PostgresSyncExternalTransaction | PostgresAsyncExternalTransaction) -> Iterator[None]:
        holder = _current_caller()
        self._holders.add(holder)
        try:
            yield
        finally:
            self._holders.discard(holder)
            joined.end()

    def _refuse_holder(self) -> None:
        """Raise if the caller already holds a transaction of this queue."""
        if self._holds():
            raise Misconfigured("a transaction of this queue is open here: call the methods of the transaction")

    def _holds(self) -> bool:
        """Whether the running task or thread has a transaction of this queue open."""
        return bool(self._holders) and _current_caller() in self._holders

    # --- opening and closing ---------------------------------------------------------------------------------------

    def clone(self) -> PostgresStore:
        """Return another store on the same schema, with its own connections."""
        return PostgresStore(
            self._url,
            schema=self._settings.schema,
            listen_url=self._listen_url,
            migrates=self._migrates,
            clock=self._settings.clock,
            observe=self._settings.observe,
        )

    def description(self) -> str:
        """Return host, port and database, and the schema unless it has the usual name."""
        schema = self._settings.schema
        return described(self._url) + ("" if schema == _SCHEMA_DEFAULT else f" (schema {schema})")

    def address(self) -> dict[str, Any] | None:
        """Return the arguments with which another process opens the same schema; None with an injected clock."""
        if self._settings.clock is not None:
            return None
        return {
            "url": self._url,
            "schema": self._settings.schema,
            "listen_url": self._listen_url,
            "migrates": self._migrates,
        }

    def interrupt(self) -> None:
        """Make calls of threads that wait for the server raise `Unavailable`."""
        self._threads.interrupt()

    async def interrupt_async(self) -> None:
        """Make calls in this event loop that wait for the server raise `Unavailable`, unless they finish soon."""
        loop = asyncio.get_running_loop()
        pool = self._loops.get(loop)
        begun = [call for call in self._begun if call.get_loop() is loop]
        if pool is not None and begun:
            _, waiting = await asyncio.wait(begun, timeout=_INTERRUPT_SECONDS)
            if waiting:
                pool.interrupt()
                await asyncio.wait(waiting, timeout=_INTERRUPT_SECONDS)

    def migrate(self) -> list[str]:
        """Bring the schema up to date and return the migrations that were applied."""
        self._check_process()
        return self._connector.make_ready(again=True)

    def close(self) -> None:
        """Close the idle connections."""
        if os.getpid() == self._process:
            self._threads.close()
            with self._loops_lock:
                pools = list(self._loops.values())
            for pool in pools:
                pool.close()


def _unreachable(error: StaleConnectionError) -> StoreUnreachable:
    return StoreUnreachable(f"the connection to the server was lost ({error.__cause__})")


def _current_caller() -> object:
    """Return the running task, or the running thread if there is no task."""
    try:
        return asyncio.current_task() or threading.get_ident()
    except RuntimeError:
        return threading.get_ident()
