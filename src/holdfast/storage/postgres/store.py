"""The PostgreSQL store: one schema of one database, opened lazily, many writers at once."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar

import psycopg

from holdfast.domain import errors, masking
from holdfast.domain.clock import Clock
from holdfast.storage import cancellation, runners, store
from holdfast.storage.contract import OvertakenError
from holdfast.storage.notifications import Notifier
from holdfast.storage.postgres import commits, external_transaction, notify
from holdfast.storage.postgres.connection import PostgresConnector, described
from holdfast.storage.postgres.errors import TRANSLATED, raise_translated, translate, translated
from holdfast.storage.postgres.io import AsyncIO, ServerIO, SyncIO
from holdfast.storage.postgres.pool import AsyncPool, Loan, SyncPool
from holdfast.storage.postgres.transaction import PostgresState, run_transaction
from holdfast.storage.rollup_buffer import RollupBuffer

T = TypeVar("T")

_SCHEMA_DEFAULT = "holdfast"
# How long interrupted calls may take to finish by themselves.
_INTERRUPT_SECONDS = 0.25
# Connections inherited across a fork. The parent still uses them, so they are kept here and never touched.
_orphans: list[object] = []


class PostgresStore:
    """One schema of a PostgreSQL database. Safe to share between threads and event loops; reopens after a fork."""

    joined: Final = False
    writes_in_order: Final = False
    translate: Final = None

    def __init__(
        self,
        url: str,
        *,
        schema: str = _SCHEMA_DEFAULT,
        listen_url: str | None = None,
        migrates: bool = True,
        clock: Clock | None = None,
        observe: commits.Observer = commits.unobserved,
    ) -> None:
        self._state = PostgresState(judged_by_server=clock is None)
        self._settings = commits.PostgresSettings(schema, clock, observe)
        self._report = self._settings.report_notification
        self._url, self._listen_url, self._migrates = url, listen_url or url, migrates
        self._start()

    def __repr__(self) -> str:
        return f"<PostgresStore {masking.mask_url(self._url)} schema={self._settings.schema}>"

    def _start(self) -> None:
        self._process = os.getpid()
        self._notifier: Notifier = notify.notifier_for(self._listen_url, self._settings.channel)
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

    def read(self, operation: store.Operation[T]) -> T:
        """Run *operation* on one consistent view of the store."""
        self._check_process()
        self._make_ready()
        with translated(self._settings.schema):
            return self._run(operation, writes=False)[0]

    def write(self, operation: store.Operation[T]) -> T:
        """Run *operation* in one transaction and return its result once that has committed."""
        self._check_process()
        self._refuse_holder()
        self._make_ready()
        try:
            result, topics = self._run(operation, writes=True)
        except TRANSLATED as error:  # in a tenth of the time that a context manager takes
            raise_translated(error, self._settings.schema)
        self._notify_listeners(topics)
        return result

    def _run(self, operation: store.Operation[T], *, writes: bool) -> tuple[T, set[str]]:
        try:
            return self._run_once(operation, writes=writes, resent=False)
        except commits.UnconfirmedError as error:
            # Only now, when the connection has been returned: other callers may wait for one in the same way.
            with _still_unknown(error, self._settings.schema):
                return self._run_once(operation, writes=True, resent=True)

    def _run_once(self, operation: store.Operation[T], *, writes: bool, resent: bool) -> tuple[T, set[str]]:
        for fresh in (False, True):
            loan = Loan(additional=self._holds())
            try:
                io = SyncIO(self._threads.lend(loan, fresh=fresh), self._report)
                return runners.run_sync(self._attempt(operation, io, writes=writes, resent=resent))
            except commits.StaleConnectionError as error:
                if fresh:
                    raise _unreachable(error) from error
            finally:
                try:
                    self._threads.end(loan)
                finally:
                    # Again, because an interrupt may have stopped the first call, and another the second.
                    try:
                        if not loan.ended:
                            self._threads.end(loan)
                    finally:
                        if not loan.ended:
                            self._threads.end(loan)
        raise AssertionError("unreachable")

    async def read_async(self, operation: store.Operation[T]) -> T:
        """Run *operation* on one consistent view of the store."""
        self._check_process()
        await self._make_ready_async()
        result, _ = await self._run_to_completion(operation, writes=False)
        return result

    def write_async(self, operation: store.Operation[T]) -> Coroutine[Any, Any, T]:
        """Run *operation* in one transaction, to completion even if the task is cancelled."""
        self._check_process()
        # Checked here, in the caller's task: another task may run the coroutine.
        self._refuse_holder()
        return self._write_async(operation)

    async def _write_async(self, operation: store.Operation[T]) -> T:
        await self._make_ready_async()
        result, _ = await self._run_to_completion(operation, writes=True)
        return result

    async def _run_to_completion(self, operation: store.Operation[T], *, writes: bool) -> tuple[T, set[str]]:
        running = asyncio.ensure_future(self._run_async(operation, writes=writes, additional=self._holds()))
        self._begun.add(running)
        running.add_done_callback(self._begun.discard)
        # If the caller is cancelled, nothing else would retrieve an error, and asyncio would log it.
        running.add_done_callback(cancellation.retrieve)
        return await asyncio.shield(running)

    async def _run_async(
        self, operation: store.Operation[T], *, writes: bool, additional: bool
    ) -> tuple[T, set[str]]:
        try:
            return await self._run_once_async(operation, writes=writes, additional=additional, resent=False)
        except commits.UnconfirmedError as error:
            with _still_unknown(error, self._settings.schema):
                return await self._run_once_async(operation, writes=True, additional=additional, resent=True)

    async def _run_once_async(
        self, operation: store.Operation[T], *, writes: bool, additional: bool, resent: bool
    ) -> tuple[T, set[str]]:
        pool = self._pool()
        with translated(self._settings.schema):
            for fresh in (False, True):
                connection = await pool.take(fresh=fresh, additional=additional)
                try:
                    io = AsyncIO(connection, self._report)
                    outcome = await self._attempt(operation, io, writes=writes, resent=resent)
                except commits.StaleConnectionError as error:
                    if fresh:
                        raise _unreachable(error) from error
                else:
                    if writes:
                        self._notify_listeners(outcome[1])
                    return outcome
                finally:
                    pool.put_back(connection)
        raise AssertionError("unreachable")

    async def _attempt(
        self, operation: store.Operation[T], io: ServerIO, *, writes: bool, resent: bool
    ) -> tuple[T, set[str]]:
        """Run one transaction; return its result and the topics to notify."""
        return await run_transaction(self._state, self._settings, operation, io, writes=writes, resent=resent)

    def _make_ready(self) -> None:
        if not self._connector.ready:
            self._connector.make_ready()

    async def _make_ready_async(self) -> None:
        if not self._connector.ready:
            # In a daemon thread: a server that does not respond must not keep the process from exiting.
            await cancellation.in_daemon_thread(self._connector.make_ready)

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
    def transaction(self) -> Iterator[store.ExternalTransaction]:
        """Open a write transaction for the block."""
        self._check_process()
        self._refuse_holder()
        self._make_ready()
        loan, process = Loan(), self._process
        try:
            joined = external_transaction.PostgresSyncExternalTransaction(
                self._state, self._begin(loan), self._settings, self.notifier, own=True
            )
            try:
                with self._held(joined):
                    yield joined
                joined.refuse_inherited()
                with joined.lock, translated(self._settings.schema):
                    runners.run_sync(self._finish(joined))
            finally:
                if os.getpid() == process:
                    runners.run_sync(commits.roll_back(joined.io, resets=joined.ran_sql))
        finally:
            # In a process that was forked within the block, the connection is its parent's.
            if os.getpid() == process:
                try:
                    self._threads.end(loan)
                finally:
                    self._threads.end(loan)

    def _begin(self, loan: Loan) -> SyncIO:
        for fresh in (False, True):
            io = SyncIO(self._threads.lend(loan, fresh=fresh), self._report)
            try:
                with translated(self._settings.schema):
                    runners.run_sync(commits.begin(self._settings, io, self._settings.begin_sharing))
            except commits.StaleConnectionError as error:
                self._threads.end(loan)
                if fresh:
                    raise _unreachable(error) from error
            else:
                return io
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def transaction_async(self) -> AsyncIterator[store.ExternalTransaction]:
        """Open a write transaction for the block."""
        self._check_process()
        self._refuse_holder()
        await self._make_ready_async()
        pool = self._pool()
        connection = await self._open_async(pool)
        joined = external_transaction.PostgresAsyncExternalTransaction(
            self._state,
            AsyncIO(connection, self._report),
            self._settings,
            self.notifier,
            own=True,
        )
        try:
            try:
                with self._held(joined):
                    yield joined
                joined.refuse_inherited()
                async with joined.lock:
                    with translated(self._settings.schema):
                        await cancellation.finish_despite_cancellation(self._finish(joined))
            finally:
                if os.getpid() == joined.process:
                    await cancellation.finish_despite_cancellation(self._roll_back(joined))
        finally:
            if os.getpid() == joined.process:
                pool.put_back(connection)

    async def _open_async(self, pool: AsyncPool) -> psycopg.AsyncConnection[Any]:
        for fresh in (False, True):
            connection = await pool.take(fresh=fresh)
            try:
                with translated(self._settings.schema):
                    await commits.begin(
                        self._settings,
                        AsyncIO(connection, self._report),
                        self._settings.begin_sharing,
                    )
            except commits.StaleConnectionError as error:
                pool.put_back(connection)
                if fresh:
                    raise _unreachable(error) from error
            except BaseException:
                pool.put_back(connection)
                raise
            else:
                return connection
        raise AssertionError("unreachable")

    async def _roll_back(self, joined: external_transaction.PostgresAsyncExternalTransaction) -> None:
        async with joined.lock:
            await commits.roll_back(joined.io, resets=joined.ran_sql)

    async def _finish(
        self,
        joined: external_transaction.PostgresSyncExternalTransaction
        | external_transaction.PostgresAsyncExternalTransaction,
    ) -> None:
        commits.refuse_ended(joined.connection)
        await commits.commit(self._settings, joined.io, joined.signals, resets=joined.ran_sql)
        joined.ran_sql = False
        self._notifier.publish(joined.signals)
        self._settings.observe("committed")

    def within(self, connection: Any) -> store.ExternalTransaction:
        """Join the transaction that is open on the caller's own connection."""
        self._check_process()
        self._make_ready()
        return external_transaction.join(self._state, connection, self._settings, self.notifier)

    @contextmanager
    def _held(
        self,
        joined: external_transaction.PostgresSyncExternalTransaction
        | external_transaction.PostgresAsyncExternalTransaction,
    ) -> Iterator[None]:
        holder = _current_caller()
        try:
            self._holders.add(holder)
            yield
        finally:
            self._holders.discard(holder)
            joined.end()

    def _refuse_holder(self) -> None:
        """Raise if the caller already holds a transaction of this queue."""
        if self._holds():
            raise errors.Misconfigured(
                "a transaction of this queue is open here: call the methods of the transaction"
            )

    def _holds(self) -> bool:
        """Whether the running task or thread has a transaction of this queue open."""
        return bool(self._holders) and _current_caller() in self._holders

    # --- opening and closing ---------------------------------------------------------------------------------------

    @property
    def rollups(self) -> RollupBuffer:
        """What this process has counted in this store and not yet written."""
        return self._state.rollups

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


# Why a store did not say what became of a transaction: it does not respond, or is a copy of the one that was asked.
_NOT_ASKED: Final = (errors.Unavailable, errors.ReadOnlyStore)


def _unreachable(error: commits.StaleConnectionError) -> errors.StoreUnreachable:
    return errors.StoreUnreachable(f"the connection to the server was lost ({error.__cause__})")


@contextmanager
def _still_unknown(unconfirmed: commits.UnconfirmedError, schema: str) -> Iterator[None]:
    """Raise `OutcomeUnknown` if the store cannot be asked for the outcome of a transaction either."""
    try:
        yield
    except errors.OutcomeUnknown:
        raise
    except (errors.HoldfastError, psycopg.Error, OvertakenError) as error:
        if not isinstance(translate(error, schema), _NOT_ASKED):
            raise
        reason = f"the commit was not confirmed; send the same call again ({error})"
        raise errors.OutcomeUnknown(reason) from unconfirmed.__cause__


def _current_caller() -> object:
    """Return the running task, or the running thread if there is no task."""
    try:
        return asyncio.current_task() or threading.get_ident()
    except RuntimeError:
        return threading.get_ident()
