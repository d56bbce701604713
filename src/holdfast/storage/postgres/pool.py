"""Connection pools: one for threads, and one for each event loop. A connection serves one transaction at a time.

A caller that needs a connection opens it, so it gets an error of opening itself, at once. The pools of psycopg open
connections in the background: callers wait for a timeout instead, and they cannot be closed from outside the event
loop.
"""

from __future__ import annotations

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

from holdfast.domain.errors import StoreBusy

_SIZE = 20
_PATIENCE_SECONDS = 10.0


class SyncPool:
    """Connections for threads."""

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]]) -> None:
        self._connect = connect
        self._changed = threading.Condition()
        self._lent = 0
        self._in_use: set[psycopg.Connection[Any]] = set()
        self._beside: set[psycopg.Connection[Any]] = set()
        self._idle: list[psycopg.Connection[Any]] = []
        # Closes idle connections if the queue is garbage-collected.
        weakref.finalize(self, _finish_here, os.getpid(), self._idle)

    def take(self, *, fresh: bool = False, beside: bool = False) -> psycopg.Connection[Any]:
        """Lend a connection; a *fresh* one if idle connections may be dead.

        A connection *beside* one that the caller already has does not count towards the limit: callers that each have
        one must not wait for each other.
        """
        if fresh:
            self.close()
        with self._changed:
            if not beside:
                if not self._changed.wait_for(lambda: self._lent < _SIZE, _PATIENCE_SECONDS):
                    raise _busy()
                self._lent += 1
            connection = self._idle.pop() if self._idle else None
        try:
            connection = connection or self._connect()
        except BaseException:
            if not beside:
                self._one_less()
            raise
        self._in_use.add(connection)
        if beside:
            self._beside.add(connection)
        return connection

    def give_back(self, connection: psycopg.Connection[Any]) -> None:
        """Return the connection to the pool, or close it if it is not idle."""
        self._in_use.discard(connection)
        if at_rest(connection):
            self._idle.append(connection)
        else:
            connection.close()
        if connection in self._beside:
            self._beside.discard(connection)
        else:
            self._one_less()

    def interrupt(self) -> None:
        """Break the lent connections. Can be called from any thread."""
        _break(list(self._in_use))

    def _one_less(self) -> None:
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
        self._beside: set[psycopg.AsyncConnection[Any]] = set()
        self._idle: list[psycopg.AsyncConnection[Any]] = []
        weakref.finalize(self, _finish_here, os.getpid(), self._idle)

    async def take(self, *, fresh: bool = False, beside: bool = False) -> psycopg.AsyncConnection[Any]:
        """Lend a connection, as `SyncPool.take` does."""
        if fresh:
            self.close()
        if not beside:
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    await self._free.acquire()
            except TimeoutError:
                raise _busy() from None
        try:
            connection = self._idle.pop() if self._idle else await self._connect()
        except BaseException:
            if not beside:
                self._free.release()
            raise
        self._in_use.add(connection)
        if beside:
            self._beside.add(connection)
        return connection

    def interrupt(self) -> None:
        """Break the lent connections."""
        _break(list(self._in_use))

    def give_back(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Return the connection to the pool, or close it if it is not idle."""
        self._in_use.discard(connection)
        if at_rest(connection):
            self._idle.append(connection)
        else:
            connection.pgconn.finish()
        if connection in self._beside:
            self._beside.discard(connection)
        else:
            self._free.release()

    def close(self) -> None:
        """Close idle connections. Can be called from any thread: nothing else uses them."""
        idle: list[psycopg.AsyncConnection[Any]] = []
        with contextlib.suppress(IndexError):
            while True:
                idle.append(self._idle.pop())
        _finish(idle)


def at_rest(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
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


def _finish_here(process: int, connections: list[Any]) -> None:
    # In a forked child they belong to the parent; finishing them would end its connections.
    if os.getpid() == process:
        _finish(connections)


def _busy() -> StoreBusy:
    return StoreBusy(f"all {_SIZE} connections of this queue are in use; try again, or use fewer threads or tasks")
