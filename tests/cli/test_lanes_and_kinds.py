from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Cli


def test_lanes_lists_those_that_were_used(cli: Cli) -> None:
    cli.queue.enqueue("a", lane="bulk")

    head, _, *rows = cli.text("lanes", "list").splitlines()

    assert head.split() == ["LANE", "STATE", "ORDER", "EVENTS", "READY"]
    assert ["bulk", "active", "fair", "terminal", "1"] in [row.split() for row in rows]


def test_lanes_in_json(cli: Cli) -> None:
    cli.queue.lanes.set("bulk", state="paused")

    listed = cli.json("lanes", "list")["lanes"]

    bulk = {"name": "bulk", "state": "paused", "order": "fair", "events": "terminal", "backoff": "block"}
    assert {**bulk, "max_waiting": None, "target_age": None, "late": False, "jobs": {}} in listed


def test_set_changes_only_the_given_settings(cli: Cli) -> None:
    cli.queue.lanes.set("bulk", order="strict")

    assert "paused" in cli.text("lanes", "set", "bulk", "--state", "paused")
    answer = cli.json("lanes", "set", "bulk", "--events", "all")
    assert answer == {
        "name": "bulk",
        "state": "paused",
        "order": "strict",
        "events": "all",
        "backoff": "block",
        "max_waiting": None,
        "target_age": None,
        "late": False,
    }
    assert "skip" in cli.text("lanes", "set", "bulk", "--backoff", "skip")


def test_a_bound_and_a_target_are_set_shown_and_removed(cli: Cli) -> None:
    cli.queue.lanes.set("bulk", state="active")
    answer = cli.json("lanes", "set", "bulk", "--max-waiting", "1", "--target-age", "2m")
    assert (answer["max_waiting"], answer["target_age"]) == (1, 120)
    cli.text("enqueue", "a", "--lane", "bulk")
    assert "lanes set bulk --max-waiting" in cli.refusal("enqueue", "a", "--lane", "bulk", code=1)
    shown = cli.text("lanes", "list", columns=160)
    assert "MAX WAITING" in shown
    assert ["1", "2m"] in [line.split()[4:6] for line in shown.splitlines()]
    answer = cli.json("lanes", "set", "bulk", "--max-waiting", "0", "--target-age", "0s")
    assert (answer["max_waiting"], answer["target_age"]) == (None, None)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "nothing to change"),
        (["--state", "asleep"], "'asleep' is not one of"),
        (["--order", "any"], "is not one of"),
    ],
)
def test_a_wrong_setting_is_refused(cli: Cli, arguments: list[str], problem: str) -> None:
    cli.queue.migrate()

    assert problem in cli.refusal("lanes", "set", "bulk", *arguments, code=2)


def test_a_draining_lane_refuses_jobs_with_a_hint_to_activate_it(cli: Cli) -> None:
    cli.queue.lanes.set("my lane", state="draining")

    output = cli.refusal("enqueue", "a", "--lane", "my lane", code=1)

    assert "hint: holdfast lanes set 'my lane' --state active" in output


def test_retire_retires_waiting_jobs_and_restore_accepts_new_ones(cli: Cli) -> None:
    cli.queue.enqueue_many([{"kind": "old"}, {"kind": "old"}])

    assert cli.text("kinds", "retire", "old", "--yes") == "kind old is retired; 2 waiting jobs retired\n"
    assert "hint: holdfast kinds restore old" in cli.refusal("enqueue", "old", code=1)
    assert cli.text("kinds", "restore", "old") == "kind old accepts new jobs again\n"
    cli.text("enqueue", "old")


def test_retire_and_restore_in_json(cli: Cli) -> None:
    cli.queue.enqueue("old")

    assert cli.json("kinds", "retire", "old", "--yes") == {"kind": "old", "retired": True, "jobs": 1}
    assert cli.json("kinds", "restore", "old") == {"kind": "old", "retired": False}


def test_a_dry_run_of_retire_counts_and_retires_nothing(cli: Cli) -> None:
    cli.queue.enqueue("old")

    assert cli.text("kinds", "retire", "old", "--dry-run") == "would retire kind old and 1 waiting job\n"
    assert "there is no terminal to confirm it" in cli.refusal("kinds", "retire", "old", code=2)
    assert [kind.retired for kind in cli.queue.kinds.list()] == [False]


def test_kinds_are_listed_with_their_jobs(cli: Cli) -> None:
    cli.queue.enqueue_many([{"kind": "a"}, {"kind": "a", "lane": "bulk"}, {"kind": "b", "delay": 60}])
    cli.queue.kinds.retire("old")

    head, _, *rows = cli.text("kinds", "list").splitlines()

    assert head.split() == ["KIND", "STATE", "SCHEDULED", "READY"]
    assert [row.split() for row in rows] == [
        ["a", "active", "0", "2"],
        ["b", "active", "1", "0"],
        ["old", "retired", "0", "0"],
    ]
    first = cli.json("kinds", "list")["kinds"][0]
    assert (first["name"], first["retired"], first["jobs"]) == ("a", False, {"ready": 2})
    assert first["published_at_ms"] is first["lane"] is first["schema"] is None


def test_draining_a_lane_needs_yes_without_a_terminal(cli: Cli) -> None:
    cli.queue.enqueue("a", lane="bulk")
    drain = ["lanes", "set", "bulk", "--state", "draining"]

    assert "there is no terminal to confirm it" in cli.refusal(*drain, code=2)
    assert cli.text(*drain, "--dry-run") == "would change lane bulk with 1 unfinished job\n"
    assert [lane.state for lane in cli.queue.lanes.list()] == ["active"]
    assert "draining" in cli.text(*drain, "--yes")


def test_a_kind_that_is_not_retired_cannot_be_restored(cli: Cli) -> None:
    cli.queue.migrate()

    result = cli.run("kinds", "restore", "new", "--json")

    assert (result.exit_code, json.loads(result.stderr)["error"]["code"]) == (2, "unknown_kind")
