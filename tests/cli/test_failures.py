"""`holdfast failures`."""

from __future__ import annotations

from tests.cli.conftest import Cli


def test_failures_are_listed_and_shown_with_their_jobs(cli: Cli, failed_job: str) -> None:
    [group] = cli.json("failures", "list")["failures"]
    fingerprint = group["fingerprint"]

    assert (group["kind"], group["error"], group["message"]) == ("email.send", "OSError", "smtp refused")
    assert (group["count"], group["this_hour"], group["example"]) == (1, 1, failed_job)
    table = cli.text("failures", "list", columns=120)
    assert fingerprint in table
    assert "OSError: smtp refused" in table
    shown = cli.text("failures", "show", fingerprint, columns=80)
    assert "where    send.py send" in shown
    assert "OSError: refused" in shown
    assert failed_job in cli.text("failures", "show", fingerprint, columns=160)
    assert cli.json("failures", "show", fingerprint)["failure"] == group
    assert [job["id"] for job in cli.json("jobs", "list", "--fingerprint", fingerprint)["jobs"]] == [failed_job]


def test_a_requeued_job_is_no_longer_failed(cli: Cli, failed_job: str) -> None:
    [group] = cli.json("failures", "list")["failures"]
    cli.queue.requeue(failed_job)

    assert "No job is failed so now" in cli.text("failures", "show", group["fingerprint"])


def test_none_and_unknown_failures_are_said(cli: Cli) -> None:
    cli.queue.migrate()
    result = cli.run("failures", "list")

    assert "no jobs have failed" in result.stderr
    assert "no failures with fingerprint" in cli.refusal("failures", "show", "0" * 16, code=1)
    assert "fingerprint" in cli.refusal("failures", "show", "xyz", code=2)


def test_a_narrow_terminal_shows_why(cli: Cli, failed_job: str) -> None:
    lines = cli.text("failures", "list", columns=80).splitlines()
    assert failed_job
    assert max(map(len, lines)) <= 80
    assert "OSError: smtp" in lines[2]
