"""Numbered migrations with checksums, each in one transaction, so that a killed one leaves nothing behind."""

from __future__ import annotations

import hashlib
import importlib.resources
import sqlite3
import time
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from holdfast.domain.errors import SchemaMismatch
from holdfast.stores.sqlite.statements import statements
from holdfast.version import __version__


class Migration(NamedTuple):
    """One numbered change of the schema."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """A digest of the text, to notice when an applied migration was edited afterwards."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def statements(self) -> Iterator[str]:
        """Split the text into statements."""
        pending = ""
        for line in self.text.splitlines(keepends=True):
            pending += line
            if line.rstrip().endswith(";") and sqlite3.complete_statement(pending):
                yield pending
                pending = ""


@cache
def migrations() -> tuple[Migration, ...]:
    """Return every migration this code knows, in order."""
    folder = importlib.resources.files(__package__) / "migrations"
    found = [entry for entry in folder.iterdir() if entry.name.endswith(".sql")]
    return tuple(
        Migration(int(entry.name[:4]), entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8"))
        for entry in sorted(found, key=lambda entry: entry.name)
    )


def migrate(connection: sqlite3.Connection) -> list[str]:
    """Apply what is missing and return the names; raise `SchemaMismatch` if the schema needs other code."""
    done = []
    for migration in pending(connection):
        connection.execute("begin immediate")
        try:
            # Another process may have been quicker while this one waited for the lock.
            if migration in pending(connection):
                _apply(connection, migration)
                done.append(migration.name)
        except BaseException:
            connection.execute("rollback")
            raise
        connection.execute("commit")
    return done


def pending(connection: sqlite3.Connection) -> list[Migration]:
    """Return the migrations not yet applied, having checked that those applied fit this code."""
    ledger = connection.execute(statements()["schema_ledger_exists"]).fetchone()
    if ledger is None:
        return list(migrations())
    applied = dict(connection.execute(statements()["schema_ledger"]).fetchall())
    for migration in migrations():
        if applied.get(migration.number, migration.checksum) != migration.checksum:
            raise SchemaMismatch(
                f"migration {migration.name} was applied in another form than this code knows;"
                " the file was made by a modified or unreleased version"
            )
    if applied:
        _check_version(connection)
    return [migration for migration in migrations() if migration.number not in applied]


def _check_version(connection: sqlite3.Connection) -> None:
    [[lowest]] = connection.execute(statements()["schema_code_version_min"]).fetchall()
    if _parts(lowest) > _parts(__version__):
        raise SchemaMismatch(
            f"this database needs Holdfast {lowest} or later, and this is {__version__}; upgrade the package"
        )


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3])


def _apply(connection: sqlite3.Connection, migration: Migration) -> None:
    connection.execute(statements()["schema_ledger_create"])
    for statement in migration.statements():
        connection.execute(statement)
    connection.execute(
        statements()["schema_ledger_insert"],
        {
            "number": migration.number,
            "name": migration.name,
            "checksum": migration.checksum,
            "now": time.time_ns() // 1_000_000,
        },
    )
