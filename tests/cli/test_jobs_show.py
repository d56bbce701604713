from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest

import holdfast
from tests.cli.conftest import Cli
from tests.support.codecs import Scrambler


@pytest.fixture
def done_job(cli: Cli) -> str:
    """The id of a job that was deferred once and then done, with artifacts."""
    arguments = {"tags": {"order": "42"}, "headers": {"trace": "t1"}, "requires": ["gpu"], "dedupe_key": "once"}
    cli.queue.enqueue("report.build", {"rows": [1, 2]}, job_id="report-1", **arguments)  # type: ignore[arg-type]
    first = cli.queue.claim(worker="w1", capabilities=["gpu"])
    assert first is not None
    cli.queue.settle(first, holdfast.Deferred(after=0))
    second = cli.queue.claim(worker="w2", capabilities=["gpu"])
    assert second is not None
    artifacts = [holdfast.Artifact("log.txt", b"all well\n", "text/plain"), holdfast.Artifact("raw.bin", b"\x00\xff")]
    cli.queue.settle(second, holdfast.Done({"pages": 7}, artifacts=artifacts))
    return "report-1"


def test_show_prints_all_properties_of_a_done_job(cli: Cli, done_job: str) -> None:
    output = cli.text("jobs", "show", done_job)

    for expected in (
        "report-1",
        "done",
        "order=42",
        "trace=t1",
        "gpu",
        "once (within the kind)",
        '"rows": [',
        '"pages": 7',
    ):
        assert expected in output
    attempts = [line.split() for line in output.splitlines() if line.split()[2:3] in (["deferred"], ["done"])]
    assert [(row[0], row[2], row[3]) for row in attempts] == [("1", "deferred", "w1"), ("2", "done", "w2")]
    assert "log.txt" in output
    assert "9 B" in output


def test_lines_in_a_pipe_do_not_end_with_spaces(cli: Cli, done_job: str) -> None:
    lines = [line for command in ("show", "why") for line in cli.text("jobs", command, done_job).split("\n")]

    assert len(lines) > 20
    assert [line for line in lines if line != line.rstrip()] == []


@pytest.mark.parametrize(
    ("outcome", "shown"), [(holdfast.Done(), False), (holdfast.Failed("no", permanent=True), True)]
)
def test_show_prints_progress_unless_the_job_is_done(cli: Cli, outcome: holdfast.Outcome, shown: bool) -> None:
    cli.queue.enqueue("report.build", job_id="report-1")
    claim = cli.queue.claim(worker="w1")
    assert claim is not None
    cli.queue.progress(claim, phase="writing", percent=95)
    assert "95 %" in cli.text("jobs", "show", "report-1")
    cli.queue.settle(claim, outcome)

    output = cli.text("jobs", "show", "report-1")

    assert ("95 %" in output, "writing" in output) == (shown, shown)


def test_show_prints_the_whole_reason_of_each_attempt_at_80_columns(cli: Cli) -> None:
    cli.queue.enqueue("report.build", job_id="report-1")
    for worker in ("a-machine:12345", "a-machine:23456"):
        claim = cli.queue.claim(worker=worker)
        assert claim is not None
        cli.queue.settle(claim, holdfast.Failed("the mailbox is full, ada", reason="smtp", retry_after=0))

    output = cli.text("jobs", "show", "report-1", columns=80)

    table = output.partition("Attempts\n")[2].splitlines()
    assert " ".join(line[table[0].index("WHY") :].strip() for line in table[2:]) == (
        " ".join(["smtp: the mailbox is full, ada"] * 2)
    )


def test_show_prints_the_failure_with_its_traceback(cli: Cli, failed_job: str) -> None:
    output = cli.text("jobs", "show", failed_job)

    assert "smtp (permanent): smtp refused" in output
    assert '    File "send.py", line 3, in send\n' in output


def test_show_in_json_has_job_attempts_and_artifacts(cli: Cli, done_job: str) -> None:
    answer = cli.json("jobs", "show", done_job)

    assert (answer["job"]["state"], answer["job"]["result"]) == ("done", {"pages": 7})
    assert [(one["epoch"], one["outcome"]) for one in answer["attempts"]] == [(1, "deferred"), (2, "done")]
    assert [(one["name"], one["media_type"], one["size"]) for one in answer["artifacts"]] == [
        ("log.txt", "text/plain", 9),
        ("raw.bin", "application/octet-stream", 2),
    ]


def test_show_in_json_has_the_failure(cli: Cli, failed_job: str) -> None:
    failure = cli.json("jobs", "show", failed_job)["job"]["failure"]

    assert (failure["class"], failure["reason"], failure["message"]) == ("permanent", "smtp", "smtp refused")
    assert failure["traceback"].endswith("OSError: refused")


@pytest.mark.parametrize("columns", [80, 120])
def test_show_fits_the_terminal(cli: Cli, done_job: str, columns: int) -> None:
    assert max(map(len, cli.text("jobs", "show", done_job, columns=columns).splitlines())) <= columns


def test_a_job_that_does_not_exist_is_refused_with_a_hint(cli: Cli) -> None:
    cli.queue.migrate()

    output = cli.refusal("jobs", "show", "nobody", code=1)

    assert output.startswith("error: no job 'nobody'\nhint: 'holdfast jobs list'")


