"""A candidate in another process, which measures itself and answers in lines."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.candidates import CandidateFailedError, Road, Session

_ROOT = Path(__file__).resolve().parents[1]
_ANSWER_SECONDS_MAX = 300.0
_END_SECONDS_MAX = 30.0


class ChildSession(Session):
    """One process on one ground; with *warm* it sends so many jobs all the way before it is measured."""

    def __init__(self, command: Sequence[str], *, warm: int = 0, environment: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT, env=environment
        )
        if warm:
            self._warm(warm)

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
        # A process that is gone is noticed by the answer that does not come.
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"road": road, "count": count}) + "\n")
            self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for the next answer; a process that gives none for minutes is ended."""
        assert self._process.stdout is not None  # noqa: S101  # it was asked for
        patience = threading.Timer(_ANSWER_SECONDS_MAX, self._process.kill)
        patience.start()
        try:
            line = self._process.stdout.readline()
        finally:
            patience.cancel()
        if not line:
            raise CandidateFailedError("it ended without an answer; what it wrote stands on the terminal")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise CandidateFailedError(answer["failed"])
        return answer

    def close(self) -> None:
        """End the process, with force if it does not end by itself."""
        with suppress(BrokenPipeError):
            try:
                self._process.communicate(timeout=_END_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.communicate()

    def _warm(self, count: int) -> None:
        try:
            self.ask("warm", count)
        except CandidateFailedError:
            self.close()
            raise
