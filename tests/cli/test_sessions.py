"""Entries of sessions on the command line."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Cli


@pytest.fixture
def chatting(cli: Cli) -> Cli:
    for n in range(2):
        cli.queue.enqueue("chat.message", n, session="chat-42", slot="join", source_key=f"m{n}", job_id=f"b{n}")
    cli.queue.enqueue("chat.message", "other", session="chat-7", tenant="acme", job_id="other")
    cli.queue.enqueue("email.send", job_id="plain")
    return cli


def test_a_batch_is_shown_with_its_place_in_the_session_and_without_a_priority(chatting: Cli) -> None:
    shown = dict(line.partition("  ")[::2] for line in chatting.text("jobs", "show", "b1").splitlines())
    shown = {name: value.strip() for name, value in shown.items()}

    assert shown["session"] == "chat-42 (entry 2)"
    assert shown["slot"] == "join (merge key default)"
    assert shown["delivery"] == "earliest_safe_boundary"
    assert "priority" not in shown


def test_a_plain_job_is_shown_without_a_session(chatting: Cli) -> None:
    assert "session" not in chatting.text("jobs", "show", "plain")


def test_the_list_has_a_column_for_sessions_where_there_are_any(chatting: Cli) -> None:
    assert "SESSION" in chatting.text("jobs", "list", columns=120)
    assert "SESSION" not in chatting.text("jobs", "list", "--kind", "email.send", columns=120)


def test_the_list_is_narrowed_to_a_session_of_a_tenant(chatting: Cli) -> None:
    def ids(*words: str) -> list[str]:
        return [job["id"] for job in chatting.json("jobs", "list", *words)["jobs"]]

    assert ids("--session", "chat-42") == ["b1", "b0"]
    assert ids("--session", "chat-7") == []
    assert ids("--session", "chat-7", "--tenant", "acme") == ["other"]