def test_an_artifact_goes_to_standard_output_byte_for_byte(cli: Cli, done_job: str) -> None:
    result = cli.run("jobs", "artifact", done_job, "raw.bin")

    assert (result.exit_code, result.stdout_bytes) == (0, b"\x00\xff")


def test_an_artifact_goes_to_a_file(cli: Cli, done_job: str, tmp_path: Path) -> None:
    target = tmp_path / "out.txt"

    output = cli.text("jobs", "artifact", done_job, "log.txt", "-o", str(target))

    assert target.read_bytes() == b"all well\n"
    assert output == f"wrote 9 B (text/plain) to {target}\n"


def test_an_artifact_in_json_is_base64_unless_a_file_takes_it(cli: Cli, done_job: str, tmp_path: Path) -> None:
    target = tmp_path / "out.bin"

    inline = cli.json("jobs", "artifact", done_job, "raw.bin")
    beside = cli.json("jobs", "artifact", done_job, "raw.bin", "-o", str(target))

    assert base64.b64decode(inline["data_base64"]) == target.read_bytes() == b"\x00\xff"
    assert beside == {"name": "raw.bin", "media_type": "application/octet-stream", "size": 2, "path": str(target)}


def test_an_artifact_that_does_not_exist_is_refused(cli: Cli, done_job: str) -> None:
    output = cli.refusal("jobs", "artifact", done_job, "nothing", code=1)

    assert "has no artifact 'nothing'" in output
    assert "hint: holdfast jobs show report-1" in output


def test_an_artifact_that_cannot_be_written_is_an_error(cli: Cli, done_job: str, tmp_path: Path) -> None:
    output = cli.refusal("jobs", "artifact", done_job, "log.txt", "-o", str(tmp_path / "no" / "folder"), code=2)

    assert "cannot write" in output


def test_wait_returns_a_job_that_is_done(cli: Cli, done_job: str) -> None:
    assert cli.text("jobs", "wait", done_job, "--timeout", "1s") == 'report-1 is done\n{\n  "pages": 7\n}\n'
    assert cli.json("jobs", "wait", done_job)["job"]["result"] == {"pages": 7}


def test_wait_exits_with_1_when_the_job_ended_otherwise(cli: Cli, failed_job: str) -> None:
    result = cli.run("jobs", "wait", failed_job)

    assert (result.exit_code, result.stdout) == (1, "broken is failed: smtp: smtp refused\n")


def test_wait_exits_with_4_on_a_timeout(cli: Cli) -> None:
    cli.queue.enqueue("slow", job_id="one")

    assert "hint: nothing has changed" in cli.refusal("jobs", "wait", "one", "--timeout", "0", code=4)
    answered = cli.run("jobs", "wait", "one", "--timeout", "10ms", "--json")
    assert (answered.exit_code, json.loads(answered.stderr)["error"]["code"]) == (4, "wait_timeout")


def test_an_encoded_payload_and_result_are_shown_as_encoded(cli: Cli) -> None:
    with holdfast.connect(cli.path, codec=Scrambler()) as queue:
        made = queue.enqueue("pay", {"card": "4111"})
        claim = queue.claim()
        assert claim is not None
        queue.settle(claim, holdfast.Done({"receipt": 7}))

    output = cli.text("jobs", "show", made.id)
    assert output.count("encoded by codec 'scrambler', ") == 2
    job = cli.json("jobs", "show", made.id)["job"]
    assert job["payload"]["holdfast.codec"] == job["result"]["holdfast.codec"] == "scrambler"
    assert "scrambler" in cli.text("jobs", "wait", made.id)
    assert cli.json("jobs", "list")


class TestTimeline:
    def test_each_attempt_has_how_long_it_waited_and_ran(self, cli: Cli) -> None:
        cli.queue.enqueue("mail", job_id="one", max_attempts=3)
        for outcome in (holdfast.Failed("line is busy", reason="busy", retry_after=0), holdfast.Done()):
            claim = cli.queue.claim(worker="w1")
            assert claim is not None
            cli.queue.settle(claim, outcome)

        text = cli.text("jobs", "show", "one", columns=100)
        story = [line.strip() for line in text.partition("Timeline\n")[2].partition("\n\n")[0].splitlines()]

        assert story[0].endswith("enqueued")
        assert "attempt 1 started on w1" in story[1]
        assert "failed after" in story[2]
        assert "busy: line is busy" in story[2]
        assert "attempt 2 started on w1" in story[3]
        assert "done after" in story[4]
        assert len(story) == 5

    def test_a_waiting_job_says_for_what(self, cli: Cli) -> None:
        cli.queue.enqueue("mail", job_id="later", delay=3600)
        cli.queue.enqueue("mail", job_id="now")
        cli.queue.enqueue("mail", job_id="gone")
        cli.queue.cancel("gone")

        assert "scheduled, due in" in cli.text("jobs", "show", "later", columns=80)
        assert "ready for" in cli.text("jobs", "show", "now", columns=80)
        assert re.search(r"\+\S+ +cancelled", cli.text("jobs", "show", "gone", columns=80))
        claim = cli.queue.claim(worker="w1", kinds=["mail"])
        assert claim is not None
        assert "running for" in cli.text("jobs", "show", claim.job.id, columns=80)
