"""`holdfast jobs output`: the text that a job has emitted."""

from __future__ import annotations

import pytest

import holdfast
from tests.cli.conftest import Cli
from tests.support.claims import claim_one


@pytest.fixture
def running(cli: Cli) -> holdfast.Claim:
    cli.queue.enqueue("talk", job_id="talk")
    claim = claim_one(cli.queue)
    cli.queue.emit(claim, "one\n")
    cli.queue.emit(claim, "two \x1b[2J é")
    return claim


def test_it_prints_the_text_as_it_is_and_does_not_wait(cli: Cli, running: holdfast.Claim) -> None:
    assert cli.run("jobs", "output", "talk").stdout_bytes == "one\ntwo \x1b[2J é".encode()


def test_it_follows_until_the_job_has_finished(cli: Cli, running: holdfast.Claim) -> None:
    cli.queue.settle(running, holdfast.Done())

    assert cli.run("jobs", "output", "talk", "--follow", "--after", "1").stdout_bytes == "two \x1b[2J é".encode()


def test_json_has_one_line_for_each_chunk(cli: Cli, running: holdfast.Claim) -> None:
    lines = cli.lines("jobs", "output", "#1", "--after", "1")

    assert [(line["number"], line["attempt"], line["epoch"], line["text"]) for line in lines] == [
        (2, 1, 1, "two \x1b[2J é")
    ]


def test_a_job_without_output_is_noted_on_standard_error(cli: Cli) -> None:
    cli.queue.enqueue("talk", job_id="silent")
    ran = cli.run("jobs", "output", "silent")

    assert (ran.exit_code, ran.stdout, ran.stderr) == (0, "", "the job has emitted no text\n")


def test_a_job_that_does_not_exist_is_refused(cli: Cli) -> None:
    cli.queue.enqueue("talk")

    assert "no job 'missing'" in cli.refusal("jobs", "output", "missing", code=1)
