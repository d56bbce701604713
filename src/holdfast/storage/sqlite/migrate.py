"""Migrate the schema of a file, each migration in one transaction: a killed one leaves no trace."""

import sqlite3
import time
from collections.abc import Iterator
from functools import cache

from holdfast.storage.migrations import Migration, known_in, missing
from holdfast.storage.sqlite import sql


@cache
def migrations() -> tuple[Migration, ...]:
    """Return every migration this code knows, in order."""
    return known_in(__package__)


def migrate(connection: sqlite3.Connection) -> list[str]:
    """Apply missing migrations and return their names; raise `SchemaMismatch` if the schema needs other code."""
    done = []
    for migration in pending(connection):
        connection.execute("begin immediate")
        try:
            # Another process may have migrated while this one waited for the lock.
            if migration in pending(connection):
                _apply(connection, migration)
                done.append(migration.name)
        except BaseException:
            connection.execute("rollback")
            raise
        connection.execute("commit")
    return done


def pending(connection: sqlite3.Connection) -> list[Migration]:
    """Return the migrations not yet applied, after checking that the applied ones match this code."""
    ledger = connection.execute(sql.QUERIES["schema_ledger_exists"]).fetchone()
    if ledger is None:
        return list(migrations())
    applied = dict(connection.execute(sql.QUERIES["schema_ledger"]).fetchall())
    return missing(migrations(), applied, lambda: _code_version_min(connection))


def _code_version_min(connection: sqlite3.Connection) -> str:
    [[lowest]] = connection.execute(sql.QUERIES["schema_code_version_min"]).fetchall()
    return str(lowest)


def statements_of(migration: Migration) -> Iterator[str]:
    """Split the text of a migration into its statements."""
    collected = ""
    for line in migration.text.splitlines(keepends=True):
        collected += line
        if line.rstrip().endswith(";") and sqlite3.complete_statement(collected):
            yield collected
            collected = ""


def _apply(connection: sqlite3.Connection, migration: Migration) -> None:
    connection.execute(sql.QUERIES["schema_ledger_create"])
    for statement in statements_of(migration):
        connection.execute(statement)
    connection.execute(
        sql.QUERIES["schema_ledger_insert"],
        {
            "number": migration.number,
            "name": migration.name,
            "checksum": migration.checksum,
            "now": time.time_ns() // 1_000_000,
        },
    )
