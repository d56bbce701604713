"""`holdfast workers`: the registry, as a table and as JSON."""

from __future__ import annotations

from dataclasses import fields, replace

from holdfast.client.queue_state import state_of
from holdfast.client.sync_api.worker_calls import WorkerCalls
from holdfast.domain import limits
from holdfast.types import WorkerInfo
from tests.cli.conftest import Cli

SAID = WorkerInfo(
    worker="w1",
    incarnation="i1",
    host="alpha",
    process=42,
    version="0.1.0",
    state="active",
    concurrency=8,
    running=1,
    lanes=("default", "mail"),
    kinds=("email.send",),
    capabilities=(),
    loaded=("llama3",),
    switches=1_234,
)


def beat(cli: Cli, output: WorkerInfo) -> None:
    WorkerCalls(state_of(cli.queue).store).beat(output)


def test_an_empty_list_is_not_an_error(cli: Cli) -> None:
    cli.queue.migrate()

    assert "no worker has registered" in cli.run("workers", "list").stderr


def test_a_request_to_all_workers_asks_nothing_if_there_are_none(cli: Cli) -> None:
    cli.queue.migrate()

    for command in ("drain", "stop"):
        ran = cli.run("workers", command, "--all", "--yes")
        assert (ran.exit_code, ran.stdout, ran.stderr) == (0, "", "no worker has registered\n")
    assert cli.json("workers", "stop", "--all", "--yes")["workers"] == []


def test_it_lists_workers_and_the_jobs_they_hold(cli: Cli) -> None:
    cli.queue.enqueue("email.send")
    cli.queue.claim(worker="w1", incarnation="i1")
    beat(cli, SAID)

    head, _, row = cli.text("workers", "list").splitlines()

    assert head.split()[:6] == ["WORKER", "STATE", "HOLDS", "SLOTS", "LANES", "KINDS"]
    assert row.split()[:7] == ["w1", "active", "1", "8", "default,", "mail", "email.send"]
    assert "llama3" in row
    assert "1,234" in cli.text("workers", "list", columns=200).splitlines()[2]
    assert "CAPABILITIES" not in head


def test_a_narrow_screen_keeps_the_most_important_columns(cli: Cli) -> None:
    beat(cli, SAID)

    head, *_ = cli.text("workers", "list", columns=40).splitlines()

    assert head.split()[:3] == ["WORKER", "STATE", "HOLDS"]
    assert len(head) <= 40


def test_in_json_every_field_is_present(cli: Cli) -> None:
    beat(cli, SAID)

    [told] = cli.json("workers", "list")["workers"]

    assert {name.removesuffix("_ms") for name in told} == {field.name for field in fields(WorkerInfo)}
    assert (told["worker"], told["lanes"], told["loaded"]) == ("w1", ["default", "mail"], ["llama3"])


def test_the_newest_are_listed_first_up_to_the_limit(cli: Cli) -> None:
    for number in range(3):
        beat(cli, replace(SAID, worker=f"w{number}", incarnation=f"i{number}"))

    assert len(cli.json("workers", "list", "--limit", "2")["workers"]) == 2


def test_a_worker_without_heartbeats_is_shown_as_silent(cli: Cli) -> None:
    beat(cli, SAID)
    long_ago = limits.WORKER_SILENT_MS + 1
    with cli.queue.transaction() as transaction:
        transaction.execute("update holdfast_worker set beat_at_ms = beat_at_ms - ?", (long_ago,))

    assert cli.text("workers", "list").splitlines()[2].split()[:2] == ["w1", "silent"]


def test_drain_and_stop_show_the_workers_they_requested(cli: Cli) -> None:
    beat(cli, SAID)

    head, _, row = cli.text("workers", "drain", "w1").splitlines()
    told = cli.json("workers", "stop", "w1")

    assert head.split()[:3] == ["WORKER", "STATE", "REQUESTED"]
    assert row.split()[:3] == ["w1", "active", "drain"]
    assert (told["requested"], [one["requested"] for one in told["workers"]]) == ("stop", ["stop"])


def test_all_selects_every_worker_and_requires_confirmation(cli: Cli) -> None:
    for number in range(3):
        beat(cli, replace(SAID, worker=f"w{number}"))

    assert "add --yes" in cli.refusal("workers", "stop", "--all", code=2)
    assert cli.text("workers", "stop", "--all", "--dry-run") == "would request 3 workers to stop\n"
    assert {one.requested for one in cli.queue.admin.workers()} == {None}

    told = cli.json("workers", "stop", "--all", "--yes")["workers"]

    assert sorted(one["worker"] for one in told) == ["w0", "w1", "w2"]
    assert {one.requested for one in cli.queue.admin.workers()} == {"stop"}


def test_a_wrong_name_is_refused_with_similar_names(cli: Cli) -> None:
    beat(cli, SAID)

    assert "did you mean 'w1'?" in cli.refusal("workers", "stop", "w11", code=1)
    assert "give the names of workers, or --all" in cli.refusal("workers", "stop", code=2)
    assert "give the names of workers, or --all" in cli.refusal("workers", "drain", "w1", "--all", code=2)
