"""Calls in a transaction commit together with the caller's data, or roll back with it.

Every store must pass this file unchanged. The SQL of the tests works on every engine.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest

from holdfast import (
    Artifact,
    Conflict,
    Deferred,
    Done,
    Failed,
    HoldfastError,
    InvalidInput,
    JobNotFound,
    LeaseLost,
    Misconfigured,
    NewJob,
    Outcome,
    Queue,
    Released,
    Transaction,
    WaitTimeout,
)
from holdfast.errors import LaneDraining
from tests.chaos.processes import PATIENCE_SECONDS
from tests.support.claims import claim_one
from tests.support.clock import ManualClock
from tests.support.stores import Harness

pytestmark = pytest.mark.in_memory


class RollbackError(Exception):
    """Raised by the caller."""


@contextmanager
def rolled_back(queue: Queue) -> Iterator[Transaction]:
    """Open a transaction whose block ends by raising."""
    with suppress(RollbackError), queue.transaction() as tx:
        yield tx
        raise RollbackError


def stored(queue: Queue) -> int:
    return sum(queue.counts().values())


def names(queue: Queue) -> list[str]:
    return [event.name for event in queue.events()]


@pytest.fixture
def orders(queue: Queue) -> Queue:
    """The store with a table of the caller."""
    with queue.transaction() as tx:
        tx.execute("create table orders (id integer primary key, note text)")
    return queue


def notes(queue: Queue) -> list[str]:
    with queue.transaction() as tx:
        return [row[0] for row in tx.execute("select note from orders order by id")]


class TestEnqueue:
    def test_a_commit_stores_the_row_the_job_and_the_event(self, orders: Queue) -> None:
        with orders.transaction() as tx:
            tx.execute("insert into orders values (1, 'tea')")
            enqueued = tx.enqueue("ship", {"order": 1}, events="all")
        assert enqueued.created
        assert orders.get(enqueued.id) == enqueued.job
        assert names(orders) == ["enqueued"]
        assert notes(orders) == ["tea"]
        assert claim_one(orders).job.id == enqueued.id

    def test_a_rollback_stores_none_of_them(self, orders: Queue) -> None:
        with rolled_back(orders) as tx:
            tx.execute("insert into orders values (1, 'tea')")
            enqueued = tx.enqueue("ship", {"order": 1}, events="all")
            tx.enqueue_many([NewJob("ship", events="all")] * 3)
        assert stored(orders) == 0
        assert names(orders) == []
        assert notes(orders) == []
        assert orders.claim() is None
        with pytest.raises(JobNotFound):
            orders.get(enqueued.id)

    def test_the_transaction_sees_its_own_jobs(self, queue: Queue) -> None:
        with queue.transaction() as tx:
            enqueued = tx.enqueue("ship")
            assert tx.get(enqueued.id) == enqueued.job
            assert tx.enqueue("ship", job_id="a").created
            assert not tx.enqueue("ship", job_id="a").created

    def test_an_id_or_key_rolled_back_is_free_again(self, queue: Queue) -> None:
        with rolled_back(queue) as tx:
            tx.enqueue("ship", 1, job_id="a", dedupe_key="k")
        enqueued = queue.enqueue("ship", 2, job_id="a", dedupe_key="k")
        assert (enqueued.created, enqueued.job.payload) == (True, 2)

    def test_a_kind_and_lane_first_used_in_a_rolled_back_transaction_work_afterwards(self, queue: Queue) -> None:
        with rolled_back(queue) as tx:
            tx.enqueue("brand.new", lane="fresh", requires=["gpu"])
        queue.enqueue("brand.new", lane="fresh", requires=["gpu"], job_id="a")
        assert claim_one(queue, lanes=["fresh"], capabilities=["gpu"]).job.id == "a"

    def test_a_replacement_rolled_back_leaves_the_old_payload(self, queue: Queue) -> None:
        first = queue.enqueue("ship", 1, dedupe_key="k")
        with rolled_back(queue) as tx:
            assert tx.enqueue("ship", 2, dedupe_key="k", on_duplicate="replace").job.payload == 2
        assert queue.get(first.id) == first.job

    def test_another_client_sees_it_after_the_commit(self, harness: Harness) -> None:
        with harness.open().transaction() as tx:
            enqueued = tx.enqueue("ship")
        assert harness.open().get(enqueued.id) == enqueued.job

    def test_an_empty_transaction_is_accepted(self, queue: Queue) -> None:
        with queue.transaction():
            pass
        assert stored(queue) == 0

    def test_one_transaction_follows_another(self, queue: Queue) -> None:
        for number in range(5):
            with queue.transaction() as tx:
                tx.enqueue("ship", number)
        with rolled_back(queue) as tx:
            tx.enqueue("ship", 5)
        assert [claim.job.payload for claim in queue.claim_many()] == [0, 1, 2, 3, 4]


class TestRefusedInside:
    def test_a_refused_enqueue_stores_nothing_and_the_transaction_continues(self, orders: Queue) -> None:
        orders.enqueue("ship", 1, job_id="taken")
        orders.lanes.set("mail", state="draining")
        with orders.transaction() as tx:
            tx.enqueue("ship", job_id="before")
            with pytest.raises(Conflict):
                tx.enqueue("ship", 2, job_id="taken")
            with pytest.raises(LaneDraining):
                tx.enqueue_many([NewJob("ship", job_id="lost", events="all"), NewJob("ship", lane="mail")])
            with pytest.raises(InvalidInput):
                tx.enqueue("ship", float("nan"))
            tx.execute("insert into orders values (1, 'tea')")
            tx.enqueue("ship", job_id="after")
        assert sorted(job.id for job in orders.jobs()) == ["after", "before", "taken"]
        assert names(orders) == []
        assert notes(orders) == ["tea"]

    def test_a_conflict_after_a_replacement_in_one_call_undoes_the_replacement(self, queue: Queue) -> None:
        waiting = queue.enqueue("a", 0, dedupe_key="k")
        queue.enqueue("a", 0, job_id="taken")
        with queue.transaction() as tx:
            with pytest.raises(Conflict):
                tx.enqueue_many(
                    [
                        NewJob("a", 1, dedupe_key="k", on_duplicate="replace"),
                        NewJob("a", 1, dedupe_key="k", on_duplicate="replace", job_id="taken"),
                    ]
                )
            tx.enqueue("a", job_id="after")
        assert queue.get(waiting.id) == waiting.job
        assert stored(queue) == 3

    def test_a_refused_settle_stores_nothing_and_the_transaction_continues(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        queue.enqueue("ship", job_id="a")
        stale = claim_one(queue, lease=10)
        clock.advance(11)
        holder = claim_one(queue)
        with queue.transaction() as tx:
            with pytest.raises(LeaseLost):
                tx.settle(stale, Done(follow_ups=[NewJob("next")], artifacts=[Artifact("x", b"1")]))
            tx.enqueue("other", job_id="b")
        assert queue.get("a") == holder.job
        assert sorted(job.id for job in queue.jobs()) == ["a", "b"]
        assert queue.artifacts("a") == []

    def test_a_settle_refused_for_its_follow_up_changes_nothing_of_it(self, queue: Queue) -> None:
        queue.enqueue("ship", job_id="a")
        queue.lanes.set("mail", state="draining")
        claim = claim_one(queue)
        with queue.transaction() as tx:
            refused = Done(follow_ups=[NewJob("x"), NewJob("y", lane="mail")], artifacts=[Artifact("x", b"1")])
            with pytest.raises(LaneDraining):
                tx.settle(claim, refused)
            assert tx.settle(claim, Done("plain")).state == "done"
        assert queue.get("a").result == "plain"
        assert stored(queue) == 1


OUTCOMES: list[Outcome] = [
    Done({"ok": True}, follow_ups=[NewJob("next", events="all")], artifacts=[Artifact("report", b"bytes")]),
    Failed("no", permanent=True),
    Failed("not yet"),
    Deferred(after=60),
    Released(),
]
OUTCOME_IDS = ["done", "failed", "retrying", "deferred", "released"]


class TestSettle:
    def test_a_commit_stores_settlement_follow_up_artifact_event_and_row(self, orders: Queue) -> None:
        orders.enqueue("ship", job_id="a")
        claim = claim_one(orders)
        with orders.transaction() as tx:
            tx.execute("insert into orders values (1, 'shipped')")
            tx.settle(claim, OUTCOMES[0])
        assert (orders.get("a").state, orders.get("a").result) == ("done", {"ok": True})
        assert sorted(names(orders)) == ["done", "enqueued"]
        assert orders.artifact("a", "report").data == b"bytes"
        assert claim_one(orders).job.kind == "next"
        assert notes(orders) == ["shipped"]

    @pytest.mark.parametrize("outcome", OUTCOMES, ids=OUTCOME_IDS)
    def test_after_a_rollback_the_job_still_runs_and_can_be_settled(self, orders: Queue, outcome: Outcome) -> None:
        orders.enqueue("ship", job_id="a", events="all")
        claim = claim_one(orders)
        with rolled_back(orders) as tx:
            tx.execute("insert into orders values (1, 'shipped')")
            assert tx.settle(claim, outcome).state != "running"
        assert orders.get("a") == claim.job
        assert names(orders) == ["enqueued", "claimed"]
        assert (orders.artifacts("a"), notes(orders), stored(orders)) == ([], [], 1)
        assert orders.heartbeat(claim).lease_until >= claim.lease_until
        assert orders.settle(claim, Done("later")).result == "later"

    def test_a_settle_after_a_rolled_back_one_is_not_a_repetition(self, queue: Queue) -> None:
        queue.enqueue("ship", job_id="a")
        claim = claim_one(queue)
        with rolled_back(queue) as tx:
            tx.settle(claim, Done(1))
        assert queue.settle(claim, Done(2)).result == 2
        with pytest.raises(LeaseLost):
            queue.settle(claim, Done(1))

    def test_many_settle_together_or_not_at_all(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("ship")] * 3)
        claims = queue.claim_many()
        with rolled_back(queue) as tx:
            assert all(settlement.ok for settlement in tx.settle_many([(claim, Done()) for claim in claims]))
        assert queue.counts() == {"running": 3}
        with queue.transaction() as tx:
            tx.settle_many([(claim, Done()) for claim in claims])
        assert queue.counts() == {"done": 3}

    def test_follow_ups_with_more_keys_than_one_transaction_locks_are_refused_and_settle_nothing(
        self, queue: Queue
    ) -> None:
        queue.enqueue_many([NewJob("parent")] * 2)
        claims = queue.claim_many(limit=2)
        halves = [[NewJob("mail", dedupe_key=f"{half}-{place}") for place in range(129)] for half in "ab"]
        settlements = [(claim, Done(follow_ups=half)) for claim, half in zip(claims, halves, strict=True)]
        with queue.transaction() as tx:
            with pytest.raises(InvalidInput, match="several transactions") as refused:
                tx.settle_many(settlements)
            tx.enqueue("other")
        assert refused.value.field == "settlements"
        assert queue.counts() == {"running": 2, "ready": 1}
        assert [one.error for one in queue.settle_many(settlements)] == [None, None]

    def test_the_room_at_a_limit_is_free_after_the_commit_of_an_end_only(self, queue: Queue) -> None:
        queue.limits.set("one", kinds=["ship"], concurrency=1)
        queue.enqueue_many([NewJob("ship")] * 2)
        claim = claim_one(queue)
        assert queue.claim() is None
        with rolled_back(queue) as tx:
            tx.settle(claim, Done())
        assert queue.claim() is None
        with queue.transaction() as tx:
            tx.settle(claim, Done())
        queue.settle(claim_one(queue), Done())
        assert queue.counts() == {"done": 2}

    def test_a_successor_freed_in_a_rolled_back_settle_is_blocked_again(self, queue: Queue) -> None:
        queue.enqueue("ship", dedupe_key="k")
        claim = claim_one(queue)
        successor = queue.enqueue("ship", dedupe_key="k", on_duplicate="run_again")
        with rolled_back(queue) as tx:
            tx.settle(claim, Done())
            assert tx.get(successor.id).state == "ready"
        assert queue.get(successor.id) == successor.job

    def test_a_key_freed_in_the_transaction_is_free_within_it(self, queue: Queue) -> None:
        queue.enqueue("ship", 1, dedupe_key="k")
        claim = claim_one(queue)
        with queue.transaction() as tx:
            assert not tx.enqueue("ship", 2, dedupe_key="k").created
            tx.settle(claim, Done())
            assert tx.enqueue("ship", 3, dedupe_key="k").created
        assert claim_one(queue).job.payload == 3

    def test_a_settle_before_expiry_is_valid_even_if_it_commits_later(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue("ship", job_id="a")
        claim = claim_one(queue, lease=10)
        with queue.transaction() as tx:
            tx.settle(claim, Done())
            clock.advance(60)
        assert queue.get("a").state == "done"


class TestOtherOperations:
    def test_each_of_them_is_undone_by_a_rollback(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("work", job_id=name, events="all") for name in ("run", "wait", "ended")])
        queue.cancel("ended")
        claim = claim_one(queue)
        before = [queue.get(name) for name in ("run", "wait", "ended")]
        results = names(queue)
        with rolled_back(queue) as tx:
            tx.heartbeat(claim, lease=600)
            tx.progress(claim, phase="loading", percent=40)
            tx.attach(claim, [Artifact("x", b"1")])
            tx.cancel("run")
            tx.reprioritize("wait", 9)
            tx.requeue("ended")
        assert [queue.get(name) for name in ("run", "wait", "ended")] == before
        assert names(queue) == results
        assert queue.artifacts("run") == []

    def test_each_of_them_is_stored_by_a_commit(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("work", job_id=name) for name in ("run", "wait", "ended")])
        queue.cancel("ended")
        claim = claim_one(queue)
        with queue.transaction() as tx:
            tx.progress(claim, phase="loading", percent=40)
            tx.attach(claim, [Artifact("x", b"1")])
            tx.cancel("run")
            tx.reprioritize("wait", 9)
            tx.requeue("ended")
        assert (queue.get("run").phase, queue.get("run").percent, queue.get("run").cancel_requested) == (
            "loading",
            40,
            1,
        )
        assert queue.artifact("run", "x").data == b"1"
        assert (queue.get("wait").priority, queue.get("ended").state) == (9, "ready")


class TestTheEndOfATransaction:
    def test_an_error_of_the_caller_is_raised_unchanged(self, queue: Queue) -> None:
        mine = RollbackError("no tea left")

        def order() -> None:
            with queue.transaction() as tx:
                tx.enqueue("ship")
                raise mine

        with pytest.raises(RollbackError) as caught:
            order()
        assert caught.value is mine

    def test_a_transaction_that_has_ended_accepts_no_calls(self, queue: Queue) -> None:
        with queue.transaction() as tx:
            pass
        with pytest.raises(HoldfastError):
            tx.enqueue("ship")
        assert stored(queue) == 0

    def test_the_queue_works_after_a_rollback(self, queue: Queue) -> None:
        with rolled_back(queue) as tx:
            tx.enqueue("ship")
        assert queue.enqueue("ship").created
        assert stored(queue) == 1


class TestCallsAtTheSameTime:
    """A refused call undoes what it has written, not what others have written since it began."""

    def test_of_several_threads_each_is_stored_or_refused(self, queue: Queue) -> None:
        with queue.transaction() as tx, ThreadPoolExecutor(4) as threads:
            calls = [threads.submit(tx.enqueue, "ship", number % 2, job_id=str(number // 2)) for number in range(40)]
            outcomes = [call.exception() is None for call in calls]

        assert outcomes.count(True) == 20
        assert {job.id for job in queue.jobs()} == {str(number) for number in range(20)}

    def test_of_several_tasks_each_is_stored_or_refused(self, harness: Harness) -> None:
        async def scenario() -> None:
            async with harness.open_async() as queue:
                async with queue.transaction() as tx:
                    calls = [tx.enqueue("ship", number % 2, job_id=str(number // 2)) for number in range(40)]
                    outcomes = await asyncio.gather(*calls, return_exceptions=True)
                assert sum(isinstance(one, Conflict) for one in outcomes) == 20
                assert {job.id for job in await queue.jobs()} == {str(number) for number in range(20)}

        asyncio.run(scenario())

    def test_the_commit_waits_for_a_call_that_no_one_awaits(self, harness: Harness) -> None:
        async def scenario() -> None:
            async with harness.open_async() as queue:
                async with queue.transaction() as tx:
                    await tx.enqueue("ship", job_id="awaited")
                    begun = asyncio.ensure_future(tx.enqueue("ship", job_id="begun"))
                    await asyncio.sleep(0)
                stored = [job.id for job in await queue.jobs()]
                await asyncio.wait([begun])
                assert ("begun" in stored) != isinstance(begun.exception(), Misconfigured)
                assert "awaited" in stored

        asyncio.run(scenario())


class TestWaking:
    def test_a_waiting_caller_is_woken_after_the_settle_has_committed(self, queue: Queue) -> None:
        queue.enqueue("ship", job_id="a")
        claim, results = claim_one(queue), list[str]()

        def wait() -> None:
            results.append(queue.wait("a", timeout=30).state)

        waiter = threading.Thread(target=wait)
        waiter.start()
        with queue.transaction() as tx:
            tx.settle(claim, Done())
            results.append("not yet committed")
        waiter.join(PATIENCE_SECONDS)
        assert results == ["not yet committed", "done"]

    def test_a_rolled_back_settle_wakes_no_caller(self, queue: Queue) -> None:
        queue.enqueue("ship", job_id="a")
        claim = claim_one(queue)
        with rolled_back(queue) as tx:
            tx.settle(claim, Done())
        with pytest.raises(WaitTimeout):
            queue.wait("a", timeout=0.05)
