"""Calls that lock the same keys and jobs in different orders wait for each other: none deadlocks or runs twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import psycopg
import pytest

from holdfast import Claim, Done, Failed, NewJob, Queue
from holdfast.client.connect import queue_on
from holdfast.storage.postgres.store import PostgresStore
from tests.chaos.processes import PATIENCE_SECONDS
from tests.chaos.threads import in_background, wait_until

Call: TypeAlias = Callable[[Any], object]
"""Calls a queue or a transaction."""

ROUNDS = 3
KEYS = 12
APPLICATION = "test_deadlocks"


class Contenders:
    """Two clients that make their calls at the same time, and the events that their stores report."""

    def __init__(self, url: str, schema: str) -> None:
        self.observed: list[str] = []
        named = f"{url}{'&' if '?' in url else '?'}application_name={APPLICATION}"
        self.queues = [queue_on(PostgresStore(named, schema=schema, observe=self.observed.append)) for _ in range(2)]

    def call(self, first: Call, second: Call) -> None:
        """Make both calls at once; each must take exactly one transaction."""
        self.observed.clear()
        self.meet(first, second)
        assert self.observed.count("begin") == self.observed.count("committed") == 2, "a call was run again"

    def meet(self, first: Call, second: Call) -> None:
        """Make both calls at once."""
        start = threading.Barrier(2)

        def called(queue: Queue, call: Call) -> object:
            start.wait(PATIENCE_SECONDS)
            return call(queue)

        answers = [in_background(called, *pair) for pair in zip(self.queues, (first, second), strict=True)]
        for answer in answers:
            answer.result(PATIENCE_SECONDS)

    def claim(self, count: int, kind: str) -> list[Claim]:
        claims = self.queues[0].claim_many(limit=count, kinds=[kind])
        assert len(claims) == count
        return claims


@pytest.fixture
def contenders(url: str, schema: str) -> Iterator[Contenders]:
    """Two clients whose calls must not deadlock."""
    before = deadlocks(url)
    made = Contenders(url, schema)
    for queue in made.queues:
        queue.enqueue("warm.up")
    yield made
    for queue in made.queues:
        queue.close()
    # A server process reports its deadlocks when it ends, at the latest.
    wait_until(
        lambda: (
            query_number(url, f"select count(*) from pg_stat_activity where application_name = '{APPLICATION}'") == 0
        )
    )
    assert deadlocks(url) == before


def deadlocks(url: str) -> int:
    return query_number(url, "select deadlocks from pg_stat_database where datname = current_database()")


def query_number(url: str, sql: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(sql.encode()).fetchone()
    assert row is not None
    return int(row[0])


def keyed(number: int) -> list[NewJob]:
    return [NewJob("mail", dedupe_key=f"{number}-{place}") for place in range(KEYS)]


def chosen(number: int) -> list[NewJob]:
    return [NewJob("mail", job_id=f"{number}-{place}") for place in range(KEYS)]


def enqueue(new: list[NewJob]) -> Call:
    return lambda queue: queue.enqueue_many(new)


def within(url: str, call: Call) -> Call:
    """Make the call in a transaction of the caller."""

    def joined(queue: Queue) -> object:
        with psycopg.connect(url) as connection:
            return call(queue.within(connection))

    return joined


def settle(claims: list[Claim], follow_ups: list[NewJob]) -> Call:
    """Settle each claim with one of the follow-ups."""
    settlements = [(claim, Done(follow_ups=[new])) for claim, new in zip(claims, follow_ups, strict=True)]
    return lambda queue: all(one.error is None for one in queue.settle_many(settlements))


@pytest.mark.parametrize("jobs", [keyed, chosen])
def test_enqueues_of_the_same_keys_in_opposite_orders(
    contenders: Contenders, jobs: Callable[[int], list[NewJob]]
) -> None:
    for number in range(ROUNDS):
        contenders.call(enqueue(jobs(number)), enqueue(jobs(number)[::-1]))
    assert contenders.queues[0].counts(by="kind")["mail"] == ROUNDS * KEYS


def test_more_keys_than_are_locked_one_by_one(contenders: Contenders) -> None:
    new = [NewJob("mail", dedupe_key=f"{place}") for place in range(1_000)]
    first, second = contenders.queues
    answers = [in_background(first.enqueue_many, new), in_background(second.enqueue_many, new[::-1])]
    created = [sum(made.created for made in answer.result(PATIENCE_SECONDS)) for answer in answers]
    assert sorted(created) == [0, 1_000]


def test_enqueues_that_join_a_transaction(contenders: Contenders, url: str) -> None:
    for number in range(ROUNDS):
        new = keyed(number)
        contenders.meet(within(url, enqueue(new)), within(url, enqueue(new[::-1])))
    assert contenders.queues[0].counts(by="kind")["mail"] == ROUNDS * KEYS


def test_settlements_that_join_a_transaction(contenders: Contenders, url: str) -> None:
    contenders.queues[0].enqueue_many([NewJob("parent")] * (2 * KEYS * ROUNDS))
    for number in range(ROUNDS):
        claims, new = contenders.claim(2 * KEYS, "parent"), keyed(number)
        contenders.meet(
            within(url, settle(claims[:KEYS], new)),
            within(url, settle(claims[KEYS:], new[::-1])),
        )
    assert contenders.queues[0].counts() == {"done": 2 * KEYS * ROUNDS, "ready": ROUNDS * KEYS + 2}


def test_settlements_whose_follow_ups_meet_in_opposite_orders(contenders: Contenders) -> None:
    contenders.queues[0].enqueue_many([NewJob("parent")] * (2 * KEYS * ROUNDS))
    for number in range(ROUNDS):
        claims, new = contenders.claim(2 * KEYS, "parent"), keyed(number)
        contenders.call(settle(claims[:KEYS], new), settle(claims[KEYS:], new[::-1]))
    assert contenders.queues[0].counts() == {"done": 2 * KEYS * ROUNDS, "ready": ROUNDS * KEYS + 2}


def test_settlements_fused_with_a_claim(contenders: Contenders) -> None:
    contenders.queues[0].enqueue_many([NewJob("parent")] * (2 * KEYS * ROUNDS + 2 * ROUNDS))
    for number in range(ROUNDS):
        claims, new = contenders.claim(2 * KEYS, "parent"), keyed(number)
        halves = [(claims[:KEYS], new), (claims[KEYS:], new[::-1])]
        settled = [[(claim, Done(follow_ups=[one])) for claim, one in zip(*half, strict=True)] for half in halves]
        first, second = [
            partial(Queue.settle_and_claim, settlements=one, limit=1, kinds=["parent"]) for one in settled
        ]
        contenders.call(first, second)
    assert contenders.queues[0].counts()["done"] == 2 * KEYS * ROUNDS


def test_settlements_whose_follow_ups_carry_the_keys_that_the_others_hold(contenders: Contenders) -> None:
    for number in range(ROUNDS):
        kind = f"round{number}"
        contenders.queues[0].enqueue_many(
            [NewJob(kind, dedupe_key=f"{place}", dedupe_scope="tenant") for place in "ab"]
        )
        a, b = contenders.claim(2, kind)
        again_a, again_b = (NewJob("mail", dedupe_key=f"{place}", dedupe_scope="tenant") for place in "ab")
        contenders.call(settle([a], [again_b]), settle([b], [again_a]))
        for claim in contenders.queues[0].claim_many(kinds=["mail"]):
            contenders.queues[0].settle(claim, Done())
    assert contenders.queues[0].counts(by="kind")["mail"] >= ROUNDS


def test_settlements_of_jobs_whose_keys_are_enqueued_again_in_another_order(contenders: Contenders) -> None:
    for number in range(ROUNDS):
        new = keyed(number)
        contenders.queues[0].enqueue_many(new)
        claims = contenders.claim(KEYS, "mail")
        done = [(claim, Done()) for claim in claims]
        contenders.meet(enqueue(new[::-1]), partial(Queue.settle_many, settlements=done))
        for claim in contenders.queues[0].claim_many(limit=1000, kinds=["mail"]):
            contenders.queues[0].settle(claim, Done())


def test_settlements_that_bring_more_keys_than_one_transaction_locks(contenders: Contenders) -> None:
    parents, each = 26, 10
    contenders.queues[0].enqueue_many([NewJob("parent")] * (2 * parents))
    claims = contenders.claim(2 * parents, "parent")
    outcomes = [
        Done(follow_ups=[NewJob("mail", dedupe_key=f"{parent}-{place}") for place in range(each)])
        for parent in range(parents)
    ]
    first = list(zip(claims[:parents], outcomes, strict=True))
    second = list(zip(claims[parents:], outcomes[::-1], strict=True))
    contenders.observed.clear()
    contenders.meet(partial(Queue.settle_many, settlements=first), partial(Queue.settle_many, settlements=second))
    # Each call divides its settlements into two transactions, and neither is run again.
    assert contenders.observed.count("begin") == contenders.observed.count("committed") == 4
    assert contenders.queues[0].counts() == {"done": 2 * parents, "ready": parents * each + 2}


def requeue_many(queue: Queue, job_ids: list[str]) -> object:
    return queue.admin.requeue_many(job_ids)


def test_requeues_of_jobs_with_the_same_keys_in_opposite_orders(contenders: Contenders) -> None:
    for number in range(ROUNDS):
        first, second = (failed_jobs(contenders, keyed(number)) for _ in range(2))
        contenders.call(
            partial(requeue_many, job_ids=first),
            partial(requeue_many, job_ids=second[::-1]),
        )
        requeued = contenders.claim(KEYS, "mail")
        contenders.queues[0].settle_many([(claim, Done()) for claim in requeued])


def failed_jobs(contenders: Contenders, new: list[NewJob]) -> list[str]:
    """Enqueue jobs and let them fail; return their ids."""
    ids = [made.id for made in contenders.queues[0].enqueue_many(new)]
    claims = contenders.claim(len(new), "mail")
    contenders.queues[0].settle_many([(claim, Failed("no", permanent=True)) for claim in claims])
    return ids
