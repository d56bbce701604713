"""A claim returns every column of every job as it is stored."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Backoff, Deferred, Failed, NewJob, Outcome, Queue, Released, json_view
from holdfast.domain import limits
from holdfast.domain.job import row_of
from tests.support.claims import claim_one
from tests.support.clock import ManualClock
from tests.support.job_states import all_events


def assert_as_stored(queue: Queue, limit: int = 100, **options: object) -> int:
    claims = queue.claim_many(limit=limit, **options)  # type: ignore[arg-type]  # each test gives options of a claim
    shown = [json_view.job(queue.get(claim.job.id)) for claim in claims]
    assert shown == [json_view.job(claim.job) for claim in claims]
    return len(claims)


def test_jobs_with_every_option_are_returned_completely(queue: Queue) -> None:
    queue.enqueue(
        "mail",
        {"text": "a 'quoted' \\ line\nand \"more\""},
        tenant="acme",
        priority=7,
        requires=["gpu"],
        headers={"trace": "1"},
        tags={"order": "42"},
        deadline=60,
        max_attempts=9,
        backoff=Backoff(base=1),
        dedupe_key="once",
        events="all",
        job_id="chosen",
    )
    assert assert_as_stored(queue, capabilities=["gpu"]) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"headers": {"trace": "1"}},
        {"tags": {"order": "42"}},
        {"deadline": 60},
        {"max_attempts": 9},
        {"backoff": Backoff(base=1)},
        {"dedupe_key": "once"},
        {"affinity": "host"},
        {"tenant": "acme", "priority": 3},
    ],
    ids="-".join,
)
def test_a_job_with_one_option_is_returned_completely(queue: Queue, options: dict[str, Any]) -> None:
    queue.enqueue("mail", **options)
    assert assert_as_stored(queue) == 1


@pytest.mark.parametrize("outcome", [Released(), Deferred(after=1), Failed("no", retry_after=1)])
def test_a_job_that_was_claimed_before_is_returned_completely(
    queue: Queue, clock: ManualClock, outcome: Outcome
) -> None:
    queue.enqueue("mail")
    queue.settle(claim_one(queue), outcome)
    clock.advance(2)
    assert assert_as_stored(queue) == 1


@pytest.mark.parametrize(("kinds", "tenants"), [(1, 1), (2, 1), (3, 4)])
def test_columns_that_are_not_public_are_returned_as_well(queue: Queue, kinds: int, tenants: int) -> None:
    new = [NewJob(f"kind{n % kinds}", tenant=f"t{n % tenants}", priority=n % 3) for n in range(12)]
    queue.enqueue_many(new)
    claims = queue.claim_many(limit=12)
    assert [queue.get(claim.job.id) for claim in claims] == [claim.job for claim in claims]
    assert [row_of(claim.job).claim_index for claim in claims] == list(range(12))


def test_a_job_that_failed_before_is_returned_with_its_failure(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("mail")
    queue.settle(claim_one(queue), Failed("it broke", reason="smtp", retry_after=1, traceback="where"))
    clock.advance(2)
    assert assert_as_stored(queue) == 1


@pytest.mark.parametrize("kinds", [1, 2])
def test_a_batch_over_several_priorities_is_returned_completely(queue: Queue, kinds: int) -> None:
    queue.enqueue_many([NewJob(f"kind{number % kinds}", priority=number % 3) for number in range(12)])
    assert assert_as_stored(queue) == 12


def test_a_batch_over_several_kinds_and_tenants_is_returned_completely(queue: Queue) -> None:
    queue.enqueue_many([NewJob(f"kind{number % 3}", tenant=f"t{number % 4}") for number in range(24)])
    assert assert_as_stored(queue, limit=20) == 20


def test_jobs_that_fall_due_together_are_claimed_in_enqueue_order(queue: Queue) -> None:
    enqueued = queue.enqueue_many([NewJob("mail") for _ in range(30)])
    claims = queue.claim_many(limit=30)
    assert [claim.job.id for claim in claims] == [one.id for one in enqueued]


@pytest.mark.parametrize("kinds", [1, 3])
def test_claims_in_a_lane_with_all_events_are_recorded(queue: Queue, kinds: int) -> None:
    queue.lanes.set("loud", events="all")
    enqueued = queue.enqueue_many([NewJob(f"kind{number % kinds}", lane="loud") for number in range(6)])
    assert assert_as_stored(queue, lanes=["loud"]) == 6
    recorded = {
        one.id: [(event.number, event.name) for event in all_events(queue) if event.job_id == one.id]
        for one in enqueued
    }
    assert recorded == {one.id: [(1, "enqueued"), (2, "claimed")] for one in enqueued}


@pytest.mark.parametrize("kinds", [1, 3])
def test_a_job_past_its_deadline_is_not_started_among_any_number(
    queue: Queue, clock: ManualClock, kinds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are more expired deadlines than one claim processes, so some remain when jobs are leased."""
    monkeypatch.setattr(limits, "CHUNK", 10)
    count = 12 * limits.CHUNK
    queue.enqueue_many([NewJob(f"kind{number % kinds}", deadline=10) for number in range(count)])
    clock.advance(11)
    queue.enqueue("kind0", "in time")
    while claims := queue.claim_many(limit=50):
        assert [claim.job.payload for claim in claims] == ["in time"]
    assert queue.counts(by="state")["failed"] == count
