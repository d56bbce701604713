"""The rounds in which tenants take turns: a hint kept in the store, so that claimers who come and go share it."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.domain.clock import Now
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
    yield from write_turn(selection.turn_scope, jobs[-1].turn, first=selection.last_turn is None, now=now)


def write_turn(scope: str, turn: str, *, first: bool, now: Now) -> Script[None]:
    """Write the turn served last in a round; if it is the round's *first*, make room for it."""
    yield Statement("turn_write", {"scope": scope, "turn": turn, "now": now.wall_ms})
    if first:
        yield Statement("turn_trim", {"keep": _ROUNDS_KEPT})
