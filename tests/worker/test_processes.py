"""Workers in real processes: killed, stopped for longer than their leases, and disconnected from their store."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from holdfast import NewJob, Queue
from tests.chaos.processes import Child
from tests.chaos.threads import wait_until
from tests.support.claims import expire_leases
from tests.worker.children import EFFECTS, open_queue, work, work_by_hand
from tests.worker.places import PLACES, Vanishing, interruptible_store, new_store_url
from tests.worker.workers import REAL_LEASE_SECONDS, running_worker, wait_finished


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with new_store_url(request.param, tmp_path) as url:
        yield url


@pytest.fixture
def queue(place: str) -> Iterator[Queue]:
    with _opened(place) as queue:
        yield queue


@pytest.fixture(params=PLACES)
def vanishing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Vanishing]:
    with interruptible_store(request.param, tmp_path) as place:
        yield place


def _opened(url: str) -> Queue:
    queue = open_queue(url)
    queue.migrate()

    @queue.task("hold")
    def hold() -> str:
        return "by another"

    return queue


@pytest.mark.slow("workers run in processes, and leases end by the real clock")
def test_a_job_whose_worker_is_killed_is_finished_by_another(queue: Queue, place: str) -> None:
    enqueued = queue.enqueue("hold", {})
    with Child(work_by_hand, place, {"worker": "victim", "kinds": ["hold"]}) as victim:
        assert victim.hear() == "started"
        victim.kill()
        assert queue.get(enqueued.id).worker == "victim"
        expire_leases(queue)
        with running_worker(queue, worker="heir"):
            job = wait_finished(queue, enqueued.id)

    assert (job.result, job.worker, job.epoch) == ("by another", "heir", 2)
    assert [attempt.outcome for attempt in queue.attempts(enqueued.id)] == ["expired", "done"]


@pytest.mark.slow("workers run in processes")
def test_a_worker_stopped_past_its_lease_is_told_and_its_result_is_refused(queue: Queue, place: str) -> None:
    enqueued = queue.enqueue("hold", {})
    options = {"lease": REAL_LEASE_SECONDS, "worker": "sleeper", "kinds": ["hold"]}
    with Child(work_by_hand, place, options) as sleeper:
        assert sleeper.hear() == "started"
        sleeper.stop_between_writes(place)
        expire_leases(queue)
        with running_worker(queue, worker="heir"):
            job = wait_finished(queue, enqueued.id)
        sleeper.resume()
        assert sleeper.hear() == "lost"
        sleeper.tell("stop")
        assert sleeper.hear() == {"lost": 1}
        sleeper.end()

    assert queue.get(enqueued.id) == job
    assert (job.result, job.epoch) == ("by another", 2)


@pytest.mark.slow("leases are renewed by the real clock")
def test_a_worker_whose_loop_is_blocked_keeps_its_job_by_the_real_clock(
    queue: Queue, place: str, tmp_path: Path
) -> None:
    proceed = tmp_path / "proceed"
    enqueued = queue.enqueue("block", {"number": 3, "proceed": str(proceed)})
    with Child(work, place, {"lease": REAL_LEASE_SECONDS, "worker": "rude", "kinds": ["block"]}):
        wait_until(lambda: queue.get(enqueued.id).worker == "rude")
        with running_worker(queue, worker="envious"):
            # Two renewals; test_stopping shows with a manual timer that there are many.
            first = queue.get(enqueued.id).lease_until
            wait_until(lambda: _seconds_between(first, queue.get(enqueued.id).lease_until) > REAL_LEASE_SECONDS / 2)
            proceed.touch()
            job = wait_finished(queue, enqueued.id)

    assert (job.state, job.result, job.epoch, job.attempt) == ("done", 3, 1, 1)
    assert job.worker == "rude"


def _seconds_between(first: datetime | None, last: datetime | None) -> float:
    return (last - first).total_seconds() if first is not None and last is not None else 0.0


@pytest.mark.slow("workers run in processes, and leases end by the real clock")
def test_a_worker_cut_off_for_longer_than_a_lease_stops_its_handlers_and_then_goes_on(vanishing: Vanishing) -> None:
    with _opened(vanishing.url) as queue:
        enqueued = queue.enqueue("hold", {})
        options = {"lease": REAL_LEASE_SECONDS, "kinds": ["hold", "count"], "concurrency": 1}
        with Child(work_by_hand, vanishing.url, options) as worker:
            assert worker.hear() == "started"
            with vanishing.unavailable():
                assert worker.hear() == "lost"
            # The job expires and is claimed again; this time only the cancel stops it.
            assert worker.hear() == "started"
            queue.cancel(enqueued.id)
            assert worker.hear() == "cancel"
            # Its handler returned nevertheless, so the job is done and not cancelled.
            assert wait_finished(queue, enqueued.id).state == "done"
            other = queue.enqueue("count", {"number": 7})
            assert wait_finished(queue, other.id).result == 7


def test_a_signal_tells_handlers_to_stop_and_settles_what_they_return(queue: Queue, place: str) -> None:
    enqueued = queue.enqueue("hold", {})
    with Child(work_by_hand, place, {"grace": 0.1, "kinds": ["hold"]}) as worker:
        assert worker.hear() == "started"
        worker.process.terminate()
        assert worker.hear() == "shutdown"
        # The handler returned after the request to stop, before the job was released.
        assert worker.hear() == {"done": 1}
        worker.end()

    assert queue.get(enqueued.id).state == "done"


def _jobs(queue: Queue, count: int) -> list[str]:
    jobs = [NewJob("count", {"number": number, "seconds": 0.002}) for number in range(count)]
    return [enqueued.id for enqueued in queue.enqueue_many(jobs)]


def _all_done(queue: Queue, count: int) -> bool:
    return queue.counts() == {"done": count}


@pytest.mark.slow("workers run in processes, and leases end by the real clock")
def test_workers_go_on_after_the_store_was_away_under_load(vanishing: Vanishing) -> None:
    count = 1_500
    with _opened(vanishing.url) as queue:
        jobs = _jobs(queue, count)
        options = {"lease": 30}
        with Child(work, vanishing.url, options) as first, Child(work, vanishing.url, options) as second:
            for _ in range(3):
                before = queue.counts().get("done", 0)
                wait_until(_more_done(queue, min(before + 50, count)))
                with vanishing.unavailable():
                    pass
            wait_until(lambda: _all_done(queue, count))
            for worker in (first, second):
                worker.tell("stop")
            told = [first.hear(), second.hear()]

        # A crashed store may have committed a settlement it did not answer; it is never settled twice.
        assert sum(one.get("done", 0) for one in told) == count
        assert {queue.get(job_id).attempt for job_id in jobs} == {1}


def _more_done(queue: Queue, count: int) -> Callable[[], bool]:
    return lambda: queue.counts().get("done", 0) >= count


@pytest.mark.long
def test_workers_go_on_after_the_store_was_away_for_longer_than_a_writer_waits(vanishing: Vanishing) -> None:
    count = 4_000
    with _opened(vanishing.url) as queue:
        jobs = _jobs(queue, count)
        with Child(work, vanishing.url, {"lease": 2}) as first, Child(work, vanishing.url, {"lease": 2}):
            wait_until(_more_done(queue, 50))
            with vanishing.unavailable():
                # A writer times out after ten seconds, so the store must be unavailable for longer.
                away_until = time.monotonic() + 12
                wait_until(lambda: time.monotonic() > away_until)
            wait_until(lambda: _all_done(queue, count))
            first.tell("stop")
            first.hear()

        assert [queue.get(job_id).result for job_id in jobs] == list(range(count))


@pytest.mark.long
def test_ten_rolling_restarts_under_load_lose_nothing_and_spend_no_attempt(queue: Queue, place: str) -> None:
    count = 8_000
    jobs = _jobs(queue, count)
    options = {"lease": 30, "grace": 0}
    with Child(work, place, options) as steady:
        for number in range(10):
            with Child(work, place, {**options, "worker": f"restarted {number}"}) as restarted:
                wait_until(_is_there(queue, f"restarted {number}"))
                before = queue.counts().get("done", 0)
                wait_until(_more_done(queue, min(before + 100, count)))
                restarted.process.terminate()
                restarted.hear()
                restarted.end()
        wait_until(lambda: _all_done(queue, count))
        steady.tell("stop")
        steady.hear()

    assert {queue.get(job_id).attempt for job_id in jobs} == {1}
    outcomes = {attempt.outcome for job_id in jobs for attempt in queue.attempts(job_id)}
    assert outcomes == {"done", "released"}


def _is_there(queue: Queue, worker: str) -> Callable[[], bool]:
    return lambda: any(row.worker == worker for row in queue.admin.workers())


@pytest.mark.long
def test_workers_killed_again_and_again_lose_nothing_and_repeat_no_effect(queue: Queue, place: str) -> None:
    count = 3_000
    with queue.transaction() as transaction:
        transaction.execute(EFFECTS)
    options = {"max_attempts": 1000}
    jobs = [NewJob("effect", {"number": number}, **options) for number in range(count)]  # type: ignore[arg-type]
    queue.enqueue_many(jobs)
    chance = random.Random(7)
    for _ in range(15):
        with Child(work, place, {"lease": 0.5, "concurrency": 8}) as victim:
            before = queue.counts().get("done", 0)
            more = chance.randrange(1, 100)
            wait_until(_more_done(queue, min(before + more, count)))
            victim.kill()
    with Child(work, place, {"lease": 30, "concurrency": 8}):
        wait_until(lambda: _all_done(queue, count))

    with queue.transaction() as transaction:
        [[effects]] = transaction.execute("select count(*) from effects")
    assert effects == count
    # A second write of the same effect would violate the table's key and fail the attempt.
    assert queue.counts() == {"done": count}
