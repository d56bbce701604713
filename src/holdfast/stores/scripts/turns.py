"""The rounds in which tenants take turns: a hint kept in the store, so that claimers who come and go share it."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.domain.job import Job
from holdfast.stores import script
from holdfast.stores.engine import Selection
from holdfast.stores.script import Script, Statement

_ROUNDS_KEPT = 1_000


def read_turn(scope: str) -> Script[str | None]:
    """Return the turn served last in a round."""
    rows = yield Statement("turn_read", {"scope": scope})
    return rows[0][0] if rows else None


def move_turn(selection: Selection, jobs: Sequence[Job]) -> Script[None]:
    """Remember the turn served last, if there is a round and it has moved."""
    if selection.turn_scope is None or not jobs or jobs[-1].turn == selection.last_turn:
        return
    now = yield from script.now()
    yield Statement("turn_write", {"scope": selection.turn_scope, "turn": jobs[-1].turn, "now": now.wall_ms})
    if selection.last_turn is None:
        yield Statement("turn_trim", {"keep": _ROUNDS_KEPT})
