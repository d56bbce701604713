"""plainjob (Node) as a candidate, if it is installed."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from bench.candidates import Candidate, Durability, Scenario
from bench.child import ChildSession

_FOLDER = Path(__file__).parent / "node"
_BUILT = _FOLDER / "node_modules" / "better-sqlite3" / "build" / "Release" / "better_sqlite3.node"
_SCENARIOS: frozenset[Scenario] = frozenset({"single", "bulk", "drain", "one-by-one", "pick-up"})


def _open(durability: Durability, folder: Path) -> ChildSession:
    node = shutil.which("node") or "node"
    return ChildSession([node, str(_FOLDER / "plainjob.mjs"), str(folder / "plainjob.db"), durability], warm=1)


def candidates() -> list[Candidate]:
    """Return plainjob with each durability, or an empty list if it is not installed."""
    if shutil.which("node") is None or not _BUILT.exists():
        return []
    return [
        Candidate(
            "plainjob",
            durability,
            f"better-sqlite3, WAL, synchronous={'FULL' if durability == 'full' else 'NORMAL'};"
            " add, addMany, defineWorker with a poll of 1 ms",
            _SCENARIOS,
            partial(_open, durability),
        )
        for durability in ("full", "relaxed")
    ]
