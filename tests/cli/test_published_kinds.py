"""Published kinds on the command line: `kinds list`, `kinds show`, and `enqueue` of a task by its kind."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import SessionContext, Tasks
from tests.chaos.threads import wait_until
from tests.cli.conftest import Cli
from tests.cli.worker_process import running, write_app
from tests.support.command_line import PATIENCE_SECONDS, environment, run
from tests.support.kinds import publish


@pytest.fixture
def published(cli: Cli) -> Cli:
    """The command line on a store in which a worker has published the task `email.send`."""
    tasks = Tasks()

    @tasks.task("email.send", lane="mail", max_attempts=3, timeout=90)
    def send(to: str, copies: int = 1) -> None: ...

    publish(cli.queue, tasks)
    return cli


def test_enqueue_uses_the_options_of_the_task(published: Cli) -> None:
    job = published.json("enqueue", "email.send", '{"to": "ada"}')["job"]

    assert (job["lane"], job["max_attempts"]) == ("mail", 3)
    assert published.json("enqueue", "email.send", '{"to": "ada"}', "--lane", "own")["job"]["lane"] == "own"


def test_enqueue_refuses_a_payload_that_the_task_would_refuse_and_names_the_field(published: Cli) -> None:
    output = published.refusal("enqueue", "email.send", '{"to": 3}', code=2)

    assert "payload.to: must be a string, not an integer" in output
    assert "hint: holdfast kinds show email.send" in output
    assert list(published.queue.jobs()) == []


def test_enqueue_of_a_kind_that_no_worker_has_published_stores_it_and_suggests_published_ones(published: Cli) -> None:
    mistyped, other = published.run("enqueue", "emial.send"), published.run("enqueue", "tick")

    assert mistyped.stdout.startswith("enqueued ")
    assert mistyped.stderr == "no worker has published the kind 'emial.send'; did you mean 'email.send'?\n"
    assert (other.exit_code, other.stderr) == (0, "no worker has published the kind 'tick'\n")
    assert published.run("enqueue", "email.send", '{"to": "ada"}').stderr == ""
    assert published.run("enqueue", "emial.send", "--json").stderr == ""


@pytest.mark.parametrize(
    "command",
    [
        ["schedules", "set", "x", "KIND", '{"to": "a"}', "--every", "1h"],
        ["limits", "set", "x", "--kind", "KIND", "--rate", "5"],
    ],
    ids=str,
)
def test_schedules_and_limits_of_such_a_kind_are_set_with_the_same_note(published: Cli, command: list[str]) -> None:
    def run(kind: str, *more: str) -> str:
        return published.run(*[kind if part == "KIND" else part for part in command], *more).stderr

    assert run("emial.send") == "no worker has published the kind 'emial.send'; did you mean 'email.send'?\n"
    assert [run("email.send"), run("emial.send", "--json")] == ["", ""]


def test_a_kind_that_is_retired_is_checked_in_the_same_way_before_the_question(published: Cli) -> None:
    dry = published.run("kinds", "retire", "emial.send", "--dry-run")
    assert dry.stderr == "no worker has published the kind 'emial.send'; did you mean 'email.send'?\n"


def test_a_schedule_whose_payload_the_task_would_refuse_is_refused_with_the_command_for_the_schema(
    published: Cli,
) -> None:
    output = published.refusal("schedules", "set", "x", "email.send", '{"to": 3}', "--every", "1h", code=2)

    assert "payload.to: must be a string, not an integer" in output
    assert "hint: holdfast kinds show email.send" in output


def test_enqueue_says_nothing_of_kinds_before_the_first_worker(cli: Cli) -> None:
    assert cli.run("enqueue", "email.send").stderr == ""


def test_an_entry_of_a_session_task_needs_its_session(cli: Cli) -> None:
    tasks = Tasks()

    @tasks.session_task("chat.message")
    def answer(context: SessionContext[str], messages: list[str]) -> None: ...

    publish(cli.queue, tasks)

    refused = cli.refusal("enqueue", "chat.message", '"hello"', code=2)
    job = cli.json("enqueue", "chat.message", '"hello"', "--session", "ada")["job"]

    assert refused == "error: --session: must be named: 'chat.message' is a session task\n"
    assert job["entry"]["session"] == "ada"


def test_each_line_of_a_file_is_checked(published: Cli) -> None:
    lines = '{"kind": "email.send", "payload": {"to": "ada"}}\n{"kind": "email.send", "payload": {"copies": 2}}\n'

    output = published.refusal("enqueue", "--many", "-", code=2, stdin=lines)

    assert "payload.to: is missing" in output


def test_the_list_shows_what_was_published(published: Cli) -> None:
    head, _, row = published.text("kinds", "list", columns=120).splitlines()

    assert head.split() == ["KIND", "STATE", "LANE", "ATTEMPTS", "TIMEOUT", "PUBLISHED", "BY"]
    assert row.split() == ["email.send", "active", "mail", "3", "1m", "30s", "now", "w1"]
    [kind] = published.json("kinds", "list")["kinds"]
    assert (kind["lane"], kind["max_attempts"], kind["timeout"], kind["published_by"]) == ("mail", 3, 90.0, "w1")


def test_show_prints_options_and_schema(published: Cli) -> None:
    text = published.text("kinds", "show", "email.send")

    assert "lane          mail" in text
    assert '"required": [' in text
    assert published.json("kinds", "show", "email.send")["schema"]["required"] == ["to"]


def test_show_of_a_kind_without_a_publication_and_of_an_unknown_one(cli: Cli) -> None:
    cli.queue.enqueue("plain")

    assert "never: no worker has served its task" in cli.text("kinds", "show", "plain")
    assert "kind 'gone': has no jobs, and is neither published nor retired" in cli.refusal(
        "kinds", "show", "gone", code=2
    )


@pytest.mark.slow("starts a worker and a producer as processes")
def test_a_producer_in_another_process_gets_the_lane_and_the_check_of_a_running_worker(tmp_path: Path) -> None:
    write_app(
        tmp_path,
        """
import holdfast

queue = holdfast.connect("jobs.db")


@queue.task("email.send", lane="mail")
def send(to: str) -> str:
    return to
""",
    )
    with holdfast.connect(str(tmp_path / "jobs.db")) as queue, running(tmp_path, "--json"):
        wait_until(lambda: bool(queue.kinds.list()))
        sent, refused = [
            run("enqueue", "email.send", payload, "--json", "--url", "jobs.db", cwd=tmp_path, env=environment())
            for payload in ('{"to": "ada"}', '{"to": 3}')
        ]
        [job] = queue.jobs()
        ended = queue.wait(job.id, timeout=PATIENCE_SECONDS)

    assert (sent.returncode, refused.returncode) == (0, 2)
    assert (ended.lane, ended.state, ended.result) == ("mail", "done", "ada")
    assert "payload.to: must be a string, not an integer" in refused.stderr
