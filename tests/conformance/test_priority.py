"""Changing the priority of an unfinished job."""

from __future__ import annotations

import pytest

from holdfast import Conflict, Done, InvalidInput, JobNotFound, NewJob, Queue, Released
from tests.support.claims import changed_job
from tests.support.clock import ManualClock
from tests.support.job_states import (
    FINISHED,
    UNFINISHED,
    State,
    blocked_pair,
    event_names,
    job_in,
    rolled_back,
    start,
)


class TestReprioritize:
    @pytest.mark.parametrize("state", UNFINISHED)
    def test_an_unfinished_job_gets_the_priority_and_nothing_else_changes(self, queue: Queue, state: State) -> None:
        job = job_in(queue, state)

        changed = queue.reprioritize(job.id, 7)

        assert changed == changed_job(job, priority=7)
        assert queue.get(job.id) == changed

    @pytest.mark.parametrize("state", FINISHED)
    def test_a_finished_job_is_refused_and_stays(self, queue: Queue, state: State) -> None:
        job = job_in(queue, state)

        with pytest.raises(Conflict) as refusal:
            queue.reprioritize(job.id, 7)

        assert refusal.value.job_id == job.id
        assert queue.get(job.id) == job

    def test_ready_jobs_are_claimed_by_their_new_priority(self, queue: Queue) -> None:
        first, second, third = (queue.enqueue("a").job for _ in range(3))
        queue.reprioritize(third.id, 5)
        queue.reprioritize(first.id, -5)

        assert [claim.job.id for claim in queue.claim_many()] == [third.id, second.id, first.id]

    def test_a_scheduled_job_keeps_it_when_due(self, queue: Queue, clock: ManualClock) -> None:
        later = queue.enqueue("a", delay=10).job
        queue.reprioritize(later.id, 5)
        clock.advance(10)
        queue.enqueue("a")

        assert [claim.job.id for claim in queue.claim_many(limit=1)] == [later.id]

    def test_a_blocked_job_keeps_it_when_freed(self, queue: Queue) -> None:
        first, second = blocked_pair(queue)
        queue.enqueue("pair")
        queue.reprioritize(second.id, 5)
        queue.settle(first, Done())

        assert [claim.job.id for claim in queue.claim_many(limit=1)] == [second.id]

    def test_a_running_job_uses_it_in_the_next_attempt_and_keeps_its_lease(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        claim = start(queue, queue.enqueue("a").job)
        queue.enqueue("a")
        queue.reprioritize(claim.job.id, 5)
        queue.heartbeat(claim)
        clock.advance(1)
        queue.settle(claim, Released())

        assert [again.job.id for again in queue.claim_many(limit=1)] == [claim.job.id]

    def test_only_the_allowed_range_is_accepted(self, queue: Queue) -> None:
        job = queue.enqueue("a").job

        for priority in (-1_000, 1_000):
            assert queue.reprioritize(job.id, priority).priority == priority
        for priority in (-1_001, 1_001):
            with pytest.raises(InvalidInput, match="priority"):
                queue.reprioritize(job.id, priority)

        assert queue.get(job.id).priority == 1_000

    def test_an_unknown_job_is_not_found(self, queue: Queue) -> None:
        with pytest.raises(JobNotFound):
            queue.reprioritize("missing", 1)

    def test_the_change_is_recorded_if_all_events_are(self, queue: Queue) -> None:
        loud, quiet = queue.enqueue("a", events="all").job, queue.enqueue("a").job
        queue.reprioritize(loud.id, 1)
        queue.reprioritize(quiet.id, 1)

        assert event_names(queue, loud.id) == ["enqueued", "reprioritized"]
        assert event_names(queue, quiet.id) == []

    def test_a_change_that_is_rolled_back_has_no_effect(self, queue: Queue) -> None:
        job = queue.enqueue("a").job

        with rolled_back(queue) as transaction:
            transaction.reprioritize(job.id, 9)

        assert queue.get(job.id) == job

    def test_a_repeated_claim_keeps_the_order_of_its_first_answer(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("a", priority=priority) for priority in (0, 2, 1)])

        first, again = (queue.claim_many(limit=3, worker="w", lease_token="t") for _ in range(2))

        assert [claim.job.priority for claim in first] == [2, 1, 0]
        assert again == first
