"""A worker leaks no processes, open files or memory, however it ends and however many jobs it ran."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import NewJob, Queue
from tests.chaos.processes import Child
from tests.chaos.threads import wait_until
from tests.worker.isolation import handlers
from tests.worker.isolation.conftest import Shared
from tests.worker.isolation.processes import is_gone, isolated, marked, memory_bytes, open_files
from tests.worker.isolation.workers import work
from tests.worker.workers import running_worker, wait_finished


class TestAWorkerThatIsKilled:
    @pytest.mark.parametrize("kind", ["ignore", "ignore.later", "hold", "linger"])
    def test_it_leaves_no_process(self, shared: Shared, tmp_path: Path, kind: str) -> None:
        more: dict[str, dict[str, Any]] = {"hold": {"seconds": 600}, "linger": {"proceed": str(tmp_path / "never")}}
        places = [tmp_path / f"started-{number}" for number in range(2)]
        for place in places:
            shared.queue.enqueue(kind, {"started": str(place), **more.get(kind, {})})
        with Child(work, shared.options, {"concurrency": 2}) as victim:
            for place in places:
                marked(place)
            left = isolated(victim.pid)
            assert left >= {marked(place) for place in places}
            victim.kill()
            wait_until(lambda: all(map(is_gone, left)))

    def test_one_told_to_end_leaves_no_process_either(self, shared: Shared, tmp_path: Path) -> None:
        started = tmp_path / "started"
        enqueued = shared.queue.enqueue("hold", {"started": str(started), "seconds": 600})
        with Child(work, shared.options, {"grace": 0.1}) as worker:
            marked(started)
            left = isolated(worker.pid)
            os.kill(worker.pid, signal.SIGTERM)
            worker.end()
            wait_until(lambda: all(map(is_gone, left)))

        job = shared.queue.get(enqueued.id)
        assert (job.state, job.attempt) == ("ready", 0)


def _run_many(queue: Queue, count: int) -> None:
    """Run *count* jobs, some of which kill their process, and wait for all."""
    for first in range(0, count, 1_000):
        jobs = [
            NewJob("die", {"how": "exit"}, max_attempts=1)
            if number % 100 == 50
            else NewJob("echo", {"value": number})
            for number in range(first, min(first + 1_000, count))
        ]
        enqueued = queue.enqueue_many(jobs)
        for each in reversed(enqueued):
            wait_finished(queue, each.id)


def _leaks_nothing(queue: Queue, jobs: int, recycle_after: int, memory_bytes_more: int) -> None:
    ours = os.getpid()
    first = min(1_000, jobs)
    with running_worker(queue, concurrency=4, recycle_after=recycle_after):
        _run_many(queue, first)
        files, memory, threads = open_files(ours), memory_bytes(ours), threading.active_count()
        _run_many(queue, jobs)
        left = isolated(ours)
        assert len(left) <= 1 + 4 + 4  # the fork server, a process for each slot, and exiting ones
        assert open_files(ours) <= files + 10
        assert max(open_files(process) for process in left if not is_gone(process)) < 30
        assert threading.active_count() <= threads + 2
        assert memory_bytes(ours) - memory < memory_bytes_more
    counts = queue.counts()
    assert set(counts) <= {"done", "failed"}
    assert counts["failed"] == (jobs + first) // 100
    wait_until(lambda: not isolated(ours))


@pytest.mark.slow("handlers run in processes of their own")
def test_hundreds_of_jobs_and_dozens_of_processes_leak_nothing(queue: Queue) -> None:
    _leaks_nothing(queue, 300, 15, 32 << 20)


@pytest.mark.long
def test_ten_thousand_jobs_leak_nothing(queue: Queue) -> None:
    _leaks_nothing(queue, 10_000, 150, 64 << 20)


def test_a_process_that_has_grown_is_replaced(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.domain.limits.RECYCLE_GROWTH_BYTES", 50 << 20)
    with running_worker(queue, concurrency=1):
        first = wait_finished(queue, handlers.which.enqueue().id).result
        assert wait_finished(queue, handlers.which.enqueue().id).result == first
        wait_finished(queue, handlers.grow.enqueue(100 << 20).id)
        assert wait_finished(queue, handlers.which.enqueue().id).result != first
