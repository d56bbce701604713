"""Cancelling: at once for a waiting job, by request or by force for a running one, and racing its completion."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from holdfast import Artifact, Claim, Conflict, Deferred, Done, JobNotFound, LeaseLost, Outcome, Queue, Released
from tests.support.clock import ManualClock
from tests.support.job_states import (
    FAILS,
    RETRIES,
    WAITING,
    State,
    blocked_pair,
    claimed,
    event_names,
    job_in,
    rolled_back,
    start,
)
from tests.support.stores import Harness


class TestWaitingJobs:
    @pytest.mark.parametrize("state", WAITING)
    def test_a_waiting_job_is_cancelled_at_once(self, queue: Queue, clock: ManualClock, state: State) -> None:
        job = job_in(queue, state)
        clock.advance(5)

        cancelled = queue.cancel(job.id)

        assert cancelled.state == "cancelled"
        assert cancelled.finished_at == clock.time
        assert queue.get(job.id) == cancelled

    @pytest.mark.parametrize("state", ["scheduled", "ready"])
    def test_a_cancelled_job_is_never_claimed(self, queue: Queue, clock: ManualClock, state: State) -> None:
        queue.cancel(job_in(queue, state).id)
        clock.advance(7200)

        assert queue.claim() is None

    def test_a_job_in_a_paused_lane_is_cancelled_too(self, queue: Queue) -> None:
        job = queue.enqueue("a", lane="slow").job
        queue.lanes.set("slow", state="paused")

        assert queue.cancel(job.id).state == "cancelled"

    def test_its_dedupe_key_is_free_again(self, queue: Queue) -> None:
        first = queue.enqueue("a", dedupe_key="k")
        queue.cancel(first.id)

        again = queue.enqueue("a", dedupe_key="k")

        assert again.created
        assert again.id != first.id

    def test_a_job_waiting_for_its_retry_keeps_its_failure(self, queue: Queue) -> None:
        job = queue.enqueue("a").job
        queue.settle(start(queue, job), RETRIES)

        cancelled = queue.cancel(job.id)

        assert cancelled.state == "cancelled"
        assert cancelled.attempt == 1
        assert cancelled.failure is not None
        assert cancelled.failure.message == "it may work later"

    def test_cancelling_twice_returns_the_same_job_and_records_once(self, queue: Queue, clock: ManualClock) -> None:
        first = queue.cancel(queue.enqueue("a").id)
        clock.advance(10)

        assert queue.cancel(first.id) == first
        assert queue.cancel(first.id, force=True) == first
        assert event_names(queue, first.id) == ["cancelled"]

    def test_a_cancel_that_is_rolled_back_has_no_effect(self, queue: Queue) -> None:
        job = queue.enqueue("a").job

        with rolled_back(queue) as transaction:
            assert transaction.cancel(job.id).state == "cancelled"

        assert queue.get(job.id) == job
        assert event_names(queue, job.id) == []


class TestFinishedJobs:
    @pytest.mark.parametrize("force", [False, True])
    @pytest.mark.parametrize("state", ["done", "failed", "retired"])
    def test_a_job_that_ended_otherwise_is_not_cancelled(self, queue: Queue, state: State, force: bool) -> None:
        job = job_in(queue, state)

        with pytest.raises(Conflict) as refusal:
            queue.cancel(job.id, force=force)

        assert refusal.value.job_id == job.id
        assert queue.get(job.id) == job
        assert event_names(queue, job.id) == [state]

    def test_an_unknown_job_is_not_found(self, queue: Queue) -> None:
        with pytest.raises(JobNotFound):
            queue.cancel("missing")


class TestRequestedCancels:
    """The cancellation of a running job is requested; its outcome decides how it ends."""

    @pytest.fixture
    def requested(self, queue: Queue) -> Claim:
        claim = start(queue, queue.enqueue("a").job)
        queue.cancel(claim.job.id)
        return claim

    def test_it_keeps_running_and_the_heartbeat_reports_the_request(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("a").job)
        before = queue.heartbeat(claim)

        job = queue.cancel(claim.job.id)

        assert (job.state, job.cancel_requested) == ("running", 1)
        assert not before.cancel_requested
        assert queue.heartbeat(claim).cancel_requested

    @pytest.mark.parametrize("outcome", [RETRIES, Deferred(after=5), Released()], ids=lambda o: type(o).__name__)
    def test_every_outcome_that_would_retry_it_cancels_it(
        self, queue: Queue, requested: Claim, outcome: Outcome
    ) -> None:
        assert queue.settle(requested, outcome).state == "cancelled"
        assert queue.get(requested.job.id).state == "cancelled"
        assert event_names(queue, requested.job.id) == ["cancelled"]

    def test_an_expired_lease_cancels_it(self, queue: Queue, clock: ManualClock, requested: Claim) -> None:
        clock.advance(31)

        assert queue.claim() is None

        job = queue.get(requested.job.id)
        assert job.state == "cancelled"
        assert job.failure is not None
        assert job.failure.reason == "lease_expired"

    def test_an_exclusive_workers_next_start_cancels_it(self, queue: Queue) -> None:
        queue.enqueue("a")
        claim = claimed(queue, worker="w", incarnation="one", exclusive=True)
        queue.cancel(claim.job.id)

        assert queue.claim(worker="w", incarnation="two", exclusive=True) is None
        assert queue.get(claim.job.id).state == "cancelled"

    def test_a_job_that_succeeds_anyway_is_done(self, queue: Queue, requested: Claim) -> None:
        job = queue.settle(requested, Done({"late": "but well"}))

        assert (job.state, job.result) == ("done", {"late": "but well"})
        with pytest.raises(Conflict):
            queue.cancel(requested.job.id)

    def test_a_job_that_fails_permanently_is_failed(self, queue: Queue, requested: Claim) -> None:
        assert queue.settle(requested, FAILS).state == "failed"

    def test_a_second_request_changes_nothing(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("a", events="all").job)
        first = queue.cancel(claim.job.id)

        assert queue.cancel(claim.job.id) == first
        assert event_names(queue, claim.job.id) == ["enqueued", "claimed", "cancel_requested"]

    def test_a_requested_cancel_can_still_be_forced(self, queue: Queue, requested: Claim) -> None:
        assert queue.cancel(requested.job.id, force=True).state == "cancelled"
        with pytest.raises(LeaseLost):
            queue.heartbeat(requested)


class TestForcedCancel:
    def test_a_running_job_is_cancelled_at_once_and_not_claimed_again(self, queue: Queue, clock: ManualClock) -> None:
        claim = start(queue, queue.enqueue("a").job)

        job = queue.cancel(claim.job.id, force=True)

        assert job.state == "cancelled"
        clock.advance(7200)
        assert queue.claim() is None

    def test_writes_of_its_holder_are_refused(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("a").job)
        job = queue.cancel(claim.job.id, force=True)

        with pytest.raises(LeaseLost):
            queue.heartbeat(claim)
        with pytest.raises(LeaseLost):
            queue.progress(claim, percent=50)
        with pytest.raises(LeaseLost):
            queue.attach(claim, [Artifact("log", b"late")])
        with pytest.raises(LeaseLost):
            queue.settle(claim, Done(follow_ups=[{"kind": "next"}]))

        assert queue.get(job.id) == job
        assert queue.artifacts(job.id) == []
        assert len(queue.jobs()) == 1

    @pytest.mark.parametrize("state", WAITING)
    def test_force_on_a_waiting_job_is_a_plain_cancel(self, queue: Queue, state: State) -> None:
        assert queue.cancel(job_in(queue, state).id, force=True).state == "cancelled"

    def test_the_attempt_it_ended_is_in_the_history(self, queue: Queue, clock: ManualClock) -> None:
        claim = start(queue, queue.enqueue("a").job)
        clock.advance(3)
        queue.cancel(claim.job.id, force=True)

        [attempt] = queue.attempts(claim.job.id)

        assert attempt.outcome == "cancelled"
        assert attempt.ended_at == clock.time


class TestSuccessors:
    def test_a_forced_cancel_of_the_first_frees_its_successor(self, queue: Queue) -> None:
        first, second = blocked_pair(queue)

        queue.cancel(first.job.id, force=True)

        assert queue.get(second.id).state == "ready"
        assert start(queue, second).job.payload == {"run": 2}

    def test_a_requested_cancel_frees_the_successor_when_the_job_ends(self, queue: Queue) -> None:
        first, second = blocked_pair(queue)
        queue.cancel(first.job.id)
        assert queue.get(second.id).state == "blocked"

        queue.settle(first, Released())

        assert queue.get(second.id).state == "ready"

    def test_cancelling_a_first_that_waits_again_frees_its_successor(self, queue: Queue) -> None:
        first, second = blocked_pair(queue)
        queue.settle(first, RETRIES)
        assert queue.get(second.id).state == "blocked"

        queue.cancel(first.job.id)

        assert queue.get(second.id).state == "ready"

    def test_cancelling_the_successor_does_not_change_the_first_and_allows_another(self, queue: Queue) -> None:
        first, second = blocked_pair(queue)
        queue.cancel(second.id)

        third = queue.enqueue("pair", {"run": 3}, dedupe_key="pair", on_duplicate="run_again")

        assert third.created
        assert third.job.state == "blocked"
        assert queue.settle(first, Done()).state == "done"
        assert [queue.get(job_id).state for job_id in (second.id, third.id)] == ["cancelled", "ready"]


class TestAgainstCompletion:
    """One call succeeds and the other raises."""

    ROUNDS = 15

    def test_a_forced_cancel_against_a_settle_has_one_winner(self, harness: Harness) -> None:
        canceller, worker = harness.open(), harness.open()
        with ThreadPoolExecutor(2) as threads:
            for _ in range(self.ROUNDS):
                claim = start(worker, worker.enqueue("a", events="all").job)
                together = Barrier(2)
                cancelling = threads.submit(_cancels, canceller, claim, together)
                settling = threads.submit(_settles, worker, claim, together)

                outcome = (cancelling.result(), settling.result(), canceller.get(claim.job.id).state)

                assert outcome in {("cancelled", "LeaseLost", "cancelled"), ("Conflict", "done", "done")}
                assert event_names(worker, claim.job.id) == ["enqueued", "claimed", outcome[2]]


def _cancels(queue: Queue, claim: Claim, together: Barrier) -> str:
    together.wait()
    try:
        return queue.cancel(claim.job.id, force=True).state
    except Conflict:
        return "Conflict"


def _settles(queue: Queue, claim: Claim, together: Barrier) -> str:
    together.wait()
    try:
        return queue.settle(claim, Done()).state
    except LeaseLost:
        return "LeaseLost"
