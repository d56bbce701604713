"""Retiring a kind: waiting jobs are retired, new ones refused, and running ones may finish."""

from __future__ import annotations

import pytest

from holdfast import Deferred, Done, LeaseLost, NewJob, Outcome, Queue, Released
from holdfast.errors import KindRetired, UnknownKind
from tests.support.clock import ManualClock
from tests.support.job_states import (
    FAILS,
    FINISHED,
    RETRIES,
    WAITING,
    State,
    blocked_pair,
    event_names,
    job_in,
    nonzero,
    start,
)
from tests.support.stores import Harness


class TestWaitingJobs:
    @pytest.mark.parametrize("state", WAITING)
    def test_a_waiting_job_is_retired(self, queue: Queue, clock: ManualClock, state: State) -> None:
        job = job_in(queue, state)
        clock.advance(5)

        assert queue.kinds.retire("task") == 1

        retired = queue.get(job.id)
        assert retired.state == "retired"
        assert retired.finished_at == clock.time
        assert event_names(queue, job.id) == ["retired"]

    @pytest.mark.parametrize("state", ["scheduled", "ready"])
    def test_it_is_never_claimed_even_after_the_kind_is_restored(
        self, queue: Queue, clock: ManualClock, state: State
    ) -> None:
        job = job_in(queue, state)
        queue.kinds.retire("task")
        queue.kinds.restore("task")
        clock.advance(7200)

        assert queue.claim() is None
        assert queue.get(job.id).state == "retired"

    def test_all_states_lanes_and_tenants_are_counted_and_other_kinds_left(self, queue: Queue) -> None:
        for lane, tenant in (("x", "a"), ("x", "b"), ("y", "a")):
            queue.enqueue("old", lane=lane, tenant=tenant)
            queue.enqueue("old", lane=lane, tenant=tenant, delay=60)
        queue.enqueue("new")

        assert queue.kinds.retire("old") == 6
        assert nonzero(queue.counts()) == {"retired": 6, "ready": 1}

    @pytest.mark.parametrize("state", FINISHED)
    def test_finished_jobs_stay_as_they_are(self, queue: Queue, state: State) -> None:
        job = job_in(queue, state)

        assert queue.kinds.retire("task") == 0
        assert queue.get(job.id) == job

    def test_thousands_are_retired(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("old", delay=60 * (number % 2)) for number in range(1_100)])

        assert queue.kinds.retire("old") == 1_100
        assert nonzero(queue.counts()) == {"retired": 1_100}

    def test_the_dedupe_key_is_free_again(self, queue: Queue) -> None:
        first = queue.enqueue("old", dedupe_key="k", dedupe_scope="tenant")
        queue.kinds.retire("old")

        again = queue.enqueue("new", dedupe_key="k", dedupe_scope="tenant")

        assert again.created
        assert again.id != first.id

    def test_a_kind_never_seen_can_be_retired_and_retiring_twice_is_harmless(self, queue: Queue) -> None:
        assert queue.kinds.retire("ghost") == 0
        assert queue.kinds.retire("ghost") == 0
        with pytest.raises(KindRetired):
            queue.enqueue("ghost")


class TestNewJobs:
    def test_enqueue_is_refused_and_stores_nothing(self, queue: Queue) -> None:
        queue.kinds.retire("old")

        with pytest.raises(KindRetired) as refusal:
            queue.enqueue("old")

        assert refusal.value.kind == "old"
        assert len(queue.jobs()) == 0

    def test_one_of_a_retired_kind_refuses_the_whole_call(self, queue: Queue) -> None:
        queue.kinds.retire("old")

        with pytest.raises(KindRetired):
            queue.enqueue_many([NewJob("new"), NewJob("old")])

        assert len(queue.jobs()) == 0

    def test_another_client_refuses_it_too(self, harness: Harness) -> None:
        one, other = harness.open(), harness.open()
        other.enqueue("old")
        one.kinds.retire("old")

        with pytest.raises(KindRetired):
            other.enqueue("old")
        assert other.claim() is None

    def test_a_follow_up_of_a_retired_kind_refuses_its_settle_and_not_another(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("new").job)
        queue.kinds.retire("old")

        with pytest.raises(KindRetired):
            queue.settle(claim, Done(follow_ups=[NewJob("other"), NewJob("old")]))

        assert queue.get(claim.job.id).state == "running"
        assert len(queue.jobs()) == 1
        assert queue.settle(claim, Done()).state == "done"

    def test_a_repeated_enqueue_returns_the_original(self, queue: Queue) -> None:
        first = queue.enqueue("old", {"n": 1}, job_id="mine")
        queue.kinds.retire("old")

        again = queue.enqueue("old", {"n": 1}, job_id="mine")

        assert (again.id, again.created) == (first.id, False)

    def test_other_kinds_are_enqueued_and_claimed(self, queue: Queue) -> None:
        queue.kinds.retire("old")

        assert start(queue, queue.enqueue("new").job).job.kind == "new"


