"""Workers in real processes: killed, stopped for longer than their leases, and cut off from their store."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from holdfast import NewJob, Queue
from tests.chaos.processes import Child
from tests.chaos.threads import wait_until
from tests.runtime.children import EFFECTS, hold_the_store, open_queue, work, work_by_hand
from tests.runtime.workers import at_work, ended, in_state


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


@pytest.fixture
def queue(path: str) -> Queue:
    queue = open_queue(path)
    queue.migrate()

    @queue.task("hold")
    def hold() -> str:
        return "by another"

    return queue


def test_a_job_whose_worker_is_killed_is_finished_by_another(queue: Queue, path: str) -> None:
    made = queue.enqueue("hold", {})
    with Child(work_by_hand, path, {"lease": 0.5, "worker": "victim", "kinds": ["hold"]}) as victim:
        assert victim.hear() == "started"
        victim.kill()
        assert queue.get(made.id).worker == "victim"
        with at_work(queue, worker="heir"):
            job = ended(queue, made.id)

    assert (job.result, job.worker, job.epoch) == ("by another", "heir", 2)
    assert [attempt.outcome for attempt in queue.attempts(made.id)] == ["lapsed", "done"]


def test_a_worker_stopped_past_its_lease_is_told_and_its_result_is_refused(queue: Queue, path: str) -> None:
    made = queue.enqueue("hold", {})
    with Child(work_by_hand, path, {"lease": 0.5, "worker": "sleeper", "kinds": ["hold"]}) as sleeper:
        assert sleeper.hear() == "started"
        sleeper.stop()
        with at_work(queue, worker="heir"):
            job = ended(queue, made.id)
        sleeper.resume()
        assert sleeper.hear() == "lost"
        sleeper.tell("stop")
        assert sleeper.hear() == {"lost": 1}
        sleeper.end()

    assert queue.get(made.id) == job
    assert (job.result, job.epoch) == ("by another", 2)


def test_a_worker_cut_off_for_longer_than_a_lease_stops_its_handlers_and_then_goes_on(
    queue: Queue, path: str
) -> None:
    made = queue.enqueue("hold", {})
    with Child(work_by_hand, path, {"lease": 0.5, "kinds": ["hold", "count"], "concurrency": 1}) as worker:
        assert worker.hear() == "started"
        with Child(hold_the_store, path) as holder:
            assert holder.hear() == "held"
            assert worker.hear() == "lost"
            holder.tell()
            holder.end()
        # The job lapses and comes back, and this time nothing stops it but the cancel.
        assert worker.hear() == "started"
        queue.cancel(made.id)
        assert worker.hear() == "cancel"
        # Its handler returned all the same, so the job is done and not cancelled.
        assert ended(queue, made.id).state == "done"
        other = queue.enqueue("count", {"number": 7})
        assert ended(queue, other.id).result == 7


def test_a_signal_tells_handlers_to_stop_and_settles_what_they_return(queue: Queue, path: str) -> None:
    made = queue.enqueue("hold", {})
    with Child(work_by_hand, path, {"grace": 0.1, "kinds": ["hold"]}) as worker:
        assert worker.hear() == "started"
        worker.process.terminate()
        assert worker.hear() == "shutdown"
        # It returned, being told, before it was given back.
        assert worker.hear() == {"done": 1}
        worker.end()

    assert queue.get(made.id).state == "done"


def _jobs(queue: Queue, count: int) -> list[str]:
    jobs = [NewJob("count", {"number": number, "seconds": 0.002}) for number in range(count)]
    return [made.id for made in queue.enqueue_many(jobs)]


def _all_done(queue: Queue, count: int) -> bool:
    return queue.counts() == {"done": count}


def test_workers_go_on_after_the_store_was_away_under_load(queue: Queue, path: str) -> None:
    count = 1_500
    jobs = _jobs(queue, count)
    with Child(work, path, {"lease": 30}) as first, Child(work, path, {"lease": 30}) as second:
        wait_until(lambda: queue.counts().get("done", 0) > 50)
        for _ in range(3):
            with Child(hold_the_store, path) as holder:
                assert holder.hear() == "held"
                in_state(queue, jobs[0], "done")
                holder.tell()
                holder.end()
        wait_until(lambda: _all_done(queue, count))
        for worker in (first, second):
            worker.tell("stop")
        assert first.hear()["done"] + second.hear()["done"] == count

    assert {queue.get(job_id).attempt for job_id in jobs} == {1}


@pytest.mark.long
def test_workers_go_on_after_the_store_was_away_for_longer_than_a_writer_waits(queue: Queue, path: str) -> None:
    count = 4_000
    jobs = _jobs(queue, count)
    with Child(work, path, {"lease": 2}) as first, Child(work, path, {"lease": 2}):
        wait_until(lambda: queue.counts().get("done", 0) > 50)
        with Child(hold_the_store, path) as holder:
            assert holder.hear() == "held"
            # A writer gives up after ten seconds: for so long it has to be away to be missed.
            away_until = time.monotonic() + 12
            wait_until(lambda: time.monotonic() > away_until)
            holder.tell()
            holder.end()
        wait_until(lambda: _all_done(queue, count))
        first.tell("stop")
        first.hear()

    assert [queue.get(job_id).result for job_id in jobs] == list(range(count))


@pytest.mark.long
def test_workers_killed_again_and_again_lose_nothing_and_repeat_no_effect(queue: Queue, path: str) -> None:
    count = 3_000
    with queue.transaction() as transaction:
        transaction.execute(EFFECTS)
    options = {"max_attempts": 1000}
    jobs = [NewJob("effect", {"number": number}, **options) for number in range(count)]  # type: ignore[arg-type]
    queue.enqueue_many(jobs)
    chance = random.Random(7)
    for _ in range(15):
        with Child(work, path, {"lease": 0.5, "concurrency": 8}) as victim:
            before = queue.counts().get("done", 0)
            more = chance.randrange(1, 100)
            wait_until(lambda: queue.counts().get("done", 0) >= min(before + more, count))  # noqa: B023  # here
            victim.kill()
    with Child(work, path, {"lease": 30, "concurrency": 8}):
        wait_until(lambda: _all_done(queue, count))

    with queue.transaction() as transaction:
        [[effects]] = transaction.execute("select count(*) from effects")
    assert effects == count
    # An effect that was written twice would have failed its attempt by the key of the table.
    assert queue.counts() == {"done": count}
