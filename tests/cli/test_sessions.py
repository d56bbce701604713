"""Session entries on the command line."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Cli


@pytest.fixture
def sessions_cli(cli: Cli) -> Cli:
    for n in range(2):
        cli.queue.enqueue("chat.message", n, session="chat-42", join=True, message_id=f"m{n}", job_id=f"b{n}")
    cli.queue.enqueue("chat.message", "other", session="chat-7", tenant="acme", job_id="other")
    cli.queue.enqueue("email.send", job_id="plain")
    return cli


def test_an_entry_is_shown_with_its_position_in_the_session_and_without_a_priority(sessions_cli: Cli) -> None:
    shown = dict(line.partition("  ")[::2] for line in sessions_cli.text("jobs", "show", "b1").splitlines())
    shown = {name: value.strip() for name, value in shown.items()}

    assert shown["session"] == "chat-42 (entry 2)"
    assert shown["join"] == "by kind"
    assert shown["delivery"] == "checkpoint"
    assert "priority" not in shown


def test_a_plain_job_is_shown_without_a_session(sessions_cli: Cli) -> None:
    assert "session" not in sessions_cli.text("jobs", "show", "plain")


def test_the_list_has_a_column_for_sessions_if_there_are_any(sessions_cli: Cli) -> None:
    assert "SESSION" in sessions_cli.text("jobs", "list", columns=120)
    assert "SESSION" not in sessions_cli.text("jobs", "list", "--kind", "email.send", columns=120)


def test_the_list_is_narrowed_to_a_session_of_a_tenant(sessions_cli: Cli) -> None:
    def ids(*arguments: str) -> list[str]:
        return [job["id"] for job in sessions_cli.json("jobs", "list", *arguments)["jobs"]]

    assert ids("--session", "chat-42") == ["b1", "b0"]
    assert ids("--session", "chat-7") == []
    assert ids("--session", "chat-7", "--tenant", "acme") == ["other"]
