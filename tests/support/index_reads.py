"""Counting the index entries that the server has read."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import psycopg

from tests.chaos.processes import PATIENCE_SECONDS
from tests.support import postgres_connections


def entries_read(url: str, schema: str, indexes: Sequence[str]) -> int:
    """Return how many entries of these indexes have been read so far."""
    with psycopg.connect(url, autocommit=True) as connection:
        [[read]] = connection.execute(
            "select sum(idx_tup_read) from pg_stat_user_indexes where schemaname = %s and indexrelname = any (%s)",
            [schema, list(indexes)],
        ).fetchall()
    return int(read)


def wait_for_ends(url: str) -> None:
    """Return once the server has ended the connections of closed queues, and so has counted all that they read."""
    patience = threading.Event()
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(int(PATIENCE_SECONDS / 0.01)):
            [[left]] = connection.execute(
                "select count(*) from pg_stat_activity"
                " where datname = current_database() and application_name = 'holdfast' and pid <> all (%s)",
                [postgres_connections.kept()],
            ).fetchall()
            if not left:
                return
            patience.wait(0.01)
    raise AssertionError("a queue is still open")
