from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import holdfast
from holdfast.cli.root import root


class Cli:
    """The command line in this process, on a file of its own, and a client of the same file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.queue = holdfast.connect(str(path))

    def run(self, *words: str, stdin: str | bytes | None = None, columns: int | None = None) -> Result:
        """Run a command line and return what came of it."""
        environment = {"HOLDFAST_URL": str(self.path), "COLUMNS": str(columns) if columns else None}
        return CliRunner(env=environment).invoke(root, words, input=stdin)

    def text(self, *words: str, stdin: str | bytes | None = None, columns: int | None = None) -> str:
        """Return what a command that must succeed says to people."""
        result = self.run(*words, stdin=stdin, columns=columns)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *words: str, stdin: str | bytes | None = None) -> Any:
        """Return the one document that a command that must succeed answers with."""
        result = self.run(*words, "--json", stdin=stdin)
        assert (result.exit_code, result.stderr) == (0, "")
        return json.loads(result.stdout)

    def lines(self, *words: str, stdin: str | bytes | None = None) -> list[Any]:
        """Return the documents of a command that must succeed, one per line."""
        result = self.run(*words, "--json", stdin=stdin)
        assert (result.exit_code, result.stderr) == (0, "")
        return [json.loads(line) for line in result.stdout.splitlines()]

    def refusal(self, *words: str, code: int, stdin: str | bytes | None = None) -> str:
        """Return what a command that must exit with *code* complains of; it must answer nothing."""
        result = self.run(*words, stdin=stdin)
        assert (result.exit_code, result.stdout) == (code, "")
        assert result.stderr.startswith("error: ")
        return result.stderr


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    made = Cli(tmp_path / "jobs.db")
    yield made
    made.queue.close()


@pytest.fixture
def failed_job(cli: Cli) -> str:
    """The id of a job that failed for good, with a traceback."""
    cli.queue.enqueue("email.send", {"to": "ada@example.org"}, job_id="broken")
    claim = cli.queue.claim(worker="w1")
    assert claim is not None
    trace = 'Traceback (most recent call last):\n  File "send.py", line 3, in send\nOSError: refused'
    cli.queue.settle(claim, holdfast.Failed("smtp refused", reason="smtp", permanent=True, traceback=trace))
    return "broken"
