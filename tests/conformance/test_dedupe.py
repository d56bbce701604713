"""Dedupe keys: keep, replace and run again, whatever the first job is doing.

Every store passes this file unchanged; one that cannot is not a store.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import pytest

from holdfast import Claim, Conflict, Deferred, Done, Enqueued, Failed, NewJob, Queue, Released
from holdfast import Job as StoredJob
from tests.support.clock import ManualClock

Arrange: TypeAlias = Callable[[Queue, ManualClock], None]


def must_claim(queue: Queue, **words: Any) -> Claim:
    claim = queue.claim(**words)
    assert claim is not None
    return claim


def ids(queue: Queue) -> list[str]:
    return sorted(job.id for job in queue.jobs())


def enqueue_first(queue: Queue, **words: Any) -> Enqueued:
    return queue.enqueue("sync", "first", job_id="first", dedupe_key="k", **words)


def trigger(queue: Queue, payload: Any = "second", **words: Any) -> Enqueued:
    return queue.enqueue("sync", payload, dedupe_key="k", **words)


# --- the first job, brought into each state ------------------------------------------------------------------------


def scheduled(queue: Queue, clock: ManualClock) -> None:
    enqueue_first(queue, delay=60)


def ready(queue: Queue, clock: ManualClock) -> None:
    enqueue_first(queue)


def running(queue: Queue, clock: ManualClock) -> None:
    enqueue_first(queue)
    must_claim(queue)


def asked_to_stop(queue: Queue, clock: ManualClock) -> None:
    running(queue, clock)
    queue.cancel("first")


def in_backoff(queue: Queue, clock: ManualClock) -> None:
    enqueue_first(queue)
    queue.settle(must_claim(queue), Failed("not yet", retry_after=60))


def deferred(queue: Queue, clock: ManualClock) -> None:
    enqueue_first(queue)
    queue.settle(must_claim(queue), Deferred(after=60))


def released(queue: Queue, clock: ManualClock) -> None:
    enqueue_first(queue)
    queue.settle(must_claim(queue), Released())


def requeued(queue: Queue, clock: ManualClock) -> None:
    failed(queue, clock)
    queue.requeue("first")


def done(queue: Queue, clock: ManualClock) -> None:
    enqueue_first(queue)
    queue.settle(must_claim(queue), Done())


def failed(queue: Queue, clock: ManualClock) -> None:
    enqueue_first(queue)
    queue.settle(must_claim(queue), Failed("never", permanent=True))


def cancelled(queue: Queue, clock: ManualClock) -> None:
    enqueue_first(queue)
    queue.cancel("first")


def retired(queue: Queue, clock: ManualClock) -> None:
    enqueue_first(queue)
    queue.retire("sync")
    queue.restore("sync")


NEVER_CLAIMED: list[Arrange] = [scheduled, ready]
CLAIMED_AND_WAITING: list[Arrange] = [in_backoff, deferred, released, requeued]
RUNNING: list[Arrange] = [running, asked_to_stop]
UNFINISHED: list[Arrange] = [*NEVER_CLAIMED, *CLAIMED_AND_WAITING, *RUNNING]
FINISHED: list[Arrange] = [done, failed, cancelled, retired]


class TestKeep:
    @pytest.mark.parametrize("arrange", UNFINISHED)
    def test_an_unfinished_first_is_returned_and_no_job_added(
        self, queue: Queue, clock: ManualClock, arrange: Arrange
    ) -> None:
        arrange(queue, clock)
        before = queue.get("first")
        assert trigger(queue) == (before, False)
        assert queue.get("first") == before
        assert ids(queue) == ["first"]

    def test_keep_is_what_happens_where_nothing_is_said(self, queue: Queue) -> None:
        enqueue_first(queue)
        assert trigger(queue) == trigger(queue, on_duplicate="keep")

    def test_no_event_tells_of_a_duplicate(self, queue: Queue) -> None:
        enqueue_first(queue, events="all")
        trigger(queue, events="all")
        assert [event.name for event in queue.events()] == ["enqueued"]

    @pytest.mark.parametrize("on_duplicate", ["keep", "replace", "run_again"])
    @pytest.mark.parametrize("arrange", FINISHED)
    def test_a_finished_first_holds_nothing(
        self, queue: Queue, clock: ManualClock, arrange: Arrange, on_duplicate: str
    ) -> None:
        arrange(queue, clock)
        before = queue.get("first")
        made = trigger(queue, **{"on_duplicate": on_duplicate})
        assert (made.created, made.job.state, made.job.payload) == (True, "ready", "second")
        assert queue.get("first") == before
        assert ids(queue) == sorted(["first", made.id])


class TestReplace:
    @pytest.mark.parametrize("arrange", NEVER_CLAIMED)
    def test_a_first_never_claimed_gets_the_new_content_and_keeps_all_else(
        self, queue: Queue, clock: ManualClock, arrange: Arrange
    ) -> None:
        arrange(queue, clock)
        before = queue.get("first")
        made = trigger(queue, on_duplicate="replace", tags={"t": "2"}, headers={"h": "2"}, priority=9, max_attempts=1)
        after = queue.get("first")
        assert made == (after, False)
        assert (after.payload, after.tags, after.headers) == ("second", {"t": "2"}, {"h": "2"})
        content = {"payload_json": "", "tags_json": "", "headers_json": ""}
        assert after._replace(**content) == before._replace(**content)

    def test_a_replaced_job_runs_with_the_new_payload_in_the_old_place(self, queue: Queue) -> None:
        enqueue_first(queue)
        queue.enqueue("other", job_id="later")
        trigger(queue, on_duplicate="replace")
        assert [(claim.job.id, claim.job.payload) for claim in queue.claim_many()] == [
            ("first", "second"),
            ("later", None),
        ]

    @pytest.mark.parametrize("arrange", [*CLAIMED_AND_WAITING, *RUNNING])
    def test_a_first_that_was_claimed_is_a_conflict_and_unchanged(
        self, queue: Queue, clock: ManualClock, arrange: Arrange
    ) -> None:
        arrange(queue, clock)
        before = queue.get("first")
        with pytest.raises(Conflict) as caught:
            trigger(queue, on_duplicate="replace")
        assert caught.value.job_id == "first"
        assert queue.get("first") == before
        assert ids(queue) == ["first"]

    def test_the_event_log_tells_of_it_where_asked(self, queue: Queue) -> None:
        enqueue_first(queue, events="all")
        trigger(queue, on_duplicate="replace", tags={"t": "2"})
        told = [(event.name, event.number, event.tags) for event in queue.events()]
        assert told == [("enqueued", 1, {}), ("replaced", 2, {"t": "2"})]


class TestRunAgain:
    @pytest.mark.parametrize("arrange", [*NEVER_CLAIMED, *CLAIMED_AND_WAITING])
    def test_a_first_that_waits_is_kept(self, queue: Queue, clock: ManualClock, arrange: Arrange) -> None:
        arrange(queue, clock)
        before = queue.get("first")
        assert trigger(queue, on_duplicate="run_again") == (before, False)
        assert ids(queue) == ["first"]

    @pytest.mark.parametrize("arrange", RUNNING)
    def test_a_running_first_gets_a_blocked_successor_with_its_own_id(
        self, queue: Queue, clock: ManualClock, arrange: Arrange
    ) -> None:
        arrange(queue, clock)
        before = queue.get("first")
        made = trigger(queue, on_duplicate="run_again", priority=3)
        assert (made.created, made.job.state, made.job.payload, made.job.priority) == (True, "blocked", "second", 3)
        assert made.id != "first"
        assert queue.get(made.id) == made.job
        assert queue.get("first") == before
        assert queue.claim() is None

    def test_a_further_trigger_replaces_the_successors_content_and_returns_it(self, queue: Queue, clock: ManualClock) -> None:
        running(queue, clock)
        successor = trigger(queue, on_duplicate="run_again")
        again = trigger(queue, "third", on_duplicate="run_again", tags={"t": "3"}, headers={"h": "3"})
        assert (again.id, again.created) == (successor.id, False)
        job = queue.get(successor.id)
        assert job == again.job
        assert (job.state, job.payload, job.tags, job.headers) == ("blocked", "third", {"t": "3"}, {"h": "3"})
        assert ids(queue) == sorted(["first", successor.id])

    def test_keep_and_replace_still_meet_the_first(self, queue: Queue, clock: ManualClock) -> None:
        running(queue, clock)
        successor = trigger(queue, on_duplicate="run_again")
        assert trigger(queue, "third").id == "first"
        with pytest.raises(Conflict):
            trigger(queue, "third", on_duplicate="replace")
        assert queue.get(successor.id).payload == "second"

    def test_a_cancelled_successor_makes_room_for_another(self, queue: Queue, clock: ManualClock) -> None:
        running(queue, clock)
        gone = trigger(queue, on_duplicate="run_again")
        queue.cancel(gone.id)
        made = trigger(queue, "third", on_duplicate="run_again")
        assert (made.created, made.job.state) == (True, "blocked")
        assert queue.get(gone.id).state == "cancelled"

    def test_a_successor_past_its_deadline_fails_while_it_is_blocked(self, queue: Queue, clock: ManualClock) -> None:
        enqueue_first(queue)
        must_claim(queue, lease=600)
        successor = trigger(queue, on_duplicate="run_again", deadline=10)
        clock.advance(10)
        assert queue.claim() is None
        assert queue.get(successor.id).state == "failed"
        assert trigger(queue, on_duplicate="run_again").created


# --- the ways in which the first may end ---------------------------------------------------------------------------


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


def ends_by_lapse(queue: Queue, clock: ManualClock, claim: Claim) -> None:
    clock.advance(31)
    # Any claim notices, even one that can take nothing.
    assert queue.claim(lanes=["default"], kinds=[]) is None


def ends_by_deadline(queue: Queue, clock: ManualClock, claim: Claim) -> None:
    queue.settle(claim, Deferred(after=600))
    clock.advance(301)
    assert queue.claim(lanes=["default"], kinds=[]) is None


def ends_retired_at_its_settle(queue: Queue, clock: ManualClock, claim: Claim) -> None:
    queue.retire("sync")
    queue.settle(claim, Released())


def ends_retired_while_it_waits(queue: Queue, clock: ManualClock, claim: Claim) -> None:
    queue.settle(claim, Deferred(after=60))
    queue.retire("sync")


ENDS: list[tuple[Callable[[Queue, ManualClock, Claim], None], str]] = [
    (ends_done, "done"),
    (ends_failed, "failed"),
    (ends_out_of_attempts, "failed"),
    (ends_cancelled_on_release, "cancelled"),
    (ends_cancelled_on_failure, "cancelled"),
    (ends_cancelled_by_force, "cancelled"),
    (ends_cancelled_while_it_waits, "cancelled"),
    (ends_by_lapse, "failed"),
    (ends_by_deadline, "failed"),
    (ends_retired_at_its_settle, "retired"),
    (ends_retired_while_it_waits, "retired"),
]


class TestTheSuccessorsTurn:
    @staticmethod
    def pair(queue: Queue, **words: Any) -> tuple[Claim, StoredJob]:
        """Return the running first and its blocked successor, of another kind so that each can be retired alone."""
        asked: dict[str, Any] = {"dedupe_key": "k", "dedupe_scope": "tenant"}
        queue.enqueue("sync", "first", job_id="first", max_attempts=1, deadline=300, **asked)
        claim = must_claim(queue, lease=30)
        made = queue.enqueue("resync", "second", job_id="second", on_duplicate="run_again", **asked, **words)
        assert made.job.state == "blocked"
        return claim, made.job

    @pytest.mark.parametrize(("end", "state"), ENDS)
    def test_it_becomes_ready_when_the_first_ends_in_any_way(
        self, queue: Queue, clock: ManualClock, end: Callable[[Queue, ManualClock, Claim], None], state: str
    ) -> None:
        claim, _ = self.pair(queue)
        end(queue, clock, claim)
        assert queue.get("first").state == state
        assert queue.get("second").state == "ready"
        successor = must_claim(queue)
        assert (successor.job.id, successor.job.payload) == ("second", "second")
        assert queue.settle(successor, Done()).state == "done"

    @pytest.mark.parametrize("outcome", [Failed("not yet", retry_after=60), Deferred(after=60), Released()])
    def test_it_stays_blocked_while_the_first_is_only_between_two_attempts(
        self, queue: Queue, clock: ManualClock, outcome: Failed | Deferred | Released
    ) -> None:
        enqueue_first(queue)
        claim = must_claim(queue)
        successor = trigger(queue, on_duplicate="run_again")
        queue.settle(claim, outcome)
        assert queue.get(successor.id).state == "blocked"
        clock.advance(60)
        assert must_claim(queue).job.id == "first"
        assert queue.claim() is None

    def test_it_stays_blocked_when_the_firsts_lease_lapses_with_attempts_left(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        enqueue_first(queue)
        must_claim(queue, lease=30)
        successor = trigger(queue, on_duplicate="run_again")
        clock.advance(31)
        assert must_claim(queue).job.id == "first"
        assert queue.get(successor.id).state == "blocked"

    def test_it_holds_the_key_from_then_on(self, queue: Queue) -> None:
        claim, _ = self.pair(queue)
        queue.settle(claim, Done())
        again = queue.enqueue("sync", dedupe_key="k", dedupe_scope="tenant")
        assert (again.id, again.created) == ("second", False)

    def test_it_can_have_a_successor_of_its_own(self, queue: Queue) -> None:
        enqueue_first(queue)
        claim = must_claim(queue)
        second = trigger(queue, on_duplicate="run_again")
        queue.settle(claim, Done())
        second_claim = must_claim(queue)
        third = trigger(queue, "third", on_duplicate="run_again")
        assert (second_claim.job.id, third.created, third.job.state) == (second.id, True, "blocked")
        queue.settle(second_claim, Done())
        assert must_claim(queue).job.id == third.id

    def test_one_whose_delay_is_over_is_ready_at_once(self, queue: Queue, clock: ManualClock) -> None:
        claim, _ = self.pair(queue, delay=10)
        clock.advance(20)
        queue.settle(claim, Done())
        job = queue.get("second")
        assert (job.state, job.due_at_ms) == ("ready", clock.now().wall_ms)

    def test_one_whose_delay_is_not_over_waits_for_its_moment(self, queue: Queue, clock: ManualClock) -> None:
        claim, before = self.pair(queue, delay=60)
        clock.advance(10)
        queue.settle(claim, Done())
        job = queue.get("second")
        assert (job.state, job.due_at_ms) == ("scheduled", before.due_at_ms)
        clock.advance(49.999)
        assert queue.claim() is None
        clock.advance(0.001)
        assert must_claim(queue).job.id == "second"

    def test_a_delayed_one_is_not_claimed_before_the_first_has_ended(self, queue: Queue, clock: ManualClock) -> None:
        run_at = datetime.fromtimestamp(clock.now().wall_ms / 1000, UTC) + timedelta(seconds=5)
        self.pair(queue, run_at=run_at)
        clock.advance(10)
        assert queue.claim() is None
        assert queue.get("second").state == "blocked"

    def test_a_retired_kind_retires_it_with_the_first(self, queue: Queue) -> None:
        enqueue_first(queue)
        claim = must_claim(queue)
        successor = trigger(queue, on_duplicate="run_again")
        queue.retire("sync")
        assert queue.get(successor.id).state == "retired"
        assert queue.settle(claim, Done()).state == "done"
        assert queue.get(successor.id).state == "retired"

    def test_both_ends_and_the_freeing_are_told_in_order(self, queue: Queue) -> None:
        claim, _ = self.pair(queue, events="all")
        queue.settle(claim, Done())
        told = [(event.job_id, event.name) for event in queue.events()]
        assert told == [("second", "enqueued"), ("first", "done"), ("second", "unblocked")]


class TestRequeueCollisions:
    def test_a_first_requeued_while_its_successor_waits_is_a_conflict_and_harms_neither(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        running(queue, clock)
        successor = trigger(queue, on_duplicate="run_again")
        queue.cancel("first", force=True)
        with pytest.raises(Conflict) as caught:
            queue.requeue("first")
        assert caught.value.job_id == successor.id
        assert (queue.get("first").state, queue.get(successor.id).state) == ("cancelled", "ready")

    def test_requeueing_many_reports_the_collision_and_goes_on(self, queue: Queue, clock: ManualClock) -> None:
        failed(queue, clock)
        second = trigger(queue)
        queue.enqueue("other", job_id="free")
        queue.cancel("free")
        report = queue.requeue_many(["first", "free"])
        assert report.requeued == ["free"]
        assert [skipped.job_id for skipped in report.skipped] == ["first"]
        assert second.id in report.skipped[0].why
        assert queue.get(second.id).state == "ready"

    def test_two_ended_jobs_of_one_key_are_not_both_requeued(self, queue: Queue, clock: ManualClock) -> None:
        failed(queue, clock)
        second = trigger(queue)
        queue.settle(must_claim(queue), Failed("never", permanent=True))
        report = queue.requeue_many(["first", second.id])
        assert report.requeued == ["first"]
        assert [skipped.job_id for skipped in report.skipped] == [second.id]
        assert queue.counts()["ready"] == 1

    def test_a_cancelled_successor_is_not_requeued_beside_its_running_first(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        running(queue, clock)
        successor = trigger(queue, on_duplicate="run_again")
        queue.cancel(successor.id)
        with pytest.raises(Conflict):
            queue.requeue(successor.id)
        assert queue.get(successor.id).state == "cancelled"

    def test_a_requeued_first_holds_the_key_again(self, queue: Queue, clock: ManualClock) -> None:
        failed(queue, clock)
        queue.requeue("first")
        assert trigger(queue) == (queue.get("first"), False)

    def test_a_requeued_first_may_have_a_successor_again(self, queue: Queue, clock: ManualClock) -> None:
        requeued(queue, clock)
        claim = must_claim(queue)
        successor = trigger(queue, on_duplicate="run_again")
        queue.settle(claim, Failed("never", permanent=True))
        assert (successor.created, must_claim(queue).job.id) == (True, successor.id)


class TestScope:
    def test_a_key_counts_within_its_kind(self, queue: Queue) -> None:
        queue.enqueue("a", dedupe_key="k")
        assert queue.enqueue("b", dedupe_key="k").created

    def test_a_key_counts_within_its_tenant(self, queue: Queue) -> None:
        queue.enqueue("a", dedupe_key="k", tenant="acme")
        assert queue.enqueue("a", dedupe_key="k", tenant="other").created

    def test_a_key_counts_across_lanes(self, queue: Queue) -> None:
        queue.enqueue("a", dedupe_key="k", lane="one")
        assert not queue.enqueue("a", dedupe_key="k", lane="two").created

    def test_a_key_of_the_tenant_counts_across_its_kinds_and_no_further(self, queue: Queue) -> None:
        first = queue.enqueue("a", dedupe_key="k", dedupe_scope="tenant", tenant="acme")
        again = queue.enqueue("b", dedupe_key="k", dedupe_scope="tenant", tenant="acme")
        assert (again.id, again.created) == (first.id, False)
        assert queue.enqueue("b", dedupe_key="k", dedupe_scope="tenant", tenant="other").created

    def test_the_two_scopes_do_not_meet(self, queue: Queue) -> None:
        queue.enqueue("a", dedupe_key="k", dedupe_scope="tenant")
        assert queue.enqueue("a", dedupe_key="k", dedupe_scope="kind").created

    def test_keys_differ_by_case_and_accent_form(self, queue: Queue) -> None:
        made = [queue.enqueue("a", dedupe_key=key) for key in ("k", "K", "é", "e\u0301", "k ")]
        assert all(answer.created for answer in made)

    def test_a_key_as_long_as_the_limit_is_kept(self, queue: Queue) -> None:
        queue.enqueue("a", dedupe_key="x" * 500)
        assert not queue.enqueue("a", dedupe_key="x" * 500).created


class TestManyAtOnce:
    def test_the_second_of_one_key_in_one_call_meets_the_first(self, queue: Queue) -> None:
        made = queue.enqueue_many([NewJob("a", number, dedupe_key="k") for number in range(3)])
        assert [answer.created for answer in made] == [True, False, False]
        assert len({answer.id for answer in made}) == 1
        assert queue.get(made[0].id).payload == 0

    def test_replace_within_one_call_leaves_the_last_payload(self, queue: Queue) -> None:
        jobs = [NewJob("a", number, dedupe_key="k", on_duplicate="replace", events="all") for number in range(3)]
        made = queue.enqueue_many(jobs)
        assert [answer.created for answer in made] == [True, False, False]
        assert queue.get(made[0].id).payload == 2
        assert [event.name for event in queue.events()] == ["enqueued", "replaced", "replaced"]

    def test_run_again_within_one_call_makes_one_successor_with_the_last_payload(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        running(queue, clock)
        jobs = [NewJob("sync", number, dedupe_key="k", on_duplicate="run_again") for number in range(3)]
        made = queue.enqueue_many(jobs)
        assert [answer.created for answer in made] == [True, False, False]
        assert queue.get(made[0].id).payload == 2
        assert ids(queue) == sorted(["first", made[0].id])

    def test_keys_and_plain_jobs_mix(self, queue: Queue) -> None:
        held = queue.enqueue("a", 0, dedupe_key="held")
        made = queue.enqueue_many([
            NewJob("a", 1),
            NewJob("a", 2, dedupe_key="held"),
            NewJob("a", 3, dedupe_key="new"),
            NewJob("a", 4, dedupe_key="held", on_duplicate="replace"),
            NewJob("a", 5),
        ])
        assert [answer.created for answer in made] == [True, False, True, False, True]
        assert made[1].id == made[3].id == held.id
        assert queue.get(held.id).payload == 4
        assert [claim.job.payload for claim in queue.claim_many()] == [4, 1, 3, 5]

    def test_a_conflict_late_in_the_call_undoes_an_earlier_replacement(self, queue: Queue) -> None:
        waiting = queue.enqueue("a", 0, dedupe_key="waiting")
        queue.enqueue("b", 0, dedupe_key="claimed")
        must_claim(queue, kinds=["b"])
        with pytest.raises(Conflict):
            queue.enqueue_many([
                NewJob("a", 1, dedupe_key="waiting", on_duplicate="replace"),
                NewJob("b", 1, dedupe_key="claimed", on_duplicate="replace"),
            ])
        assert queue.get(waiting.id) == waiting.job


class TestFollowUps:
    def test_a_follow_up_may_carry_on_its_parents_key(self, queue: Queue) -> None:
        # The parent ends with this very settle, so that a job may schedule its own next run.
        enqueue_first(queue)
        again = NewJob("sync", "next", dedupe_key="k", delay=60)
        queue.settle(must_claim(queue), Done(follow_ups=[again]))
        assert queue.counts() == {"done": 1, "scheduled": 1}

    def test_a_follow_up_meets_the_successor_that_the_same_settle_frees(self, queue: Queue, clock: ManualClock) -> None:
        enqueue_first(queue)
        claim = must_claim(queue)
        successor = trigger(queue, on_duplicate="run_again")
        queue.settle(claim, Done(follow_ups=[NewJob("sync", "next", dedupe_key="k")]))
        assert ids(queue) == sorted(["first", successor.id])
        assert queue.get(successor.id).payload == "second"

    def test_in_a_batch_a_follow_up_finds_free_what_an_earlier_settle_freed(self, queue: Queue) -> None:
        enqueue_first(queue)
        queue.enqueue("other")
        holder, other = queue.claim_many()
        follow_up = NewJob("sync", "next", job_id="next", dedupe_key="k")
        queue.settle_many([(holder, Done()), (other, Done(follow_ups=[follow_up]))])
        assert queue.get("next").state == "ready"
