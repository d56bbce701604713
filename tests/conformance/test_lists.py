"""Listing jobs: every filter, newest first, page by page without loss or repetition."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Done, Failed, InvalidInput, Job, NewJob, Queue
from tests.support.assertions import refused
from tests.support.clock import ManualClock
from tests.support.job_states import FAILS, FINISHED, UNFINISHED, State, blocked_pair, enqueue_and_run, job_in, run


def walk(queue: Queue, limit: int, between: Callable[[], object] = lambda: None, **filters: Any) -> list[Job]:
    """Read all pages, and call *between* after each."""
    found: list[Job] = []
    cursor: str | None = None
    while True:
        page = queue.jobs(after=cursor, limit=limit, **filters)
        assert len(page) <= limit
        found += page
        assert len(found) <= 100, "reading the pages does not end"
        if page.cursor is None:
            return found
        assert len(page) == limit
        cursor = page.cursor
        between()


def ids(jobs: list[Job]) -> list[str]:
    return [job.id for job in jobs]


class TestOrder:
    def test_an_empty_store_has_one_empty_page(self, queue: Queue) -> None:
        page = queue.jobs()

        assert (page.jobs, page.cursor) == ((), None)

    def test_jobs_are_listed_newest_first(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = [queue.enqueue("a", priority=number % 3, delay=number % 2).id for number in range(6)]

        assert ids(list(queue.jobs())) == enqueued[::-1]

    def test_finished_jobs_are_listed_by_finish_time_the_latest_first(self, queue: Queue, clock: ManualClock) -> None:
        first, second, third = (queue.enqueue(kind).job for kind in "abc")
        for job in (second, third, first):
            clock.advance(1)
            run(queue, job, Done())

        assert ids(list(queue.jobs(state="done"))) == [first.id, third.id, second.id]

    def test_a_listed_job_is_complete(self, queue: Queue) -> None:
        job = queue.enqueue("a", {"x": [1]}, tags={"t": "1"}, headers={"h": "2"}, requires=["gpu"]).job

        assert list(queue.jobs()) == [job]


class TestFilters:
    @pytest.mark.parametrize("state", [*UNFINISHED, *FINISHED])
    def test_a_state_lists_only_that_state(self, queue: Queue, state: State) -> None:
        for each in (*UNFINISHED, *FINISHED):
            job_in(queue, each, kind=f"kind.{each}")

        found = list(queue.jobs(state=state))

        assert found
        assert {job.state for job in found} == {state}
        assert {job.kind for job in found} >= {f"kind.{state}"}

    def test_every_combination_of_filters_lists_only_matching_jobs(self, queue: Queue) -> None:
        everything = _mixture(queue)
        choices: dict[str, list[Any]] = {
            "state": [None, "ready", "failed", "done"],
            "kind": [None, "a", "b"],
            "lane": [None, "x", "y"],
            "tenant": [None, "t", "u"],
            "failure_class": [None, "transient", "permanent"],
        }

        for values in itertools.product(*choices.values()):
            filters = {option: value for option, value in zip(choices, values, strict=True) if value is not None}
            expected = {job.id for job in everything if _matches(job, filters)}
            found = walk(queue, 3, **filters)
            assert len(found) == len(expected), filters
            assert set(ids(found)) == expected, filters

    def test_unused_names_match_nothing(self, queue: Queue) -> None:
        queue.enqueue("a")

        assert len(queue.jobs(kind="zzz")) == len(queue.jobs(lane="zzz")) == len(queue.jobs(tenant="zzz")) == 0

    @pytest.mark.validation
    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("state", "sleeping"),
            ("failure_class", "odd"),
            ("limit", 0),
            ("limit", 1_001),
            ("limit", True),
            ("kind", ""),
            ("lane", 3),
            ("tenant", "x" * 201),
        ],
    )
    def test_a_wrong_filter_is_refused_by_name(self, queue: Queue, option: str, value: Any) -> None:
        with refused(queue, option):
            queue.jobs(**{option: value})


class TestPaging:
    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
    def test_reading_all_pages_returns_every_job_once(self, queue: Queue, limit: int) -> None:
        enqueued = [each.id for each in queue.enqueue_many([NewJob("a") for _ in range(7)])]

        assert ids(walk(queue, limit)) == enqueued[::-1]

    @pytest.mark.parametrize("limit", [1, 2, 3, 100])
    def test_jobs_that_finished_at_the_same_time_are_returned_once_each(self, queue: Queue, limit: int) -> None:
        queue.enqueue_many([NewJob("a") for _ in range(8)])
        claims = queue.claim_many()
        queue.settle_many([(claim, Done()) for claim in claims])

        found = walk(queue, limit, state="done")

        assert len(found) == 8
        assert set(ids(found)) == {claim.job.id for claim in claims}

    def test_the_last_full_page_has_no_cursor(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("a") for _ in range(4)])

        second = queue.jobs(limit=2, after=queue.jobs(limit=2).cursor)

        assert (len(second), second.cursor) == (2, None)

    def test_jobs_added_between_pages_neither_repeat_nor_hide_others(self, queue: Queue) -> None:
        enqueued = [each.id for each in queue.enqueue_many([NewJob("a") for _ in range(9)])]

        found = ids(walk(queue, 2, lambda: queue.enqueue("a")))

        assert found == enqueued[::-1]

    def test_jobs_that_finish_between_pages_stay_in_a_list_of_all_states(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        enqueued = [each.id for each in queue.enqueue_many([NewJob("a") for _ in range(9)])]

        def finish_one() -> None:
            clock.advance(1)
            claim = queue.claim()
            assert claim is not None
            queue.settle(claim, Done())

        assert ids(walk(queue, 2, finish_one)) == enqueued[::-1]

    def test_finished_jobs_are_not_repeated_while_more_finish(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue_many([NewJob("a") for _ in range(20)])
        ended: list[str] = []

        def finish_one() -> None:
            clock.advance(1)
            claim = queue.claim()
            assert claim is not None
            ended.append(queue.settle(claim, Done()).id)

        for _ in range(9):
            finish_one()
        before = list(ended)

        assert ids(walk(queue, 2, finish_one, state="done")) == before[::-1]

    def test_remaining_jobs_are_returned_once_while_others_leave_the_state(self, queue: Queue) -> None:
        enqueued = [each.id for each in queue.enqueue_many([NewJob("a") for _ in range(9)])]

        found = ids(walk(queue, 2, queue.claim, state="ready"))

        left = ids(list(queue.jobs(state="ready")))
        assert len(found) == len(set(found))
        assert set(left) <= set(found) <= set(enqueued)

    def test_a_deleted_job_under_the_cursor_does_not_break_paging(self, queue: Queue, clock: ManualClock) -> None:
        for kind in "abcd":
            clock.advance(1)
            job_in(queue, "done", kind=kind)
        page = queue.jobs(state="done", limit=2)
        clock.advance(10)
        queue.admin.prune(older_than=5)
        left = job_in(queue, "done", kind="e")

        assert len(queue.jobs(state="done", limit=2, after=page.cursor)) == 0
        assert ids(list(queue.jobs(state="done"))) == [left.id]

    @pytest.mark.parametrize("cursor", ["", "nonsense", "-1", "1.2.3", "9" * 400, "' or 1=1 --", "é", 7, b"x"])
    @pytest.mark.parametrize("state", [None, "ready", "done"])
    def test_an_invalid_cursor_is_refused(self, queue: Queue, state: State | None, cursor: Any) -> None:
        queue.enqueue("a")

        with pytest.raises(InvalidInput) as refusal:
            queue.jobs(state=state, after=cursor)

        assert refusal.value.field == "after"


def _mixture(queue: Queue) -> list[Job]:
    """Create jobs of two kinds, lanes and tenants: ready, done, permanently failed and waiting for a retry."""
    enqueued = []
    for kind, lane, tenant in itertools.product("ab", "xy", "tu"):
        enqueued += [
            enqueue_and_run(queue, kind, outcome, lane=lane, tenant=tenant, max_attempts=1)
            for outcome in (Done(), FAILS, Failed("now", retry_after=0))
        ]
        enqueued.append(queue.enqueue(kind, lane=lane, tenant=tenant).job)
    return enqueued


def _matches(job: Job, filters: dict[str, Any]) -> bool:
    failure_class = None if job.failure is None else job.failure.failure_class
    shown = {
        "state": job.state,
        "kind": job.kind,
        "lane": job.lane,
        "tenant": job.tenant,
        "failure_class": failure_class,
    }
    return all(shown[option] == value for option, value in filters.items())


class TestBlockedJobs:
    def test_a_successor_moves_from_one_list_to_the_other(self, queue: Queue) -> None:
        first, second = blocked_pair(queue)
        assert ids(list(queue.jobs(state="blocked"))) == [second.id]

        queue.settle(first, Done())

        assert len(queue.jobs(state="blocked")) == 0
        assert ids(list(queue.jobs(state="ready"))) == [second.id]
