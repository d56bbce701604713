"""Successors: a job enqueued with `run_again` while the first runs is run once after the first has ended.

Every store must pass this file unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Claim, Conflict, Deferred, Done, Failed, Job, NewJob, Queue, Released
from holdfast.types import Enqueued
from tests.support.assertions import duplicate
from tests.support.claims import claim_one
from tests.support.clock import ManualClock


def ids(queue: Queue) -> list[str]:
    return sorted(job.id for job in queue.jobs())


def enqueue_first(queue: Queue, **options: Any) -> Enqueued[Any]:
    return queue.enqueue("sync", "first", job_id="first", dedupe_key="k", **options)


def trigger(queue: Queue, payload: Any = "second", **options: Any) -> Enqueued[Any]:
    return queue.enqueue("sync", payload, dedupe_key="k", **options)


def running(queue: Queue) -> Claim:
    enqueue_first(queue)
    return claim_one(queue)


def failed(queue: Queue) -> None:
    queue.settle(running(queue), Failed("never", permanent=True))


# --- ends of the first job -----------------------------------------------------------------------------------------


def ends_done(queue: Queue, clock: ManualClock, claim: Claim) -> None:
    queue.settle(claim, Done())


def ends_failed(queue: Queue, clock: ManualClock, claim: Claim) -> None:
    queue.settle(claim, Failed("never", permanent=True))


def ends_out_of_attempts(queue: Queue, clock: ManualClock, claim: Claim) -> None:
    queue.settle(claim, Failed("not yet"))


def ends_cancelled_on_release(queue: Queue, clock: ManualClock, claim: Claim) -> None:
    queue.cancel("first")
    queue.settle(claim, Released())


def ends_cancelled_on_failure(queue: Queue, clock: ManualClock, claim: Claim) -> None:
    queue.cancel("first")
    queue.settle(claim, Failed("stopped"))


def ends_cancelled_by_force(queue: Queue, clock: ManualClock, claim: Claim) -> None:
    queue.cancel("first", force=True)


def ends_cancelled_while_it_waits(queue: Queue, clock: ManualClock, claim: Claim) -> None:
    queue.settle(claim, Deferred(after=60))
    queue.cancel("first")


def ends_by_expired_lease(queue: Queue, clock: ManualClock, claim: Claim) -> None:
    clock.advance(31)
    # Every claim runs maintenance, even if it takes no job.
    assert queue.claim(lanes=["default"], kinds=[]) is None


def ends_by_deadline(queue: Queue, clock: ManualClock, claim: Claim) -> None:
    queue.settle(claim, Deferred(after=600))
    clock.advance(301)
    assert queue.claim(lanes=["default"], kinds=[]) is None


def ends_retired_at_its_settle(queue: Queue, clock: ManualClock, claim: Claim) -> None:
    queue.kinds.retire("sync")
    queue.settle(claim, Released())


def ends_retired_while_it_waits(queue: Queue, clock: ManualClock, claim: Claim) -> None:
    queue.settle(claim, Deferred(after=60))
    queue.kinds.retire("sync")


ENDS: list[tuple[Callable[[Queue, ManualClock, Claim], None], str]] = [
    (ends_done, "done"),
    (ends_failed, "failed"),
    (ends_out_of_attempts, "failed"),
    (ends_cancelled_on_release, "cancelled"),
    (ends_cancelled_on_failure, "cancelled"),
    (ends_cancelled_by_force, "cancelled"),
    (ends_cancelled_while_it_waits, "cancelled"),
    (ends_by_expired_lease, "failed"),
    (ends_by_deadline, "failed"),
    (ends_retired_at_its_settle, "retired"),
    (ends_retired_while_it_waits, "retired"),
]


class TestTheSuccessor:
    @staticmethod
    def pair(queue: Queue, **options: Any) -> tuple[Claim, Job]:
        """Return the running first and its blocked successor, of another kind: each can be retired separately."""
        request: dict[str, Any] = {"dedupe_key": "k", "dedupe_scope": "tenant"}
        queue.enqueue("sync", "first", job_id="first", max_attempts=1, deadline=300, **request)
        claim = claim_one(queue, lease=30)
        enqueued = queue.enqueue("resync", "second", job_id="second", on_duplicate="run_again", **request, **options)
        assert enqueued.job.state == "blocked"
        return claim, enqueued.job

    @pytest.mark.parametrize(("end", "state"), ENDS)
    def test_it_becomes_ready_when_the_first_ends_in_any_way(
        self, queue: Queue, clock: ManualClock, end: Callable[[Queue, ManualClock, Claim], None], state: str
    ) -> None:
        claim, _ = self.pair(queue)
        end(queue, clock, claim)
        assert queue.get("first").state == state
        assert queue.get("second").state == "ready"
        successor = claim_one(queue)
        assert (successor.job.id, successor.job.payload) == ("second", "second")
        assert queue.settle(successor, Done()).state == "done"

    @pytest.mark.parametrize("outcome", [Failed("not yet", retry_after=60), Deferred(after=60), Released()])
    def test_it_stays_blocked_while_the_first_waits_for_a_retry(
        self, queue: Queue, clock: ManualClock, outcome: Failed | Deferred | Released
    ) -> None:
        enqueue_first(queue)
        claim = claim_one(queue)
        successor = trigger(queue, on_duplicate="run_again")
        queue.settle(claim, outcome)
        assert queue.get(successor.id).state == "blocked"
        clock.advance(60)
        assert claim_one(queue).job.id == "first"
        assert queue.claim() is None

    def test_it_stays_blocked_when_the_firsts_lease_expires_with_attempts_left(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        enqueue_first(queue)
        claim_one(queue, lease=30)
        successor = trigger(queue, on_duplicate="run_again")
        clock.advance(31)
        assert claim_one(queue).job.id == "first"
        assert queue.get(successor.id).state == "blocked"

    def test_it_holds_the_key_from_then_on(self, queue: Queue) -> None:
        claim, _ = self.pair(queue)
        queue.settle(claim, Done())
        again = queue.enqueue("sync", dedupe_key="k", dedupe_scope="tenant")
        assert (again.id, again.created) == ("second", False)

    def test_it_can_have_its_own_successor(self, queue: Queue) -> None:
        enqueue_first(queue)
        claim = claim_one(queue)
        second = trigger(queue, on_duplicate="run_again")
        queue.settle(claim, Done())
        second_claim = claim_one(queue)
        third = trigger(queue, "third", on_duplicate="run_again")
        assert (second_claim.job.id, third.created, third.job.state) == (second.id, True, "blocked")
        queue.settle(second_claim, Done())
        assert claim_one(queue).job.id == third.id

    def test_a_successor_whose_delay_is_over_is_ready_at_once(self, queue: Queue, clock: ManualClock) -> None:
        claim, _ = self.pair(queue, delay=10)
        clock.advance(20)
        queue.settle(claim, Done())
        job = queue.get("second")
        assert (job.state, job.due_at) == ("ready", clock.time)

    def test_a_successor_whose_delay_is_not_over_is_scheduled(self, queue: Queue, clock: ManualClock) -> None:
        claim, before = self.pair(queue, delay=60)
        clock.advance(10)
        queue.settle(claim, Done())
        job = queue.get("second")
        assert (job.state, job.due_at) == ("scheduled", before.due_at)
        clock.advance(49.999)
        assert queue.claim() is None
        clock.advance(0.001)
        assert claim_one(queue).job.id == "second"

    def test_a_delayed_one_is_not_claimed_before_the_first_has_ended(self, queue: Queue, clock: ManualClock) -> None:
        run_at = datetime.fromtimestamp(clock.now().wall_ms / 1000, UTC) + timedelta(seconds=5)
        self.pair(queue, run_at=run_at)
        clock.advance(10)
        assert queue.claim() is None
        assert queue.get("second").state == "blocked"

    def test_a_retired_kind_retires_it_with_the_first(self, queue: Queue) -> None:
        enqueue_first(queue)
        claim = claim_one(queue)
        successor = trigger(queue, on_duplicate="run_again")
        queue.kinds.retire("sync")
        assert queue.get(successor.id).state == "retired"
        assert queue.settle(claim, Done()).state == "done"
        assert queue.get(successor.id).state == "retired"

    def test_both_ends_and_the_freeing_are_recorded_in_order(self, queue: Queue) -> None:
        claim, _ = self.pair(queue, events="all")
        queue.settle(claim, Done())
        recorded = [(event.job_id, event.name) for event in queue.events()]
        assert recorded == [("second", "enqueued"), ("first", "done"), ("second", "unblocked")]


class TestRequeueCollisions:
    def test_a_first_requeued_while_its_successor_waits_is_a_conflict_and_changes_neither(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        running(queue)
        successor = trigger(queue, on_duplicate="run_again")
        queue.cancel("first", force=True)
        with pytest.raises(Conflict) as caught:
            queue.requeue("first")
        assert caught.value.job_id == successor.id
        assert (queue.get("first").state, queue.get(successor.id).state) == ("cancelled", "ready")

    def test_requeueing_many_reports_the_collision_and_continues(self, queue: Queue, clock: ManualClock) -> None:
        failed(queue)
        second = trigger(queue)
        queue.enqueue("other", job_id="free")
        queue.cancel("free")
        report = queue.admin.requeue_many(["first", "free"])
        assert report.requeued == ["free"]
        assert [skipped.job_id for skipped in report.skipped] == ["first"]
        assert second.id in report.skipped[0].why
        assert queue.get(second.id).state == "ready"

    def test_two_ended_jobs_of_one_key_are_not_both_requeued(self, queue: Queue, clock: ManualClock) -> None:
        failed(queue)
        second = trigger(queue)
        queue.settle(claim_one(queue), Failed("never", permanent=True))
        report = queue.admin.requeue_many(["first", second.id])
        assert report.requeued == ["first"]
        assert [skipped.job_id for skipped in report.skipped] == [second.id]
        assert queue.counts()["ready"] == 1

    def test_a_cancelled_successor_is_not_requeued_beside_its_running_first(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        running(queue)
        successor = trigger(queue, on_duplicate="run_again")
        queue.cancel(successor.id)
        with pytest.raises(Conflict):
            queue.requeue(successor.id)
        assert queue.get(successor.id).state == "cancelled"

    def test_a_requeued_first_holds_the_key_again(self, queue: Queue, clock: ManualClock) -> None:
        failed(queue)
        queue.requeue("first")
        assert duplicate(trigger(queue)) == queue.get("first")

    def test_a_requeued_first_may_have_a_successor_again(self, queue: Queue, clock: ManualClock) -> None:
        failed(queue)
        queue.requeue("first")
        claim = claim_one(queue)
        successor = trigger(queue, on_duplicate="run_again")
        queue.settle(claim, Failed("never", permanent=True))
        assert (successor.created, claim_one(queue).job.id) == (True, successor.id)


class TestFollowUps:
    def test_a_follow_up_may_use_the_key_of_its_parent(self, queue: Queue) -> None:
        # The parent ends with this settle, so a job may schedule its own next run.
        enqueue_first(queue)
        again = NewJob("sync", "next", dedupe_key="k", delay=60)
        queue.settle(claim_one(queue), Done(follow_ups=[again]))
        assert queue.counts() == {"done": 1, "scheduled": 1}

    def test_a_follow_up_finds_the_successor_that_the_same_settle_frees(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        enqueue_first(queue)
        claim = claim_one(queue)
        successor = trigger(queue, on_duplicate="run_again")
        queue.settle(claim, Done(follow_ups=[NewJob("sync", "next", dedupe_key="k")]))
        assert ids(queue) == sorted(["first", successor.id])
        assert queue.get(successor.id).payload == "second"

    def test_in_a_batch_a_follow_up_may_use_a_key_freed_by_an_earlier_settle(self, queue: Queue) -> None:
        enqueue_first(queue)
        queue.enqueue("other")
        holder, other = queue.claim_many()
        follow_up = NewJob("sync", "next", job_id="next", dedupe_key="k")
        queue.settle_many([(holder, Done()), (other, Done(follow_ups=[follow_up]))])
        assert queue.get("next").state == "ready"
