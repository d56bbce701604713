"""Retention: finished jobs of the given age are deleted with their attempts and artifacts; no others are."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Artifact, Done, JobNotFound, NewJob, Queue
from holdfast.errors import EventsPruned
from holdfast.types import Pruned
from tests.support.assertions import refused
from tests.support.clock import ManualClock
from tests.support.job_states import FINISHED, UNFINISHED, State, all_events, blocked_pair, job_in, nonzero, start

YEAR = 365 * 24 * 3600


class TestFinishedJobs:
    @pytest.mark.parametrize("state", FINISHED)
    def test_one_that_ended_long_enough_ago_is_deleted(self, queue: Queue, clock: ManualClock, state: State) -> None:
        job = job_in(queue, state)
        clock.advance(61)

        assert queue.admin.prune(older_than=60).jobs == 1
        with pytest.raises(JobNotFound):
            queue.get(job.id)

    def test_age_is_counted_from_the_end_not_from_the_enqueue(self, queue: Queue, clock: ManualClock) -> None:
        old, young = queue.enqueue("a").job, queue.enqueue("b").job
        queue.settle(start(queue, old), Done())
        clock.advance(50)
        queue.settle(start(queue, young), Done())
        clock.advance(20)

        assert queue.admin.prune(older_than=60).jobs == 1
        assert queue.get(young.id).state == "done"

    def test_a_younger_job_is_kept(self, queue: Queue, clock: ManualClock) -> None:
        job = job_in(queue, "done")
        clock.advance(59)

        assert queue.admin.prune(older_than=60) == Pruned(0, 0)
        assert queue.get(job.id) == job

    def test_only_the_given_states_are_deleted(self, queue: Queue, clock: ManualClock) -> None:
        jobs = {state: job_in(queue, state, kind=f"kind.{state}") for state in FINISHED}
        clock.advance(61)

        assert queue.admin.prune(older_than=60, states=["done", "retired"]).jobs == 2
        assert nonzero(queue.counts()) == {"failed": 1, "cancelled": 1}
        assert queue.get(jobs["failed"].id) == jobs["failed"]

    def test_attempts_and_artifacts_are_deleted_with_the_job(self, queue: Queue, clock: ManualClock) -> None:
        job = queue.enqueue("a", job_id="mine").job
        queue.settle(start(queue, job), Done(artifacts=[Artifact("log", b"x")]))
        clock.advance(61)
        queue.admin.prune(older_than=60)

        with pytest.raises(JobNotFound):
            queue.attempts("mine")
        with pytest.raises(JobNotFound):
            queue.artifacts("mine")
        with pytest.raises(JobNotFound):
            queue.artifact("mine", "log")
        # A new job of the same id must not inherit attempts or artifacts.
        queue.enqueue("a", job_id="mine")
        assert (queue.attempts("mine"), queue.artifacts("mine")) == ([], [])

    def test_its_id_may_be_used_again(self, queue: Queue, clock: ManualClock) -> None:
        queue.settle(start(queue, queue.enqueue("a", {"n": 1}, job_id="mine").job), Done())
        clock.advance(61)
        queue.admin.prune(older_than=60)

        again = queue.enqueue("b", {"n": 2}, job_id="mine")

        assert (again.created, again.job.state, again.job.epoch) == (True, "ready", 0)

    def test_an_old_claim_gives_no_access_to_a_new_job_of_the_same_id(self, queue: Queue, clock: ManualClock) -> None:
        old = start(queue, queue.enqueue("a", job_id="mine").job)
        queue.settle(old, Done())
        clock.advance(61)
        queue.admin.prune(older_than=60)
        new = start(queue, queue.enqueue("a", job_id="mine").job)

        settlements = queue.settle_many([(old, Done({"late": True}))])

        assert not settlements[0].ok
        assert queue.get("mine") == new.job

    def test_thousands_are_deleted(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue_many([NewJob("bulk") for _ in range(1_100)])
        while claims := queue.claim_many(limit=1_000):
            queue.settle_many([(claim, Done()) for claim in claims])
        clock.advance(61)

        assert queue.admin.prune(older_than=60) == Pruned(1_100, 1_100)
        assert nonzero(queue.counts()) == {}


class TestUnfinishedJobs:
    @pytest.mark.parametrize("state", UNFINISHED)
    def test_an_unfinished_job_is_never_deleted(self, queue: Queue, clock: ManualClock, state: State) -> None:
        job = job_in(queue, state)
        clock.advance(YEAR)

        assert queue.admin.prune(older_than=0).jobs == 0
        assert queue.get(job.id) == job

    def test_a_requeued_job_is_unfinished_again(self, queue: Queue, clock: ManualClock) -> None:
        job = job_in(queue, "failed")
        queue.requeue(job.id)
        clock.advance(YEAR)

        assert queue.admin.prune(older_than=60).jobs == 0
        assert queue.get(job.id).state == "ready"

    def test_a_successor_is_kept_if_its_first_is_deleted(self, queue: Queue, clock: ManualClock) -> None:
        first, second = blocked_pair(queue)
        queue.settle(first, Done())
        clock.advance(61)

        assert queue.admin.prune(older_than=60).jobs == 1
        assert start(queue, second).job.id == second.id


class TestEvents:
    def test_events_are_pruned_from_the_start_by_the_same_age(self, queue: Queue, clock: ManualClock) -> None:
        job_in(queue, "done", kind="a")
        clock.advance(50)
        young = job_in(queue, "done", kind="b")
        clock.advance(20)

        assert queue.admin.prune(older_than=60) == Pruned(1, 1)
        assert [event.job_id for event in all_events(queue)] == [young.id]

    def test_their_age_may_be_set_separately(self, queue: Queue, clock: ManualClock) -> None:
        for kind in "ab":
            job_in(queue, "done", kind=kind)
            clock.advance(50)

        assert queue.admin.prune(older_than=YEAR, events_older_than=60) == Pruned(0, 1)
        assert queue.admin.prune(older_than=20, events_older_than=YEAR) == Pruned(2, 0)

        assert len(all_events(queue)) == 1

    def test_deleting_a_job_leaves_its_younger_events(self, queue: Queue, clock: ManualClock) -> None:
        job = job_in(queue, "done")
        clock.advance(61)
        queue.admin.prune(older_than=60, events_older_than=YEAR)

        assert [event.job_id for event in all_events(queue)] == [job.id]

    def test_the_log_is_deleted_as_a_prefix_after_a_clock_jump(self, queue: Queue, clock: ManualClock) -> None:
        """An old event behind a younger one must be kept: readers do not detect a gap within the log."""
        young = job_in(queue, "done", kind="a")
        clock.shift_wall_clock(-1000)
        looks_old = job_in(queue, "done", kind="b")
        clock.shift_wall_clock(1000)
        clock.advance(10)

        would = queue.admin.prune(older_than=500, dry_run=True)

        assert queue.admin.prune(older_than=500) == would == Pruned(1, 0)
        kept = [event.job_id for event in all_events(queue)]
        assert kept == [young.id, looks_old.id]

    def test_a_dry_run_counts_what_the_next_run_deletes(self, queue: Queue, clock: ManualClock) -> None:
        for kind in "abc":
            job_in(queue, "done", kind=kind)
            clock.advance(50)

        would = queue.admin.prune(older_than=60, dry_run=True)

        assert queue.admin.prune(older_than=60) == would == Pruned(2, 2)
        assert queue.admin.prune(older_than=60, dry_run=True) == Pruned(0, 0)

    def test_a_reader_behind_the_horizon_gets_an_error(self, queue: Queue, clock: ManualClock) -> None:
        start_of_log = queue.events().cursor
        job_in(queue, "done")
        clock.advance(61)
        queue.admin.prune(older_than=60)

        with pytest.raises(EventsPruned):
            queue.events(after=start_of_log)


class TestOptions:
    @pytest.mark.validation
    @pytest.mark.parametrize(
        ("field", "options"),
        [
            ("older_than", {"older_than": -1}),
            ("older_than", {"older_than": "week"}),
            ("older_than", {"older_than": float("nan")}),
            ("events_older_than", {"older_than": 1, "events_older_than": -1}),
            ("states[0]", {"older_than": 1, "states": ["ready"]}),
            ("states[1]", {"older_than": 1, "states": ["done", "running"]}),
        ],
    )
    def test_a_wrong_option_is_refused_and_deletes_nothing(
        self, queue: Queue, clock: ManualClock, field: str, options: dict[str, Any]
    ) -> None:
        job = job_in(queue, "done")
        clock.advance(YEAR)

        with refused(queue, field):
            queue.admin.prune(**options)
        assert queue.get(job.id) == job

    def test_no_states_delete_no_jobs(self, queue: Queue, clock: ManualClock) -> None:
        job_in(queue, "done")
        clock.advance(YEAR)

        assert queue.admin.prune(older_than=60, states=[], events_older_than=0).jobs == 0
        assert nonzero(queue.counts()) == {"done": 1}
