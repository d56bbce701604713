from __future__ import annotations

import json

import pytest

import holdfast
from tests.cli.conftest import Cli


def finish(cli: Cli, job_id: str, tenant: str = "default") -> None:
    cli.queue.enqueue("email.send", job_id=job_id, tenant=tenant, tags={"order": job_id})
    claim = cli.queue.claim(worker="w1")
    assert claim is not None
    cli.queue.settle(claim, holdfast.Done())


def test_events_prints_one_line_per_event_in_order(cli: Cli) -> None:
    finish(cli, "one")
    finish(cli, "two")

    lines = cli.text("events").splitlines()

    assert [line.split()[1:4] for line in lines] == [["done", "one", "email.send"], ["done", "two", "email.send"]]


@pytest.mark.parametrize("columns", [24, 40, 69, 80])
def test_a_narrow_terminal_wraps_an_event_and_loses_nothing(cli: Cli, columns: int) -> None:
    job_id = "01a1ec60-3a7d-756c-9828-a3d1b31cdc68"
    cli.queue.enqueue("report.monthly.aggregate", job_id=job_id, max_attempts=1)
    claim = cli.queue.claim(worker="w1")
    assert claim is not None
    cli.queue.settle(claim, holdfast.Failed("no", reason="column_not_found"))

    lines = cli.text("events", columns=columns).splitlines()

    assert max(map(len, lines)) <= columns
    joined = "".join("".join(lines).split())
    for part in (job_id, "failed", "report.monthly.aggregate", "attempt=1", "failure=column_not_found(transient)"):
        assert part in joined
    if columns >= 40:
        assert any(job_id in line for line in lines), "an id can be copied"


def test_events_in_json_are_lines_with_a_cursor(cli: Cli) -> None:
    finish(cli, "one")
    finish(cli, "two")

    first, second = cli.lines("events")

    assert (first["name"], first["job_id"], first["tags"]) == ("done", "one", {"order": "one"})
    assert cli.lines("events", "--after", first["cursor"]) == [second]


def test_limit_stops_and_prints_the_cursor_to_continue_from(cli: Cli) -> None:
    finish(cli, "one")
    finish(cli, "two")

    result = cli.run("events", "--limit", "1")

    cursor = result.stderr.strip().removeprefix("there may be more: --after ")
    assert [event["job_id"] for event in cli.lines("events", "--after", cursor)] == ["two"]


def test_events_of_one_tenant_are_found_behind_those_of_others(cli: Cli) -> None:
    for number in range(3):
        finish(cli, f"theirs-{number}", tenant="them")
    finish(cli, "ours", tenant="us")

    assert [event["job_id"] for event in cli.lines("events", "--tenant", "us", "--limit", "1")] == ["ours"]


def test_follow_continues_until_the_limit(cli: Cli) -> None:
    finish(cli, "one")
    finish(cli, "two")

    assert [event["job_id"] for event in cli.lines("events", "--follow", "--limit", "2")] == ["one", "two"]


def test_the_absence_of_events_is_noted_on_standard_error(cli: Cli) -> None:
    cli.queue.migrate()

    result = cli.run("events")

    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no events\n")


def test_an_invalid_cursor_is_refused(cli: Cli) -> None:
    cli.queue.migrate()

    result = cli.run("events", "--after", "nonsense", "--json")

    assert (result.exit_code, json.loads(result.stderr)["error"]["code"]) == (2, "invalid_input")


def test_a_cursor_behind_the_horizon_is_refused_with_the_oldest_valid_one(cli: Cli) -> None:
    finish(cli, "one")
    finish(cli, "two")
    first, second = cli.lines("events")
    cli.text("prune", "--older-than", "0", "--yes")

    output = cli.refusal("events", "--after", first["cursor"], code=1)

    assert f"hint: continue with --after {second['cursor']}" in output
