"""The event log: recorded events, their order, and reading all of them once by cursor."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Deferred, Done, Failed, InvalidInput, NewJob, Queue, Released
from holdfast.errors import EventsPruned
from tests.support.assertions import refused
from tests.support.clock import ManualClock
from tests.support.job_states import (
    FINISHED,
    UNFINISHED,
    State,
    all_events,
    blocked_pair,
    claimed,
    enqueue_and_run,
    event_names,
    job_in,
    rolled_back,
    run,
    start,
)


class TestRecording:
    @pytest.mark.parametrize("state", FINISHED)
    def test_by_default_only_the_end_is_recorded(self, queue: Queue, state: State) -> None:
        job = job_in(queue, state)

        assert event_names(queue, job.id) == [state]

    @pytest.mark.parametrize("state", UNFINISHED)
    def test_an_unfinished_job_records_nothing_by_default(self, queue: Queue, state: State) -> None:
        job_in(queue, state)

        assert all_events(queue) == []

    def test_every_transition_of_a_job_with_all_events_is_recorded(self, queue: Queue, clock: ManualClock) -> None:
        job = queue.enqueue("a", events="all", delay=5, max_attempts=3).job
        queue.reprioritize(job.id, 1)
        clock.advance(5)
        run(queue, job, Released())
        run(queue, job, Deferred(after=5))
        clock.advance(5)
        run(queue, job, Failed("x", retry_after=5))
        clock.advance(5)
        start(queue, job)
        clock.advance(31)
        claim = start(queue, job)
        queue.cancel(job.id)
        queue.settle(claim, Failed("x", retry_after=5))
        queue.requeue(job.id)
        run(queue, job, Done())

        assert event_names(queue, job.id) == [
            "enqueued",
            "reprioritized",
            "promoted",
            "claimed",
            "released",
            "claimed",
            "deferred",
            "promoted",
            "claimed",
            "retrying",
            "promoted",
            "claimed",
            "expired",
            "claimed",
            "cancel_requested",
            "cancelled",
            "requeued",
            "claimed",
            "done",
        ]

    def test_duplicates_and_successors_are_recorded(self, queue: Queue) -> None:
        def again(payload: int, policy: Any) -> str:
            return queue.enqueue("a", payload, dedupe_key="k", on_duplicate=policy, events="all").id

        first = again(1, "keep")
        assert again(2, "replace") == again(3, "keep") == first
        claim = claimed(queue)
        second = again(4, "run_again")
        assert again(5, "run_again") == second
        queue.settle(claim, Done())

        assert event_names(queue, first) == ["enqueued", "replaced", "claimed", "done"]
        assert event_names(queue, second) == ["enqueued", "replaced", "unblocked"]

    def test_taking_back_by_an_exclusive_worker_is_recorded(self, queue: Queue) -> None:
        job = queue.enqueue("a", events="all").job
        claimed(queue, worker="w", incarnation="one", exclusive=True)
        claimed(queue, worker="w", incarnation="two", exclusive=True)

        assert event_names(queue, job.id) == ["enqueued", "claimed", "taken_back", "claimed"]

    def test_a_lane_may_record_all_events_and_stop(self, queue: Queue) -> None:
        queue.lanes.set("loud", events="all")
        first = run(queue, queue.enqueue("a", lane="loud").job, Done())
        quiet = run(queue, queue.enqueue("a", lane="quiet").job, Done())
        queue.lanes.set("loud", events="terminal")
        last = run(queue, queue.enqueue("a", lane="loud").job, Done())

        assert event_names(queue, first.id) == ["enqueued", "claimed", "done"]
        assert event_names(queue, quiet.id) == ["done"]
        assert event_names(queue, last.id) == ["done"]

    def test_a_repeated_settle_is_recorded_once(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("a").job)
        for _ in range(3):
            queue.settle(claim, Done())

        assert event_names(queue, claim.job.id) == ["done"]

    def test_heartbeats_and_progress_are_not_recorded(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("a", events="all").job)
        queue.heartbeat(claim)
        queue.progress(claim, phase="working", percent=50)

        assert event_names(queue, claim.job.id) == ["enqueued", "claimed"]


class TestTheContentOfAnEvent:
    def test_it_names_its_job_and_copies_the_tags(self, queue: Queue, clock: ManualClock) -> None:
        job = queue.enqueue("a", lane="l", tenant="t", tags={"order": "42", "ünïcode": "🙂"}).job
        clock.advance(3)
        run(queue, job, Done())

        [event] = all_events(queue)

        assert (event.name, event.job_id, event.number) == ("done", job.id, 1)
        assert (event.kind, event.lane, event.tenant) == ("a", "l", "t")
        assert event.tags == {"order": "42", "ünïcode": "🙂"}
        assert event.at == clock.time

    def test_its_details_contain_attempt_epoch_worker_and_failure(self, queue: Queue) -> None:
        queue.enqueue("a")
        queue.settle(claimed(queue, worker="w1"), Failed("no", reason="smtp", permanent=True))

        [event] = all_events(queue)

        filters = {"epoch": 1, "attempt": 1, "worker": "w1", "failure_class": "permanent", "failure_reason": "smtp"}
        assert event.details.items() >= filters.items()

    def test_a_retry_records_when_it_is_due(self, queue: Queue, clock: ManualClock) -> None:
        enqueue_and_run(queue, "a", Failed("x", retry_after=9), events="all")

        retrying = all_events(queue)[-1]

        assert retrying.details["due_at_ms"] == clock.now().wall_ms + 9_000

    def test_replaced_tags_are_recorded_from_then_on(self, queue: Queue) -> None:
        queue.enqueue("a", dedupe_key="k", tags={"v": "1"}, events="all")
        queue.enqueue("a", dedupe_key="k", tags={"v": "2"}, on_duplicate="replace")

        assert [event.tags for event in all_events(queue)] == [{"v": "1"}, {"v": "2"}]

    def test_each_jobs_own_numbers_count_from_one_without_a_gap(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue_many([NewJob("a", events="all") for _ in range(3)])
        for _ in range(2):
            queue.settle_many([(claim, Failed("x", retry_after=0)) for claim in queue.claim_many()])
        queue.settle_many([(claim, Done()) for claim in queue.claim_many()])

        numbers: dict[str, list[int]] = {}
        for event in all_events(queue):
            numbers.setdefault(event.job_id, []).append(event.number)

        assert list(numbers.values()) == [[1, 2, 3, 4, 5, 6, 7]] * 3

    def test_numbers_continue_after_a_requeue(self, queue: Queue) -> None:
        job = job_in(queue, "failed")
        queue.requeue(job.id)
        run(queue, job, Done())

        assert [event.number for event in all_events(queue)] == [1, 2]


class TestAtomicity:
    def test_a_rolled_back_change_is_not_recorded(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("a").job)

        with rolled_back(queue) as transaction:
            transaction.enqueue("b", events="all")
            transaction.settle(claim, Done())

        assert all_events(queue) == []
        queue.settle(claim, Done())
        assert [event.number for event in all_events(queue)] == [1]

    def test_changes_committed_together_are_recorded_together(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("a").job)

        with queue.transaction() as transaction:
            follow = transaction.enqueue("b", events="all")
            transaction.settle(claim, Done())

        assert [(event.job_id, event.name) for event in all_events(queue)] == [
            (follow.id, "enqueued"),
            (claim.job.id, "done"),
        ]

    def test_a_refused_call_records_nothing(self, queue: Queue, clock: ManualClock) -> None:
        claim = start(queue, queue.enqueue("a", events="all").job)
        clock.advance(31)
        before = all_events(queue)

        [settlement] = queue.settle_many([(claim, Done(follow_ups=[NewJob("b", events="all")]))])

        assert not settlement.ok
        assert all_events(queue) == before

    def test_the_end_of_a_first_is_recorded_before_the_freeing_of_its_successor(self, queue: Queue) -> None:
        first, second = blocked_pair(queue, events="all")
        after = queue.events(limit=1000).cursor

        queue.settle(first, Done())

        assert [(event.job_id, event.name) for event in queue.events(after=after)] == [
            (first.job.id, "done"),
            (second.id, "unblocked"),
        ]


class TestReading:
    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 1_000])
    def test_reading_all_pages_returns_every_event_once_in_order(self, queue: Queue, limit: int) -> None:
        jobs = [job_in(queue, "done", kind=f"k{number}") for number in range(7)]

        found = all_events(queue, limit=limit)

        assert [event.job_id for event in found] == [job.id for job in jobs]
        assert len({event.cursor for event in found}) == 7

    def test_a_reader_that_waits_at_the_end_gets_later_events(self, queue: Queue) -> None:
        seen: list[str] = []
        enqueued: list[str] = []
        cursor = None
        for number in range(12):
            enqueued.extend(job_in(queue, "done", kind=f"k{number}.{part}").id for part in range(number % 4))
            page = queue.events(after=cursor, limit=2)
            seen += [event.job_id for event in page]
            cursor = page.cursor
        seen += [event.job_id for event in all_events(queue, after=cursor)]

        assert seen == enqueued

    def test_the_cursor_of_every_event_continues_after_it(self, queue: Queue) -> None:
        jobs = [job_in(queue, "done", kind=f"k{number}").id for number in range(4)]

        for place, event in enumerate(all_events(queue)):
            assert [later.job_id for later in all_events(queue, after=event.cursor)] == jobs[place + 1 :]

    def test_an_empty_log_returns_a_cursor_to_continue_from(self, queue: Queue) -> None:
        page = queue.events()
        assert len(page) == 0

        job = job_in(queue, "done")

        assert [event.job_id for event in queue.events(after=page.cursor)] == [job.id]

    def test_the_end_of_the_log_returns_the_same_cursor_again(self, queue: Queue) -> None:
        job_in(queue, "done")
        end = queue.events().cursor

        assert queue.events(after=end).cursor == end

    def test_a_reader_of_one_tenant_sees_only_its_events_and_passes_the_others(self, queue: Queue) -> None:
        jobs = [job_in(queue, "done", kind=f"k{number}", tenant="ab"[number % 3 == 0]) for number in range(9)]
        seen: list[str] = []
        cursor = None
        for _ in range(9):
            page = queue.events(after=cursor, limit=1, tenant="b")
            seen += [event.job_id for event in page]
            cursor = page.cursor

        assert seen == [job.id for job in jobs if job.tenant == "b"]
        assert len(queue.events(after=cursor, tenant="b")) == 0

    def test_a_reader_of_an_unknown_tenant_reaches_the_end(self, queue: Queue) -> None:
        for number in range(3):
            job_in(queue, "done", kind=f"k{number}", tenant="a")
        page = queue.events(tenant="missing")

        assert len(page) == 0
        assert len(queue.events(after=page.cursor)) == 0

    @pytest.mark.parametrize(
        "cursor", ["", "nonsense", "1", "-1", "e1-", "e1--1", "9" * 400, "' or 1=1", "é", 7, b"x"]
    )
    def test_an_invalid_cursor_is_refused(self, queue: Queue, cursor: Any) -> None:
        with pytest.raises(InvalidInput) as refusal:
            queue.events(after=cursor)
        assert refusal.value.field == "after"

    @pytest.mark.validation
    @pytest.mark.parametrize("limit", [0, -1, 1_001, 1.5, True])
    def test_a_limit_out_of_range_is_refused(self, queue: Queue, limit: Any) -> None:
        with refused(queue, "limit"):
            queue.events(limit=limit)


class TestPruned:
    """Five ends ten seconds apart; the log keeps the last two."""

    @pytest.fixture
    def kept(self, queue: Queue, clock: ManualClock) -> list[str]:
        jobs = []
        for number in range(5):
            clock.advance(10)
            jobs.append(job_in(queue, "done", kind=f"k{number}").id)
        return jobs[3:]

    def test_a_reader_behind_the_horizon_gets_an_error_and_continues(self, queue: Queue, kept: list[str]) -> None:
        behind = queue.events(limit=2).cursor
        queue.admin.prune(older_than=15)

        with pytest.raises(EventsPruned) as refusal:
            queue.events(after=behind)

        assert [event.job_id for event in all_events(queue, after=refusal.value.horizon)] == kept

    def test_a_reader_exactly_at_the_horizon_missed_nothing(self, queue: Queue, kept: list[str]) -> None:
        at_horizon = queue.events(limit=3).cursor
        assert queue.admin.prune(older_than=15).events == 3

        assert [event.job_id for event in queue.events(after=at_horizon)] == kept

    def test_a_reader_beyond_it_notices_nothing(self, queue: Queue, kept: list[str]) -> None:
        beyond = queue.events(limit=4).cursor
        queue.admin.prune(older_than=15)

        assert [event.job_id for event in queue.events(after=beyond)] == kept[1:]

    def test_without_a_cursor_reading_starts_at_the_oldest_kept(self, queue: Queue, kept: list[str]) -> None:
        queue.admin.prune(older_than=15)

        assert [event.job_id for event in queue.events()] == kept

    def test_a_completely_pruned_log_still_reports_the_gap_and_continues(
        self, queue: Queue, clock: ManualClock, kept: list[str]
    ) -> None:
        behind, end = queue.events(limit=1).cursor, queue.events().cursor
        clock.advance(100)
        assert queue.admin.prune(older_than=15).events == 5

        with pytest.raises(EventsPruned):
            queue.events(after=behind)
        assert len(queue.events()) == len(queue.events(after=end)) == 0
        fresh = job_in(queue, "done")
        assert [event.job_id for event in queue.events(after=end)] == [fresh.id]
