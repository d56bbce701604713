"""The examples in the help of every command work."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import holdfast
from holdfast.cli.root import root
from holdfast.client.queue_state import state_of
from holdfast.client.sync_api.worker_calls import WorkerCalls
from holdfast.domain.access import Grants
from holdfast.domain.webhooks import check_webhook
from holdfast.operations import access, webhooks
from tests.cli.test_options import commands

# The token that the examples name.
EXAMPLE_TOKEN = ("mvxgk3tdmfxgg2lb", "hash", "billing", Grants(("produce",)), None, "ada@host")
# These run until they are stopped or start processes; their examples are only parsed.
LONG_RUNNING = {"worker", "demo", "serve", "gateway"}


def examples() -> list[str]:
    """Return every line below `Examples:` in the help of every command."""
    found: dict[str, None] = {}
    for path in commands(root):
        output = CliRunner().invoke(root, [*path, "--help"], prog_name="holdfast").output
        lines = output.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
        assert lines, f"holdfast {' '.join(path)} has no examples"
        found.update(dict.fromkeys(line.strip() for line in lines if "holdfast " in line))
    return list(found)


def arguments_of(example: str) -> list[str]:
    """Return the arguments of `holdfast` in a shell command line, without other commands of a pipe."""
    arguments = shlex.split(example)
    arguments = arguments[arguments.index("holdfast") + 1 :]
    ends = [arguments.index(end) for end in ("|", "&&") if end in arguments]
    return arguments[: min(ends, default=len(arguments))]


def prepare(arguments: list[str]) -> None:
    """Create a queue in this folder with the jobs that *arguments* name."""
    Path("report.json").write_text('{"month": 1}')
    Path("jobs.jsonl").write_text('{"kind": "a"}\n')
    with holdfast.connect("jobs.db" if "--url" in arguments else "holdfast.db") as queue:
        for job_id in ("order-42", "order-43"):
            queue.enqueue("order.ship", job_id=job_id)
        queue.enqueue("email.legacy")
        queue.enqueue("email.send")
        # Finishing it creates an event for the command that follows the log.
        queue.cancel(queue.enqueue("day.close").id)
        for worker in ("web-1", "web-2"):
            row = holdfast.types.WorkerInfo(worker, "i", "host", 1, "0.1.0", "active", 8, 0, ("default",), (), (), ())
            WorkerCalls(state_of(queue).store).beat(row)
        if "restore" in arguments:
            queue.kinds.retire("email.legacy")
        if "token" in arguments:
            named = queue._runner.write(access.create_token, *EXAMPLE_TOKEN)
            assert named.id in "".join(arguments) or arguments[1] in {"create", "list"}
        if "webhooks" in arguments:
            new = check_webhook("https://example.org/", {})
            queue._runner.write(webhooks.add_webhook, "wh_mvxgk3tdmfxgg2lb", new, "whsec_", "ada@host")
        if "schedules" in arguments:
            queue.schedules.set("nightly", kind="report.write", cron="0 3 * * *")
        if "failures" in arguments:
            failing = queue.claim(kinds=["order.ship"])
            assert failing is not None
            queue.settle(failing, holdfast.Failed("no address", reason="no_address", permanent=True))
        if "limits" in arguments:
            queue.limits.set("llm", kinds=["llm.call"], key="tenant", concurrency=2)
        if "groups" in arguments:
            with queue.group("import-7") as group:
                if "wait" not in arguments:
                    group.enqueue("page")
        if "requeue" in arguments:
            queue.admin.cancel_many(["order-42", "order-43"])
        if not {"wait", "artifact", "output"}.isdisjoint(arguments):
            claim = queue.claim(kinds=["order.ship"])
            assert claim is not None
            artifacts = [holdfast.Artifact(name, b"text") for name in ("invoice.pdf", "log.txt")]
            queue.settle(claim, holdfast.Done(artifacts=artifacts))


@pytest.mark.slow("the command line runs as a process")
def test_every_example_in_the_help_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, example in enumerate(examples()):
        arguments = arguments_of(example)
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        called = arguments[2:] if arguments[:1] == ["--url"] else arguments
        if called and called[0] in LONG_RUNNING:
            command = root.get_command(click.Context(root), called[0])
            assert command is not None
            command.make_context(called[0], called[1:])
            continue
        prepare(arguments)
        # Following the log ends with the limit.
        bounded = ["--limit", "1"] if arguments[0] == "events" and "--follow" in arguments else []
        ran = CliRunner().invoke(root, [*arguments, *bounded], input='"2030-01-31"', prog_name="holdfast")
        assert ran.exit_code == 0, (example, ran.output)


def test_no_line_of_help_is_wider_than_a_terminal() -> None:
    for path in commands(root):
        output = CliRunner(env={"COLUMNS": "80"}).invoke(root, [*path, "--help"], prog_name="holdfast").output
        assert [line for line in output.splitlines() if len(line) > 80] == []


def test_no_summary_of_a_command_is_cut_off() -> None:
    outputs = [
        CliRunner().invoke(root, [*path, "--help"], prog_name="holdfast", terminal_width=80).output
        for path in commands(root)
    ]
    listings = [output.partition("Commands:\n")[2].partition("\n\n")[0] for output in outputs]
    assert "inspect" in "".join(listings).lower()
    assert not [line for listing in listings for line in listing.splitlines() if line.endswith("...")]
