"""The SQL of this engine, by name: one file per statement, read once."""

from __future__ import annotations

import importlib.resources
from functools import cache

# Scripts nest savepoints only one deep; a refused part is undone without leaving a trace.
_FIXED = {
    "savepoint": "savepoint holdfast_part",
    "savepoint_keep": "release holdfast_part",
    "savepoint_undo": "rollback to holdfast_part",
}


@cache
def statements() -> dict[str, str]:
    """Return the text of every statement by its name."""
    folder = importlib.resources.files(__package__) / "sql"
    found = {
        entry.name.removesuffix(".sql"): entry.read_text(encoding="utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(".sql")
    }
    return {**found, **_FIXED}
