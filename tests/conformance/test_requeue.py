"""Requeueing one job, many, or all failed ones; jobs that cannot be requeued are reported."""

from __future__ import annotations

import pytest

from holdfast import Conflict, Done, Failed, InvalidInput, JobNotFound, LeaseLost, NewJob, Queue, Refused
from holdfast.types import Requeued
from tests.support.clock import ManualClock
from tests.support.job_states import (
    FAILS,
    RETRIES,
    UNFINISHED,
    State,
    blocked_pair,
    enqueue_and_run,
    event_names,
    job_in,
    nonzero,
    rolled_back,
    run,
    start,
)


class TestOne:
    @pytest.mark.parametrize("state", ["failed", "cancelled"])
    def test_it_is_ready_at_once_with_all_its_attempts(self, queue: Queue, clock: ManualClock, state: State) -> None:
        job = job_in(queue, state, max_attempts=2)
        clock.advance(100)

        again = queue.requeue(job.id)

        assert (again.state, again.attempt, again.max_attempts) == ("ready", 0, 2)
        assert again.due_at == clock.time
        assert again.finished_at is None
        assert queue.get(job.id) == again

    def test_the_epoch_is_kept_and_increases_with_the_next_claim(self, queue: Queue) -> None:
        job = job_in(queue, "failed")

        again = queue.requeue(job.id)

        assert again.epoch == job.epoch == 1
        assert start(queue, again).epoch == 2

    def test_it_gets_every_attempt_again(self, queue: Queue, clock: ManualClock) -> None:
        job = enqueue_and_run(queue, "a", Failed("x", retry_after=0), max_attempts=2)
        job = run(queue, job, Failed("x", retry_after=0))
        assert job.state == "failed"
        queue.requeue(job.id)

        states = [run(queue, job, Failed("x", retry_after=0)).state for _ in range(2)]

        assert states == ["ready", "failed"]
        assert queue.get(job.id).epoch == 4

    def test_an_earlier_holder_is_still_refused(self, queue: Queue, clock: ManualClock) -> None:
        claim = start(queue, queue.enqueue("a").job)
        queue.cancel(claim.job.id, force=True)
        again = queue.requeue(claim.job.id)

        with pytest.raises(LeaseLost):
            queue.settle(claim, Done())

        assert queue.get(claim.job.id) == again

    def test_a_repeated_settle_afterwards_succeeds_and_changes_nothing(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("a").job)
        queue.settle(claim, FAILS)
        again = queue.requeue(claim.job.id)

        queue.settle(claim, FAILS)

        assert queue.get(claim.job.id) == again

    def test_its_deadline_is_dropped(self, queue: Queue, clock: ManualClock) -> None:
        job = queue.enqueue("a", deadline=10).job
        clock.advance(11)
        assert queue.claim() is None
        assert queue.get(job.id).state == "failed"

        assert queue.requeue(job.id).deadline_at is None
        assert start(queue, job).job.id == job.id

    def test_a_cancel_request_is_cleared(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("a").job)
        queue.cancel(claim.job.id)
        queue.settle(claim, RETRIES)

        queue.requeue(claim.job.id)

        assert run(queue, claim.job, RETRIES).state == "scheduled"

    def test_it_is_ordered_by_its_new_due_time(self, queue: Queue, clock: ManualClock) -> None:
        failed = job_in(queue, "failed", kind="a")
        clock.advance(1)
        waiting = queue.enqueue("a").job
        clock.advance(1)
        queue.requeue(failed.id)

        assert [claim.job.id for claim in queue.claim_many()] == [waiting.id, failed.id]

    @pytest.mark.parametrize("state", [*UNFINISHED, "done", "retired"])
    def test_a_job_in_any_other_state_is_refused_and_stays(self, queue: Queue, state: State) -> None:
        job = job_in(queue, state)

        with pytest.raises(Conflict) as refusal:
            queue.requeue(job.id)

        assert refusal.value.job_id == job.id
        assert queue.get(job.id) == job

    def test_an_unknown_job_is_not_found(self, queue: Queue) -> None:
        with pytest.raises(JobNotFound):
            queue.requeue("missing")

    def test_a_job_whose_kind_was_retired_is_refused_and_stays(self, queue: Queue) -> None:
        job = job_in(queue, "failed")
        queue.kinds.retire(job.kind)

        with pytest.raises(Refused):
            queue.requeue(job.id)

        assert queue.get(job.id) == job

    def test_the_event_log_contains_both_ends(self, queue: Queue) -> None:
        job = job_in(queue, "failed")
        queue.requeue(job.id)
        run(queue, job, Done())

        assert event_names(queue, job.id) == ["failed", "done"]

    def test_a_requeue_that_is_rolled_back_has_no_effect(self, queue: Queue) -> None:
        job = job_in(queue, "failed")

        with rolled_back(queue) as transaction:
            assert transaction.requeue(job.id).state == "ready"

        assert queue.get(job.id) == job


