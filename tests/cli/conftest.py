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
    """The command line, run in this process on a separate file, and a client of the same file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.queue = holdfast.connect(str(path))

    def run(self, *arguments: str, stdin: str | bytes | None = None, columns: int | None = None) -> Result:
        """Run a command line and return the result."""
        environment = {"HOLDFAST_URL": str(self.path), "COLUMNS": str(columns) if columns else None}
        return CliRunner(env=environment).invoke(root, arguments, input=stdin)

    def text(self, *arguments: str, stdin: str | bytes | None = None, columns: int | None = None) -> str:
        """Return the text output of a command that must succeed."""
        result = self.run(*arguments, stdin=stdin, columns=columns)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *arguments: str, stdin: str | bytes | None = None) -> Any:
        """Return the JSON document of a command that must succeed."""
        result = self.run(*arguments, "--json", stdin=stdin)
        assert (result.exit_code, result.stderr) == (0, "")
        return json.loads(result.stdout)

    def lines(self, *arguments: str, stdin: str | bytes | None = None) -> list[Any]:
        """Return the JSON documents, one per line, of a command that must succeed."""
        result = self.run(*arguments, "--json", stdin=stdin)
        assert (result.exit_code, result.stderr) == (0, "")
        return [json.loads(line) for line in result.stdout.splitlines()]

    def refusal(self, *arguments: str, code: int, stdin: str | bytes | None = None) -> str:
        """Return the error output of a command that must exit with *code* and print nothing else."""
        result = self.run(*arguments, stdin=stdin)
        assert (result.exit_code, result.stdout) == (code, "")
        assert result.stderr.startswith("error: ")
        return result.stderr


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    client = Cli(tmp_path / "jobs.db")
    yield client
    client.queue.close()


@pytest.fixture
def failed_job(cli: Cli) -> str:
    """The id of a job that failed permanently, with a traceback."""
    cli.queue.enqueue("email.send", {"to": "ada@example.org"}, job_id="broken")
    claim = cli.queue.claim(worker="w1")
    assert claim is not None
    trace = 'Traceback (most recent call last):\n  File "send.py", line 3, in send\nOSError: refused'
    cli.queue.settle(claim, holdfast.Failed("smtp refused", reason="smtp", permanent=True, traceback=trace))
    return "broken"
