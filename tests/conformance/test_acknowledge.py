"""Acknowledged claims: a lease that expires before its handler started uses no attempt, except the third in a row.

Every store must pass this file unchanged.
"""

from __future__ import annotations

import pytest

from holdfast import Claim, Done, Failed, Job, LeaseLost, NewJob, Queue, Released
from holdfast.domain.job import is_suspect, row_of
from tests.support.assertions import failure_of
from tests.support.claims import claim_one, known
from tests.support.clock import ManualClock

LEASE = 30.0


def take_ahead(queue: Queue, worker: str = "w") -> Claim:
    """Claim the next job without acknowledging it."""
    return claim_one(queue, worker=worker, incarnation=f"{worker}-1", lease=LEASE, acknowledged=0)


def end_lease(queue: Queue, clock: ManualClock, job_id: str) -> Job:
    """Let the lease of a job expire, run maintenance, and return the job."""
    clock.advance(LEASE)
    queue.claim_many(kinds=[], worker="other")
    return queue.get(job_id)


class TestAnUnacknowledgedLeaseThatExpires:
    def test_uses_no_attempt_and_makes_no_job_suspect(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("work", max_attempts=1, events="all")
        claim = take_ahead(queue)
        job = end_lease(queue, clock, enqueued.id)
        assert (job.state, job.attempt, job.epoch, job.failure) == ("ready", 0, claim.epoch, None)
        assert (is_suspect(job), job.releases, job.due_at) == (False, 0, enqueued.job.due_at)

    def test_is_recorded_as_released(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("work", events="all")
        take_ahead(queue)
        end_lease(queue, clock, enqueued.id)
        assert [(attempt.number, attempt.outcome) for attempt in queue.attempts(enqueued.id)] == [(1, "released")]
        assert [event.name for event in queue.events()] == ["enqueued", "claimed", "released"]

    def test_is_lost_to_its_holder(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("work")
        claim = take_ahead(queue)
        end_lease(queue, clock, enqueued.id)
        before = known(queue, enqueued.id)
        for late in (queue.acknowledge, queue.heartbeat, lambda held: queue.settle(held, Done())):
            with pytest.raises(LeaseLost):
                late(claim)
        assert known(queue, enqueued.id) == before
        assert claim_one(queue).epoch == claim.epoch + 1

    def test_counts_as_expired_the_third_time_in_a_row(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("work", max_attempts=1)
        for _ in range(2):
            take_ahead(queue)
            assert end_lease(queue, clock, enqueued.id).state == "ready"
        take_ahead(queue)
        job = end_lease(queue, clock, enqueued.id)
        assert (job.state, job.attempt, failure_of(job).reason, job.epoch) == ("failed", 1, "lease_expired", 3)
        assert "3 times in a row" in failure_of(job).message

    def test_after_the_third_the_count_restarts(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("work", max_attempts=2)
        states = []
        while not queue.get(enqueued.id).finished:
            take_ahead(queue)
            states.append(end_lease(queue, clock, enqueued.id).attempt)
        assert states == [0, 0, 1, 1, 1, 2]

    def test_is_cancelled_if_requested(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("work")
        take_ahead(queue)
        queue.cancel(enqueued.id)
        assert end_lease(queue, clock, enqueued.id).state == "cancelled"

    def test_is_taken_back_from_an_earlier_start_and_not_suspect(self, queue: Queue) -> None:
        enqueued = queue.enqueue("work")
        queue.claim(worker="gpu", incarnation="first", exclusive=True, acknowledged=0)
        assert queue.claim_many(kinds=[], worker="gpu", incarnation="second", exclusive=True) == []
        job = queue.get(enqueued.id)
        assert (job.state, job.attempt, is_suspect(job)) == ("ready", 0, False)


class TestAcknowledging:
    def test_a_claim_is_acknowledged_by_default(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("work", max_attempts=1)
        claim_one(queue, lease=LEASE)
        job = end_lease(queue, clock, enqueued.id)
        assert (job.state, job.attempt, job.suspect) == ("failed", 1, 1)

    def test_an_acknowledged_lease_that_expires_uses_an_attempt(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("work", max_attempts=1)
        claim = take_ahead(queue)
        clock.advance(LEASE / 2)
        renewal = queue.acknowledge(claim)
        assert renewal.lease_until > claim.lease_until
        assert queue.acknowledge(claim) == renewal
        job = end_lease(queue, clock, enqueued.id)
        assert (job.state, job.attempt, job.suspect) == ("failed", 1, 1)

    def test_a_heartbeat_alone_does_not_acknowledge(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("work")
        claim = take_ahead(queue)
        clock.advance(LEASE / 2)
        queue.heartbeat(claim)
        clock.advance(LEASE / 2)
        assert end_lease(queue, clock, enqueued.id).attempt == 0

    def test_an_acknowledged_claim_resets_the_count(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("work", max_attempts=2)
        for _ in range(2):
            take_ahead(queue)
            end_lease(queue, clock, enqueued.id)
        claim = take_ahead(queue)
        queue.acknowledge(claim)
        queue.settle(claim, Released())
        take_ahead(queue)
        assert end_lease(queue, clock, enqueued.id).attempt == 0

    @pytest.mark.parametrize("outcome", [Done(), Failed("no"), Released()])
    def test_settling_acknowledges(self, queue: Queue, outcome: Done | Failed | Released) -> None:
        enqueued = queue.enqueue("work")
        queue.settle(take_ahead(queue), outcome)
        assert row_of(queue.get(enqueued.id)).unacknowledged == 0

    def test_the_given_number_of_claims_of_a_batch_is_acknowledged(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("work", tenant=tenant) for tenant in "abcab"])
        claims = queue.claim_many(limit=5, acknowledged=2)
        assert [row_of(claim.job).unacknowledged for claim in claims] == [0, 0, 1, 1, 1]
        assert [queue.get(claim.job.id) for claim in claims] == [claim.job for claim in claims]

    def test_settle_and_claim_acknowledges_claims_that_are_still_held(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue_many([NewJob("work", max_attempts=1) for _ in range(3)])
        started, waiting, gone = (take_ahead(queue) for _ in range(3))
        queue.settle(gone, Released())
        queue.settle_and_claim([], kinds=[], started=[started, gone])
        assert [row_of(queue.get(one.id)).unacknowledged for one in enqueued] == [0, 1, 0]
        end_lease(queue, clock, waiting.job.id)
        assert [queue.get(one.id).state for one in enqueued] == ["failed", "ready", "ready"]


class TestAWorkerThatReconnects:
    """A worker that could not reach the store reports its jobs when it reconnects."""

    def come_back(self, queue: Queue, worker: str = "w", incarnation: str = "w-1") -> None:
        assert queue.claim_many(kinds=[], worker=worker, incarnation=incarnation, cut_off=True) == []

    def hold(self, queue: Queue, jobs: int = 3) -> list[str]:
        enqueued = queue.enqueue_many([NewJob("work") for _ in range(jobs)])
        queue.claim_many(limit=jobs, worker="w", incarnation="w-1", lease=LEASE)
        return [one.id for one in enqueued]

    def test_suspect_jobs_are_cleared(self, queue: Queue, clock: ManualClock) -> None:
        held = self.hold(queue)
        assert is_suspect(end_lease(queue, clock, held[0]))
        self.come_back(queue)
        for job in map(queue.get, held):
            assert (job.state, job.attempt, failure_of(job).reason) == ("ready", 1, "worker_cut_off")
            assert not is_suspect(job)
        assert queue.admin.backlog().suspect == 0

    def test_leases_that_were_not_taken_back_never_become_suspect(self, queue: Queue, clock: ManualClock) -> None:
        held = self.hold(queue)
        clock.advance(LEASE)
        self.come_back(queue)
        assert [is_suspect(queue.get(job_id)) for job_id in held] == [False] * 3
        assert [attempt.outcome for attempt in queue.attempts(held[0])] == ["expired"]

    def test_a_lease_that_has_not_expired_stays(self, queue: Queue) -> None:
        held = self.hold(queue)
        before = [known(queue, job_id) for job_id in held]
        self.come_back(queue)
        assert [known(queue, job_id) for job_id in held] == before

    @pytest.mark.parametrize(("worker", "incarnation"), [("w", "w-2"), ("other", "w-1")])
    def test_another_start_or_worker_clears_nothing(
        self, queue: Queue, clock: ManualClock, worker: str, incarnation: str
    ) -> None:
        held = self.hold(queue)
        end_lease(queue, clock, held[0])
        self.come_back(queue, worker, incarnation)
        assert all(is_suspect(queue.get(job_id)) for job_id in held)

    def test_jobs_that_another_worker_holds_are_not_changed(self, queue: Queue, clock: ManualClock) -> None:
        [job_id] = self.hold(queue, 1)
        clock.advance(LEASE)
        claim = claim_one(queue, worker="other")
        self.come_back(queue)
        assert queue.get(job_id) == claim.job

    def test_session_entries_are_cleared_too(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("say", session="s")
        queue.sessions.claim("s", worker="w", incarnation="w-1", lease=LEASE)
        clock.advance(LEASE)
        self.come_back(queue)
        assert not is_suspect(queue.get(enqueued.id))
        assert queue.sessions.claim("s") is not None
