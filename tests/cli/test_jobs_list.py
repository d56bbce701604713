from __future__ import annotations

import json

import pytest

import holdfast
from tests.cli.conftest import Cli


def test_a_store_without_jobs_is_noted_on_standard_error(cli: Cli) -> None:
    cli.queue.migrate()

    result = cli.run("jobs", "list")

    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no jobs match\n")


def test_the_table_shows_the_newest_jobs_first_with_complete_ids(cli: Cli) -> None:
    first = cli.queue.enqueue("email.send").id
    second = cli.queue.enqueue("report.build", priority=3).id

    head, _, *rows = cli.text("jobs", "list", columns=120).splitlines()

    assert head.split() == ["#", "ID", "STATE", "KIND", "PRIO", "TRY", "AGE"]
    assert [row.split()[:6] for row in rows] == [
        ["2", second, "ready", "report.build", "3", "0/5"],
        ["1", first, "ready", "email.send", "0", "0/5"],
    ]


def test_columns_with_only_default_values_are_left_out(cli: Cli) -> None:
    cli.queue.enqueue("a")
    assert "LANE" not in cli.text("jobs", "list")

    cli.queue.enqueue("a", lane="bulk", tenant="acme")
    assert {"LANE", "TENANT"} <= set(cli.text("jobs", "list").split())


def test_an_id_is_shown_complete_or_replaced_by_the_number(cli: Cli, failed_job: str) -> None:
    job_id = cli.queue.enqueue("a.kind.with.a.rather.long.name", lane="some-lane", tenant="some-tenant").id

    narrow, wide = (cli.text("jobs", "list", columns=columns) for columns in (80, 160))

    assert max(map(len, narrow.splitlines())) <= 80
    assert narrow.split()[:3] == ["#", "STATE", "KIND"]
    assert wide.split()[:4] == ["#", "ID", "STATE", "KIND"]
    assert job_id in wide


def test_the_reason_of_a_failure_is_readable_at_80_columns(cli: Cli) -> None:
    cli.queue.enqueue("email.send")
    claim = cli.queue.claim()
    assert claim is not None
    cli.queue.settle(claim, holdfast.Failed("mailbox of ada@example.org is full", reason="smtp_552", permanent=True))

    assert "smtp_552: mailbox of ada@example.org is full" in cli.text("jobs", "list", columns=80)


def test_several_states_are_listed_together(cli: Cli, failed_job: str) -> None:
    cli.queue.enqueue("a", job_id="one")
    cli.queue.enqueue("a", job_id="later", delay=60)

    listed = cli.json("jobs", "list", "--state", "failed", "--state", "ready")["jobs"]

    assert [job["id"] for job in listed] == ["one", "broken"]
    assert [job["number"] for job in listed] == [2, 1]


def test_the_note_depends_on_the_state(cli: Cli, failed_job: str) -> None:
    cli.queue.enqueue("later", delay=3600)
    cli.queue.enqueue("busy")
    claim = cli.queue.claim(worker="w7", kinds=["busy"])
    assert claim is not None
    cli.queue.progress(claim, phase="loading", percent=40)

    output = cli.text("jobs", "list")

    assert "smtp: smtp refused (" in output
    assert "due in 1h" in output or "due in 59m" in output
    assert "loading, 40 %, w7, started " in output


def test_a_cancel_request_is_noted(cli: Cli) -> None:
    cli.queue.enqueue("busy", job_id="one")
    cli.queue.claim(worker="w7")
    cli.queue.cancel("one")

    assert "cancel requested, w7" in cli.text("jobs", "list")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--state", "failed"], ["broken"]),
        (["--kind", "tick"], ["bulk-job", "acme-job"]),
        (["--lane", "bulk"], ["bulk-job"]),
        (["--tenant", "acme"], ["acme-job"]),
        (["--failure-class", "permanent"], ["broken"]),
        (["--failure-class", "transient"], []),
        (["--limit", "1"], ["bulk-job"]),
        (["--root", "acme-job"], ["acme-job"]),
        (["--tag", "order=42"], ["bulk-job", "acme-job"]),
        (["--tag", "order=42", "--tag", "size=a=b"], ["bulk-job"]),
    ],
)
def test_filters_choose_jobs(cli: Cli, failed_job: str, arguments: list[str], expected: list[str]) -> None:
    cli.queue.enqueue("tick", tenant="acme", job_id="acme-job", tags={"order": "42"})
    cli.queue.enqueue("tick", lane="bulk", job_id="bulk-job", tags={"order": "42", "size": "a=b"})

    assert [job["id"] for job in cli.json("jobs", "list", *arguments)["jobs"]] == expected


