"""The SQL of this engine, by name, written for a schema called `holdfast` and loaded once.

A query may contain `/* lock: … */`. Only write transactions use that text: there the same query locks the rows it
reads.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final, NamedTuple, get_args

from holdfast.storage.queries import load_queries
from holdfast.storage.query_names import PostgresQuery, SharedQuery

QUERIES: Final = load_queries(__package__, (*get_args(SharedQuery), *get_args(PostgresQuery)))

_SCHEMA: Final = re.compile(r"\bholdfast(?=\.[a-z]|\s*$)")
_LOCK: Final = re.compile(r"/\* lock: (.*?) \*/")


class QueryTexts(NamedTuple):
    """The text of every query by name, for read transactions and for write transactions."""

    reading: dict[str, str]
    writing: dict[str, str]


@cache
def texts(schema: str) -> QueryTexts:
    """Return the queries for the store in *schema*."""
    found = {name: in_schema(text, schema) for name, text in QUERIES.items()}
    return QueryTexts(
        {name: _LOCK.sub("", text) for name, text in found.items()},
        {name: _LOCK.sub(r"\1", text) for name, text in found.items()},
    )


def in_schema(text: str, schema: str) -> str:
    """Return *text* for the store in another schema."""
    return _SCHEMA.sub(lambda _: f'"{schema}"', text)
