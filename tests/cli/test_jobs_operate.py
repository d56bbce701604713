from __future__ import annotations

import json

import pytest

import holdfast
from tests.cli.conftest import Cli


def fail(cli: Cli, job_id: str, *, permanent: bool, kind: str = "a") -> None:
    cli.queue.enqueue(kind, job_id=job_id, max_attempts=1)
    claim = cli.queue.claim(kinds=[kind])
    assert claim is not None
    cli.queue.settle(claim, holdfast.Failed("no", permanent=permanent))


def states(cli: Cli) -> dict[str, str]:
    return {job.id: job.state for job in cli.queue.jobs()}


def test_cancel_ends_waiting_jobs(cli: Cli) -> None:
    cli.queue.enqueue_many([{"kind": "a", "job_id": "one"}, {"kind": "a", "job_id": "two"}])

    assert cli.text("jobs", "cancel", "one", "two") == "cancelled one\ncancelled two\n"
    assert states(cli) == {"one": "cancelled", "two": "cancelled"}


def test_cancel_requests_a_running_job_to_stop_unless_forced(cli: Cli) -> None:
    cli.queue.enqueue("a", job_id="one")
    cli.queue.claim(worker="w1")

    assert "asked one to stop; w1 is running it" in cli.text("jobs", "cancel", "one")
    assert states(cli) == {"one": "running"}
    assert cli.text("jobs", "cancel", "one", "--force") == "cancelled one\n"


@pytest.mark.parametrize("choice", [("one", "two"), ("--kind", "a", "--yes")])
def test_cancel_in_json_has_the_same_result_for_named_and_selected_jobs(cli: Cli, choice: tuple[str, ...]) -> None:
    cli.queue.enqueue("a", job_id="one")
    cli.queue.claim(worker="w1")
    cli.queue.enqueue("a", job_id="two")

    assert cli.json("jobs", "cancel", *choice) == {"cancelled": ["two"], "stop_requested": ["one"], "skipped": []}


def test_cancel_of_a_finished_job_is_refused(cli: Cli, failed_job: str) -> None:
    assert "hint: holdfast jobs show broken" in cli.refusal("jobs", "cancel", failed_job, code=1)


def test_one_refused_cancel_stops_no_other_and_exits_with_1(cli: Cli) -> None:
    cli.queue.enqueue("a", job_id="one")

    result = cli.run("jobs", "cancel", "nobody", "one")

    assert result.exit_code == 1
    assert result.stdout == "cancelled one\nskipped nobody: no job 'nobody'\n"
    assert result.stderr == "error: 1 of 2 jobs could not be cancelled\n"


def test_cancel_in_json_lists_skipped_jobs(cli: Cli) -> None:
    cli.queue.enqueue("a", job_id="one")

    result = cli.run("jobs", "cancel", "nobody", "one", "--json")

    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert answer == {
        "cancelled": ["one"],
        "stop_requested": [],
        "skipped": [{"job_id": "nobody", "why": "no job 'nobody'", "code": "job_not_found"}],
    }


def test_requeue_makes_a_failed_job_ready(cli: Cli, failed_job: str) -> None:
    assert cli.text("jobs", "requeue", failed_job) == "requeued broken\n"
    assert states(cli) == {"broken": "ready"}


def test_requeue_of_a_waiting_job_is_refused(cli: Cli) -> None:
    cli.queue.enqueue("a", job_id="one")

    result = cli.run("jobs", "requeue", "one", "--json")

    assert (result.exit_code, result.stdout) == (1, "")
    assert json.loads(result.stderr)["error"]["code"] == "conflict"


def test_requeue_of_several_reports_those_skipped_and_exits_with_1(cli: Cli, failed_job: str) -> None:
    result = cli.run("jobs", "requeue", failed_job, "nobody")

    assert result.exit_code == 1
    requeued, skipped = result.stdout.splitlines()
    assert requeued == "requeued broken"
    assert skipped.startswith("skipped nobody: ")


def test_requeue_failed_takes_all_matching_jobs(cli: Cli) -> None:
    fail(cli, "lasting", permanent=True)
    fail(cli, "passing", permanent=False)

    assert cli.text("jobs", "requeue", "--failed", "--transient-only", "--yes") == "requeued 1 job\n"
    assert states(cli) == {"lasting": "failed", "passing": "ready"}


def test_requeue_failed_in_json_names_the_jobs(cli: Cli) -> None:
    fail(cli, "one", permanent=True)
    fail(cli, "two", permanent=True, kind="b")

    assert cli.json("jobs", "requeue", "--failed", "--kind", "b", "--yes") == {"requeued": ["two"], "skipped": []}


