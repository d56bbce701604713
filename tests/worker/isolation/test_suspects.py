"""A job that may have killed its worker runs isolated or alone in its next attempt."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import NewJob, Queue, Released
from tests.chaos.processes import PATIENCE_SECONDS, Child
from tests.chaos.threads import wait_until
from tests.support.assertions import failure_of
from tests.support.claims import expire_leases
from tests.support.stores import Harness
from tests.worker.isolation import handlers
from tests.worker.isolation.conftest import Shared
from tests.worker.isolation.processes import is_gone
from tests.worker.isolation.workers import work
from tests.worker.workers import running_worker, wait_finished, wait_for_event


@pytest.mark.slow("handlers run in processes of their own")
def test_the_poisonous_job_is_found_and_its_neighbours_are_done(shared: Shared, tmp_path: Path) -> None:
    queue, started = shared.queue, str(tmp_path / "started")
    poison = handlers.poison.enqueue(started)
    neighbours = [handlers.neighbour.enqueue(f"{started}{number}") for number in range(3)]
    with Child(work, shared.options, {"concurrency": 4}) as victim:
        wait_until(lambda: is_gone(victim.pid))
    expire_leases(queue)
    with running_worker(queue, concurrency=4):
        found = [wait_finished(queue, enqueued.id) for enqueued in neighbours]
        job = wait_finished(queue, poison.id)

    assert [(each.state, each.attempt) for each in found] == [("done", 2)] * 3
    assert os.getpid() not in {each.result for each in found}
    assert [failure_of(attempt).reason for attempt in queue.attempts(poison.id)] == [
        *["lease_expired", "process_died", "process_died"]
    ]
    assert job.state == "failed"


@pytest.mark.slow("handlers run in processes of their own")
def test_what_a_killed_worker_took_ahead_spends_no_attempt(shared: Shared, tmp_path: Path) -> None:
    queue = shared.queue
    with Child(work, shared.options, {"concurrency": 1}) as victim:
        # The number of short handlers after which a worker claims ahead.
        for enqueued in queue.enqueue_many([NewJob("which.plain", {}) for _ in range(400)]):
            wait_finished(queue, enqueued.id)
        handlers.neighbour.enqueue(str(tmp_path / "started"))
        ahead = queue.enqueue_many([NewJob("which.plain", {}, max_attempts=1) for _ in range(10)])
        wait_until(lambda: queue.counts().get("running", 0) > 1)
        os.kill(victim.pid, signal.SIGKILL)
        wait_until(lambda: is_gone(victim.pid))
    expire_leases(queue)
    with running_worker(queue, concurrency=1, kinds=["which.plain"]):
        jobs = [wait_finished(queue, enqueued.id) for enqueued in ahead]

    assert [(job.state, job.attempt) for job in jobs] == [("done", 1)] * 10
    outcomes = [attempt.outcome for enqueued in ahead for attempt in queue.attempts(enqueued.id)]
    assert set(outcomes) == {"released", "done"}


def _expired(harness: Harness, queue: Queue, kind: str, **payload: Any) -> str:
    """Return a job whose first attempt expired."""
    enqueued = queue.enqueue(kind, payload)
    claim = queue.claim(kinds=[kind], lease=1)
    assert claim is not None
    assert claim.job.id == enqueued.id
    harness.clock.advance(2)
    return enqueued.id


class TestASuspect:
    def test_it_runs_isolated_though_its_task_does_not_say_so(self, durable_harness: Harness, queue: Queue) -> None:
        suspect = _expired(durable_harness, queue, "which.plain")
        innocent = queue.enqueue("which.plain", {})
        with running_worker(queue, kinds=["which.plain"]):
            assert wait_finished(queue, suspect).result != os.getpid()
            assert wait_finished(queue, innocent.id).result == os.getpid()

    def test_it_stays_one_if_it_is_given_back_before_it_was_run(self, durable_harness: Harness, queue: Queue) -> None:
        suspect = _expired(durable_harness, queue, "which.plain")
        claim = queue.claim(kinds=["which.plain"])
        assert claim is not None
        queue.settle(claim, Released())
        with running_worker(queue, kinds=["which.plain"]):
            assert wait_finished(queue, suspect).result != os.getpid()


class Guests:
    """A task inside a function, which another process cannot find: it records which handlers run at once."""

    def __init__(self, queue: Queue, **options: Any) -> None:
        self.together: list[set[str]] = []
        self.begun: list[str] = []
        self.running: set[str] = set()
        self.proceed = threading.Event()
        self.started = threading.Event()
        self._lock = threading.Lock()
        queue.task("guest", **options)(self._guest())

    def _guest(self) -> Any:
        def guest(name: str) -> int:
            with self._lock:
                self.begun.append(name)
                self.running.add(name)
                self.together.append(set(self.running))
            self.started.set()
            if name == "early":
                assert self.proceed.wait(PATIENCE_SECONDS)
            with self._lock:
                self.together.append(set(self.running))
                self.running.discard(name)
            return os.getpid()

        return guest


class TestOneThatCannotBeIsolated:
    @pytest.fixture
    def guests(self, durable_harness: Harness) -> tuple[Queue, Guests]:
        queue = durable_harness.open()
        return queue, Guests(queue)

    def test_it_runs_in_the_worker_while_nothing_else_does(
        self, durable_harness: Harness, guests: tuple[Queue, Guests], caplog: pytest.LogCaptureFixture
    ) -> None:
        queue, noted = guests
        suspect = _expired(durable_harness, queue, "guest", name="suspect")
        others = [queue.enqueue("guest", {"name": name}, priority=5) for name in ("early", "earlier")]
        with running_worker(queue, concurrency=3):
            # All three are claimed at once, and the suspect waits for the long one.
            wait_for_event(noted.started)
            wait_until(lambda: "cannot be isolated: it runs alone" in caplog.text)
            late = [queue.enqueue("guest", {"name": f"late {number}"}) for number in range(5)]
            noted.proceed.set()
            found = [
                wait_finished(queue, job_id) for job_id in (suspect, *(enqueued.id for enqueued in (*others, *late)))
            ]

        assert {job.state for job in found} == {"done"}
        assert [names for names in noted.together if "suspect" in names] == [{"suspect"}] * 2
        # Nothing was claimed while it waited.
        assert set(noted.begun[:3]) == {"early", "earlier", "suspect"}


def test_one_whose_task_is_never_isolated_runs_beside_others(durable_harness: Harness) -> None:
    queue = durable_harness.open()
    noted = Guests(queue, isolate="never")
    suspect = _expired(durable_harness, queue, "guest", name="suspect")
    early = queue.enqueue("guest", {"name": "early"}, priority=5)
    with running_worker(queue, concurrency=2, isolate="process"):
        found = wait_finished(queue, suspect)
        noted.proceed.set()
        wait_finished(queue, early.id)

    assert found.result == os.getpid()
    assert {"early", "suspect"} in noted.together
