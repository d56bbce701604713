"""The SQL of this engine, by name: one file per statement, written for a schema called `holdfast`, read once.

A file may say `/* lock: … */`. What is said there counts only in transactions that write: the same statement then
locks what it reads, for what is decided next.
"""

from __future__ import annotations

import importlib.resources
import re
from functools import cache
from typing import NamedTuple

_SCHEMA = re.compile(r"\bholdfast(?=\.[a-z]|\s*$)")
_LOCK = re.compile(r"/\* lock: (.*?) \*/")
# Scripts nest savepoints only one deep; a refused part is undone without leaving a trace.
_FIXED = {
    "savepoint": "savepoint holdfast_part",
    "savepoint_keep": "release holdfast_part",
    "savepoint_undo": "rollback to holdfast_part",
}


class Texts(NamedTuple):
    """Every statement by its name, as it is sent where nothing is written, and where something is."""

    reading: dict[str, str]
    writing: dict[str, str]


@cache
def texts(schema: str) -> Texts:
    """Return the statements of the store in *schema*."""
    folder = importlib.resources.files(__package__) / "sql"
    found = {
        entry.name.removesuffix(".sql"): in_schema(entry.read_text(encoding="utf-8"), schema)
        for entry in folder.iterdir()
        if entry.name.endswith(".sql")
    }
    reading = {name: _LOCK.sub("", text) for name, text in found.items()}
    writing = {name: _LOCK.sub(r"\1", text) for name, text in found.items()}
    return Texts({**reading, **_FIXED}, {**writing, **_FIXED})


def in_schema(text: str, schema: str) -> str:
    """Return *text* for the store in another schema."""
    return _SCHEMA.sub(lambda _: f'"{schema}"', text)