@pytest.mark.parametrize("command", ["cancel", "requeue"])
def test_jobs_are_named_or_selected_but_not_both(cli: Cli, command: str) -> None:
    cli.queue.migrate()

    assert f"name the jobs to {command}, or filters" in cli.refusal("jobs", command, code=2)
    assert "not both" in cli.refusal("jobs", command, "one", "--kind", "a", code=2)
    assert "--dry-run goes with filters" in cli.refusal("jobs", command, "one", "--dry-run", code=2)
    assert "there is no terminal to confirm it" in cli.refusal("jobs", command, "--kind", "a", code=2)


def test_cancel_by_filter_cancels_only_matching_jobs(cli: Cli) -> None:
    cli.queue.enqueue_many(
        [
            {"kind": "a", "job_id": "one"},
            {"kind": "a", "job_id": "bulk", "lane": "bulk"},
            {"kind": "a", "job_id": "acme", "tenant": "acme"},
            {"kind": "a", "job_id": "later", "delay": 60},
            {"kind": "b", "job_id": "other"},
        ]
    )

    dry = cli.text("jobs", "cancel", "--kind", "a", "--state", "ready", "--dry-run")
    assert dry.splitlines()[-1] == "would cancel 3 jobs"
    assert set(states(cli).values()) == {"ready", "scheduled"}
    assert cli.text("jobs", "cancel", "--kind", "a", "--lane", "bulk", "--yes") == "cancelled 1 job\n"
    assert cli.text("jobs", "cancel", "--tenant", "acme", "--yes") == "cancelled 1 job\n"
    assert cli.text("jobs", "cancel", "--kind", "a", "--older-than", "1h", "--yes") == "cancelled 0 jobs\n"
    answer = cli.json("jobs", "cancel", "--kind", "a", "--yes")
    assert answer == {"cancelled": ["later", "one"], "stop_requested": [], "skipped": []}
    assert states(cli)["other"] == "ready"


def test_cancel_by_filter_requests_running_jobs_to_stop(cli: Cli) -> None:
    cli.queue.enqueue("a", job_id="one")
    cli.queue.claim()

    output = cli.text("jobs", "cancel", "--state", "running", "--yes")

    assert output == "cancelled 0 jobs; asked 1 running job to stop\n"
    assert cli.text("jobs", "cancel", "--state", "running", "--force", "--yes") == "cancelled 1 job\n"


def test_requeue_by_filter_takes_cancelled_jobs_only_if_selected(cli: Cli, failed_job: str) -> None:
    cli.queue.cancel(cli.queue.enqueue("email.send", job_id="stopped").id)

    assert cli.json("jobs", "requeue", "--kind", "email.send", "--dry-run")["jobs"] == 1
    assert cli.json("jobs", "requeue", "--state", "cancelled", "--yes")["requeued"] == ["stopped"]
    assert states(cli) == {"broken": "failed", "stopped": "ready"}


@pytest.mark.parametrize("number", ["1", "#1"])
def test_a_job_is_named_by_its_number(cli: Cli, failed_job: str, number: str) -> None:
    assert cli.json("jobs", "show", number)["job"]["id"] == failed_job
    assert cli.run("jobs", "wait", number).stdout.startswith("broken is failed")
    assert cli.text("jobs", "requeue", number) == "requeued broken\n"
    assert cli.text("jobs", "priority", number, "3") == "broken now has priority 3\n"
    assert cli.text("jobs", "cancel", number) == "cancelled broken\n"
    assert "no job '#7'" in cli.refusal("jobs", "show", "#7", code=1)


def test_an_id_that_looks_like_a_number_takes_precedence(cli: Cli) -> None:
    cli.queue.enqueue("a")
    cli.queue.enqueue("b", job_id="1")

    assert cli.json("jobs", "show", "1")["job"]["kind"] == "b"
    assert cli.json("jobs", "show", "#1")["job"]["kind"] == "a"


def test_priority_takes_negative_numbers(cli: Cli) -> None:
    cli.queue.enqueue("a", job_id="one")

    assert cli.text("jobs", "priority", "one", "-5") == "one now has priority -5\n"
    assert cli.json("jobs", "priority", "one", "7")["job"]["priority"] == 7


def test_priority_of_a_finished_job_is_refused(cli: Cli, failed_job: str) -> None:
    cli.refusal("jobs", "priority", failed_job, "1", code=1)


def test_priority_beyond_its_limit_is_refused(cli: Cli) -> None:
    cli.queue.enqueue("a", job_id="one")

    assert "it must be from -1000 to 1000" in cli.refusal("jobs", "priority", "one", "1001", code=2)
