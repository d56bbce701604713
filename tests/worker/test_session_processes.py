"""Workers in real processes handle sessions: one holder at a time, also if one is killed or stopped in a turn."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Backoff, Queue
from tests.chaos.processes import Child
from tests.chaos.threads import wait_until
from tests.support.claims import expire_leases
from tests.worker.children import LINES, answer_by_hand, answer_until_killed
from tests.worker.places import PLACES, new_store_url
from tests.worker.workers import REAL_LEASE_SECONDS, wait_finished

SESSION = "chat-42"
OFTEN = 1_000


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with new_store_url(request.param, tmp_path) as url:
        yield url


@pytest.fixture
def queue(place: str) -> Iterator[Queue]:
    with holdfast.connect(place) as queue:
        queue.migrate()
        yield queue


def say(queue: Queue, text: object, session: str = SESSION) -> str:
    # A failed attempt, such as one whose commit the store was too busy for, delays its session only for a moment.
    soon = Backoff(base=0.05, factor=1.0)
    return queue.enqueue("chat.message", text, session=session, join=True, max_attempts=OFTEN, backoff=soon).id


@pytest.mark.slow("workers run in processes, and leases end by the real clock")
def test_a_turn_whose_worker_is_killed_is_taken_over_under_a_higher_token(queue: Queue, place: str) -> None:
    ids = [say(queue, "one"), say(queue, "two")]
    with (
        Child(answer_by_hand, place, {"worker": "one"}) as one,
        Child(answer_by_hand, place, {"worker": "other"}) as other,
    ):
        wait_until(lambda: queue.get(ids[0]).worker is not None)
        victim, heir = (one, other) if queue.get(ids[0]).worker == "one" else (other, one)
        said, first = victim.hear()
        assert said == ["one", "two"]
        victim.kill()
        expire_leases(queue)
        assert heir.hear() == (["one", "two"], first + 1)
        heir.tell()
        jobs = [wait_finished(queue, job_id) for job_id in ids]

    assert len({job.result for job in jobs}) == 1
    assert [attempt.outcome for attempt in queue.attempts(ids[0])] == ["expired", "done"]


@pytest.mark.slow("workers run in processes")
def test_the_result_of_a_worker_that_fell_silent_is_refused(queue: Queue, place: str) -> None:
    ids = [say(queue, "one"), say(queue, "two")]
    options = {"lease": REAL_LEASE_SECONDS, "worker": "sleeper", "concurrency": 1}
    with Child(answer_by_hand, place, options) as sleeper:
        assert sleeper.hear() == (["one", "two"], 1)
        sleeper.stop_between_writes(place)
        expire_leases(queue)
        with Child(answer_by_hand, place, {"worker": "heir"}) as heir:
            assert heir.hear() == (["one", "two"], 2)
            sleeper.tell()
            sleeper.resume()
            heir.tell()
            jobs = [wait_finished(queue, job_id) for job_id in ids]
        # The sleeper runs one turn at a time: it claims the next after its late result was refused.
        say(queue, "three")
        assert sleeper.hear() == (["three"], 3)

    assert [(job.result, job.epoch) for job in jobs] == [("by heir", 2)] * 2
    assert [queue.get(job_id) for job_id in ids] == jobs


@pytest.mark.slow("workers run in processes, and leases end by the real clock")
def test_killed_workers_leave_every_session_in_order_and_once(queue: Queue, place: str) -> None:
    with queue.transaction() as transaction:
        transaction.execute(LINES)
    chance = random.Random(7)
    # On a busy machine turns lose shorter leases again and again.
    options = {"lease": 1, "concurrency": 2}
    crew = [Child(answer_until_killed, place, {**options, "worker": f"w{number}"}) for number in range(2)]
    enqueued: list[str] = []
    try:
        for number in range(60):
            enqueued.append(say(queue, number, f"s{number % 6}"))
            if number % 20 == 10:
                # Kill it at a random point.
                time.sleep(chance.uniform(0.05, 0.3))
                crew[0].kill()
                crew = [crew[1], Child(answer_until_killed, place, {**options, "worker": f"x{number}"})]
        assert {wait_finished(queue, job_id).state for job_id in enqueued} == {"done"}
    finally:
        for child in crew:
            child.kill()

    with queue.transaction() as transaction:
        rows = transaction.execute("select session, number, token from lines")
    for session in range(6):
        lines = sorted((token, number) for name, number, token in rows if name == f"s{session}")
        assert [number for _, number in lines] == list(range(session, 60, 6))
    assert len(rows) == 60
