"""A candidate in another process, which measures itself and answers in lines."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.candidates import Road, Session

_ROOT = Path(__file__).resolve().parents[1]
_PATIENCE_SECONDS = 60


class ChildSession(Session):
    """One process on one ground; with *warm* it sends so many jobs all the way before it is measured."""

    def __init__(self, command: Sequence[str], *, warm: int = 0, environment: dict[str, str] | None = None) -> None:
        self._command = command
        self._process = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT, env=environment
        )
        if warm:
            self.ask("warm", warm)

    def measure(self, road: Road, count: int) -> float:
        """Return the seconds by the process's own clock."""
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
            raise RuntimeError(f"no answer, and what was written stands above: {' '.join(self._command)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process, with force if it does not end by itself."""
        try:
            self._process.communicate(timeout=_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise
