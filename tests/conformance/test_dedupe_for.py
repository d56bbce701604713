"""Dedupe keys that are kept for a period: the key finds the first job even if it has finished or was deleted.

Every store must pass this file unchanged.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Done, NewJob, Queue
from holdfast.errors import JobNotFound
from holdfast.types import Enqueued
from tests.support.assertions import duplicate, refused
from tests.support.claims import claim_one
from tests.support.clock import ManualClock
from tests.support.job_states import FINISHED, State, job_in, rolled_back
from tests.support.stores import Harness, statements_of

HOUR = 3_600


def once(queue: Queue, payload: Any = None, **options: Any) -> Enqueued[Any]:
    return queue.enqueue("report", payload, **{"dedupe_key": "k", "dedupe_for": HOUR, **options})


class TestWithinThePeriod:
    @pytest.mark.parametrize("state", ["scheduled", "ready", "running", *FINISHED])
    def test_the_first_job_is_returned_in_any_state(self, queue: Queue, clock: ManualClock, state: State) -> None:
        first = job_in(queue, state, kind="report", dedupe_key="k", dedupe_for=HOUR)
        clock.advance(HOUR - 1)

        again = once(queue, "other")

        assert (again.id, again.created) == (first.id, False)

    def test_a_finished_job_is_returned_with_its_result(self, queue: Queue) -> None:
        first = once(queue, {"month": 11})
        queue.settle(claim_one(queue), Done({"pages": 3}))

        job = duplicate(once(queue, {"month": 11}))

        assert (job.id, job.state, job.result) == (first.id, "done", {"pages": 3})

    def test_a_deleted_job_is_returned_as_identity_and_state(self, queue: Queue, clock: ManualClock) -> None:
        first = once(queue, {"month": 11}, tenant="acme", lane="slow", tags={"a": "b"})
        queue.settle(claim_one(queue, lanes=["slow"]), Done({"pages": 3}))
        clock.advance(60)
        assert queue.admin.prune(older_than=30).jobs == 1

        job = duplicate(once(queue, {"month": 11}, tenant="acme"))

        assert (job.id, job.number, job.state, job.kind) == (first.id, first.job.number, "done", "report")
        assert (job.lane, job.tenant, job.dedupe_key) == ("slow", "acme", "k")
        assert (job.enqueued_at, job.payload, job.result, job.tags) == (first.job.enqueued_at, None, None, {})
        with pytest.raises(JobNotFound):
            queue.get(first.id)

    def test_an_enqueue_without_a_period_looks_only_for_unfinished_jobs(self, queue: Queue) -> None:
        first = once(queue)
        assert not once(queue, dedupe_for=None).created
        queue.settle(claim_one(queue), Done())

        second = queue.enqueue("report", dedupe_key="k")

        assert second.created
        assert once(queue).id == second.id  # it is unfinished
        queue.settle(claim_one(queue), Done())
        assert once(queue).id == first.id

    def test_a_job_without_a_period_does_not_keep_its_key(self, queue: Queue) -> None:
        queue.enqueue("report", dedupe_key="k")
        assert not once(queue).created
        queue.settle(claim_one(queue), Done())

        assert once(queue).created

    def test_a_requeued_job_keeps_its_key(self, queue: Queue) -> None:
        first = once(queue)
        queue.cancel(first.id)
        assert duplicate(once(queue)).state == "cancelled"
        queue.requeue(first.id)

        assert duplicate(once(queue)).state == "ready"

    def test_keys_count_within_tenant_and_scope(self, queue: Queue) -> None:
        for options in ({}, {"tenant": "acme"}, {"dedupe_scope": "tenant"}, {"dedupe_key": "other"}):
            assert once(queue, **options).created
        queue.settle_many([(claim, Done()) for claim in queue.claim_many()])

        for options in ({}, {"tenant": "acme"}, {"dedupe_scope": "tenant"}, {"dedupe_key": "other"}):
            assert not once(queue, **options).created
        assert queue.enqueue("other", dedupe_key="k", dedupe_for=HOUR).created


class TestAfterThePeriod:
    def test_the_period_begins_with_the_enqueue(self, queue: Queue, clock: ManualClock) -> None:
        first = once(queue, dedupe_for=timedelta(hours=1))
        clock.advance(HOUR / 2)
        queue.settle(claim_one(queue), Done())
        assert once(queue).id == first.id
        clock.advance(HOUR / 2)

        second = once(queue)

        assert second.created
        queue.settle(claim_one(queue), Done())
        assert once(queue).id == second.id

    def test_an_unfinished_job_holds_its_key_as_without_a_period(self, queue: Queue, clock: ManualClock) -> None:
        first = once(queue)
        clock.advance(2 * HOUR)

        assert once(queue).id == first.id

    def test_a_key_that_was_pruned_can_be_kept_again(self, queue: Queue, clock: ManualClock) -> None:
        once(queue, dedupe_key="other", dedupe_for=3 * HOUR)
        once(queue)
        queue.settle_many([(claim, Done()) for claim in queue.claim_many()])
        clock.advance(HOUR)

        queue.admin.prune(older_than=0.5 * HOUR)

        assert once(queue).created
        assert not once(queue, dedupe_key="other").created


class TestManyAtOnce:
    def test_one_call_makes_one_job_for_each_key(self, queue: Queue) -> None:
        jobs = [NewJob("report", dedupe_key=key, dedupe_for=HOUR) for key in ("a", "b", "a")]

        first = queue.enqueue_many(jobs)
        queue.settle_many([(claim, Done()) for claim in queue.claim_many()])
        again = queue.enqueue_many(jobs)

        assert [one.created for one in first] == [True, True, False]
        assert not any(one.created for one in again)
        assert [one.id for one in again] == [one.id for one in first]

    def test_a_follow_up_keeps_its_key(self, queue: Queue) -> None:
        queue.enqueue("start")
        queue.settle(claim_one(queue), Done(follow_ups=[NewJob("report", dedupe_key="k", dedupe_for=HOUR)]))
        follow_up = claim_one(queue)
        queue.settle(follow_up, Done())

        assert duplicate(once(queue)).id == follow_up.job.id

    def test_a_call_that_is_rolled_back_keeps_no_key(self, queue: Queue) -> None:
        with rolled_back(queue) as transaction:
            transaction.enqueue("report", dedupe_key="k", dedupe_for=HOUR)

        assert once(queue).created

    def test_a_chosen_id_that_is_sent_again_is_the_same_request(self, queue: Queue) -> None:
        assert once(queue, job_id="mine").created
        assert not once(queue, job_id="mine").created
        queue.settle(claim_one(queue), Done())
        assert duplicate(once(queue, job_id="another")).id == "mine"

    def test_concurrent_calls_make_one_job(self, harness: Harness) -> None:
        queues = [harness.open() for _ in range(4)]
        barrier = threading.Barrier(len(queues))
        created: list[bool] = []

        def enqueue_and_finish(queue: Queue) -> None:
            barrier.wait(60)
            for _ in range(5):
                created.append(once(queue).created)
                for claim in queue.claim_many(worker=f"w{id(queue)}"):
                    queue.settle(claim, Done())

        threads = [threading.Thread(target=enqueue_and_finish, args=(queue,)) for queue in queues]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert (len(created), sum(created)) == (20, 1)
        assert len(queues[0].jobs()) == 1

    def test_concurrent_calls_with_more_keys_than_are_locked_make_one_job_for_each(self, harness: Harness) -> None:
        queues = [harness.open() for _ in range(2)]
        barrier = threading.Barrier(len(queues))
        created: list[bool] = []

        def enqueue_all(queue: Queue, keys: list[int]) -> None:
            barrier.wait(60)
            jobs = [NewJob("report", dedupe_key=str(key), dedupe_for=HOUR) for key in keys]
            created.extend(one.created for one in queue.enqueue_many(jobs))

        keys = list(range(300))
        threads = [
            threading.Thread(target=enqueue_all, args=pair) for pair in zip(queues, (keys, keys[::-1]), strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert (len(created), sum(created)) == (600, 300)


def test_other_enqueues_read_no_kept_keys(queue: Queue) -> None:
    queue.enqueue("report")
    queue.enqueue("report", dedupe_key="k", job_id="mine")

    assert not [name for name in statements_of(queue) if name.startswith("kept")]


@pytest.mark.validation
class TestBadInput:
    @pytest.mark.parametrize("period", [0, -1, 367 * 24 * HOUR, "1h", True])
    def test_a_period_is_a_positive_duration(self, queue: Queue, period: Any) -> None:
        with refused(queue, "dedupe_for"):
            once(queue, dedupe_for=period)

    def test_a_period_requires_a_key(self, queue: Queue) -> None:
        with refused(queue, "dedupe_for"):
            queue.enqueue("report", dedupe_for=HOUR)

    @pytest.mark.parametrize("on_duplicate", ["replace", "run_again"])
    def test_a_period_is_for_keep_only(self, queue: Queue, on_duplicate: Any) -> None:
        with refused(queue, "dedupe_for"):
            once(queue, on_duplicate=on_duplicate)

    def test_an_entry_of_a_session_has_a_message_id_instead(self, queue: Queue) -> None:
        with refused(queue, "dedupe_for"):
            queue.enqueue("say", session="s", dedupe_for=HOUR)
