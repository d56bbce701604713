"""Migrate a schema: apply all missing migrations in one transaction, under a lock on the server.

A killed migration leaves no trace, and processes that start at the same time wait for the first.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import psycopg

from holdfast.domain import errors
from holdfast.storage.migrations import Migration, known_in, missing
from holdfast.storage.postgres import sql
from holdfast.storage.postgres.errors import translated
from holdfast.storage.query_names import QueryName


@cache
def migrations() -> tuple[Migration, ...]:
    """Return every migration this code knows, in order."""
    return known_in(__package__)


def migrate(connection: psycopg.Connection[Any], schema: str) -> list[str]:
    """Apply missing migrations and return their names; raise `SchemaMismatch` if the schema needs other code."""
    if not pending(connection, schema):
        return []
    with connection.transaction():
        _query(connection, schema, "schema_lock", {"schema": schema})
        # Another process may have migrated while this one waited for the lock.
        lacking = pending(connection, schema)
        for migration in lacking:
            _apply(connection, schema, migration)
        return [migration.name for migration in lacking]


def pending(connection: psycopg.Connection[Any], schema: str) -> list[Migration]:
    """Return the migrations not yet applied, after checking that the applied ones match this code."""
    if not _query(connection, schema, "schema_ledger_exists", {"schema": schema}):
        return list(migrations())
    applied = dict(_query(connection, schema, "schema_ledger"))
    return missing(migrations(), applied, lambda: _code_version_min(connection, schema))


def _code_version_min(connection: psycopg.Connection[Any], schema: str) -> str:
    [[lowest]] = _query(connection, schema, "schema_code_version_min")
    return str(lowest)


def _apply(connection: psycopg.Connection[Any], schema: str, migration: Migration) -> None:
    # Checked first: creating an existing schema needs privileges that the role may not have.
    if not _query(connection, schema, "schema_exists", {"schema": schema}):
        _query(connection, schema, "schema_create")
    _query(connection, schema, "schema_ledger_create")
    connection.execute(sql.in_schema(migration.text, schema).encode(), prepare=False)
    done = {"number": migration.number, "name": migration.name, "checksum": migration.checksum}
    _query(connection, schema, "schema_ledger_insert", done)


def _query(
    connection: psycopg.Connection[Any], schema: str, name: QueryName, values: Mapping[str, Any] | None = None
) -> list[Any]:
    cursor = connection.execute(sql.texts(schema).reading[name].encode(), values, prepare=False)
    return cursor.fetchall() if cursor.description is not None else []


TEST_PREFIX: Final = "holdfast_test_"
_TEST_SCHEMA: Final = re.compile(rf"{TEST_PREFIX}[a-z0-9]{{8,32}}")


def discard_schema(url: str, schema: str) -> None:
    """Drop *schema*, which must be a test schema."""
    if not _TEST_SCHEMA.fullmatch(schema):
        raise errors.InvalidInput("schema", f"{schema!r} is not a test schema; no other schema is dropped")
    with translated(schema), psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'drop schema if exists "{schema}" cascade'.encode())
