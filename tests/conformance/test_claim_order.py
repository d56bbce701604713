"""The total order of claiming: random jobs, claimed one by one and in batches, compared with an oracle."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest

from holdfast import NewJob, Queue
from holdfast.storage.postgres import scan_positions
from holdfast.types import ClaimOptions, JobOptions
from tests.support.claims import claim_ids
from tests.support.clock import ManualClock
from tests.support.oracle import Oracle

KINDS = ["load", "think", "write"]
TENANTS = ["ada", "max", "zoe"]
LANES = ["default", "side", "strict"]
AFFINITIES = [None, "llama", "qwen"]
CAPABILITIES: list[list[str]] = [[], ["gpu"], ["gpu", "net"]]


def _seeds(usual: int) -> list[Any]:
    """Return the seeds of random tests: *usual* ones in every run, more in long runs."""
    return [*range(usual), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(usual, 5))]


def random_options(chance: random.Random) -> JobOptions:
    """Return options with few values each, so most jobs are equal in most respects."""
    return {
        "lane": chance.choice(LANES),
        "tenant": chance.choice(TENANTS),
        "priority": chance.choice([0, 0, 0, 5]),
        "affinity": chance.choice(AFFINITIES),
        "requires": chance.choice([[], [], ["gpu"]]),
        "delay": chance.choice([0, 0, 1, 3]),
    }


def random_claim_options(chance: random.Random) -> ClaimOptions:
    """Return random options of a claim: filters and preferences."""
    options: ClaimOptions = {
        # Long enough that no lease expires during the test.
        "lease": 86_400,
        # Few sets of lanes: the same subscription is used again and its fairness continues.
        "lanes": chance.choice([["default"], ["default", "side"], ["strict"], ["strict", "default", "side"]]),
        "capabilities": chance.choice(CAPABILITIES),
        "affinity": chance.choice([None, "llama", "qwen", ["llama", "qwen"]]),
        "hold_left": chance.choice([None, 10, 0, timedelta(minutes=1)]),
    }
    kinds = chance.choice([None, None, KINDS, ["write", "think"]])
    if kinds is not None:
        options["kinds"] = kinds
        options["drain"] = chance.choice(["oldest", "listed"])
    if chance.random() < 0.2:
        options["tenant"] = chance.choice(TENANTS)
    return options


def fill(queue: Queue, clock: ManualClock, oracle: Oracle, chance: random.Random, count: int) -> None:
    """Enqueue jobs while time passes, until the last of them is due."""
    for _ in range(count):
        oracle.add(queue.enqueue(chance.choice(KINDS), **random_options(chance)).job)
        if chance.random() < 0.3:
            clock.advance(1)
    clock.advance(3)


@pytest.fixture(autouse=True)
def no_scan_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let PostgreSQL remember no position, behind which a new job may be passed over for a second."""
    monkeypatch.setattr(scan_positions, "_LIFE_SECONDS", 0.0)


@pytest.fixture
def oracle(queue: Queue) -> Oracle:
    queue.lanes.set("strict", order="strict")
    return Oracle(strict_lanes=frozenset(("strict",)))


@pytest.mark.parametrize("limit", [1, 2, 5, 7, 100])
@pytest.mark.parametrize("seed", _seeds(1))
def test_any_mixture_of_claims_takes_the_jobs_in_the_total_order(
    queue: Queue, clock: ManualClock, oracle: Oracle, limit: int, seed: int
) -> None:
    chance = random.Random(f"{seed} {limit}")
    for _ in range(3):
        fill(queue, clock, oracle, chance, 40)
        for _ in range(30):
            options = random_claim_options(chance)
            assert claim_ids(queue, limit, **options) == oracle.claim(limit, options), options


@pytest.mark.parametrize("seed", _seeds(2))
def test_one_subscription_that_changes_its_batch_size_takes_everything_in_the_total_order(
    queue: Queue, clock: ManualClock, oracle: Oracle, seed: int
) -> None:
    chance = random.Random(seed)
    options: ClaimOptions = {
        "lanes": LANES,
        "capabilities": ["gpu"],
        "affinity": chance.choice(AFFINITIES),
        "lease": 600,
    }
    fill(queue, clock, oracle, chance, 120)
    while not oracle.empty:
        limit = chance.choice([1, 1, 2, 3, 10])
        assert claim_ids(queue, limit, **options) == oracle.claim(limit, options)
    assert queue.claim(**options) is None


