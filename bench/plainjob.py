"""plainjob (Node) as a candidate, where it is installed: a process that measures itself and answers in lines."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

from bench.candidates import Candidate, Durability, Road, Session

_FOLDER = Path(__file__).parent / "node"
_BUILT = _FOLDER / "node_modules" / "better-sqlite3" / "build" / "Release" / "better_sqlite3.node"
_ROADS: frozenset[Road] = frozenset({"single", "bulk", "drain", "one-by-one"})


class PlainjobSession(Session):
    """One Node process on one file."""

    def __init__(self, durability: Durability, folder: Path) -> None:
        command = [
            shutil.which("node") or "node",
            str(_FOLDER / "plainjob.mjs"),
            str(folder / "plainjob.db"),
            durability,
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603

    def measure(self, road: Road, count: int) -> float:
        """Return the seconds by Node's own clock."""
        return float(self.ask(road, count)["seconds"])

    def ask(self, road: str, count: int) -> dict[str, Any]:
        """Send one request and return the answer."""
        self.request(road, count)
        return self.answer()

    def request(self, road: str, count: int) -> None:
        """Send one request without waiting."""
        assert self._process.stdin is not None  # noqa: S101  # it was asked for
        self._process.stdin.write(json.dumps({"road": road, "count": count}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for the next answer."""
        assert self._process.stdout is not None  # noqa: S101  # it was asked for
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("plainjob gave no answer; what Node wrote stands above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=30)


def candidates() -> list[Candidate]:
    """Return plainjob with each durability, or nothing where it is not installed."""
    if shutil.which("node") is None or not _BUILT.exists():
        return []
    return [
        Candidate(
            "plainjob",
            durability,
            f"better-sqlite3, WAL, synchronous={'FULL' if durability == 'full' else 'NORMAL'};"
            " add, addMany, defineWorker with a poll of 1 ms",
            _ROADS,
            partial(PlainjobSession, durability),
        )
        for durability in ("full", "relaxed")
    ]
