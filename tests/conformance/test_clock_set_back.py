"""What waits for other jobs or for room goes on if the wall clock is set back."""

from __future__ import annotations

import pytest

from holdfast import Deferred, Done, Failed, Queue
from holdfast.operations import maintenance
from holdfast.storage.contract import StoreTransaction
from holdfast.storage.runners import SyncRunner
from tests.support.clock import ManualClock
from tests.support.job_states import claimed, start
from tests.support.stores import store_of

HOUR = 3600.0


def look(queue: Queue) -> None:
    """Claim nothing, which looks at what waits."""
    queue.claim_many(kinds=["none"])


def maintain(queue: Queue) -> None:
    """Run the periodic maintenance of a worker."""
    while SyncRunner(store_of(queue)).write(maintenance.delete_expired):
        pass


def is_wake_due(queue: Queue) -> bool:
    async def read(tx: StoreTransaction) -> bool:
        return await tx.is_wake_due(await tx.now())

    return SyncRunner(store_of(queue)).read(read)


class TestDependencies:
    @pytest.mark.parametrize("outcome", [Done(), Failed("no", permanent=True)])
    def test_a_child_runs_though_the_clock_went_back_after_the_end(
        self, queue: Queue, clock: ManualClock, outcome: Done | Failed
    ) -> None:
        parent = queue.enqueue("a")
        child = queue.enqueue("b", after=[parent.id], on_failed="run")
        look(queue)
        queue.settle(start(queue, parent.job), outcome)
        clock.shift_wall_clock(-HOUR)

        assert claimed(queue).job.id == child.id

    def test_a_child_runs_though_the_clock_went_back_before_anything_looked_at_it(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        parent = queue.enqueue("a")
        queue.settle(start(queue, parent.job), Done())
        child = queue.enqueue("b", after=[parent.id])
        clock.shift_wall_clock(-HOUR)

        assert claimed(queue).job.id == child.id

    def test_a_child_with_a_delay_is_due_by_the_new_time(self, queue: Queue, clock: ManualClock) -> None:
        parent = queue.enqueue("a")
        child = queue.enqueue("b", after=[parent.id], delay=60)
        queue.settle(start(queue, parent.job), Done())
        clock.shift_wall_clock(-HOUR)

        look(queue)
        assert queue.get(child.id).state == "scheduled"
        assert queue.get(child.id).due_at == child.job.due_at

    def test_a_group_ends(self, queue: Queue, clock: ManualClock) -> None:
        with queue.group("letters", on_end={"kind": "b"}) as group:
            group.enqueue("a")
            group.enqueue("a")
        queue.settle_many([(claim, Done()) for claim in queue.claim_many(kinds=["a"], limit=2)])
        clock.shift_wall_clock(-HOUR)

        assert claimed(queue).job.kind == "b"
        assert queue.groups.get("letters").ended_at is not None

    def test_children_that_were_requeued_with_their_parent_run(self, queue: Queue, clock: ManualClock) -> None:
        parent = queue.enqueue("a")
        child = queue.enqueue("b", after=[parent.id])
        queue.settle(start(queue, parent.job), Failed("no", permanent=True))
        look(queue)
        assert queue.get(child.id).state == "cancelled"
        queue.requeue(parent.id, with_children=True)
        queue.settle(start(queue, queue.get(parent.id)), Done())
        clock.shift_wall_clock(-HOUR)

        assert claimed(queue).job.id == child.id


class TestRelease:
    def test_jobs_whose_lease_expires_before_they_were_started_are_ready(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        queue.enqueue_many([{"kind": "a"} for _ in range(3)])
        claims = queue.claim_many(limit=3, lease=60, acknowledged=1)
        clock.shift_wall_clock(-HOUR)
        clock.advance(61)

        assert {claim.job.id for claim in queue.claim_many(limit=3)} == {claim.job.id for claim in claims}

    def test_a_successor_is_ready(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue("a", dedupe_key="k")
        claim = claimed(queue)
        later = queue.enqueue("a", dedupe_key="k", on_duplicate="run_again")
        clock.shift_wall_clock(-HOUR)
        queue.settle(claim, Done())

        assert claimed(queue).job.id == later.id


class TestLimits:
    @pytest.mark.parametrize("outcome", [Done(), Failed("no", permanent=True)])
    def test_the_room_that_an_end_left_is_offered(
        self, queue: Queue, clock: ManualClock, outcome: Done | Failed
    ) -> None:
        queue.limits.set("one", kinds=["a"], key="tenant", concurrency=1)
        first, second = queue.enqueue("a"), queue.enqueue("a")
        [claim] = queue.claim_many(limit=2)
        assert queue.get(second.id).state == "parked"
        queue.settle(claim, outcome)
        clock.shift_wall_clock(-HOUR)

        assert claimed(queue).job.id == second.id
        assert first.id == claim.job.id

    def test_a_rate_is_closed_for_as_long_as_a_burst_takes_at_most(self, queue: Queue, clock: ManualClock) -> None:
        queue.limits.set("slow", kinds=["a"], key="tenant", rate=6, per=60, burst=2)
        queue.enqueue_many([{"kind": "a"} for _ in range(2)])
        assert len(queue.claim_many(limit=2)) == 2
        clock.shift_wall_clock(-HOUR)
        queue.enqueue("a")

        assert queue.claim_many(limit=2) == []
        [use] = queue.limits.show("default")
        assert use.opens_at is not None
        assert (use.opens_at - clock.time).total_seconds() <= 10
        clock.advance(10)
        assert len(queue.claim_many(limit=2)) == 1

    def test_jobs_parked_at_a_rate_go_on_after_maintenance(self, queue: Queue, clock: ManualClock) -> None:
        queue.limits.set("slow", kinds=["a"], key="tenant", rate=6, per=60, burst=2)
        queue.enqueue_many([{"kind": "a"} for _ in range(4)])
        maintain(queue)
        assert len(queue.claim_many(limit=4, lease=HOUR)) == 2
        assert queue.counts(by="state")["parked"] == 2
        clock.shift_wall_clock(-HOUR)
        maintain(queue)
        look(queue)

        taken = []
        for _ in range(3):
            clock.advance(10)
            taken.append(len(queue.claim_many(limit=4, lease=HOUR)))
        assert taken == [1, 1, 0]

    def test_a_rate_by_weight_goes_on_after_maintenance(self, queue: Queue, clock: ManualClock) -> None:
        queue.limits.set("tokens", kinds=["a"], key="tenant", rate=60, per=60, weight="tokens")
        queue.enqueue("a", {"tokens": 100})
        queue.enqueue("a", {"tokens": 10})
        maintain(queue)
        assert len(queue.claim_many(limit=2, lease=HOUR)) == 1
        clock.shift_wall_clock(-HOUR)
        maintain(queue)
        look(queue)

        clock.advance(49)
        assert queue.claim() is None
        clock.advance(1)
        assert queue.claim() is not None

    def test_maintenance_after_a_clock_that_goes_on_looks_at_nothing(self, queue: Queue, clock: ManualClock) -> None:
        queue.limits.set("slow", kinds=["a"], key="tenant", rate=1, per=3600)
        queue.enqueue_many([{"kind": "a"} for _ in range(2)])
        assert len(queue.claim_many(limit=2)) == 1
        for seconds in (1, 40, 1000):
            maintain(queue)
            assert not is_wake_due(queue)
            clock.advance(seconds)


class TestTargetAges:
    def test_a_lane_is_looked_at_after_maintenance(self, queue: Queue, clock: ManualClock) -> None:
        queue.lanes.set("default", target_age=600)
        maintain(queue)
        look(queue)
        clock.shift_wall_clock(-HOUR)
        maintain(queue)
        queue.enqueue("a")
        for _ in range(12):
            clock.advance(60)
            look(queue)

        assert [event.name for event in queue.events() if event.name == "late"] == ["late"]

    def test_a_lane_that_gets_a_target_is_looked_at(self, queue: Queue, clock: ManualClock) -> None:
        queue.lanes.set("default", target_age=1)
        clock.shift_wall_clock(-HOUR)
        queue.enqueue("a")
        look(queue)
        clock.advance(61)
        look(queue)

        assert [event.name for event in queue.events() if event.name == "late"] == ["late"]


def test_a_schedule_fires_no_tick_again_and_goes_on_after_the_last(queue: Queue, clock: ManualClock) -> None:
    queue.schedules.set("often", kind="a", every=60)
    clock.advance(60)
    look(queue)
    [first] = queue.jobs(kind="a")
    clock.shift_wall_clock(-HOUR)
    for _ in range(4):
        clock.advance(900)
        look(queue)
    assert len(queue.jobs(kind="a")) == 1
    clock.advance(60)
    look(queue)
    assert [job.id for job in queue.jobs(kind="a")][1:] == [first.id]


def test_a_debounced_job_is_due_by_the_new_time_of_its_newest_repeat(queue: Queue, clock: ManualClock) -> None:
    first = queue.enqueue("a", {"n": 1}, dedupe_key="k", debounce=10)
    clock.shift_wall_clock(-HOUR)
    queue.enqueue("a", {"n": 2}, dedupe_key="k", debounce=10)
    clock.advance(10)

    claim = claimed(queue)
    assert (claim.job.id, claim.job.payload) == (first.id, {"n": 2})


def test_a_key_that_a_handler_has_closed_opens_by_the_new_time(queue: Queue, clock: ManualClock) -> None:
    queue.limits.set("one", kinds=["a"], key="tenant", concurrency=1)
    queue.enqueue("a", max_attempts=1)
    queue.enqueue("a")
    queue.settle(claimed(queue), Deferred(after=60, closes=True))
    clock.shift_wall_clock(-HOUR)
    clock.advance(HOUR)
    assert queue.claim() is None
    clock.advance(60)
    assert queue.claim() is not None
