"""`with Worker(queue).running():` runs jobs in a background thread during a block."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Context, Misconfigured, Queue, Worker
from tests.chaos.processes import PATIENCE_SECONDS
from tests.chaos.threads import wait_until
from tests.worker.workers import wait_for_event


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with holdfast.connect(str(tmp_path / "jobs.db")) as queue:
        yield queue


def test_jobs_run_beside_the_block_and_the_worker_is_gone_after_it(queue: Queue) -> None:
    @queue.task("add")
    def add(one: int, other: int) -> int:
        return one + other

    with Worker(queue).running() as worker:
        assert queue.wait(add.enqueue(1, 2).id, timeout=PATIENCE_SECONDS).result == 3
        wait_until(lambda: worker.status().ended == {"done": 1})

    late = add.enqueue(1, 2)
    assert queue.admin.workers() == []
    assert queue.get(late.id).state == "ready"


def test_the_end_of_the_block_waits_for_handlers_that_run(queue: Queue) -> None:
    started = threading.Event()

    @queue.task("long")
    def long(context: Context) -> str:
        started.set()
        # The worker would request it to stop only after the grace period.
        return "stopped" if context.wait_cancelled(0.1) else "ended"

    enqueued = long.enqueue()
    with Worker(queue).running():
        wait_for_event(started)

    assert queue.get(enqueued.id).result == "ended"


def test_an_error_of_the_block_stops_the_worker_and_is_raised(queue: Queue) -> None:
    queue.task("note")(lambda: None)

    with pytest.raises(ZeroDivisionError), Worker(queue).running():
        raise ZeroDivisionError

    assert queue.admin.workers() == []


def test_what_keeps_a_worker_from_starting_is_raised_at_once(queue: Queue) -> None:
    entered = False
    with pytest.raises(Misconfigured, match="no tasks"), Worker(queue).running():
        entered = True

    assert not entered


def test_a_worker_says_in_one_line_what_it_takes_and_from_where(
    queue: Queue, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue.task("note", lane="side")(lambda: None)
    queue.task("add")(lambda: None)
    with caplog.at_level(logging.INFO, logger="holdfast.worker"), Worker(queue, worker="w1").running():
        pass

    [message] = [record.getMessage() for record in caplog.records if "takes note" in record.getMessage()]
    assert message.endswith(
        f") takes note, add from lanes side, default of {tmp_path.resolve() / 'jobs.db'}, 8 at once"
    )


def test_a_lane_that_exists_nowhere_is_a_warning(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    queue.task("note")(lambda: None)
    queue.enqueue("other", lane="used")
    with Worker(queue, lanes=["default", "used", "mial"]).running():
        wait_until(lambda: "does not exist" in caplog.text)

    [message] = [record.getMessage() for record in caplog.records if "does not exist" in record.getMessage()]
    assert message == "lane mial does not exist: no task names it and no job was ever in it; known: default, used"
