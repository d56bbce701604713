"""Connection pools: one for threads, and one for each event loop. A connection serves one transaction at a time.

A caller that needs a connection opens it, so it gets an error of opening itself, at once. The pools of psycopg open
connections in the background: callers wait for a timeout instead, and they cannot be closed from outside the event
loop.
"""

import asyncio
import contextlib
import os
import socket
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg

from holdfast.domain import errors
from holdfast.storage.notifications import SyncListener
from holdfast.storage.postgres.io import is_idle

_SIZE = 20
_TIMEOUT_SECONDS = 10.0


class Loan:
    """The connection of one transaction of a thread, once it is open.

    An *additional* connection, for a caller that already has one, does not count towards the limit: callers that each
    have one must not wait for each other.
    """

    __slots__ = ("additional", "connection", "ended")

    def __init__(self, *, additional: bool = False) -> None:
        self.additional = additional
        self.connection: psycopg.Connection[Any] | None = None
        self.ended = False


class SyncPool:
    """Connections for threads.

    An interrupt may occur after any call, because a signal handler may run and raise in the main thread. So a caller
    makes its loan first, and ends it whatever happens: `end` cleans up from any state and can be repeated. The slots
    in use are the loans themselves. No `Condition` is used: its lock stays locked if an interrupt arrives while it is
    taken or released, and all other threads would hang.
    """

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]]) -> None:
        self._connect = connect
        self._mutex = threading.Lock()
        self._loans: set[Loan] = set()
        self._additional: set[Loan] = set()
        self._waiting: dict[Loan, SyncListener] = {}
        """The loans that wait for a slot, the oldest first; a listener is woken when there is one."""
        self._idle: list[psycopg.Connection[Any]] = []
        # Closes idle connections if the queue is garbage-collected.
        weakref.finalize(self, _finish_in, os.getpid(), self._idle)

    def lend(self, loan: Loan, *, fresh: bool = False) -> psycopg.Connection[Any]:
        """Give a connection to *loan* and return it; a *fresh* one if idle connections may be dead."""
        if fresh:
            self.close()
        if not self._admit(loan):
            self._wait_for_slot(loan)
        if loan.connection is None:
            loan.connection = self._connect()
        return loan.connection

    def _admit(self, loan: Loan) -> bool:
        """Give *loan* a slot, and a connection if one is idle; return whether there was a slot."""
        with self._mutex:
            if loan.additional:
                self._additional.add(loan)
            elif len(self._loans) < _SIZE:
                self._loans.add(loan)
                self._leave(loan)
            else:
                if loan not in self._waiting:
                    self._waiting[loan] = SyncListener()
                return False
            if self._idle:
                loan.connection = self._idle[-1]
                del self._idle[-1]
            return True

    def _wait_for_slot(self, loan: Loan) -> None:
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            self._waiting[loan].wait(left)
            if self._admit(loan):
                return
        raise _busy()

    def _leave(self, loan: Loan) -> None:
        """Remove *loan* from those that wait, and wake the first of them if there is a free slot."""
        self._waiting.pop(loan, None)
        if self._waiting and len(self._loans) < _SIZE:
            next(iter(self._waiting.values())).wake()

    def end(self, loan: Loan) -> None:
        """End the loan in any state; harmless if it has ended. Keep its connection, or close it if it is not idle."""
        connection = loan.connection
        if connection is not None and not is_idle(connection):
            connection.close()
            connection = None
        with self._mutex:
            # First: if this is repeated after an interrupt, another loan may have the connection.
            loan.connection = None
            if connection is not None:
                self._idle.append(connection)
            self._additional.discard(loan)
            self._loans.discard(loan)
            self._leave(loan)
            loan.ended = True

    def interrupt(self) -> None:
        """Break the lent connections. Can be called from any thread."""
        loans = [*self._loans, *self._additional]
        _break([loan.connection for loan in loans if loan.connection is not None])

    def close(self) -> None:
        """Close idle connections; lent ones are kept when they are returned, for later use of the queue."""
        with self._mutex:
            idle = self._idle[:]
            self._idle.clear()
        _finish(idle)


class AsyncPool:
    """Connections for the tasks of one event loop."""

    def __init__(self, connect: Callable[[], Awaitable[psycopg.AsyncConnection[Any]]]) -> None:
        self._connect = connect
        self._free = asyncio.Semaphore(_SIZE)
        self._in_use: set[psycopg.AsyncConnection[Any]] = set()
        self._additional: set[psycopg.AsyncConnection[Any]] = set()
        self._idle: list[psycopg.AsyncConnection[Any]] = []
        weakref.finalize(self, _finish_in, os.getpid(), self._idle)

    async def take(self, *, fresh: bool = False, additional: bool = False) -> psycopg.AsyncConnection[Any]:
        """Lend a connection, as `SyncPool.lend` does."""
        if fresh:
            self.close()
        if not additional:
            try:
                async with asyncio.timeout(_TIMEOUT_SECONDS):
                    await self._free.acquire()
            except TimeoutError:
                raise _busy() from None
        try:
            connection = self._idle.pop() if self._idle else await self._connect()
        except BaseException:
            if not additional:
                self._free.release()
            raise
        self._in_use.add(connection)
        if additional:
            self._additional.add(connection)
        return connection

    def interrupt(self) -> None:
        """Break the lent connections."""
        _break(list(self._in_use))

    def put_back(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Return the connection to the pool, or close it if it is not idle."""
        self._in_use.discard(connection)
        if is_idle(connection):
            self._idle.append(connection)
        else:
            connection.pgconn.finish()
        if connection in self._additional:
            self._additional.discard(connection)
        else:
            self._free.release()

    def close(self) -> None:
        """Close idle connections. Can be called from any thread: nothing else uses them."""
        idle: list[psycopg.AsyncConnection[Any]] = []
        with contextlib.suppress(IndexError):
            while True:
                idle.append(self._idle.pop())
        _finish(idle)


def _break(connections: list[Any]) -> None:
    """Make each call on these connections fail as if the server had closed them."""
    for connection in connections:
        with contextlib.suppress(OSError, psycopg.Error):
            descriptor = os.dup(connection.pgconn.socket)
            with socket.socket(fileno=descriptor) as shared:
                shared.shutdown(socket.SHUT_RDWR)


def _finish(connections: list[Any]) -> None:
    for connection in connections:
        connection.pgconn.finish()


def _finish_in(process: int, connections: list[Any]) -> None:
    # In a forked child they belong to the parent; finishing them would end its connections.
    if os.getpid() == process:
        _finish(connections)


def _busy() -> errors.StoreBusy:
    return errors.StoreBusy(
        f"all {_SIZE} connections of this queue are in use; try again, or use fewer threads or tasks"
    )
