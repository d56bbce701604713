"""Lanes: active, paused or draining; fair or strict; with terminal events or all."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Done, NewJob, Queue
from holdfast.errors import LaneDraining
from holdfast.types import Lane
from tests.support.assertions import refused
from tests.support.clock import ManualClock
from tests.support.job_states import job_in, nonzero, run, start
from tests.support.stores import Harness


class TestPaused:
    def test_nothing_is_claimed_and_jobs_are_accepted(self, queue: Queue) -> None:
        job = queue.enqueue("a", lane="l").job
        queue.lanes.set("l", state="paused")

        queue.enqueue("a", lane="l")

        assert queue.claim(lanes=["l"]) is None
        assert queue.get(job.id) == job
        assert nonzero(queue.counts()) == {"ready": 2}

    def test_other_lanes_of_the_same_claim_are_served(self, queue: Queue) -> None:
        queue.enqueue("a", lane="l", priority=9)
        other = queue.enqueue("a", lane="m").job
        queue.lanes.set("l", state="paused")

        assert [claim.job.id for claim in queue.claim_many(lanes=["l", "m"])] == [other.id]

    def test_running_jobs_may_finish(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("a", lane="l").job)
        queue.lanes.set("l", state="paused")

        queue.heartbeat(claim)

        assert queue.settle(claim, Done()).state == "done"

    def test_its_jobs_are_claimed_when_it_is_active_again(self, queue: Queue, clock: ManualClock) -> None:
        jobs = [queue.enqueue("a", lane="l", delay=delay).id for delay in (0, 5)]
        queue.lanes.set("l", state="paused")
        clock.advance(10)
        assert queue.claim(lanes=["l"]) is None
        queue.lanes.set("l", state="active")

        assert [claim.job.id for claim in queue.claim_many(lanes=["l"])] == jobs

    def test_deadlines_pass_in_it(self, queue: Queue, clock: ManualClock) -> None:
        job = queue.enqueue("a", lane="l", deadline=5).job
        queue.lanes.set("l", state="paused")
        clock.advance(6)

        assert queue.claim(lanes=["other"]) is None

        assert queue.get(job.id).state == "failed"

    def test_another_client_sees_it_at_once(self, harness: Harness) -> None:
        one, other = harness.open(), harness.open()
        other.enqueue("a")
        run(other, other.enqueue("b").job, Done())
        one.lanes.set("default", state="paused")

        assert other.claim() is None


class TestDraining:
    def test_nothing_is_enqueued_and_waiting_jobs_are_claimed(self, queue: Queue) -> None:
        job = queue.enqueue("a", lane="l").job
        queue.lanes.set("l", state="draining")

        with pytest.raises(LaneDraining) as refusal:
            queue.enqueue("a", lane="l")

        assert refusal.value.lane == "l"
        assert len(queue.jobs()) == 1
        assert run(queue, job, Done()).state == "done"

    def test_one_job_for_it_refuses_the_whole_call(self, queue: Queue) -> None:
        queue.lanes.set("l", state="draining")

        with pytest.raises(LaneDraining):
            queue.enqueue_many([NewJob("a"), NewJob("a", lane="l")])

        assert len(queue.jobs()) == 0

    def test_a_follow_up_for_it_refuses_its_settle_which_may_be_repeated_without_it(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("a").job)
        queue.lanes.set("l", state="draining")

        with pytest.raises(LaneDraining):
            queue.settle(claim, Done(follow_ups=[NewJob("b"), NewJob("b", lane="l")]))

        assert queue.get(claim.job.id).state == "running"
        assert len(queue.jobs()) == 1
        assert queue.settle(claim, Done()).state == "done"

    def test_a_repeated_enqueue_returns_the_original(self, queue: Queue) -> None:
        queue.enqueue("a", {"n": 1}, lane="l", job_id="mine")
        queue.lanes.set("l", state="draining")

        again = queue.enqueue("a", {"n": 1}, lane="l", job_id="mine")

        assert (again.id, again.created) == ("mine", False)

    def test_jobs_already_in_it_may_be_retried_and_requeued(self, queue: Queue) -> None:
        job = job_in(queue, "failed", lane="l")
        queue.lanes.set("l", state="draining")

        queue.requeue(job.id)

        assert run(queue, job, Done()).state == "done"

    def test_it_accepts_jobs_again_when_active(self, queue: Queue) -> None:
        queue.lanes.set("l", state="draining")
        queue.lanes.set("l", state="active")

        assert queue.enqueue("a", lane="l").created


class TestOrder:
    """Two tenants: `a` with three jobs, then `b` with two."""

    FAIR = ("a", "b", "a", "b", "a")
    STRICT = ("a", "a", "a", "b", "b")

    def _fill(self, queue: Queue, **options: Any) -> None:
        queue.enqueue_many([NewJob("k", lane="l", tenant=tenant, **options) for tenant in self.STRICT])

    def _tenants(self, queue: Queue) -> tuple[str, ...]:
        return tuple(claim.job.tenant for claim in queue.claim_many(lanes=["l"]))

    def test_a_lane_is_fair_unless_declared_strict(self, queue: Queue) -> None:
        self._fill(queue)

        assert self._tenants(queue) == self.FAIR

    def test_a_strict_lane_ignores_tenants(self, queue: Queue) -> None:
        queue.lanes.set("l", order="strict")
        self._fill(queue)

        assert self._tenants(queue) == self.STRICT

    @pytest.mark.parametrize("delay", [0, 5])
    def test_becoming_strict_reorders_waiting_jobs(self, queue: Queue, clock: ManualClock, delay: int) -> None:
        self._fill(queue, delay=delay)
        queue.lanes.set("l", order="strict")
        clock.advance(delay)

        assert self._tenants(queue) == self.STRICT

    @pytest.mark.parametrize("delay", [0, 5])
    def test_becoming_fair_reorders_waiting_jobs(self, queue: Queue, clock: ManualClock, delay: int) -> None:
        queue.lanes.set("l", order="strict")
        self._fill(queue, delay=delay)
        queue.lanes.set("l", order="fair")
        clock.advance(delay)

        assert self._tenants(queue) == self.FAIR

    def test_hundreds_are_reordered_and_none_is_lost(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("k", lane="l", tenant="ab"[number < 300]) for number in range(600)])
        queue.lanes.set("l", order="strict")

        assert self._tenants_of_all(queue) == ["b"] * 300 + ["a"] * 300

    def _tenants_of_all(self, queue: Queue) -> list[str]:
        return [claim.job.tenant for claim in queue.claim_many(lanes=["l"], limit=1_000)]

    def test_another_lane_keeps_its_order(self, queue: Queue) -> None:
        self._fill(queue)
        queue.lanes.set("m", order="strict")

        assert self._tenants(queue) == self.FAIR

    def test_a_job_that_was_running_returns_to_the_new_order(self, queue: Queue) -> None:
        self._fill(queue)
        claims = queue.claim_many(lanes=["l"])
        queue.lanes.set("l", order="strict")
        released = sorted(claims, key=lambda claim: claim.job.number)
        for claim in released:
            queue.cancel(claim.job.id, force=True)
            queue.requeue(claim.job.id)

        assert self._tenants(queue) == self.STRICT


class TestSettings:
    def test_a_store_without_jobs_has_only_lanes_that_were_set(self, queue: Queue) -> None:
        assert queue.lanes.list() == []

        queue.lanes.set("l")

        assert queue.lanes.list() == [Lane("l", "active", "fair", "terminal")]

    def test_used_and_configured_lanes_are_listed_by_name(self, queue: Queue) -> None:
        queue.enqueue("a", lane="used")
        queue.lanes.set("configured", state="paused", order="strict", events="all")

        assert queue.lanes.list() == [
            Lane("configured", "paused", "strict", "all"),
            Lane("used", "active", "fair", "terminal"),
        ]

    def test_an_option_that_is_not_given_is_unchanged(self, queue: Queue) -> None:
        queue.lanes.set("l", state="paused", order="strict", events="all")

        assert queue.lanes.set("l", state="active") == Lane("l", "active", "strict", "all")
        assert queue.lanes.set("l", order="fair") == Lane("l", "active", "fair", "all")
        assert queue.lanes.set("l", events="terminal") == Lane("l", "active", "fair", "terminal")
        assert queue.lanes.set("l") == Lane("l", "active", "fair", "terminal")
        assert queue.lanes.list() == [Lane("l", "active", "fair", "terminal")]

    def test_a_lane_whose_jobs_are_all_gone_is_still_listed(self, queue: Queue, clock: ManualClock) -> None:
        job_in(queue, "done", lane="l")
        clock.advance(10)
        queue.admin.prune(older_than=1)

        assert [lane.name for lane in queue.lanes.list()] == ["l"]

    @pytest.mark.validation
    @pytest.mark.parametrize(
        ("field", "options"),
        [
            ("state", {"state": "asleep"}),
            ("order", {"order": "random"}),
            ("events", {"events": "some"}),
            ("lane", {"lane": ""}),
            ("lane", {"lane": "x" * 201}),
        ],
    )
    def test_a_wrong_setting_is_refused(self, queue: Queue, field: str, options: dict[str, Any]) -> None:
        with refused(queue, field):
            queue.lanes.set(**{"lane": "l", **options})
        assert queue.lanes.list() == []
