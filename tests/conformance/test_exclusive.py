"""Exclusive workers: one start at a time; a new start takes back the jobs of the previous one."""

from __future__ import annotations

from typing import Unpack

import pytest

from holdfast import Claim, Conflict, Done, HoldfastError, LeaseLost, NewJob, Queue, Released
from holdfast.types import ClaimOptions
from tests.support.assertions import failure_of
from tests.support.claims import claim_all, claim_ids, claim_one
from tests.support.clock import ManualClock
from tests.support.stores import Harness


def start(number: int, **options: Unpack[ClaimOptions]) -> ClaimOptions:
    """Return the claim options of the worker's start with this number, with further *options*."""
    return {**options, "worker": "printer", "incarnation": f"start-{number}", "exclusive": True}


class TestTakingBack:
    def test_a_new_start_takes_jobs_back_at_once_without_using_an_attempt(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("print") for _ in range(3)])
        before = queue.claim_many(**start(1, lease=3600))
        after = queue.claim_many(**start(2, lease=3600))
        assert [claim.job.id for claim in after] == [claim.job.id for claim in before]
        assert {(claim.epoch, claim.job.attempt, claim.job.incarnation) for claim in after} == {(2, 1, "start-2")}

    def test_a_job_with_one_attempt_survives_any_number_of_restarts(self, queue: Queue) -> None:
        queue.enqueue("print", max_attempts=1)
        for number in range(1, 6):
            claim = claim_one(queue, **start(number))
            assert (claim.epoch, claim.job.attempt) == (number, 1)
        assert queue.settle(claim, Done()).state == "done"

    def test_a_job_that_was_taken_back_has_an_attempt_with_its_start(self, queue: Queue) -> None:
        enqueued = queue.enqueue("print")
        claim_one(queue, **start(1))
        claim_one(queue, **start(2))
        first, second = queue.attempts(enqueued.id)
        assert (first.incarnation, first.outcome, first.failure) == ("start-1", "released", None)
        assert (second.incarnation, second.outcome) == ("start-2", None)

    def test_it_is_suspect_because_it_may_have_killed_its_holder(self, queue: Queue) -> None:
        queue.enqueue("print")
        claim_one(queue, **start(1))
        claim = claim_one(queue, **start(2))
        assert claim.job.suspect == 1
        queue.settle(claim, Released())
        assert claim_one(queue, **start(2)).job.suspect == 0

    def test_a_job_that_kills_every_start_ends_as_failed(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("print", max_attempts=2)
        for number in range(300):
            if queue.claim(**start(number)) is None and queue.get(enqueued.id).finished:
                break
            clock.advance(5)
        job = queue.get(enqueued.id)
        assert (job.state, job.attempt, failure_of(job).reason) == ("failed", 2, "released_too_often")

    def test_a_claim_without_matching_jobs_takes_back_too(self, queue: Queue) -> None:
        enqueued = queue.enqueue("print")
        claim_one(queue, **start(1, lease=3600))
        assert queue.claim(**start(2, kinds=[])) is None
        assert queue.get(enqueued.id).state == "ready"
        assert claim_one(queue, worker="another").job.id == enqueued.id

    def test_claims_in_other_lanes_are_taken_back_too(self, queue: Queue) -> None:
        enqueued = queue.enqueue("print", lane="side")
        claim_one(queue, **start(1, lanes=["side"], lease=3600))
        assert queue.claim(**start(2)) is None
        assert queue.get(enqueued.id).state == "ready"

    def test_any_number_of_jobs_is_taken_back(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("print") for _ in range(1_007)])
        held = claim_all(queue, **start(1, lease=3600))
        assert len(held) == 1_007
        first = queue.claim_many(limit=1, **start(2))
        again = first + claim_all(queue, **start(2))
        assert {claim.job.id for claim in again} == {claim.job.id for claim in held}
        assert {(claim.epoch, claim.job.attempt) for claim in again} == {(2, 1)}

    def test_a_requested_cancel_turns_it_into_cancelled(self, queue: Queue) -> None:
        enqueued = queue.enqueue("print")
        claim_one(queue, **start(1))
        queue.cancel(enqueued.id)
        assert queue.claim(**start(2)) is None
        assert queue.get(enqueued.id).state == "cancelled"

    def test_it_is_recorded_in_all_lanes_with_all_events(self, queue: Queue) -> None:
        queue.enqueue("print", events="all")
        claim_one(queue, **start(1))
        claim_one(queue, **start(2))
        assert [event.name for event in queue.events()] == ["enqueued", "claimed", "taken_back", "claimed"]


