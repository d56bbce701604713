"""A worker's screen and its log lines, from given figures."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from holdfast.cli.worker_logs import JsonFormatter
from holdfast.cli.worker_report import About, Meter, draw, printed
from holdfast.domain.validation import datetime_of
from holdfast.types import FailedAttempt, RunningJob, WorkerStatus

ABOUT = About("app:queue", concurrency=4, processes=1, grace_seconds=30, process=12345)


def drawn(status: WorkerStatus, about: About = ABOUT, width: int = 80, height: int = 24) -> list[str]:
    console = Console(file=StringIO(), width=width, height=height)
    console.print(draw(about, status, 65, 12.34, width, height))
    assert isinstance(console.file, StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def busy(count: int) -> WorkerStatus:
    running = tuple(RunningJob(f"job-{number}", "email.send", 1, 60.0 - number) for number in range(count))
    return WorkerStatus("w1", running, {"done": 1_234, "failed": 2}, stopping=False)


def test_it_shows_running_jobs_with_duration_and_progress() -> None:
    waiting = RunningJob("ahead", "email.send", 3, None)
    lines = drawn(replace(busy(1), running=(*busy(1).running, waiting)))

    assert lines[:3] == [
        "worker w1  app:queue  process 12345  up 1m 5s",
        "done 1,234   retried 0   failed 2   12.3/s",
        "1 of 4 slots busy, 1 job taken ahead",
    ]
    assert lines[4].split() == ["JOB", "KIND", "TRY", "RUNNING"]
    assert lines[6].split() == ["job-0", "email.send", "1", "1m"]
    assert lines[7].split() == ["ahead", "email.send", "3"]


def test_a_turn_shows_the_number_of_further_entries() -> None:
    turn = RunningJob("entry-1", "chat.message", 1, 1.0, entries=3)

    assert drawn(replace(busy(0), running=(turn,)))[6].split() == ["entry-1", "+2", "chat.message", "1", "1.0s"]


def test_an_idle_worker_shows_no_table() -> None:
    lines = drawn(WorkerStatus("w1", (), {}, stopping=False))

    assert lines[1:] == ["done 0   retried 0   failed 0   12.3/s", "0 of 4 slots busy"]


def test_loaded_affinities_switches_and_abandoned_handlers_are_shown_if_there_are_any() -> None:
    status = WorkerStatus("w1", (), {}, stopping=False, abandoned=1, loaded=("llama", "mistral"), switches=3)

    assert drawn(status)[2] == "0 of 4 slots busy, 1 handler abandoned, llama, mistral loaded, 3 switches"


def test_jobs_that_wait_for_loading_are_shown_as_waiting() -> None:
    status = WorkerStatus("w1", (RunningJob("j1", "a", 1, None),), {}, stopping=False, loading=("llama",))

    assert drawn(status)[2] == "0 of 4 slots busy, 1 job waiting, llama loading"


def test_rare_outcomes_are_shown_if_they_occurred() -> None:
    status = WorkerStatus("w1", (), {"done": 1, "lost": 2, "released": 0}, stopping=False)

    assert drawn(status)[1] == "done 1   retried 0   failed 0   lost 2   12.3/s"


def test_several_processes_and_a_stop_are_shown() -> None:
    lines = drawn(replace(busy(2), stopping=True), ABOUT._replace(processes=3))

    assert lines[0] == "worker w1  app:queue  process 12345 and 3 children  up 1m 5s"
    assert lines[1] == "stopping: waits up to 30s for 2 jobs; Ctrl-C again releases them at once"
    assert lines[3] == "2 of 12 slots busy"


def test_progress_is_rounded_down() -> None:
    job = RunningJob("job-1", "report.make", 1, 60.0, job_number=1042, phase="writing", percent=99.99)

    lines = drawn(replace(busy(0), running=(job,)))

    assert lines[4].split() == ["#", "JOB", "KIND", "TRY", "PHASE", "PROGRESS", "RUNNING"]
    assert lines[6].split() == ["1042", "job-1", "report.make", "1", "writing", "99", "%", "1m"]


def test_the_last_failures_are_shown_in_80_columns() -> None:
    message = "no pages in the report of last month, which is not written yet, no\nand more"
    failed = FailedAttempt(
        7, "019a8c1e-0000-7000-8000-000000000000", "report.make", 5, 5, "value_error", message, None
    )

    earlier = replace(failed, attempt=4, next_attempt_at=datetime_of(1))
    lines = drawn(replace(busy(1), failures=(failed, earlier)))

    assert lines[-3].split() == ["#", "FAILED", "LAST", "TRY", "REASON", "NEXT", "TRY"]
    assert lines[-1].split()[:5] == ["7", "report.make", "5/5", "value_error:", "no"]
    assert lines[-1].endswith("none")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[5Aevil", "evil"),
        ("10 %\r20 %\r", "20 %"),
        ("\x07\u202e", "\ufffd\ufffd"),
    ],
)
def test_a_printed_line_keeps_its_styles_and_cannot_control_the_terminal(line: str, shown: str) -> None:
    assert printed(line).plain == shown


@pytest.mark.parametrize("height", [10, 24, 50])
def test_it_never_grows_beyond_the_screen(height: int) -> None:
    failed = FailedAttempt(7, "one", "report.make", 5, 5, "value_error", "no pages", None)
    lines = drawn(replace(busy(100), failures=(failed,) * 5, stopping=True), height=height)

    assert len(lines) < max(height, 13)
    assert any(line.startswith("and ") for line in lines)


def test_it_stays_within_a_narrow_screen() -> None:
    assert max(map(len, drawn(busy(3), width=30))) <= 30


def test_names_cannot_control_the_terminal() -> None:
    evil = "\x1b[2J"
    status = WorkerStatus(evil, (RunningJob(evil, evil, 1, 1.0),), {}, stopping=False)

    assert not any("\x1b" in line for line in drawn(status))


def test_the_rate_covers_the_last_seconds() -> None:
    meter = Meter()

    assert meter.record(0, 0) == 0
    assert meter.record(1, 10) == 10
    for second in range(2, 20):
        newest = meter.record(second, 10)
    assert newest == 0


def test_a_log_record_is_one_line_of_json_with_its_extra_attributes() -> None:
    logger = logging.getLogger("holdfast.task.email.send")
    try:
        raise ValueError("no such\naddress")
    except ValueError:
        record = logger.makeRecord(
            logger.name, logging.WARNING, "send.py", 3, "cannot send to %s", ("ada",), sys.exc_info(),
            extra={"job_id": "j1", "odd": {1}},
        )  # fmt: skip

    line = JsonFormatter().format(record)

    document = json.loads(line)
    assert "\n" not in line
    assert (document["level"], document["logger"]) == ("warning", "holdfast.task.email.send")
    assert (document["message"], document["job_id"], document["odd"]) == ("cannot send to ada", "j1", "{1}")
    assert document["traceback"].endswith("ValueError: no such\naddress")
    assert document["at"].endswith("+00:00")
