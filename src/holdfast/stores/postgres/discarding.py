"""Dropping the schema of a test, with all that is in it."""

from __future__ import annotations

import re
from typing import Final

import psycopg

from holdfast.domain.errors import InvalidInput
from holdfast.stores.postgres.errors import translated

TEST_PREFIX: Final = "holdfast_test_"
_TEST_SCHEMA: Final = re.compile(rf"{TEST_PREFIX}[a-z0-9]{{8,32}}")


def discard_schema(url: str, schema: str) -> None:
    """Drop *schema*, which must be one that was made for a test."""
    if not _TEST_SCHEMA.fullmatch(schema):
        raise InvalidInput("schema", f"{schema!r} is not the schema of a test; nothing else is dropped")
    with translated(schema), psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'drop schema if exists "{schema}" cascade'.encode())
