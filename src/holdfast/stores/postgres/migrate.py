"""Numbered migrations with checksums, all that is missing in one transaction under a lock of the server.

A killed migration leaves nothing behind, and processes that start together wait for the first.
"""

from __future__ import annotations

import hashlib
import importlib.resources
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import psycopg

from holdfast.domain.errors import SchemaMismatch
from holdfast.stores.postgres.statements import in_schema, texts
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


@cache
def migrations() -> tuple[Migration, ...]:
    """Return every migration this code knows, in order."""
    folder = importlib.resources.files(__package__) / "migrations"
    found = [entry for entry in folder.iterdir() if entry.name.endswith(".sql")]
    return tuple(
        Migration(int(entry.name[:4]), entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8"))
        for entry in sorted(found, key=lambda entry: entry.name)
    )


def migrate(connection: psycopg.Connection[Any], schema: str) -> list[str]:
    """Apply what is missing and return the names; raise `SchemaMismatch` if the schema needs other code."""
    if not pending(connection, schema):
        return []
    with connection.transaction():
        _ask(connection, schema, "schema_lock", {"schema": schema})
        # Another process may have been quicker while this one waited for the lock.
        missing = pending(connection, schema)
        for migration in missing:
            _apply(connection, schema, migration)
        return [migration.name for migration in missing]


def pending(connection: psycopg.Connection[Any], schema: str) -> list[Migration]:
    """Return the migrations not yet applied, having checked that those applied fit this code."""
    if not _ask(connection, schema, "schema_ledger_exists", {"schema": schema}):
        return list(migrations())
    applied = dict(_ask(connection, schema, "schema_ledger"))
    for migration in migrations():
        if applied.get(migration.number, migration.checksum) != migration.checksum:
            raise SchemaMismatch(
                f"migration {migration.name} was applied in another form than this code knows;"
                " the schema was made by a modified or unreleased version"
            )
    if applied:
        _check_version(connection, schema)
    return [migration for migration in migrations() if migration.number not in applied]


def _check_version(connection: psycopg.Connection[Any], schema: str) -> None:
    [[lowest]] = _ask(connection, schema, "schema_code_version_min")
    if _parts(lowest) > _parts(__version__):
        raise SchemaMismatch(
            f"this database needs Holdfast {lowest} or later, and this is {__version__}; upgrade the package"
        )


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3])


def _apply(connection: psycopg.Connection[Any], schema: str, migration: Migration) -> None:
    # Asked for first: creating what exists needs rights that a role need not have.
    if not _ask(connection, schema, "schema_exists", {"schema": schema}):
        _ask(connection, schema, "schema_create")
    _ask(connection, schema, "schema_ledger_create")
    connection.execute(in_schema(migration.text, schema).encode(), prepare=False)
    done = {"number": migration.number, "name": migration.name, "checksum": migration.checksum}
    _ask(connection, schema, "schema_ledger_insert", done)


def _ask(
    connection: psycopg.Connection[Any], schema: str, name: str, values: Mapping[str, Any] | None = None
) -> list[Any]:
    cursor = connection.execute(texts(schema).reading[name].encode(), values, prepare=False)
    return cursor.fetchall() if cursor.description is not None else []
