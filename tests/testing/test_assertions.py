"""Assertions find enqueued jobs by the expected fields; a failure shows the nearest jobs and the differences."""

from __future__ import annotations

import asyncio
from datetime import date, timedelta
from unittest.mock import ANY
from uuid import UUID

import pytest

import holdfast
from holdfast.testing import assert_enqueued, enqueued, refute_enqueued
from tests.support.stores import Harness


def complaint(queue: holdfast.Queue, *options: str, **expected: object) -> list[str]:
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(queue, *options, **expected)  # type: ignore[arg-type]
    return str(caught.value).splitlines()


def test_a_job_that_fits_is_returned_the_oldest_first(queue: holdfast.Queue) -> None:
    first = queue.enqueue("mail", {"to": "ada"})
    second = queue.enqueue("mail", {"to": "bob"})

    assert assert_enqueued(queue, "mail") == first.job
    assert assert_enqueued(queue, "mail", payload={"to": "bob"}) == second.job
    assert enqueued(queue) == [first.job, second.job]


def test_a_task_stands_for_its_kind(queue: holdfast.Queue) -> None:
    task = queue.task("mail")(lambda: None)
    result = task.enqueue()

    assert assert_enqueued(queue, task) == result.job


def test_of_an_object_only_the_members_that_are_named_count(queue: holdfast.Queue) -> None:
    queue.enqueue("mail", {"to": {"name": "ada", "age": 36}, "tags": [1, {"a": 1, "b": 2}]})

    assert_enqueued(queue, payload={"to": {"name": "ada"}})
    assert_enqueued(queue, payload={"tags": [ANY, {"b": 2}]})
    refute_enqueued(queue, payload={"tags": [1]})
    refute_enqueued(queue, payload={"to": {"name": "bob"}})
    refute_enqueued(queue, payload={"cc": ANY})


def test_what_is_wanted_is_written_as_the_serializer_writes_it(queue: holdfast.Queue) -> None:
    @queue.task("task")
    def task(day: date, who: UUID) -> None: ...

    task.enqueue(date(2026, 1, 1), UUID(int=1))

    assert_enqueued(queue, task, payload={"day": date(2026, 1, 1), "who": UUID(int=1)})


def test_true_is_not_one(queue: holdfast.Queue) -> None:
    queue.enqueue("mail", {"flag": True})

    refute_enqueued(queue, payload={"flag": 1})
    assert_enqueued(queue, payload={"flag": True})
    assert_enqueued(queue, payload={"flag": ANY})


def test_every_word_is_looked_at(queue: holdfast.Queue) -> None:
    queue.enqueue(
        "mail",
        lane="slow",
        tenant="acme",
        priority=3,
        delay=60,
        affinity="model",
        requires=["gpu", "big"],
        dedupe_key="key",
        max_attempts=7,
        job_id="one",
        headers={"h": "1", "i": "2"},
        tags={"t": "1"},
    )
    right: dict[str, object] = {
        "lane": "slow",
        "tenant": "acme",
        "priority": 3,
        "delay": timedelta(minutes=1),
        "affinity": "model",
        "requires": ["big", "gpu"],
        "dedupe_key": "key",
        "max_attempts": 7,
        "job_id": "one",
        "headers": {"h": "1"},
        "tags": {"t": "1"},
        "states": ["scheduled"],
    }
    wrong: dict[str, object] = {
        "lane": "fast",
        "tenant": "other",
        "priority": 4,
        "delay": 61,
        "affinity": None,
        "requires": ["gpu"],
        "dedupe_key": None,
        "max_attempts": 5,
        "job_id": "two",
        "headers": {"h": "2"},
        "tags": {"u": "1"},
        "states": ["ready"],
    }

    assert_enqueued(queue, "mail", **right)  # type: ignore[arg-type]
    for option, value in wrong.items():
        refute_enqueued(queue, "mail", **{option: value})  # type: ignore[arg-type]


