"""Debounce: a job runs a while after the last enqueue of its key, with the newest content."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast import Done, Failed, Job, Queue
from tests.support.assertions import refused
from tests.support.clock import ManualClock
from tests.support.job_states import start


def put(queue: Queue, payload: Any, debounce: float = 5, **options: Any) -> Job:
    return queue.enqueue("index", payload, dedupe_key="doc-1", debounce=debounce, **options).job


def ready(queue: Queue) -> list[Any]:
    """Claim, which promotes due jobs, and return the payloads of the ready ones."""
    queue.claim_many(kinds=["none"])
    return [job.payload for job in queue.jobs(state="ready")]


def test_each_enqueue_postpones_the_job_and_replaces_its_content(queue: Queue, clock: ManualClock) -> None:
    first = put(queue, 1)
    assert (first.state, first.due_at - first.enqueued_at) == ("scheduled", timedelta(seconds=5))
    clock.advance(4)
    again = queue.enqueue("index", 2, dedupe_key="doc-1", debounce=5, tags={"n": "2"})
    assert (again.id, again.created, again.job.payload, again.job.tags) == (first.id, False, 2, {"n": "2"})
    clock.advance(4)
    assert ready(queue) == []
    clock.advance(1)
    assert ready(queue) == [2]
    assert queue.get(first.id).enqueued_at == first.enqueued_at


def test_the_newest_content_is_kept_and_other_options_are_those_of_the_first(queue: Queue) -> None:
    first = put(queue, 1, 1_000, max_wait=2_000, priority=3)
    again = put(queue, 2, 5_000, max_wait=9_000, priority=4, tags={"n": "2"})
    assert (again.id, again.payload, again.priority, again.tags) == (first.id, 2, 3, {"n": "2"})
    assert again.state == "scheduled"
    assert again.due_at > first.due_at


def test_max_wait_bounds_how_long_it_is_postponed(queue: Queue, clock: ManualClock) -> None:
    put(queue, 0, max_wait=12)
    for number in range(1, 4):
        clock.advance(4)
        put(queue, number, max_wait=12)
    assert ready(queue) == [3]
    # It is due: the content is the newest, and it stays ready.
    assert put(queue, 4, max_wait=12).state == "ready"
    assert ready(queue) == [4]


def test_a_ready_job_that_nobody_has_claimed_waits_again(queue: Queue, clock: ManualClock) -> None:
    put(queue, 1)
    clock.advance(5)
    assert ready(queue) == [1]
    assert put(queue, 2).state == "scheduled"
    assert ready(queue) == []
    clock.advance(5)
    assert ready(queue) == [2]


@pytest.mark.parametrize("state", ["running", "waiting for another attempt"])
def test_a_job_that_was_claimed_gets_one_successor(queue: Queue, clock: ManualClock, state: str) -> None:
    first = put(queue, 1)
    clock.advance(5)
    claim = start(queue, queue.get(first.id))
    if state != "running":
        queue.settle(claim, Failed("no", retry_after=60))
    second, third = put(queue, 2), put(queue, 3)
    assert (second.id == third.id, third.state, third.payload) == (True, "blocked", 3)
    assert queue.get(first.id).payload == 1
    if state != "running":
        clock.advance(60)
        claim = start(queue, queue.get(first.id))
    queue.settle(claim, Done())
    clock.advance(5)
    assert ready(queue) == [3]


def test_a_job_that_is_parked_takes_the_newest_content_and_keeps_its_place(queue: Queue, clock: ManualClock) -> None:
    queue.limits.set("one", kinds=["index"], concurrency=1)
    queue.enqueue("index", "first")
    first = put(queue, 1)
    clock.advance(5)
    [running] = queue.claim_many(limit=2)
    assert queue.get(first.id).state == "parked"
    again = put(queue, 2)
    assert (again.id, again.state, again.payload, again.due_at) == (first.id, "parked", 2, first.due_at)
    queue.settle(running, Done())
    [claim] = queue.claim_many(limit=2)
    assert claim.job.payload == 2


def test_one_call_with_equal_keys_stores_one_job(queue: Queue, clock: ManualClock) -> None:
    call: list[Any] = [
        {"kind": "index", "payload": n, "dedupe_key": "doc-1", "debounce": 5, "max_wait": 60} for n in range(3)
    ]
    stored = queue.enqueue_many(call)
    assert [one.created for one in stored] == [True, False, False]
    clock.advance(5)
    assert ready(queue) == [2]


def test_a_task_debounces(queue: Queue, clock: ManualClock) -> None:
    index = queue.task("index")(lambda n: n)
    for number in range(2):
        index.using(dedupe_key="doc-1", debounce=timedelta(seconds=5)).enqueue(number)
    clock.advance(5)
    assert ready(queue) == [{"n": 1}]


@pytest.mark.validation
@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"debounce": 5}, "debounce"),
        ({"max_wait": 5, "dedupe_key": "k"}, "max_wait"),
        ({"debounce": 0, "dedupe_key": "k"}, "debounce"),
        ({"debounce": 5, "max_wait": 4, "dedupe_key": "k"}, "max_wait"),
        *(
            ({"debounce": 5, "dedupe_key": "k", **other}, "debounce")
            for other in ({"delay": 1}, {"dedupe_for": 9}, {"on_duplicate": "replace"}, {"after": ["a"]})
        ),
        ({"debounce": 5, "session": "s"}, "debounce"),
    ],
)
def test_bad_options_are_refused(queue: Queue, options: dict[str, Any], field: str) -> None:
    with refused(queue, field):
        queue.enqueue("index", **options)
