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
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from holdfast.domain import errors

_SIZE = 20
_TIMEOUT_SECONDS = 10.0


class SyncPool:
    """Connections for threads."""

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]]) -> None:
        self._connect = connect
        self._changed = threading.Condition()
        self._lent = 0
        self._in_use: set[psycopg.Connection[Any]] = set()
        self._additional: set[psycopg.Connection[Any]] = set()
        self._idle: list[psycopg.Connection[Any]] = []
        # Closes idle connections if the queue is garbage-collected.
        weakref.finalize(self, _finish_in, os.getpid(), self._idle)

    def take(self, *, fresh: bool = False, additional: bool = False) -> psycopg.Connection[Any]:
        """Lend a connection; a *fresh* one if idle connections may be dead.

        An *additional* connection, for a caller that already has one, does not count towards the limit: callers that
        each have one must not wait for each other.
        """
        if fresh:
            self.close()
        with self._changed:
            if not additional:
                if not self._changed.wait_for(lambda: self._lent < _SIZE, _TIMEOUT_SECONDS):
                    raise _busy()
                self._lent += 1
            connection = self._idle.pop() if self._idle else None
        try:
            connection = connection or self._connect()
        except BaseException:
            if not additional:
                self._release_slot()
            raise
        self._in_use.add(connection)
        if additional:
            self._additional.add(connection)
        return connection

    def put_back(self, connection: psycopg.Connection[Any]) -> None:
        """Return the connection to the pool, or close it if it is not idle."""
        self._in_use.discard(connection)
        if is_idle(connection):
            self._idle.append(connection)
        else:
            connection.close()
        if connection in self._additional:
            self._additional.discard(connection)
        else:
            self._release_slot()

    def interrupt(self) -> None:
        """Break the lent connections. Can be called from any thread."""
        _break(list(self._in_use))

    def _release_slot(self) -> None:
        with self._changed:
            self._lent -= 1
            self._changed.notify()

    def close(self) -> None:
        """Close idle connections; lent ones are kept when they are returned, for later use of the queue."""
        with self._changed:
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
        """Lend a connection, as `SyncPool.take` does."""
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


def is_idle(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Return whether the connection is alive and has no transaction open."""
    return not connection.closed and connection.pgconn.transaction_status == TransactionStatus.IDLE


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
