"""The examples in the help of every command work as they are written."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import holdfast
from holdfast.cli.root import root
from tests.cli.test_options import commands

# These run until they are stopped, or as a play of processes: their examples are only parsed.
LONG_RUNNING = {"worker", "demo"}


def examples() -> list[str]:
    """Return every line below `Examples:` in the help of every command."""
    found: dict[str, None] = {}
    for path in commands(root):
        said = CliRunner().invoke(root, [*path, "--help"], prog_name="holdfast").output
        lines = said.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
        assert lines, f"holdfast {' '.join(path)} has no examples"
        found.update(dict.fromkeys(line.strip() for line in lines if "holdfast " in line))
    return list(found)


def arguments_of(example: str) -> list[str]:
    """Return the arguments of `holdfast` in a line of shell, without what stands before and after it."""
    words = shlex.split(example)
    words = words[words.index("holdfast") + 1 :]
    ends = [words.index(end) for end in ("|", "&&") if end in words]
    return words[: min(ends, default=len(words))]


def prepare(words: list[str]) -> None:
    """Make a queue in this folder in which *words* find what they name."""
    Path("report.json").write_text('{"month": 1}')
    Path("jobs.jsonl").write_text('{"kind": "a"}\n')
    with holdfast.connect("jobs.db" if "--url" in words else "holdfast.db") as queue:
        for job_id in ("order-42", "order-43"):
            queue.enqueue("order.ship", job_id=job_id)
        queue.enqueue("email.legacy")
        # Its end is an event, for the command that follows the log.
        queue.cancel(queue.enqueue("day.close").id)
        if "restore" in words:
            queue.retire("email.legacy")
        if "requeue" in words:
            queue.cancel_many(["order-42", "order-43"])
        if "wait" in words or "artifact" in words:
            claim = queue.claim(kinds=["order.ship"])
            assert claim is not None
            artifacts = [holdfast.Artifact(name, b"text") for name in ("invoice.pdf", "log.txt")]
            queue.settle(claim, holdfast.Done(artifacts=artifacts))


@pytest.mark.slow("the command line runs as a process")
def test_every_example_in_the_help_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, example in enumerate(examples()):
        words = arguments_of(example)
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        if words and words[0] in LONG_RUNNING:
            command = root.get_command(click.Context(root), words[0])
            assert command is not None
            command.make_context(words[0], words[1:])
            continue
        prepare(words)
        # A log that is followed ends here with the limit.
        bounded = ["--limit", "1"] if "--follow" in words else []
        ran = CliRunner().invoke(root, [*words, *bounded], input='"2030-01-31"', prog_name="holdfast")
        assert ran.exit_code == 0, (example, ran.output)


def test_no_line_of_help_is_wider_than_a_terminal() -> None:
    for path in commands(root):
        said = CliRunner(env={"COLUMNS": "80"}).invoke(root, [*path, "--help"], prog_name="holdfast").output
        assert [line for line in said.splitlines() if len(line) > 80] == []
