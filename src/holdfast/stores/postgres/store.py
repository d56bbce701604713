"""The PostgreSQL store: one schema of one database, opened lazily, many writers at once."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeVar

import psycopg

from holdfast.domain.clock import Clock
from holdfast.domain.errors import Misconfigured, StoreUnreachable
from holdfast.domain.masking import mask_url
from holdfast.stores.endings import to_its_end
from holdfast.stores.engine import Engine, Joined
from holdfast.stores.postgres.brief import UnconfirmedError, brief_enqueue, run_shortest, still_unknown
from holdfast.stores.postgres.doctor import examine
from holdfast.stores.postgres.ending import succeed_held
from holdfast.stores.postgres.errors import translated
from holdfast.stores.postgres.joined import AwaitingJoined, BlockingJoined, join
from holdfast.stores.postgres.listening import hub_of
from holdfast.stores.postgres.marks import Marks, PastMoments
from holdfast.stores.postgres.opening import Opener, described
from holdfast.stores.postgres.pools import AwaitingPool, BlockingPool
from holdfast.stores.postgres.select import select_ready
from holdfast.stores.postgres.transactions import (
    Observer,
    StaleConnectionError,
    Terms,
    begin,
    commit,
    refuse_ended,
    roll_back,
    unobserved,
)
from holdfast.stores.postgres.wire import Talk, talk, talk_async
from holdfast.stores.script import Read, Write
from holdfast.stores.signals import Hub

T = TypeVar("T")

# How long calls that are to be interrupted may take to end by themselves, and after that.
_INTERRUPT_SECONDS = 0.25
# What came over a fork. The parent goes on using its connections, so that here they are kept and never touched.
_orphans: list[object] = []


class PostgresStore:
    """One schema of a PostgreSQL database. Safe to share between threads and event loops; anew after a fork."""

    def __init__(
        self,
        url: str,
        *,
        schema: str = "holdfast",
        listen_url: str | None = None,
        migrates: bool = True,
        clock: Clock | None = None,
        observe: Observer = unobserved,
    ) -> None:
        self.engine = Engine(
            select_ready=partial(select_ready, Marks()),
            examine=examine,
            moments=PastMoments(),
            succeed_held=partial(succeed_held, judged_by_server=clock is None),
        )
        self.engine.brief_enqueue = partial(brief_enqueue, self.engine)
        self._terms = Terms(schema, clock, observe)
        self._url, self._listen_url, self._migrates = url, listen_url or url, migrates
        self._start()

    def __repr__(self) -> str:
        return f"<PostgresStore {mask_url(self._url)} schema={self._terms.schema}>"

    def _start(self) -> None:
        self._process = os.getpid()
        self._hub: Hub = hub_of(self._listen_url, self._terms.channel)
        self._opener = Opener(self._url, self._terms, migrates=self._migrates)
        self._threads = BlockingPool(self._opener.connect)
        self._loops: dict[asyncio.AbstractEventLoop, AwaitingPool] = {}
        self._loops_lock = threading.Lock()
        self._begun: set[asyncio.Future[Any]] = set()
        self._holders: set[object] = set()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            _orphans.append((self._threads, self._loops, self._hub))
            self._start()

    @property
    def hub(self) -> Hub:
        """Where to listen for what is committed."""
        self._check_process()
        return self._hub

    # --- single transactions ---------------------------------------------------------------------------------------

    def run(self, step: Read[T] | Write[T]) -> T:
        """Run one script in one transaction and return its result once that has committed."""
        self._check_process()
        self._refuse_holder(step)
        if not self._opener.ready:
            self._opener.make_ready()
        with translated(self._terms.schema):
            result, signals = self._run(step)
        self._tell(step, signals)
        return result

    def _run(self, step: Read[T] | Write[T]) -> tuple[T, set[str]]:
        for fresh in (False, True):
            connection = self._threads.take(fresh=fresh, beside=self._holds())
            try:
                return talk(run_shortest(self._terms, step, connection), connection)
            except StaleConnectionError as error:
                if fresh:
                    raise _unreachable(error) from error
            except UnconfirmedError as error:
                with still_unknown(error):
                    return self._run(error.again)
            finally:
                self._threads.give_back(connection)
        raise AssertionError("unreachable")

    async def run_async(self, step: Read[T] | Write[T]) -> T:
        """Run one script in one transaction; it goes on to its end if the task is cancelled."""
        self._check_process()
        self._refuse_holder(step)
        if not self._opener.ready:
            await asyncio.to_thread(self._opener.make_ready)
        running = asyncio.ensure_future(self._run_async(step, beside=self._holds()))
        self._begun.add(running)
        running.add_done_callback(self._begun.discard)
        return await asyncio.shield(running)

    async def _run_async(self, step: Read[T] | Write[T], *, beside: bool) -> T:
        pool = self._pool()
        with translated(self._terms.schema):
            for fresh in (False, True):
                connection = await pool.take(fresh=fresh, beside=beside)
                try:
                    result, signals = await talk_async(run_shortest(self._terms, step, connection), connection)
                except StaleConnectionError as error:
                    if fresh:
                        raise _unreachable(error) from error
                except UnconfirmedError as error:
                    with still_unknown(error):
                        return await self._run_async(error.again, beside=beside)
                else:
                    self._tell(step, signals)
                    return result
                finally:
                    pool.give_back(connection)
        raise AssertionError("unreachable")

    def _tell(self, step: Read[T] | Write[T], signals: set[str]) -> None:
        """Wake who waits in this process at once; others hear it from the server."""
        if signals:
            self._hub.publish(signals)
        if isinstance(step, Write):
            self._terms.observe("committed")

    def _pool(self) -> AwaitingPool:
        loop = asyncio.get_running_loop()
        pool = self._loops.get(loop)
        if pool is None:
            pool = AwaitingPool(self._opener.connect_async)
            with self._loops_lock:
                for ended in [known for known in self._loops if known.is_closed()]:
                    self._loops.pop(ended).close()
                self._loops[loop] = pool
        return pool

    # --- transactions of the caller --------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[Joined]:
        """Open a write transaction for the block."""
        self._check_process()
        self._refuse_holder()
        if not self._opener.ready:
            self._opener.make_ready()
        connection = self._open()
        joined = BlockingJoined(connection, self._terms, self.hub, own=True)
        try:
            try:
                with self._held(joined):
                    yield joined
                with translated(self._terms.schema):
                    talk(self._finish(joined), connection)
            finally:
                talk(roll_back(connection, resets=joined.ran_sql), connection)
        finally:
            self._threads.give_back(connection)

    def _open(self) -> psycopg.Connection[Any]:
        for fresh in (False, True):
            connection = self._threads.take(fresh=fresh)
            try:
                with translated(self._terms.schema):
                    talk(begin(self._terms, connection, self._terms.begin_sharing), connection)
            except StaleConnectionError as error:
                self._threads.give_back(connection)
                if fresh:
                    raise _unreachable(error) from error
            except BaseException:
                self._threads.give_back(connection)
                raise
            else:
                return connection
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def transaction_async(self) -> AsyncIterator[Joined]:
        """Open a write transaction for the block."""
        self._check_process()
        self._refuse_holder()
        if not self._opener.ready:
            await asyncio.to_thread(self._opener.make_ready)
        pool = self._pool()
        connection = await self._open_async(pool)
        joined = AwaitingJoined(connection, self._terms, self.hub, own=True)
        try:
            try:
                with self._held(joined):
                    yield joined
                with translated(self._terms.schema):
                    await to_its_end(talk_async(self._finish(joined), connection))
            finally:
                await to_its_end(talk_async(roll_back(connection, resets=joined.ran_sql), connection))
        finally:
            pool.give_back(connection)

    async def _open_async(self, pool: AwaitingPool) -> psycopg.AsyncConnection[Any]:
        for fresh in (False, True):
            connection = await pool.take(fresh=fresh)
            try:
                with translated(self._terms.schema):
                    await talk_async(begin(self._terms, connection, self._terms.begin_sharing), connection)
            except StaleConnectionError as error:
                pool.give_back(connection)
                if fresh:
                    raise _unreachable(error) from error
            except BaseException:
                pool.give_back(connection)
                raise
            else:
                return connection
        raise AssertionError("unreachable")

    def _finish(self, joined: BlockingJoined | AwaitingJoined) -> Talk[None]:
        refuse_ended(joined.connection)
        yield from commit(self._terms, joined.connection, joined.signals, resets=joined.ran_sql)
        joined.ran_sql = False
        self._hub.publish(joined.signals)
        self._terms.observe("committed")

    def within(self, connection: Any) -> Joined:
        """Join the transaction that is open on the caller's own connection."""
        self._check_process()
        if not self._opener.ready:
            self._opener.make_ready()
        return join(connection, self._terms, self.hub)

    @contextmanager
    def _held(self, joined: BlockingJoined | AwaitingJoined) -> Iterator[None]:
        holder = _whoever_runs()
        self._holders.add(holder)
        try:
            yield
        finally:
            self._holders.discard(holder)
            joined.end()

    def _refuse_holder(self, step: Read[Any] | Write[Any] | None = None) -> None:
        """Refuse to let somebody wait for himself for ever."""
        if not isinstance(step, Read) and self._holds():
            raise Misconfigured("a transaction of this queue is open here: call the methods of the transaction")

    def _holds(self) -> bool:
        """Whether the running task or thread has a transaction of this queue open."""
        return bool(self._holders) and _whoever_runs() in self._holders

    # --- opening and closing ---------------------------------------------------------------------------------------

    def twin(self) -> PostgresStore:
        """Return another store on the same schema with connections of its own."""
        return PostgresStore(
            self._url,
            schema=self._terms.schema,
            listen_url=self._listen_url,
            migrates=self._migrates,
            clock=self._terms.clock,
            observe=self._terms.observe,
        )

    def description(self) -> str:
        """Return host, port and database."""
        return described(self._url)

    def address(self) -> dict[str, Any] | None:
        """Return what another process opens the same schema by; none for one with a clock of its own."""
        if self._terms.clock is not None:
            return None
        return {
            "url": self._url,
            "schema": self._terms.schema,
            "listen_url": self._listen_url,
            "migrates": self._migrates,
        }

    def interrupt(self) -> None:
        """Make calls of threads that wait for the server raise `Unavailable`."""
        self._threads.interrupt()

    async def interrupt_async(self) -> None:
        """Make calls in this event loop that wait for the server raise `Unavailable`, unless they end soon."""
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
        return self._opener.make_ready(again=True)

    def close(self) -> None:
        """Close the connections that nobody uses."""
        if os.getpid() == self._process:
            self._threads.close()
            with self._loops_lock:
                pools = list(self._loops.values())
            for pool in pools:
                pool.close()


def _unreachable(error: StaleConnectionError) -> StoreUnreachable:
    return StoreUnreachable(f"the connection to the server was lost ({error.__cause__})")


def _whoever_runs() -> object:
    """Return the task, or else the thread, that is running."""
    try:
        return asyncio.current_task() or threading.get_ident()
    except RuntimeError:
        return threading.get_ident()