def test_a_tree_is_listed_by_its_root_and_show_names_parent_and_root(cli: Cli) -> None:
    cli.queue.enqueue("start", job_id="first")
    for follow_up in ("second", "third"):
        claim = cli.queue.claim(worker="w")
        assert claim is not None
        cli.queue.settle(claim, holdfast.Done(follow_ups=[holdfast.NewJob("next", job_id=follow_up)]))

    listed = cli.json("jobs", "list", "--root", "first")["jobs"]
    shown = cli.text("jobs", "show", "third")

    assert [(job["id"], job["parent"], job["root"]) for job in listed] == [
        ("third", "second", "first"),
        ("second", "first", "first"),
        ("first", None, "first"),
    ]
    assert [line.split() for line in shown.splitlines() if line.split()[:1] in (["parent"], ["root"])] == [
        ["parent", "second"],
        ["root", "first"],
    ]
    assert "root" not in cli.text("jobs", "show", "first")


def test_the_cursor_traverses_all_pages(cli: Cli) -> None:
    enqueued = [cli.queue.enqueue("a").id for _ in range(5)]

    found: list[str] = []
    page = cli.json("jobs", "list", "--limit", "2")
    while True:
        found.extend(job["id"] for job in page["jobs"])
        if page["cursor"] is None:
            break
        page = cli.json("jobs", "list", "--limit", "2", "--after", page["cursor"])

    assert found == enqueued[::-1]


def test_the_text_output_names_the_option_for_the_next_page(cli: Cli) -> None:
    cli.queue.enqueue_many([{"kind": "a"}, {"kind": "a"}])

    assert "there are more: --after " in cli.run("jobs", "list", "--limit", "1").stderr


def test_no_secret_of_a_lease_is_listed(cli: Cli) -> None:
    cli.queue.enqueue("a", job_id="one")
    cli.queue.claim(worker="w1", lease_token="open-sesame")

    assert "open-sesame" not in cli.text("jobs", "list", "--json") + cli.text("jobs", "show", "one", "--json")


def test_job_data_cannot_control_the_terminal(cli: Cli) -> None:
    cli.queue.enqueue("a", {"evil": "\x1b[2J \x9b2J"}, tags={"t": "\x1b]0;owned\x07"}, job_id="one")
    claim = cli.queue.claim(worker="w1")
    assert claim is not None
    trace = "\x1b[31mred"
    cli.queue.settle(claim, holdfast.Failed("[bold]\x1b[2J\x1b]0;owned\x07", permanent=True, traceback=trace))

    output = cli.text("jobs", "list") + cli.text("jobs", "show", "one")

    assert not set(output) & {"\x1b", "\x07", "\x9b"}
    assert "[bold]" in output


@pytest.mark.parametrize(
    "arguments", [["--state", "lost"], ["--limit", "0"], ["--limit", "5000"], ["--after", "nonsense"], ["--kind", ""]]
)
def test_a_wrong_filter_is_refused(cli: Cli, arguments: list[str]) -> None:
    cli.queue.migrate()

    result = cli.run("jobs", "list", *arguments, "--json")

    assert (result.exit_code, result.stdout) == (2, "")
    assert json.loads(result.stderr)["error"]["code"] == "invalid_input"


def test_a_filter_line_selects_jobs_as_options_do(cli: Cli, failed_job: str) -> None:
    cli.queue.enqueue("email.send", job_id="other", tags={"order": "42"})

    def listed(*arguments: str) -> list[str]:
        return [job["id"] for job in cli.json("jobs", "list", *arguments)["jobs"]]

    assert listed("state:failed kind:email.send") == [failed_job]
    assert listed("tag:order=42 state:ready,failed") == ["other"]
    assert listed("age>1d") == []
    assert listed("kind:email.send", "--state", "ready") == ["other"]
    assert "state is in the filter" in cli.refusal("jobs", "list", "state:failed", "--state", "ready", code=2)
    assert "write key:value" in cli.refusal("jobs", "list", "failed", code=2)
