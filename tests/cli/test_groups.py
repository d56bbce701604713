"""`holdfast groups`."""

from __future__ import annotations

from holdfast import Done
from tests.cli.conftest import Cli


def test_a_group_is_listed_shown_awaited_and_cancelled(cli: Cli) -> None:
    with cli.queue.group("import-7", on_success={"kind": "report"}) as group:
        for number in range(2):
            group.enqueue("page", {"n": number})
    assert "is running: 2 members, 2 unfinished\n" in cli.text("groups", "show", "import-7")
    claim = cli.queue.claim(kinds=["page"])
    assert claim is not None
    cli.queue.settle(claim, Done())
    cli.queue.claim(kinds=["none"])

    assert [one["name"] for one in cli.json("groups", "list")["groups"]] == ["import-7"]
    assert "1 done" in cli.text("groups", "list", columns=160)
    shown = cli.text("groups", "show", "import-7")
    assert "group import-7 is running: 2 members, 1 done, 1 unfinished" in shown
    assert "on_success: holdfast:group:import-7:on_success" in shown
    waited = cli.run("groups", "wait", "import-7", "--timeout", "0")
    assert (waited.exit_code, waited.stdout) == (4, "")
    assert waited.stderr.startswith("members of page in lane default: no live worker takes them\nerror: ")
    assert "group 'import-7' had not finished" in waited.stderr
    assert [one["state"] for one in cli.json("jobs", "list", "--group", "import-7")["jobs"]] == ["ready", "done"]
    assert len(cli.json("jobs", "list", "group:import-7 state:done")["jobs"]) == 1
    finished = cli.text("jobs", "why", claim.job.id)
    assert finished.count("it has a result") == 1
    assert "1 member cancelled" in cli.text("groups", "cancel", "import-7")
    assert cli.run("groups", "wait", "import-7").exit_code == 1
    assert cli.json("groups", "show", "import-7")["state"] == "failed"
    assert "no group 'none'" in cli.refusal("groups", "show", "none", code=1)


def test_dependencies_trees_and_children_on_the_command_line(cli: Cli) -> None:
    cli.text("enqueue", "a", "--id", "first")
    cli.text("enqueue", "b", "--id", "second", "--after", "first")
    cli.text("enqueue", "c", "--id", "third", "--after", "#1", "--on-failed", "run")
    assert cli.queue.counts() == {"ready": 1, "dependent": 2}
    for choice in (["--root", "#1"], ["root:#1"]):
        assert [one["id"] for one in cli.json("jobs", "list", *choice)["jobs"]] == ["first"]
    assert "cancelled 1 job" in cli.text("jobs", "cancel", "--tree", "#1")
    cli.queue.claim(kinds=["none"])
    assert [cli.queue.get(job_id).state for job_id in ("second", "third")] == ["cancelled", "ready"]
    assert "requeued first" in cli.text("jobs", "requeue", "first", "--with-children")
    assert [cli.queue.get(job_id).state for job_id in ("first", "second")] == ["ready", "dependent"]
    assert "one job" in cli.refusal("jobs", "cancel", "--tree", code=2)
    assert "one job" in cli.refusal("jobs", "requeue", "--with-children", "--failed", code=2)


def test_cancelling_a_tree_ignores_neither_a_dry_run_nor_filters(cli: Cli) -> None:
    cli.text("enqueue", "a", "--id", "first")
    assert "--dry-run" in cli.refusal("jobs", "cancel", "--tree", "first", "--dry-run", code=2)
    assert "not both" in cli.refusal("jobs", "cancel", "--tree", "first", "--kind", "b", code=2)
    assert cli.queue.get("first").state == "ready"


def test_a_narrow_terminal_wraps_why_a_job_waits_for_the_limit_of_its_key(cli: Cli) -> None:
    cli.text("limits", "set", "api", "--kind", "call", "--key", "given", "--concurrency", "1")
    for job_id in ("first", "second"):
        cli.text("enqueue", "call", "--id", job_id, "--limit-key", "partner")
    cli.queue.claim_many(kinds=["call"], limit=2)

    assert "1 of 1" in cli.text("limits", "show", "partner")
    lines = cli.text("jobs", "why", "#2", columns=40).splitlines()
    assert lines[0] == "second is parked:"
    assert lines[1].startswith("-> limit api for key partner is full")
    assert any(line.startswith("   ") for line in lines)