class TestRunningJobs:
    def test_a_job_that_succeeds_is_done(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("old").job)
        assert queue.kinds.retire("old") == 0

        queue.heartbeat(claim)
        job = queue.settle(claim, Done({"fine": True}))

        assert (job.state, job.result) == ("done", {"fine": True})

    def test_a_job_that_fails_permanently_is_failed(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("old").job)
        queue.kinds.retire("old")

        assert queue.settle(claim, FAILS).state == "failed"

    @pytest.mark.parametrize("outcome", [RETRIES, Deferred(after=5), Released()], ids=lambda o: type(o).__name__)
    def test_a_job_that_would_run_again_is_retired(self, queue: Queue, clock: ManualClock, outcome: Outcome) -> None:
        claim = start(queue, queue.enqueue("old").job)
        queue.kinds.retire("old")

        assert queue.settle(claim, outcome).state == "retired"

        clock.advance(7200)
        assert queue.claim() is None
        job = queue.get(claim.job.id)
        assert (job.state, job.finished_at is not None) == ("retired", True)
        assert event_names(queue, job.id) == ["retired"]

    def test_a_job_whose_lease_expires_is_retired(self, queue: Queue, clock: ManualClock) -> None:
        claim = start(queue, queue.enqueue("old").job)
        queue.kinds.retire("old")
        clock.advance(31)

        assert queue.claim() is None

        assert queue.get(claim.job.id).state == "retired"
        with pytest.raises(LeaseLost):
            queue.settle(claim, Done())

    def test_its_repeated_settle_succeeds(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("old").job)
        queue.kinds.retire("old")
        job = queue.settle(claim, RETRIES)

        assert queue.settle(claim, RETRIES).state == "retired"
        assert queue.get(job.id) == job

    def test_its_settle_twice_in_one_batch_has_the_same_result(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("old").job)
        queue.kinds.retire("old")

        first, second = queue.settle_many([(claim, RETRIES), (claim, RETRIES)])

        assert first.job == second.job == queue.get(claim.job.id)

    def test_the_attempt_is_in_the_history(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("old").job)
        queue.kinds.retire("old")
        queue.settle(claim, RETRIES)

        [attempt] = queue.attempts(claim.job.id)

        assert attempt.outcome == "failed"

    def test_its_successor_is_retired_at_once(self, queue: Queue) -> None:
        first, second = blocked_pair(queue, "old")

        assert queue.kinds.retire("old") == 1

        assert queue.get(second.id).state == "retired"
        assert queue.settle(first, Done()).state == "done"
        assert queue.get(second.id).state == "retired"

    def test_it_continues_normally_if_the_kind_was_restored_before(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("old").job)
        queue.kinds.retire("old")
        queue.kinds.restore("old")

        assert queue.settle(claim, RETRIES).state == "scheduled"


class TestRestore:
    def test_a_restored_kind_is_enqueued_and_claimed_again(self, queue: Queue) -> None:
        queue.kinds.retire("old")
        queue.kinds.restore("old")

        assert start(queue, queue.enqueue("old").job).job.kind == "old"

    @pytest.mark.parametrize("used", [False, True])
    def test_a_kind_that_is_not_retired_cannot_be_restored(self, queue: Queue, used: bool) -> None:
        if used:
            queue.enqueue("fresh")

        with pytest.raises(UnknownKind) as refusal:
            queue.kinds.restore("fresh")

        assert refusal.value.kind == "fresh"

    def test_restoring_twice_is_refused_the_second_time(self, queue: Queue) -> None:
        queue.kinds.retire("old")
        queue.kinds.restore("old")

        with pytest.raises(UnknownKind):
            queue.kinds.restore("old")
