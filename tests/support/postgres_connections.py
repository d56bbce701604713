"""Connections to PostgreSQL that stay open between tests: a new one starts a server process with empty caches.

A connection of a closed client goes into the pool of the next client of the same schema.
"""

from __future__ import annotations

import atexit
import os
import select
from collections import defaultdict
from typing import Any

import psycopg

from holdfast.storage.postgres.pool import is_idle
from holdfast.storage.postgres.store import PostgresStore

_idle: dict[tuple[int, str], list[psycopg.Connection[Any]]] = defaultdict(list)


def keep(schema: str, store: PostgresStore) -> None:
    """Keep the idle connections of *store*, which is about to be closed."""
    idle = store._threads._idle
    _idle[os.getpid(), schema] += idle
    idle.clear()


def reuse(schema: str, store: PostgresStore) -> None:
    """Give the usable stored connections to *store*, and let it check the schema through one of them."""
    idle = []
    for connection in _idle.pop((os.getpid(), schema), ()):
        if _usable(connection):
            idle.append(connection)
        else:
            connection.close()
    if idle:
        store._connector._examine(idle[0])
        store._connector._ready = True
    store._threads._idle += idle


def forget(schema: str) -> None:
    """Close the stored connections to a schema that is dropped."""
    for connection in _idle.pop((os.getpid(), schema), ()):
        connection.close()


def _usable(connection: psycopg.Connection[Any]) -> bool:
    """Return whether the connection is idle and the server has neither closed it nor sent anything."""
    return is_idle(connection) and not select.select([connection.fileno()], [], [], 0)[0]


@atexit.register
def _close_all() -> None:
    for (process, _), connections in _idle.items():
        # A forked child has inherited the connections of its parent and must not end them.
        if process == os.getpid():
            for connection in connections:
                connection.close()
