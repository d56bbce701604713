"""A worker logs ready jobs that no live worker claims: at its start, and when that changes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Queue
from holdfast.worker import maintenance
from tests.chaos.threads import wait_until
from tests.worker.workers import running_worker


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    monkeypatch.setattr(maintenance, "HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setattr(maintenance, "_CHECK_SECONDS", 0.02)
    with holdfast.connect(str(tmp_path / "jobs.db")) as queue:
        queue.task("doc.embed")(lambda: None)
        yield queue


def test_workers_of_one_process_warn_once_together(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    queue.enqueue("doc.chunk")
    with (
        caplog.at_level(logging.WARNING, logger="holdfast.worker"),
        running_worker(queue, worker="first"),
        running_worker(queue, worker="second"),
    ):
        wait_until(lambda: len(warned(caplog)) >= 1)
        # A check that comes later has found both.
        queue.enqueue("doc.chunk", lane="night")
        wait_until(lambda: any("lane night" in line for line in warned(caplog)))
        queue.enqueue("doc.chunk", lane="day")
        wait_until(lambda: any("lane day" in line for line in warned(caplog)))

    assert len(warned(caplog)) == 3


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "unserved jobs" in record.getMessage()]


def test_a_worker_warns_once_of_each_lane_and_kind_that_no_live_worker_takes(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.enqueue("doc.chunk")
    with caplog.at_level(logging.WARNING, logger="holdfast.worker"), running_worker(queue):
        wait_until(lambda: len(warned(caplog)) == 1)
        # More jobs in the same lane are not logged again; another lane is.
        queue.enqueue("doc.chunk")
        queue.enqueue("doc.chunk", lane="night")
        wait_until(lambda: len(warned(caplog)) == 2)

    first, second = warned(caplog)
    assert "1 job of doc.chunk in lane default: no live worker takes it; start a worker" in first
    assert "1 job of doc.chunk in lane night: no live worker takes it" in second