class TestDedupeKeys:
    def test_a_requeued_job_holds_its_key_again(self, queue: Queue) -> None:
        job = job_in(queue, "failed", kind="a", dedupe_key="k")
        queue.requeue(job.id)

        duplicate = queue.enqueue("a", dedupe_key="k")

        assert (duplicate.id, duplicate.created) == (job.id, False)

    def test_a_key_that_another_job_holds_is_a_conflict(self, queue: Queue) -> None:
        job = job_in(queue, "failed", kind="a", dedupe_key="k")
        holder = queue.enqueue("a", dedupe_key="k").job

        with pytest.raises(Conflict):
            queue.requeue(job.id)

        assert queue.get(job.id) == job
        assert queue.get(holder.id) == holder

    def test_a_running_holder_is_a_conflict_too(self, queue: Queue) -> None:
        job = job_in(queue, "failed", kind="a", dedupe_key="k")
        start(queue, queue.enqueue("a", dedupe_key="k").job)

        with pytest.raises(Conflict):
            queue.requeue(job.id)

    def test_a_successor_that_took_over_the_key_is_a_conflict_too(self, queue: Queue) -> None:
        first, second = blocked_pair(queue)
        queue.settle(first, FAILS)
        assert queue.get(second.id).state == "ready"

        with pytest.raises(Conflict):
            queue.requeue(first.job.id)

    @pytest.mark.parametrize(
        ("kind", "tenant", "key"), [("b", "default", "k"), ("a", "other", "k"), ("a", "default", "l")]
    )
    def test_a_key_of_another_kind_tenant_or_name_is_no_conflict(
        self, queue: Queue, kind: str, tenant: str, key: str
    ) -> None:
        job = job_in(queue, "failed", kind="a", dedupe_key="k")
        queue.enqueue(kind, tenant=tenant, dedupe_key=key)

        assert queue.requeue(job.id).state == "ready"

    def test_a_key_of_the_whole_tenant_collides_across_kinds(self, queue: Queue) -> None:
        job = job_in(queue, "failed", kind="a", dedupe_key="k", dedupe_scope="tenant")
        queue.enqueue("b", dedupe_key="k", dedupe_scope="tenant")

        with pytest.raises(Conflict):
            queue.requeue(job.id)


class TestMany:
    def test_requeueable_jobs_are_requeued_and_the_others_reported_with_the_reason(self, queue: Queue) -> None:
        failed = job_in(queue, "failed", kind="a")
        taken = job_in(queue, "failed", kind="b", dedupe_key="k")
        holder = queue.enqueue("b", dedupe_key="k").job
        done = job_in(queue, "done", kind="c")
        cancelled = job_in(queue, "cancelled", kind="d")

        report = queue.admin.requeue_many([failed.id, taken.id, "missing", done.id, cancelled.id])

        assert report.requeued == [failed.id, cancelled.id]
        reasons = {skipped.job_id: skipped.why for skipped in report.skipped}
        assert list(reasons) == [taken.id, "missing", done.id]
        assert holder.id in reasons[taken.id]
        assert "done" in reasons[done.id]
        assert all(reasons.values())
        assert [queue.get(job.id).state for job in (failed, taken, done, cancelled)] == [
            "ready",
            "failed",
            "done",
            "ready",
        ]

    def test_of_two_that_share_a_key_one_is_requeued(self, queue: Queue) -> None:
        first = job_in(queue, "failed", kind="a", dedupe_key="k")
        second = job_in(queue, "failed", kind="a", dedupe_key="k")

        report = queue.admin.requeue_many([first.id, second.id])

        assert report.requeued == [first.id]
        assert [skipped.job_id for skipped in report.skipped] == [second.id]
        assert queue.get(second.id) == second

    def test_an_id_given_twice_is_requeued_once(self, queue: Queue) -> None:
        job = job_in(queue, "failed", events="all")

        report = queue.admin.requeue_many([job.id, job.id])

        assert report.requeued == [job.id]
        assert event_names(queue, job.id).count("requeued") == 1

    def test_a_retired_kind_is_skipped(self, queue: Queue) -> None:
        retired, other = job_in(queue, "failed", kind="a"), job_in(queue, "failed", kind="b")
        queue.kinds.retire("a")

        report = queue.admin.requeue_many([retired.id, other.id])

        assert report.requeued == [other.id]
        assert [skipped.job_id for skipped in report.skipped] == [retired.id]

    def test_an_empty_list_is_accepted_and_too_many_are_refused(self, queue: Queue) -> None:
        assert queue.admin.requeue_many([]) == Requeued([], [])
        with pytest.raises(InvalidInput) as refusal:
            queue.admin.requeue_many(["x"] * 1001)
        assert refusal.value.field == "job_ids"


