"""The total order of claiming, end to end: random jobs, claimed one by one and in entries, against an oracle."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from holdfast import ClaimOptions, JobOptions, NewJob, Queue
from tests.support.claims import claim_ids
from tests.support.clock import ManualClock
from tests.support.oracle import Oracle

KINDS = ["load", "think", "write"]
TENANTS = ["ada", "max", "zoe"]
LANES = ["default", "side", "strict"]
AFFINITIES = [None, "llama", "qwen"]
CAPABILITIES: list[list[str]] = [[], ["gpu"], ["gpu", "net"]]


def random_options(chance: random.Random) -> JobOptions:
    """Return options with few values each, so that most jobs tie in most respects."""
    return {
        "lane": chance.choice(LANES),
        "tenant": chance.choice(TENANTS),
        "priority": chance.choice([0, 0, 0, 5]),
        "affinity": chance.choice(AFFINITIES),
        "requires": chance.choice([[], [], ["gpu"]]),
        "delay": chance.choice([0, 0, 1, 3]),
    }


def random_words(chance: random.Random) -> ClaimOptions:
    """Return the words of a claim with any mixture of filters and preferences."""
    words: ClaimOptions = {
        # Long enough for nothing to come back while the test goes on.
        "lease": 86_400,
        # The sets of lanes stay few, so that the same subscription comes again and its turn goes on.
        "lanes": chance.choice([["default"], ["default", "side"], ["strict"], ["strict", "default", "side"]]),
        "capabilities": chance.choice(CAPABILITIES),
        "affinity": chance.choice([None, "llama", "qwen", ["llama", "qwen"]]),
        "residence_left": chance.choice([None, 10, 0, timedelta(minutes=1)]),
    }
    kinds = chance.choice([None, None, KINDS, ["write", "think"]])
    if kinds is not None:
        words["kinds"] = kinds
        words["drain"] = chance.choice(["oldest", "listed"])
    if chance.random() < 0.2:
        words["tenant"] = chance.choice(TENANTS)
    return words


def fill(queue: Queue, clock: ManualClock, oracle: Oracle, chance: random.Random, count: int) -> None:
    """Enqueue jobs while time passes, and let the last of them become due."""
    for _ in range(count):
        oracle.add(queue.enqueue(chance.choice(KINDS), **random_options(chance)).job)
        if chance.random() < 0.3:
            clock.advance(1)
    clock.advance(3)


@pytest.fixture
def oracle(queue: Queue) -> Oracle:
    queue.set_lane("strict", order="strict")
    return Oracle(strict_lanes=frozenset(("strict",)))


@pytest.mark.parametrize("limit", [1, 2, 5, 7, 100])
@pytest.mark.parametrize("seed", range(3))
def test_any_mixture_of_claims_takes_the_jobs_in_the_total_order(
    queue: Queue, clock: ManualClock, oracle: Oracle, limit: int, seed: int
) -> None:
    chance = random.Random(f"{seed} {limit}")
    for _ in range(3):
        fill(queue, clock, oracle, chance, 40)
        for _ in range(30):
            words = random_words(chance)
            assert claim_ids(queue, limit, **words) == oracle.claim(limit, words), words


@pytest.mark.parametrize("seed", range(4))
def test_one_subscription_that_changes_its_batch_size_takes_everything_in_the_total_order(
    queue: Queue, clock: ManualClock, oracle: Oracle, seed: int
) -> None:
    chance = random.Random(seed)
    words: ClaimOptions = {
        "lanes": LANES,
        "capabilities": ["gpu"],
        "affinity": chance.choice(AFFINITIES),
        "lease": 600,
    }
    fill(queue, clock, oracle, chance, 120)
    while not oracle.empty:
        limit = chance.choice([1, 1, 2, 3, 10])
        assert claim_ids(queue, limit, **words) == oracle.claim(limit, words)
    assert queue.claim(**words) is None


@pytest.mark.slow("hundreds of jobs go through the store")
@pytest.mark.parametrize("limit", [1, 3, 50])
def test_a_thousand_jobs_of_few_tenants_come_in_the_total_order(
    queue: Queue, clock: ManualClock, oracle: Oracle, limit: int
) -> None:
    chance = random.Random(limit)
    jobs = [NewJob(chance.choice(KINDS), tenant=chance.choice(TENANTS)) for _ in range(1000)]
    for made in queue.enqueue_many(jobs):
        oracle.add(made.job)
    words: ClaimOptions = {"kinds": KINDS, "drain": "listed"}
    for _ in range(60):
        assert claim_ids(queue, limit, **words) == oracle.claim(limit, words)


@pytest.mark.parametrize("affinity", [None, "llama", "other"])
@pytest.mark.parametrize("limit", [7, 25, 40])
def test_a_crowd_of_tenants_with_uneven_queues_is_served_in_the_total_order(
    queue: Queue, oracle: Oracle, limit: int, affinity: str | None
) -> None:
    chance = random.Random(f"{limit} {affinity}")
    crowd = [f"tenant-{number:02}" for number in range(20)] + ["ada"] * 60 + ["zoe"] * 60
    jobs = [
        # Tenants with long queues mix affinities on one kind, or spread over several kinds.
        NewJob("load" if tenant == "ada" else chance.choice(KINDS), tenant=tenant, affinity=chance.choice(AFFINITIES))
        for tenant in chance.sample(crowd, len(crowd))
    ]
    for made in queue.enqueue_many(jobs):
        oracle.add(made.job)
    words: ClaimOptions = {"affinity": affinity}
    while not oracle.empty:
        assert claim_ids(queue, limit, **words) == oracle.claim(limit, words)


class TestTheRulesOneByOne:
    """Each rule against the one below it, so that a failure names the rule."""

    def test_a_listed_kind_goes_before_a_higher_priority(self, queue: Queue) -> None:
        last = queue.enqueue("load", priority=9)
        first = queue.enqueue("write", priority=-9)
        words: ClaimOptions = {"kinds": ["write", "load"], "drain": "listed"}
        assert claim_ids(queue, **words) == [first.id, last.id]

    def test_without_drain_the_list_of_kinds_does_not_order(self, queue: Queue) -> None:
        first = queue.enqueue("load")
        last = queue.enqueue("write")
        assert claim_ids(queue, kinds=["write", "load"]) == [first.id, last.id]

    def test_a_higher_priority_goes_before_the_affinity_at_hand(self, queue: Queue) -> None:
        last = queue.enqueue("load", affinity="llama")
        first = queue.enqueue("load", priority=1, affinity="qwen")
        assert claim_ids(queue, affinity="llama") == [first.id, last.id]

    def test_the_affinity_at_hand_goes_before_the_tenants_turn(self, queue: Queue) -> None:
        last = queue.enqueue("load", tenant="ada")
        first = queue.enqueue("load", tenant="zoe", affinity="llama")
        assert claim_ids(queue, affinity="llama") == [first.id, last.id]

    def test_the_tenants_turn_goes_before_an_earlier_due_moment(self, queue: Queue, clock: ManualClock) -> None:
        first, second = queue.enqueue("load", tenant="ada"), queue.enqueue("load", tenant="ada")
        clock.advance(60)
        other = queue.enqueue("load", tenant="zoe")
        assert claim_ids(queue) == [first.id, other.id, second.id]

    def test_an_earlier_due_moment_goes_before_enqueue_order(self, queue: Queue, clock: ManualClock) -> None:
        last = queue.enqueue("load", delay=10)
        first = queue.enqueue("load", delay=5)
        clock.advance(20)
        assert claim_ids(queue) == [first.id, last.id]

    def test_enqueue_order_decides_among_equals(self, queue: Queue) -> None:
        made = [queue.enqueue("load").id for _ in range(5)]
        assert claim_ids(queue) == made

    def test_jobs_enqueued_together_keep_the_order_of_their_list(self, queue: Queue) -> None:
        made = [made.id for made in queue.enqueue_many([NewJob("load") for _ in range(300)])]
        assert claim_ids(queue, 300) == made

    def test_a_changed_priority_changes_the_place(self, queue: Queue) -> None:
        last, first = queue.enqueue("load"), queue.enqueue("load")
        queue.reprioritize(first.id, 3)
        assert claim_ids(queue) == [first.id, last.id]

    def test_negative_priorities_go_last(self, queue: Queue) -> None:
        last, first = queue.enqueue("load", priority=-1), queue.enqueue("load")
        assert claim_ids(queue) == [first.id, last.id]