def test_by_default_only_jobs_that_wait_count(queue: holdfast.Queue) -> None:
    result = queue.enqueue("mail")
    held = queue.claim()
    assert held is not None

    refute_enqueued(queue, "mail")
    assert assert_enqueued(queue, "mail", states=["running"]).id == result.id
    assert (
        complaint(queue, "mail")[-1]
        == "    state: expected ('scheduled', 'blocked', 'dependent', 'parked', 'ready'), is 'running'"
    )


def test_exactly_so_many_can_be_asked_for(queue: holdfast.Queue) -> None:
    queue.enqueue_many([{"kind": "mail"}] * 2)

    assert_enqueued(queue, "mail", count=2)
    assert complaint(queue, "mail", count=3)[0] == "2 jobs like this, not 3: kind 'mail'"


def test_a_complaint_shows_the_nearest_first_with_what_differs(queue: holdfast.Queue) -> None:
    far = queue.enqueue("scan", {"to": "ada"})
    near = queue.enqueue("mail", {"to": "bob"})

    assert complaint(queue, "mail", payload={"to": "ada", "cc": "eve"}) == [
        "no job like this was enqueued: kind 'mail', payload {'to': 'ada', 'cc': 'eve'}",
        "enqueued jobs, nearest first:",
        f"  mail {{'to': 'bob'}}, ready in lane default ({near.id})",
        "    payload.to: expected 'ada', is 'bob'",
        "    payload.cc: expected 'eve', is nothing",
        f"  scan {{'to': 'ada'}}, ready in lane default ({far.id})",
        "    payload.cc: expected 'eve', is nothing",
        "    kind: expected 'mail', is 'scan'",
    ]


def test_a_complaint_stays_short_however_much_there_is(queue: holdfast.Queue) -> None:
    queue.enqueue_many([{"kind": "scan", "payload": "x" * 5000}] * 30)

    lines = complaint(queue, "mail")

    assert lines[-1] == "  and 25 jobs more"
    assert len(lines) == 13
    assert max(map(len, lines)) < 400


def test_where_nothing_was_enqueued_it_says_so(queue: holdfast.Queue) -> None:
    assert complaint(queue, "mail") == ["no job like this was enqueued: kind 'mail'", "no jobs were enqueued"]
    assert complaint(queue)[0] == "no job like this was enqueued: any"


def test_a_refutation_shows_what_there_should_not_be(queue: holdfast.Queue) -> None:
    result = queue.enqueue("mail", {"to": "ada"})

    with pytest.raises(AssertionError) as caught:
        refute_enqueued(queue, "mail")

    assert str(caught.value).splitlines() == [
        "1 job like this should not have been enqueued: kind 'mail'",
        f"  mail {{'to': 'ada'}}, ready in lane default ({result.id})",
    ]


def test_more_jobs_than_a_page_are_looked_through(queue: holdfast.Queue) -> None:
    first = queue.enqueue("first")
    queue.enqueue_many([{"kind": "mail"}] * 1100)

    assert assert_enqueued(queue, "first") == first.job


@pytest.mark.parametrize(
    ("options", "field"),
    [({"paylod": 1}, "paylod"), ({"states": ["waiting"]}, r"states\[0\]"), ({"count": 0}, "count")],
)
def test_what_cannot_be_asked_for_is_refused(queue: holdfast.Queue, options: dict[str, object], field: str) -> None:
    with pytest.raises(holdfast.InvalidInput, match=field):
        assert_enqueued(queue, **options)  # type: ignore[arg-type]


def test_an_awaited_queue_is_asked_in_the_same_way(harness: Harness) -> None:
    queue = harness.open_async()

    async def main() -> None:
        await queue.enqueue("mail", {"to": "ada"})
        assert_enqueued(queue, "mail", payload={"to": "ada"})
        refute_enqueued(queue, "scan")
        await queue.close()

    asyncio.run(main())
