"""Connections to PostgreSQL that stay open between tests: a new one starts a server process with empty caches.

A connection of a closed client goes into the pool of the next client of the same schema. One whose client died, as
far as the test says, is rolled back for that, which is what the server does if a client disconnects.
"""

from __future__ import annotations

import atexit
import os
import select
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from holdfast.storage.postgres.io import SyncIO, is_idle
from holdfast.storage.postgres.pool import Loan
from holdfast.storage.postgres.store import PostgresStore

_idle: dict[tuple[int, str], list[psycopg.Connection[Any]]] = defaultdict(list)


def keep(schema: str, store: PostgresStore) -> None:
    """Keep the idle connections of *store*, which is about to be closed."""
    idle = store._threads._idle
    _idle[os.getpid(), schema] += idle
    idle.clear()


def reuse(schema: str, store: PostgresStore, died: Callable[[], bool]) -> None:
    """Give the usable stored connections to *store*, which then does not check the schema that this process has made.

    If its process has *died*, a connection with an open transaction is rolled back.
    """
    idle = []
    for connection in _idle.pop((os.getpid(), schema), ()):
        if _usable(connection):
            idle.append(connection)
        else:
            connection.close()
    if idle:
        settings = store._connector._settings
        [[settings.identity]] = idle[0].execute(settings.texts.reading["schema_identity"].encode(), prepare=True)
        store._connector._ready = True
    store._threads._idle += idle
    end = store._threads.end

    def roll_back(loan: Loan) -> None:
        if loan.connection is not None and died() and _in_transaction(loan.connection):
            loan.connection.pgconn.exec_(b"rollback")
        end(loan)

    store._threads.end = roll_back  # type: ignore[method-assign]


def kept() -> list[int]:
    """Return the ids of the server processes of the connections that are kept."""
    return [one.info.backend_pid for connections in _idle.values() for one in connections if not one.closed]


def forget(schema: str) -> None:
    """Close the stored connections to a schema that is dropped."""
    for connection in _idle.pop((os.getpid(), schema), ()):
        connection.close()


def _usable(connection: psycopg.Connection[Any]) -> bool:
    """Return whether the connection is idle and the server has neither closed it nor sent anything."""
    if is_idle(connection):
        # A reply may be unread.
        SyncIO(connection).end_exchange()
    return is_idle(connection) and not select.select([connection.fileno()], [], [], 0)[0]


def _in_transaction(connection: psycopg.Connection[Any]) -> bool:
    """Return whether a transaction is open and the server waits for a statement."""
    return (
        not connection.closed
        and connection.pgconn.pipeline_status == PipelineStatus.OFF
        and connection.pgconn.transaction_status in {TransactionStatus.INTRANS, TransactionStatus.INERROR}
    )


@atexit.register
def _close_all() -> None:
    for (process, _), connections in _idle.items():
        # A forked child has inherited the connections of its parent and must not end them.
        if process == os.getpid():
            for connection in connections:
                connection.close()
