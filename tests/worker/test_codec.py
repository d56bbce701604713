"""A worker decodes payloads for handlers and encodes their results, with the codec of its queue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast import Backoff, Context, Queue, SessionContext, testing
from holdfast.client.queue_state import state_of
from holdfast.domain.job import row_of
from tests.chaos.threads import wait_until
from tests.support.assertions import failure_of
from tests.support.codecs import Scrambler
from tests.worker.workers import running_worker, wait_finished

SECRET = "4111-1111"


@pytest.fixture
def encoding(queue: Queue) -> Queue:
    return Queue(replace(state_of(queue), codec=Scrambler()))


def is_encoded(queue: Queue, job_id: str) -> bool:
    """Return whether payload and result of a job are encoded in the store."""
    row = row_of(queue.get(job_id))
    return all(text is not None and "holdfast.codec" in text for text in (row.payload_json, row.result_json))


def test_a_handler_gets_the_payload_and_its_result_is_encoded(queue: Queue, encoding: Queue) -> None:
    @encoding.task("pay")
    def pay(card: str) -> str:
        return card[::-1]

    @encoding.task("pay.within")
    def pay_within(context: Context, card: str) -> str:
        with context.transaction():
            return card[::-1]

    made = [pay.enqueue(SECRET), pay_within.enqueue(SECRET)]
    with running_worker(encoding):
        assert [one.result(timeout=30) for one in made] == [SECRET[::-1]] * 2

    assert all(is_encoded(queue, one.id) for one in made)


def test_a_turn_gets_its_messages(queue: Queue, encoding: Queue) -> None:
    @encoding.session_task("chat", join=True)
    def chat(context: SessionContext[int], messages: list[int]) -> int:
        return sum(messages)

    made = [encoding.enqueue("chat", n, session="s", join=True) for n in (1, 2)]
    testing.drain(encoding)

    assert [encoding.get(one.id).result for one in made] == [3, 3]
    assert all(is_encoded(queue, one.id) for one in made)


def test_the_testing_kit_decodes_one_job(encoding: Queue) -> None:
    @encoding.task("pay")
    def pay(card: str) -> str:
        return card

    assert testing.run_job(encoding, pay.new(SECRET)).result == SECRET


def test_a_job_whose_payload_a_worker_cannot_decode_is_retried(queue: Queue, encoding: Queue) -> None:
    @queue.task("pay", max_attempts=2, backoff=Backoff(base=0))
    def pay(card: str) -> None: ...

    enqueued = encoding.enqueue("pay", {"card": SECRET})
    with running_worker(queue):
        job = wait_finished(queue, enqueued.id)

    assert (job.state, job.attempt) == ("failed", 2)
    failure = failure_of(job)
    assert failure.reason == "codec_failed"
    assert job.id in failure.message
    assert SECRET not in f"{failure.message} {failure.traceback}"


def test_a_result_that_cannot_be_encoded_is_tried_again_and_harms_no_other_job(encoding: Queue) -> None:
    results: list[Any] = ["unencodable", "fine"]

    @encoding.task("pay", backoff=Backoff(base=0))
    def pay(first: bool) -> Any:
        return results.pop(0) if first else "other"

    made = [pay.enqueue(first) for first in (True, False)]
    with running_worker(encoding, concurrency=1) as working:
        jobs = [wait_finished(encoding, one.id) for one in made]
        wait_until(lambda: working.worker.status().ended == {"retried": 1, "done": 2})

    assert [(job.result, job.attempt) for job in jobs] == [("fine", 2), ("other", 1)]
