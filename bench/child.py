"""A candidate in another process, which measures its own time and answers in lines."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.candidates import CandidateFailedError, Scenario, Session

_ROOT = Path(__file__).resolve().parents[1]
_ANSWER_SECONDS_MAX = 300.0
_END_SECONDS_MAX = 30.0


class ChildSession(Session):
    """One process on one store; it first processes *warm* jobs that are not measured."""

    def __init__(self, command: Sequence[str], *, warm: int = 0, environment: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT, env=environment
        )
        if warm:
            self._warm(warm)

    def measure(self, scenario: Scenario, count: int) -> float:
        """Return the seconds measured by the process."""
        return float(self.ask(scenario, count)["seconds"])

    def ask(self, scenario: str, count: int) -> dict[str, Any]:
        """Send one request and return the answer."""
        self.request(scenario, count)
        return self.answer()

    def request(self, scenario: str, count: int) -> None:
        """Send one request without waiting."""
        assert self._process.stdin is not None  # noqa: S101  # it has a pipe
        # If the process has exited, reading the answer fails.
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"scenario": scenario, "count": count}) + "\n")
            self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for the next answer; kill the process on a timeout."""
        assert self._process.stdout is not None  # noqa: S101  # it has a pipe
        patience = threading.Timer(_ANSWER_SECONDS_MAX, self._process.kill)
        patience.start()
        try:
            line = self._process.stdout.readline()
        finally:
            patience.cancel()
        if not line:
            raise CandidateFailedError("it exited without an answer; see its output on the terminal")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise CandidateFailedError(answer["failed"])
        return answer

    def close(self) -> None:
        """Stop the process; kill it if it does not exit."""
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
