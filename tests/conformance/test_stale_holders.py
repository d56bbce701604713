"""A dedupe key is free if its holder's deadline or last lease has passed, even before maintenance notices.

Every store must pass this file unchanged.
"""

from __future__ import annotations

import pytest

from holdfast import Done, Failed, Queue
from tests.support.assertions import duplicate
from tests.support.claims import claim_one
from tests.support.clock import ManualClock


def test_a_holder_past_its_deadline_does_not_block_a_new_job(queue: Queue, clock: ManualClock) -> None:
    first = queue.enqueue("sync", dedupe_key="k", deadline=10)
    clock.advance(10)
    second = queue.enqueue("sync", dedupe_key="k")
    assert second.created
    assert (queue.get(first.id).state, queue.get(second.id).state) == ("failed", "ready")


def test_a_holder_that_expired_in_its_last_attempt_does_not_block_a_new_job(queue: Queue, clock: ManualClock) -> None:
    first = queue.enqueue("sync", dedupe_key="k", max_attempts=1)
    claim_one(queue, lease=5)
    clock.advance(5)
    second = queue.enqueue("sync", dedupe_key="k")
    assert second.created
    failure = queue.get(first.id).failure
    assert failure is not None
    assert failure.reason == "lease_expired"


@pytest.mark.parametrize("policy", ["keep", "run_again"])
def test_a_holder_that_expired_and_will_be_retried_keeps_its_key(
    queue: Queue, clock: ManualClock, policy: str
) -> None:
    first = queue.enqueue("sync", dedupe_key="k")
    claim_one(queue, lease=5)
    clock.advance(5)
    again = queue.enqueue("sync", dedupe_key="k", on_duplicate="keep" if policy == "keep" else "run_again")
    assert (again.id, again.created, again.job.state) == (first.id, False, "ready")


def test_a_successor_freed_by_the_passed_deadline_holds_the_key(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("sync", dedupe_key="k", max_attempts=1)
    claim_one(queue, lease=5)
    successor = queue.enqueue("sync", dedupe_key="k", on_duplicate="run_again")
    clock.advance(5)
    assert duplicate(queue.enqueue("sync", dedupe_key="k")) == queue.get(successor.id)
    assert queue.get(successor.id).state == "ready"


def test_a_requeue_is_not_refused_because_of_a_holder_past_its_deadline(queue: Queue, clock: ManualClock) -> None:
    first = queue.enqueue("sync", dedupe_key="k")
    queue.settle(claim_one(queue), Failed("no", permanent=True))
    queue.enqueue("sync", dedupe_key="k", deadline=10)
    clock.advance(10)
    assert queue.requeue(first.id).state == "ready"
    assert queue.settle(claim_one(queue), Done()).id == first.id
