"""Maintenance by claims: promote due jobs, take back expired leases, fail jobs past their deadline."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast import Backoff, Deferred, Done, Failed, NewJob, Queue, Released, WaitTimeout
from holdfast.domain import limits
from tests.support.assertions import failure_of
from tests.support.claims import claim_all, claim_ids, claim_one
from tests.support.clock import ManualClock

# Maintenance runs in bounded chunks. MANY jobs are several chunks, which ENOUGH claims process.
CHUNK = 20
MANY = 107
ENOUGH = 20


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHUNK", CHUNK)


class TestPromotion:
    def test_a_scheduled_job_is_claimed_as_soon_as_it_is_due(self, queue: Queue, clock: ManualClock) -> None:
        time = queue.enqueue("mail").job.enqueued_at + timedelta(seconds=30)
        queue.settle(claim_one(queue), Done())
        enqueued = queue.enqueue("mail", run_at=time)
        assert queue.get(enqueued.id).state == "scheduled"
        clock.advance(29.999)
        assert queue.claim() is None
        clock.advance(0.001)
        assert claim_one(queue).job.id == enqueued.id

    def test_a_time_in_the_past_means_now(self, queue: Queue) -> None:
        long_ago = queue.enqueue("mail").job.enqueued_at - timedelta(days=1)
        claim_one(queue)
        enqueued = queue.enqueue("mail", run_at=long_ago)
        assert enqueued.job.state == "ready"
        assert enqueued.job.due_at == enqueued.job.enqueued_at

    def test_many_more_than_one_chunk_are_all_claimed(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = {enqueued.id for enqueued in queue.enqueue_many([NewJob("mail", delay=5) for _ in range(MANY)])}
        clock.advance(5)
        assert {claim.job.id for claim in claim_all(queue)} == enqueued

    def test_a_job_that_is_due_slightly_later_is_not_promoted(self, queue: Queue, clock: ManualClock) -> None:
        first, second = queue.enqueue("mail", delay=5), queue.enqueue("mail", delay=5.001)
        clock.advance(5)
        assert claim_ids(queue) == [first.id]
        clock.advance(0.001)
        assert claim_ids(queue) == [second.id]

    def test_a_claim_is_not_empty_if_a_matching_job_is_due_behind_many(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        queue.enqueue_many([NewJob("mail", lane="other", delay=1) for _ in range(MANY)])
        mine = queue.enqueue("mail", delay=5)
        clock.advance(10)
        assert claim_ids(queue) == [mine.id]

    def test_a_claim_is_not_empty_if_a_matching_job_expired_behind_many(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        queue.enqueue_many([NewJob("mail", lane="other") for _ in range(MANY)])
        claim_all(queue, lanes=["other"], lease=5)
        mine = queue.enqueue("mail")
        claim_one(queue, lease=10)
        clock.advance(10)
        assert claim_ids(queue) == [mine.id]

    def test_one_claim_does_a_bounded_part_of_the_maintenance(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue_many([NewJob("mail", lane="other", delay=1) for _ in range(500)])
        queue.enqueue("mail", delay=60)
        clock.advance(1)
        assert queue.claim() is None
        assert queue.counts().get("scheduled", 0) > 1

    def test_a_promoted_job_is_ordered_by_its_due_time(self, queue: Queue, clock: ManualClock) -> None:
        early, late = queue.enqueue("mail", delay=1), queue.enqueue("mail", delay=9)
        clock.advance(5)
        between = queue.enqueue("mail")
        clock.advance(5)
        assert claim_ids(queue) == [early.id, between.id, late.id]

    def test_no_due_job_of_a_paused_lane_is_lost(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("mail", delay=5)
        queue.lanes.set("default", state="paused")
        clock.advance(10)
        assert queue.claim() is None
        queue.lanes.set("default", state="active")
        assert claim_ids(queue) == [enqueued.id]


class TestTakeBack:
    def test_an_expired_lease_is_taken_back_by_the_next_claim(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue("mail")
        first = claim_one(queue, worker="gone", lease=10)
        clock.advance(9.999)
        assert queue.claim() is None
        clock.advance(0.001)
        second = claim_one(queue, worker="next")
        assert (second.job.id, second.epoch, second.job.attempt) == (first.job.id, first.epoch + 1, 2)
        assert second.job.worker == "next"

    def test_a_lease_that_expires_slightly_later_is_not_taken_back(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue_many([NewJob("mail"), NewJob("mail")])
        first, second = claim_one(queue, lease=5), claim_one(queue, lease=5.001)
        clock.advance(5)
        assert claim_ids(queue) == [first.job.id]
        assert queue.settle(second, Done()).state == "done"

    def test_an_expired_lease_is_an_attempt_in_the_history_and_makes_the_job_suspect(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        queue.enqueue("mail")
        first = claim_one(queue, worker="gone", lease=10)
        assert first.job.suspect == 0
        clock.advance(10)
        second = claim_one(queue)
        assert second.job.suspect == 1
        expired, running = queue.attempts(first.job.id)
        assert (expired.epoch, expired.number, expired.worker, expired.outcome) == (1, 1, "gone", "expired")
        assert expired.failure is not None
        assert (expired.failure.failure_class, expired.failure.reason) == ("transient", "lease_expired")
        assert expired.ended_at == clock.time
        assert (running.epoch, running.number, running.outcome, running.ended_at) == (2, 2, None, None)

    @pytest.mark.parametrize("outcome", [Failed("no", retry_after=0), Deferred(after=0), Released()])
    def test_a_suspect_job_that_settles_is_cleared(
        self, queue: Queue, clock: ManualClock, outcome: Failed | Deferred | Released
    ) -> None:
        queue.enqueue("mail")
        claim_one(queue, lease=1)
        clock.advance(1)
        queue.settle(claim_one(queue), outcome)
        assert claim_one(queue).job.suspect == 0

    def test_a_job_whose_attempts_all_expire_fails(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("mail", max_attempts=3)
        for attempt in (1, 2, 3):
            assert claim_one(queue, lease=1).job.attempt == attempt
            clock.advance(1)
        assert queue.claim() is None
        job = queue.get(enqueued.id)
        assert (job.state, job.attempt, job.finished_at) == ("failed", 3, clock.time)
        assert job.failure is not None
        assert (job.failure.failure_class, job.failure.reason) == ("transient", "lease_expired")
        assert [attempt.outcome for attempt in queue.attempts(enqueued.id)] == ["expired"] * 3
        assert [event.name for event in queue.events()] == ["failed"]

    def test_many_more_than_one_chunk_are_all_taken_back(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue_many([NewJob("mail") for _ in range(MANY)])
        first = {claim.job.id for claim in claim_all(queue, lease=10)}
        clock.advance(10)
        second = claim_all(queue)
        assert {claim.job.id for claim in second} == first
        assert {claim.epoch for claim in second} == {2}

    def test_leases_of_other_lanes_are_taken_back_too(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("mail", lane="other", max_attempts=1)
        claim_one(queue, lanes=["other"], lease=1)
        clock.advance(1)
        assert queue.claim() is None
        assert queue.get(enqueued.id).state == "failed"

    def test_a_lease_in_a_paused_lane_expires_and_waits_there(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("mail")
        claim_one(queue, lease=1)
        queue.lanes.set("default", state="paused")
        clock.advance(1)
        assert queue.claim() is None
        assert queue.get(enqueued.id).state == "ready"

    def test_an_expired_lease_with_a_requested_cancel_is_cancelled(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("mail")
        claim_one(queue, lease=1)
        queue.cancel(enqueued.id)
        clock.advance(1)
        assert queue.claim() is None
        assert queue.get(enqueued.id).state == "cancelled"

    def test_a_job_that_expires_past_its_deadline_fails(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("mail", deadline=5)
        claim_one(queue, lease=10)
        clock.advance(10)
        assert queue.claim() is None
        job = queue.get(enqueued.id)
        assert (job.state, failure_of(job).reason) == ("failed", "deadline_passed")

    def test_an_expired_job_is_ordered_by_the_time_it_became_ready(self, queue: Queue, clock: ManualClock) -> None:
        expired = queue.enqueue("mail")
        claim_one(queue, lease=10)
        clock.advance(5)
        waiting = queue.enqueue("mail")
        clock.advance(5)
        assert claim_ids(queue) == [waiting.id, expired.id]

    def test_an_expired_predecessor_that_fails_frees_its_successor(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue("mail", dedupe_key="k", max_attempts=1)
        claim_one(queue, lease=1)
        successor = queue.enqueue("mail", dedupe_key="k", on_duplicate="run_again")
        clock.advance(1)
        found = claim_ids(queue) or claim_ids(queue)
        assert found == [successor.id]


class TestReturns:
    @pytest.mark.parametrize(
        ("outcome", "passes"),
        [
            (Failed("no", retry_after=5), 10),
            (Deferred(after=5), 10),
            (Released(), 0),
            (Failed("no", retry_after=0), 0),
        ],
    )
    def test_a_returned_job_is_ordered_by_its_new_due_time(
        self, queue: Queue, clock: ManualClock, outcome: Failed | Deferred | Released, passes: float
    ) -> None:
        returned = queue.enqueue("mail")
        claim = claim_one(queue)
        clock.advance(1)
        before = queue.enqueue("mail")
        clock.advance(1)
        queue.settle(claim, outcome)
        clock.advance(passes)
        clock.advance(1)
        behind = queue.enqueue("mail")
        assert claim_ids(queue) == [before.id, returned.id, behind.id]


class TestDeadlines:
    def test_a_job_not_started_by_its_deadline_fails(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("mail", deadline=10)
        clock.advance(10)
        assert queue.claim() is None
        job = queue.get(enqueued.id)
        assert (job.state, job.attempt, job.finished_at) == ("failed", 0, clock.time)
        assert job.failure is not None
        assert (job.failure.failure_class, job.failure.reason) == ("permanent", "deadline_passed")
        assert [event.name for event in queue.events()] == ["failed"]
        assert queue.attempts(enqueued.id) == []

    def test_a_slightly_later_deadline_does_not_pass(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue("mail", deadline=5)
        second = queue.enqueue("mail", deadline=5.001)
        clock.advance(5)
        assert claim_ids(queue) == [second.id]

    def test_a_job_started_before_its_deadline_may_finish_after_it(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue("mail", deadline=10)
        clock.advance(9.999)
        claim = claim_one(queue, lease=60)
        clock.advance(30)
        assert queue.claim() is None
        queue.heartbeat(claim)
        assert queue.settle(claim, Done()).state == "done"

    def test_a_deadline_may_be_a_timestamp(self, queue: Queue, clock: ManualClock) -> None:
        time = queue.enqueue("mail").job.enqueued_at + timedelta(seconds=10)
        claim_one(queue)
        enqueued = queue.enqueue("mail", deadline=time)
        clock.advance(10)
        assert queue.claim() is None
        assert failure_of(queue.get(enqueued.id)).reason == "deadline_passed"

    def test_a_scheduled_job_fails_even_if_it_never_was_due(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("mail", delay=100, deadline=10)
        clock.advance(10)
        assert queue.claim() is None
        assert failure_of(queue.get(enqueued.id)).reason == "deadline_passed"

    def test_a_job_in_a_paused_lane_fails_too(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("mail", lane="side", deadline=10)
        queue.lanes.set("side", state="paused")
        clock.advance(10)
        assert queue.claim(lanes=["side"]) is None
        assert failure_of(queue.get(enqueued.id)).reason == "deadline_passed"

    def test_a_job_of_another_lane_and_kind_is_found_by_any_claim(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("odd", lane="side", requires=["gpu"], deadline=10)
        clock.advance(10)
        assert queue.claim(kinds=["mail"], tenant="missing") is None
        assert failure_of(queue.get(enqueued.id)).reason == "deadline_passed"

    def test_a_blocked_job_fails_too(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue("mail", dedupe_key="k")
        first = claim_one(queue, lease=60)
        successor = queue.enqueue("mail", dedupe_key="k", on_duplicate="run_again", deadline=10)
        clock.advance(10)
        assert queue.claim() is None
        assert failure_of(queue.get(successor.id)).reason == "deadline_passed"
        assert queue.settle(first, Done()).state == "done"
        assert queue.claim() is None

    def test_a_job_fails_in_the_middle_of_its_backoff(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("mail", deadline=30)
        job = queue.settle(claim_one(queue), Failed("smtp is down", reason="smtp"))
        assert job.state == "scheduled"
        clock.advance(30)
        assert queue.claim() is None
        job = queue.get(enqueued.id)
        assert (job.state, failure_of(job).reason, job.attempt) == ("failed", "deadline_passed", 1)
        assert "smtp is down" in failure_of(job).message
        [attempt] = queue.attempts(enqueued.id)
        assert (attempt.outcome, attempt.number) == ("failed", 1)
        assert attempt.failure is not None
        assert attempt.failure.reason == "smtp"
        assert attempt.ended_at == clock.time - timedelta(milliseconds=30_000)

    def test_a_retry_past_the_deadline_fails_at_once(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue("mail", deadline=10)
        claim = claim_one(queue, lease=60)
        clock.advance(10)
        job = queue.settle(claim, Failed("no", retry_after=0))
        assert (job.state, failure_of(job).reason, failure_of(job).failure_class) == (
            "failed",
            "deadline_passed",
            "permanent",
        )

    @pytest.mark.parametrize("outcome", [Released(), Deferred(after=0), Deferred(after=5)])
    def test_a_job_that_returns_past_its_deadline_is_not_started_again(
        self, queue: Queue, clock: ManualClock, outcome: Released | Deferred
    ) -> None:
        enqueued = queue.enqueue("mail", deadline=10)
        claim = claim_one(queue, lease=60)
        clock.advance(10)
        queue.settle(claim, outcome)
        clock.advance(5)
        assert queue.claim() is None
        assert failure_of(queue.get(enqueued.id)).reason == "deadline_passed"

    def test_a_wait_detects_a_passed_deadline(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("mail", deadline=10)
        with pytest.raises(WaitTimeout):
            queue.wait(enqueued.id, timeout=0)
        clock.advance(10)
        job = queue.wait(enqueued.id, timeout=30)
        assert (job.state, failure_of(job).reason) == ("failed", "deadline_passed")
        assert queue.get(enqueued.id) == job

    def test_a_wait_detects_one_passed_deadline_among_a_thousand(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue_many([NewJob("mail", deadline=10) for _ in range(MANY)])
        clock.advance(10)
        assert failure_of(queue.wait(enqueued[-1].id, timeout=30)).reason == "deadline_passed"

    def test_none_of_thousands_past_their_deadline_is_ever_started(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue_many([NewJob("mail", deadline=10, priority=5) for _ in range(3 * MANY)])
        fine = queue.enqueue("mail")
        clock.advance(10)
        batches = [claim_ids(queue, 1000) for _ in range(ENOUGH)]
        assert [batch for batch in batches if batch] == [[fine.id]]
        assert queue.counts() == {"failed": 3 * MANY, "running": 1}

    def test_jobs_promoted_past_their_deadline_are_not_started(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue_many([NewJob("mail", delay=5, deadline=10) for _ in range(MANY)])
        clock.advance(20)
        assert [queue.claim() for _ in range(ENOUGH)] == [None] * ENOUGH
        assert queue.counts() == {"failed": MANY}

    def test_a_deadline_frees_the_dedupe_key(self, queue: Queue, clock: ManualClock) -> None:
        first = queue.enqueue("mail", dedupe_key="k", deadline=10)
        clock.advance(10)
        assert queue.claim() is None
        second = queue.enqueue("mail", dedupe_key="k")
        assert second.created
        assert second.id != first.id


class TestWallClockJumps:
    """Leases use a monotonic clock and are independent of the wall clock."""

    @pytest.mark.parametrize("hours", [5, -5])
    def test_a_jump_of_hours_does_not_expire_a_live_lease(self, queue: Queue, clock: ManualClock, hours: int) -> None:
        queue.enqueue("mail")
        claim = claim_one(queue, lease=30)
        clock.shift_wall_clock(hours * 3600)
        assert queue.claim() is None
        clock.advance(29)
        assert queue.claim() is None
        queue.heartbeat(claim)
        assert queue.settle(claim, Done()).state == "done"

    @pytest.mark.parametrize("hours", [5, -5])
    def test_a_jump_does_not_extend_an_expired_lease(self, queue: Queue, clock: ManualClock, hours: int) -> None:
        queue.enqueue("mail")
        first = claim_one(queue, lease=30)
        clock.shift_wall_clock(hours * 3600)
        clock.advance(30)
        assert claim_one(queue).epoch == first.epoch + 1

    @pytest.mark.parametrize("hours", [5, -5])
    def test_a_heartbeat_after_a_jump_extends_by_the_leases_length(
        self, queue: Queue, clock: ManualClock, hours: int
    ) -> None:
        queue.enqueue("mail")
        claim = claim_one(queue, lease=30)
        clock.shift_wall_clock(hours * 3600)
        clock.advance(20)
        queue.heartbeat(claim)
        clock.advance(29.999)
        assert queue.claim() is None
        clock.advance(0.001)
        assert queue.claim() is not None

    @pytest.mark.parametrize("hours", [5, -5])
    def test_a_lease_taken_after_a_jump_lasts_its_length(self, queue: Queue, clock: ManualClock, hours: int) -> None:
        queue.enqueue("mail")
        clock.shift_wall_clock(hours * 3600)
        claim = claim_one(queue, lease=30)
        clock.advance(29.999)
        queue.progress(claim, percent=99)
        assert queue.claim() is None
        clock.advance(0.001)
        assert claim_one(queue).epoch == claim.epoch + 1

    def test_a_ready_job_stays_claimable_when_the_wall_clock_is_set_back(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        enqueued = queue.enqueue("mail")
        clock.shift_wall_clock(-5 * 3600)
        assert claim_ids(queue) == [enqueued.id]

    def test_due_times_follow_the_wall_clock(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("mail", delay=3600, backoff=Backoff(base=1))
        clock.shift_wall_clock(3600)
        assert claim_ids(queue) == [enqueued.id]
