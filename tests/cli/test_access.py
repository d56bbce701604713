"""`holdfast token` and `holdfast audit`."""

from __future__ import annotations

import getpass
import json

import pytest

from tests.cli.conftest import Cli

ACTIONS = [
    (["jobs", "cancel", "one"], "jobs.cancel", "one"),
    (["jobs", "cancel", "one", "two"], "jobs.cancel", "2 jobs"),
    (["jobs", "cancel", "--kind", "a", "--yes"], "jobs.cancel", "filter"),
    (["jobs", "requeue", "one"], "jobs.requeue", "one"),
    (["jobs", "requeue", "--state", "cancelled", "--yes"], "jobs.requeue", "filter"),
    (["jobs", "priority", "one", "5"], "jobs.priority", "one"),
    (["prune", "--older-than", "1d", "--yes"], "prune", "jobs"),
    (["lanes", "set", "bulk", "--state", "paused"], "lanes.set", "bulk"),
    (["kinds", "retire", "a", "--yes"], "kinds.retire", "a"),
    (["kinds", "restore", "a"], "kinds.restore", "a"),
    (["workers", "drain", "web-1"], "workers.drain", "web-1"),
    (["workers", "stop", "web-1"], "workers.stop", "web-1"),
]


@pytest.mark.parametrize(("arguments", "action", "target"), ACTIONS)
def test_an_operator_action_is_recorded_with_the_user_before_it_is_carried_out(
    cli: Cli, arguments: list[str], action: str, target: str
) -> None:
    cli.queue.enqueue("a", job_id="one")
    cli.queue.enqueue("a", job_id="two")

    # Some are refused, such as requests to workers that do not exist: they are recorded too.
    cli.run(*arguments)

    [entry] = cli.queue.admin.audit_log()
    assert (entry.action, entry.target) == (action, target)
    assert entry.actor.startswith(f"{getpass.getuser()}@")


def test_a_dry_run_is_not_recorded(cli: Cli) -> None:
    cli.queue.enqueue("a", job_id="one")
    cli.run("jobs", "cancel", "--kind", "a", "--dry-run")
    cli.run("kinds", "retire", "a", "--dry-run")

    assert cli.queue.admin.audit_log() == []


def test_a_token_is_created_listed_rotated_and_revoked(cli: Cli) -> None:
    created = cli.json("token", "create", "ci", "--role", "produce", "--tenant", "acme")
    text = cli.text("token", "rotate", created["id"], "--overlap", "1h").strip()
    new_id = text.split("_")[1]
    cli.text("token", "revoke", new_id)

    listed = cli.text("token", "list")
    tokens = cli.json("token", "list")["tokens"]
    assert {one["id"]: (one["state"], one["tenant"]) for one in tokens} == {
        created["id"]: ("active", "acme"),
        new_id: ("revoked", "acme"),
    }
    assert created["token"].startswith(f"hf_{created['id']}_")
    log = cli.lines("audit")
    assert [entry["action"] for entry in log] == ["token.revoke", "token.rotate", "token.create"]
    for secret in (created["token"].split("_", 2)[2], text.split("_", 2)[2]):
        assert secret not in listed + json.dumps([tokens, log]) + cli.text("audit")


def test_the_details_of_an_action_are_shown_without_those_that_are_not_set(cli: Cli) -> None:
    cli.text("migrate")
    cli.text("prune", "--older-than", "7d", "--yes")
    cli.text("lanes", "set", "bulk", "--state", "paused")

    shown = " ".join(cli.text("audit", columns=200).split())
    assert "lanes.set bulk state paused" in shown
    assert "prune jobs older_than 604800.0; states done, failed, cancelled, retired" in shown
    assert "events_older_than" not in shown


def test_the_choices_of_a_missing_option_are_named_on_one_line(cli: Cli) -> None:
    refused = cli.refusal("token", "create", "ci", code=2)

    assert refused.startswith("error: Missing option '--role'. Choose from: produce, work, read, admin\n")


def test_the_id_of_a_token_stays_whole_in_the_audit_log_at_80_columns(cli: Cli) -> None:
    created = cli.json("token", "create", "ci", "--role", "produce", "--tenant", "a.tenant.with.a.long.name")

    assert f" {created['id']} " in cli.text("audit", columns=80)
