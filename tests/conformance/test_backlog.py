"""The backlog counts waiting and running jobs with their age, up to a limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

import holdfast
from holdfast import Released
from holdfast.domain import limits
from holdfast.types import Backlog, Waiting
from tests.support.clock import ManualClock


def test_an_empty_store_has_no_backlog(queue: holdfast.Queue) -> None:
    assert queue.admin.backlog() == Backlog((), 0, 0, 0, 0, 0)


def test_ready_jobs_are_counted_by_lane_and_kind_with_the_age_of_the_oldest(
    queue: holdfast.Queue, clock: ManualClock
) -> None:
    queue.enqueue("mail", tenant="quiet", priority=-5)
    clock.advance(60)
    queue.enqueue_many([{"kind": "mail", "tenant": f"tenant{n % 3}", "priority": n % 2} for n in range(10)])
    queue.enqueue("mail", requires=["printer"], affinity="a")
    queue.enqueue("scan", lane="slow")
    clock.advance(2)

    assert queue.admin.backlog().ready == (Waiting("default", "mail", 12, 62.0), Waiting("slow", "scan", 1, 2.0))


def test_the_age_of_a_job_counts_from_when_it_fell_due(queue: holdfast.Queue, clock: ManualClock) -> None:
    queue.enqueue("mail", delay=100)
    clock.advance(130)
    queue.claim(kinds=["nothing"])  # promotes due jobs

    assert queue.admin.backlog().ready == (Waiting("default", "mail", 1, 30.0),)


def test_a_strict_lane_is_counted_too(queue: holdfast.Queue, clock: ManualClock) -> None:
    queue.lanes.set("default", order="strict")
    queue.enqueue("mail", tenant="a", priority=1)
    clock.advance(5)
    queue.enqueue("mail", tenant="b", priority=2)

    assert queue.admin.backlog().ready == (Waiting("default", "mail", 2, 5.0),)


def test_other_unfinished_jobs_are_counted_as_a_whole(queue: holdfast.Queue, clock: ManualClock) -> None:
    queue.enqueue("mail", delay=1000)
    queue.enqueue("mail", dedupe_key="k")
    held = queue.claim(lease=10)
    assert held is not None
    queue.enqueue("mail", dedupe_key="k", on_duplicate="run_again")

    assert replace(queue.admin.backlog(), ready=()) == Backlog((), 1, 1, 1, 0, 0)
    clock.advance(11)
    assert replace(queue.admin.backlog(), ready=()) == Backlog((), 1, 1, 1, 1, 0)
    taken = queue.claim(lease=10)
    assert taken is not None
    assert taken.job.suspect
    clock.advance(11)
    queue.claim(kinds=["other"])  # takes back expired leases
    assert replace(queue.admin.backlog(), ready=()) == Backlog((), 1, 1, 0, 0, 1)


def test_dependent_and_parked_jobs_are_counted(queue: holdfast.Queue) -> None:
    queue.limits.set("one", kinds=["mail"], key="tenant", concurrency=1)
    jobs = queue.enqueue_many([{"kind": "mail"}] * 3)
    queue.enqueue_many([{"kind": "sent", "after": [jobs[0].id, jobs[1].id]}, {"kind": "sent", "after": [jobs[2].id]}])
    assert len(queue.claim_many(limit=10)) == 1  # parks the others

    backlog, overview = queue.admin.backlog(), queue.admin.overview()

    assert (backlog.dependent, backlog.parked) == (2, 2)
    assert (overview.dependent, overview.parked) == (2, 2)


def test_finished_jobs_are_not_counted(queue: holdfast.Queue) -> None:
    enqueued = queue.enqueue("mail")
    queue.cancel(enqueued.id)

    assert queue.admin.backlog() == Backlog((), 0, 0, 0, 0, 0)


def test_counting_stops_at_its_bound(queue: holdfast.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BACKLOG_COUNTED_MAX", 3)
    queue.enqueue_many([{"kind": "mail"}] * 5)
    queue.enqueue_many([{"kind": "later", "delay": 10}] * 5)

    backlog = queue.admin.backlog()

    assert [waiting.jobs for waiting in backlog.ready] == [3]
    assert backlog.scheduled == 3


def test_a_released_job_waits_from_its_release_on(queue: holdfast.Queue, clock: ManualClock) -> None:
    queue.enqueue("mail")
    held = queue.claim()
    assert held is not None
    clock.advance(20)
    queue.settle(held, Released())
    clock.advance(3)

    assert queue.admin.backlog().ready == (Waiting("default", "mail", 1, 3.0),)


def test_a_wall_clock_that_was_set_back_makes_no_age_negative(queue: holdfast.Queue, clock: ManualClock) -> None:
    queue.enqueue("mail")
    clock.shift_wall_clock(-60)

    assert queue.admin.backlog().ready == (Waiting("default", "mail", 1, 0.0),)