class TestAllFailed:
    def test_every_failed_job_is_requeued_and_no_other(self, queue: Queue) -> None:
        failed = [job_in(queue, "failed", kind=kind) for kind in "abc"]
        cancelled, done = job_in(queue, "cancelled"), job_in(queue, "done")

        report = queue.admin.requeue_failed()

        assert sorted(report.requeued) == sorted(job.id for job in failed)
        assert report.skipped == []
        assert {queue.get(job.id).state for job in failed} == {"ready"}
        assert [queue.get(job.id) for job in (cancelled, done)] == [cancelled, done]

    def test_only_transient_failures_leaves_the_permanent_ones(self, queue: Queue) -> None:
        permanent = job_in(queue, "failed", kind="a")
        transient = enqueue_and_run(queue, "b", RETRIES, max_attempts=1)
        assert transient.state == "failed"

        report = queue.admin.requeue_failed(transient_only=True)

        assert report.requeued == [transient.id]
        assert queue.get(permanent.id) == permanent

    def test_a_passed_deadline_is_permanent_and_an_expired_lease_transient(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        late = queue.enqueue("late", deadline=5, delay=10).job
        expired = start(queue, queue.enqueue("expired", max_attempts=1).job).job
        clock.advance(60)
        assert queue.claim() is None
        assert {queue.get(late.id).state, queue.get(expired.id).state} == {"failed"}

        assert queue.admin.requeue_failed(transient_only=True).requeued == [expired.id]

    def test_kind_lane_and_tenant_restrict_it(self, queue: Queue) -> None:
        filters = job_in(queue, "failed", kind="a", lane="l", tenant="t")
        job_in(queue, "failed", kind="b", lane="l", tenant="t")
        job_in(queue, "failed", kind="a", lane="m", tenant="t")
        job_in(queue, "failed", kind="a", lane="l", tenant="u")

        assert queue.admin.requeue_failed(kind="a", lane="l", tenant="t").requeued == [filters.id]
        assert len(queue.jobs(state="failed")) == 3

    @pytest.mark.slow("hundreds of jobs go through the store")
    def test_thousands_are_requeued_though_some_are_skipped(self, queue: Queue) -> None:
        _fail_many(queue, 2_300)
        collisions = [job_in(queue, "failed", kind="keyed", dedupe_key=f"k{number % 3}") for number in range(12)]

        report = queue.admin.requeue_failed()

        skipped = [each.job_id for each in report.skipped]
        assert len(report.requeued) == len(set(report.requeued)) == 2_303
        assert len(skipped) == len(set(skipped)) == 9
        assert set(skipped) < {job.id for job in collisions}
        assert nonzero(queue.counts()) == {"ready": 2_303, "failed": 9}

    def test_nothing_failed_requeues_nothing(self, queue: Queue) -> None:
        queue.enqueue("a")

        assert queue.admin.requeue_failed() == Requeued([], [])


def _fail_many(queue: Queue, count: int) -> None:
    queue.enqueue_many([NewJob("bulk", number) for number in range(count)])
    while claims := queue.claim_many(limit=1_000):
        queue.settle_many([(claim, FAILS) for claim in claims])


class TestChildren:
    def test_a_child_of_several_failed_parents_comes_back_with_the_last_of_them(self, queue: Queue) -> None:
        parents = [queue.enqueue(kind).job for kind in "abc"]
        child = queue.enqueue("d", after=[parent.id for parent in parents])

        def state() -> str:
            queue.claim_many(kinds=["none"])
            return queue.get(child.id).state

        for parent in parents:
            run(queue, parent, FAILS)
        assert state() == "cancelled"
        queue.requeue(parents[0].id, with_children=True)
        run(queue, parents[0], Done())
        queue.requeue(parents[1].id, with_children=True)
        assert state() == "cancelled"
        queue.requeue(parents[2].id, with_children=True)
        assert state() == "dependent"
        run(queue, parents[2], Done())
        assert state() == "dependent"
        run(queue, parents[1], Done())
        assert state() == "ready"