class TestThePredecessor:
    def test_an_earlier_start_is_refused_from_then_on(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("print") for _ in range(3)])
        claim_one(queue, **start(1))
        claim_one(queue, **start(2))
        for _ in range(2):
            with pytest.raises(Conflict):
                queue.claim(**start(1))
        assert queue.counts() == {"running": 1, "ready": 2}

    def test_an_earlier_start_stays_refused_after_a_third(self, harness: Harness) -> None:
        queue, other = harness.open(), harness.open()
        for number in (1, 2, 3):
            queue.claim(**start(number))
        for number in (1, 2):
            with pytest.raises(Conflict):
                other.claim(**start(number))
        assert other.claim(**start(3)) is None

    def test_its_writes_are_refused_before_the_job_is_claimed_again(self, queue: Queue) -> None:
        queue.enqueue("print")
        held = claim_one(queue, **start(1, lease=3600))
        assert queue.claim(**start(2, kinds=[])) is None
        with pytest.raises(LeaseLost):
            queue.heartbeat(held)
        with pytest.raises(LeaseLost):
            queue.settle(held, Done())
        assert queue.get(held.job.id).state == "ready"

    def test_a_repeated_claim_of_an_earlier_start_is_refused(self, queue: Queue) -> None:
        queue.enqueue("print")
        claim_one(queue, **start(1, lease_token="t1"))
        claim_one(queue, **start(2))
        with pytest.raises(Conflict):
            queue.claim(**start(1, lease_token="t1"))

    def test_settle_and_claim_by_an_earlier_start_changes_nothing(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("print"), NewJob("print")])
        held = claim_one(queue, **start(1))
        queue.claim_many(limit=2, **start(2))
        with pytest.raises(HoldfastError):
            queue.settle_and_claim([(held, Done())], **start(1))
        assert queue.counts() == {"running": 2}


class TestOtherWorkers:
    def test_the_same_start_keeps_its_claims(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("print"), NewJob("print")])
        first = claim_one(queue, **start(1))
        second = claim_one(queue, **start(1))
        queue.heartbeat(first)
        queue.heartbeat(second)

    def test_other_workers_are_untouched(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("print") for _ in range(3)])
        plain = claim_one(queue, worker="scanner", incarnation="start-1")
        exclusive = claim_one(queue, worker="plotter", incarnation="start-1", exclusive=True)
        claim_one(queue, **start(1))
        claim_one(queue, **start(2))
        for claim in (plain, exclusive):
            queue.heartbeat(claim)
        assert claim_ids(queue, worker="plotter", incarnation="start-1", exclusive=True) == []

    def test_two_starts_that_are_not_exclusive_do_not_disturb_each_other(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("print"), NewJob("print")])
        claims: list[Claim] = [claim_one(queue, worker="printer", incarnation=f"start-{n}") for n in (1, 2)]
        for claim in claims:
            assert queue.settle(claim, Done()).state == "done"

    def test_claims_it_settled_before_stay_settled(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue_many([NewJob("print"), NewJob("print")])
        done, released = queue.claim_many(limit=2, **start(1))
        queue.settle(done, Done())
        queue.settle(released, Released())
        assert claim_ids(queue, **start(2)) == [released.job.id]
        assert queue.get(done.job.id).state == "done"
