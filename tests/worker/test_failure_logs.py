"""A failed attempt is logged: as a warning if its job will be retried, else as an error."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Backoff, Context, Fail, Queue, SessionContext
from holdfast.domain import limits
from tests.chaos.threads import wait_until
from tests.worker.workers import running_worker

SOURCE = Path(holdfast.__file__).parents[1]


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    # The log depends only on the settled job, which the conformance tests compare on every engine.
    with holdfast.connect(str(tmp_path / "jobs.db")) as queue:
        yield queue


def logged(caplog: pytest.LogCaptureFixture, level: int) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "holdfast.job" and record.levelno == level]


def test_a_failure_that_will_be_retried_is_a_warning(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    @queue.task("report.make", backoff=Backoff(base=60, jitter=0))
    def make() -> None:
        raise ValueError("no pages\nat all")

    enqueued = make.enqueue()
    with running_worker(queue) as working:
        wait_until(lambda: bool(logged(caplog, logging.WARNING)))
        status = working.worker.status()
    [record] = logged(caplog, logging.WARNING)

    expected = (
        rf"job #1 \({enqueued.id}\) report.make failed \(attempt 1 of 5\): value_error: no pages; retrying in \d+ s"
    )
    assert re.fullmatch(expected, logging.Formatter().format(record))
    assert vars(record)["next_attempt_at"] == queue.get(enqueued.id).due_at.isoformat(timespec="milliseconds")
    assert status.ended == {"retried": 1}
    assert [failure.reason for failure in status.failures] == ["value_error"]
    assert status.failures[0].retried


def test_a_job_that_fails_for_good_is_an_error_with_its_traceback(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    @queue.task("report.make", max_attempts=2, backoff=Backoff(base=0))
    def make() -> None:
        raise ValueError("no pages")

    enqueued = make.enqueue()
    with running_worker(queue) as working:
        wait_until(lambda: bool(logged(caplog, logging.ERROR)))
        status = working.worker.status()
    [record] = logged(caplog, logging.ERROR)
    first, *trace = logging.Formatter().format(record).splitlines()

    assert first == f"job #1 ({enqueued.id}) report.make failed for good (attempt 2 of 2): value_error: no pages"
    assert (trace[0], trace[-1]) == ("Traceback (most recent call last):", "ValueError: no pages")
    assert any("in make" in line for line in trace)
    assert len(logged(caplog, logging.WARNING)) == 1
    assert status.ended == {"retried": 1, "failed": 1}
    assert [failure.retried for failure in status.failures] == [False, True]


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_very_long_message_is_logged_as_short_as_it_is_stored(
    queue: Queue, caplog: pytest.LogCaptureFixture, attempts: int
) -> None:
    @queue.task("report.make", max_attempts=attempts, backoff=Backoff(base=60, jitter=0))
    def make() -> None:
        raise ValueError("page " * 1_000_000)

    enqueued = make.enqueue()
    level = logging.ERROR if attempts == 1 else logging.WARNING
    with running_worker(queue) as working:
        wait_until(lambda: bool(logged(caplog, level)))
        status = working.worker.status()
    [record] = logged(caplog, level)
    stored = queue.get(enqueued.id).failure
    assert stored is not None

    assert vars(record)["failure"] == status.failures[0].message == stored.message
    assert len(stored.message) <= limits.FAILURE_MESSAGE_CHARS_MAX
    assert len(logging.Formatter().format(record)) < limits.TRACEBACK_CHARS_MAX + 1_000


def test_a_failure_that_is_permanent_is_an_error_at_once(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    @queue.task("report.make")
    def make() -> None:
        raise Fail("no such report")

    make.enqueue()
    with running_worker(queue):
        wait_until(lambda: bool(logged(caplog, logging.ERROR)))

    assert "failed for good (attempt 1 of 5)" in logged(caplog, logging.ERROR)[0].getMessage()


def test_a_job_that_was_cancelled_while_its_handler_failed_is_no_failure(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    @queue.task("report.make")
    def make(context: Context) -> None:
        context.wait_cancelled(60)
        raise ValueError("no pages")

    enqueued = make.enqueue()
    with running_worker(queue) as working:
        wait_until(lambda: bool(working.worker.status().running))
        queue.cancel(enqueued.id)
        wait_until(lambda: bool(working.worker.status().ended))

    assert queue.get(enqueued.id).state == "cancelled"
    assert not logged(caplog, logging.WARNING)
    assert not logged(caplog, logging.ERROR)


def test_a_turn_that_fails_names_its_session(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    @queue.session_task("chat.message", join=True, max_attempts=2, backoff=Backoff(base=0))
    def answer(context: SessionContext[str], messages: list[str]) -> None:
        raise ValueError("no words")

    answer.enqueue("one", session="chat-42")
    with running_worker(queue):
        wait_until(lambda: bool(logged(caplog, logging.ERROR)))

    [warning], [error] = logged(caplog, logging.WARNING), logged(caplog, logging.ERROR)
    assert "chat.message of session chat-42 failed (attempt 1 of 2): value_error: no words" in warning.getMessage()
    assert "chat.message of session chat-42 failed for good (attempt 2 of 2)" in error.getMessage()
    assert (error.exc_text or "").endswith("ValueError: no words")


PROGRAM = """
import holdfast
from holdfast import Backoff, Context, Worker

queue = holdfast.connect("jobs.db")


@queue.task("report.make", max_attempts=2, backoff=Backoff(base=0))
def make(context: Context) -> None:
    if context.attempt == 2:
        worker.stop()
    raise ValueError("no pages")


make.using(job_id="first").enqueue()
worker = Worker(queue)
worker.run()
"""


def test_a_program_that_has_not_configured_logging_shows_failures(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    lines = ran.stderr.splitlines()

    assert lines[0].startswith("job #1 (first) report.make failed (attempt 1 of 2): value_error: no pages; retrying")
    assert lines[1] == "job #1 (first) report.make failed for good (attempt 2 of 2): value_error: no pages"
    assert lines[-1] == "ValueError: no pages"