@pytest.mark.slow("hundreds of jobs go through the store")
@pytest.mark.parametrize("limit", [1, 3, 50])
def test_a_thousand_jobs_of_few_tenants_come_in_the_total_order(
    queue: Queue, clock: ManualClock, oracle: Oracle, limit: int
) -> None:
    chance = random.Random(limit)
    jobs = [NewJob(chance.choice(KINDS), tenant=chance.choice(TENANTS)) for _ in range(1000)]
    for enqueued in queue.enqueue_many(jobs):
        oracle.add(enqueued.job)
    options: ClaimOptions = {"kinds": KINDS, "drain": "listed"}
    for _ in range(20):
        assert claim_ids(queue, limit, **options) == oracle.claim(limit, options)


@pytest.mark.parametrize("affinity", [None, "llama", "other"])
@pytest.mark.parametrize("limit", [7, 25, 40])
def test_many_tenants_with_uneven_queues_are_served_in_the_total_order(
    queue: Queue, oracle: Oracle, limit: int, affinity: str | None
) -> None:
    chance = random.Random(f"{limit} {affinity}")
    crowd = [f"tenant-{number:02}" for number in range(20)] + ["ada"] * 60 + ["zoe"] * 60
    jobs = [
        # Tenants with long queues mix affinities on one kind, or spread over several kinds.
        NewJob("load" if tenant == "ada" else chance.choice(KINDS), tenant=tenant, affinity=chance.choice(AFFINITIES))
        for tenant in chance.sample(crowd, len(crowd))
    ]
    for enqueued in queue.enqueue_many(jobs):
        oracle.add(enqueued.job)
    options: ClaimOptions = {"affinity": affinity}
    while not oracle.empty:
        assert claim_ids(queue, limit, **options) == oracle.claim(limit, options)


class TestTheRulesOneByOne:
    """Each rule compared with the next one; a failure names the rule."""

    def test_a_listed_kind_goes_before_a_higher_priority(self, queue: Queue) -> None:
        last = queue.enqueue("load", priority=9)
        first = queue.enqueue("write", priority=-9)
        options: ClaimOptions = {"kinds": ["write", "load"], "drain": "listed"}
        assert claim_ids(queue, **options) == [first.id, last.id]

    def test_without_drain_the_list_of_kinds_does_not_order(self, queue: Queue) -> None:
        first = queue.enqueue("load")
        last = queue.enqueue("write")
        assert claim_ids(queue, kinds=["write", "load"]) == [first.id, last.id]

    def test_a_higher_priority_goes_before_a_loaded_affinity(self, queue: Queue) -> None:
        last = queue.enqueue("load", affinity="llama")
        first = queue.enqueue("load", priority=1, affinity="qwen")
        assert claim_ids(queue, affinity="llama") == [first.id, last.id]

    def test_a_loaded_affinity_goes_before_fairness(self, queue: Queue) -> None:
        last = queue.enqueue("load", tenant="ada")
        first = queue.enqueue("load", tenant="zoe", affinity="llama")
        assert claim_ids(queue, affinity="llama") == [first.id, last.id]

    def test_fairness_goes_before_an_earlier_due_time(self, queue: Queue, clock: ManualClock) -> None:
        first, second = queue.enqueue("load", tenant="ada"), queue.enqueue("load", tenant="ada")
        clock.advance(60)
        other = queue.enqueue("load", tenant="zoe")
        assert claim_ids(queue) == [first.id, other.id, second.id]

    def test_an_earlier_due_time_goes_before_enqueue_order(self, queue: Queue, clock: ManualClock) -> None:
        last = queue.enqueue("load", delay=10)
        first = queue.enqueue("load", delay=5)
        clock.advance(20)
        assert claim_ids(queue) == [first.id, last.id]

    def test_enqueue_order_decides_among_equals(self, queue: Queue) -> None:
        enqueued = [queue.enqueue("load").id for _ in range(5)]
        assert claim_ids(queue) == enqueued

    def test_jobs_enqueued_together_keep_the_order_of_their_list(self, queue: Queue) -> None:
        enqueued = [enqueued.id for enqueued in queue.enqueue_many([NewJob("load") for _ in range(300)])]
        assert claim_ids(queue, 300) == enqueued

    def test_a_changed_priority_changes_the_position(self, queue: Queue) -> None:
        last, first = queue.enqueue("load"), queue.enqueue("load")
        queue.reprioritize(first.id, 3)
        assert claim_ids(queue) == [first.id, last.id]

    def test_negative_priorities_go_last(self, queue: Queue) -> None:
        last, first = queue.enqueue("load", priority=-1), queue.enqueue("load")
        assert claim_ids(queue) == [first.id, last.id]
