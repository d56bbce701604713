"""Limits by key: how many jobs of one key start per time, and keys that a handler closes for a while."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Deferred, Done, NewJob, Queue
from tests.support.claims import claim_one
from tests.support.clock import ManualClock
from tests.support.limited import drain, enqueue, finish, tenants


class TestRates:
    def test_starts_are_limited_per_time(self, queue: Queue, clock: ManualClock) -> None:
        queue.limits.set("api", kinds=["call"], rate=2, per=10)
        enqueue(queue, 6)
        assert len(drain(queue)) == 2
        [use] = queue.limits.show("all")
        assert use.opens_at is not None
        clock.advance(seconds=4)
        assert drain(queue) == []
        clock.advance(seconds=1)
        assert len(drain(queue)) == 1
        clock.advance(seconds=60)
        assert len(drain(queue)) == 2

    def test_what_is_parked_starts_in_time_although_nothing_ends(self, queue: Queue, clock: ManualClock) -> None:
        queue.limits.set("api", kinds=["call"], rate=1, per=10)
        first, second = enqueue(queue, 2)
        assert [claim.job.id for claim in queue.claim_many(limit=2, lease=60)] == [first]
        clock.advance(seconds=10)
        assert [claim.job.id for claim in queue.claim_many(limit=2)] == [second]

    @pytest.mark.parametrize("burst", [1, 2])
    def test_a_time_that_is_no_multiple_of_the_rate_leaves_no_job_parked(
        self, queue: Queue, clock: ManualClock, burst: int
    ) -> None:
        queue.limits.set("api", kinds=["call"], rate=7, per=60, burst=burst)
        enqueue(queue, 5)
        starts = []
        for _ in range(4):
            starts.append(len(queue.claim_many(limit=9, lease=600)))
            clock.advance(burst * 60 / 7 + 0.01)
        assert starts == ([1, 1, 1, 1] if burst == 1 else [2, 2, 1, 0])

    def test_the_burst_is_what_starts_at_once(self, queue: Queue, clock: ManualClock) -> None:
        queue.limits.set("api", kinds=["call"], key="tenant", rate=60, per=60, burst=3)
        enqueue(queue, 9, tenant="a")
        enqueue(queue, 1, tenant="b")
        assert tenants(queue.claim_many(limit=20)) == {"a": 3, "b": 1}
        clock.advance(seconds=2)
        assert tenants(queue.claim_many(limit=20)) == {"a": 2}

    @pytest.mark.parametrize("limit", [{"burst": 10}, {"burst": 10, "weight": "n"}])
    def test_a_cost_that_is_no_whole_number_of_microseconds_starts_no_more(
        self, queue: Queue, clock: ManualClock, limit: dict[str, Any]
    ) -> None:
        queue.limits.set("api", kinds=["call"], rate=3_900, per=1, **limit)
        queue.enqueue_many([NewJob("call") for _ in range(50)])
        starts = []
        for _ in range(4):
            starts.append(len(queue.claim_many(limit=50, lease=600)))
            clock.advance(0.002)
        # A burst, and then 7.8 in 2 ms.
        assert starts[0] == 10
        assert sum(starts) <= 10 + 3 * 7.8

    def test_what_starts_is_counted_and_not_what_runs(self, queue: Queue, clock: ManualClock) -> None:
        queue.limits.set("api", kinds=["call"], rate=4, per=4)
        enqueue(queue, 2)
        claims = queue.claim_many(limit=9, lease=600)
        assert [(use.running, use.left) for use in queue.limits.show("all")] == [(None, 2)]
        assert "limit api for key all has room: 2 of 4 starts left" in [
            reason.text for reason in queue.why(enqueue(queue, 1)[0]).reasons
        ]
        clock.advance(2)
        assert queue.limits.show("all") == []
        finish(queue, claims)

    def test_a_job_needs_room_at_both_its_gates(self, queue: Queue, clock: ManualClock) -> None:
        queue.limits.set("api", kinds=["call"], rate=3, per=30)
        queue.limits.set("llm", kinds=["call"], key="tenant", concurrency=1)
        enqueue(queue, 4, tenant="a")
        enqueue(queue, 4, tenant="b")
        claims = queue.claim_many(limit=20, lease=600)
        assert tenants(claims) == {"a": 1, "b": 1}
        finish(queue, claims)
        assert len(queue.claim_many(limit=20, lease=600)) == 1
        clock.advance(seconds=30)
        assert len(queue.claim_many(limit=20, lease=600)) == 1

    def test_a_new_limit_applies_although_only_the_gate_of_the_other_exists(self, queue: Queue) -> None:
        queue.limits.set("started", kinds=["call"], rate=100)
        enqueue(queue, 1)
        finish(queue, queue.claim_many(limit=1))

        queue.limits.set("running", kinds=["call"], key="tenant", concurrency=1)
        enqueue(queue, 2)
        assert len(queue.claim_many(limit=2)) == 1

    def test_all_run_in_the_end(self, queue: Queue, clock: ManualClock) -> None:
        queue.limits.set("api", kinds=["call"], rate=5, per=10, burst=1)
        queue.limits.set("llm", kinds=["call"], key="tenant", concurrency=1)
        enqueue(queue, 10, tenant="a")
        enqueue(queue, 10, tenant="b")
        done = 0
        for _ in range(25):
            done += len(drain(queue))
            clock.advance(seconds=2)
        assert done == 20

    def test_another_rate_counts_the_starts_so_far_by_the_new_one(self, queue: Queue, clock: ManualClock) -> None:
        queue.limits.set("api", kinds=["call"], rate=1, per=3600)
        enqueue(queue, 4)
        assert len(queue.claim_many(limit=9, lease=9_000)) == 1
        queue.limits.set("api", kinds=["call"], rate=60, per=60, burst=1)
        assert queue.claim_many(limit=9, lease=9_000) == []
        clock.advance(1)
        assert len(queue.claim_many(limit=9, lease=9_000)) == 1
        queue.limits.set("api", kinds=["call"], rate=1, per=60)
        clock.advance(59)
        assert queue.claim_many(limit=9, lease=9_000) == []
        clock.advance(1)
        assert len(queue.claim_many(limit=9, lease=9_000)) == 1
        queue.limits.set("api", kinds=["call"], rate=1, per=60, burst=2)
        assert len(queue.claim_many(limit=9, lease=9_000)) == 1


class TestClosing:
    def test_a_deferral_can_close_the_key_and_one_job_reopens_it(self, queue: Queue, clock: ManualClock) -> None:
        queue.limits.set("llm", kinds=["call"], key="tenant", concurrency=3)
        enqueue(queue, 6, tenant="a")
        enqueue(queue, 1, tenant="b")
        first, *others = queue.claim_many(limit=3, tenant="a", lease=600)
        deferred = queue.settle(first, Deferred(after=20, closes=True))
        finish(queue, others)

        assert (deferred.state, deferred.attempt, deferred.deferrals) == ("scheduled", 0, 1)
        assert tenants(queue.claim_many(limit=9)) == {"b": 1}
        [use] = queue.limits.show("a")
        assert use.closed
        assert use.opens_at == deferred.due_at
        [parked, *_] = queue.jobs(state="parked")
        closed = queue.why(parked.id).summary
        assert "limit llm for key a is closed: 0 of 3 running, 3 parked; it opens at" in closed
        clock.advance(seconds=21)
        probe = queue.claim_many(limit=9, lease=600)
        assert tenants(probe) == {"a": 1}
        assert queue.claim_many(limit=9) == []
        [parked, *_] = queue.jobs(state="parked")
        assert "it opens when what runs now has ended" in queue.why(parked.id).summary
        finish(queue, probe)
        assert len(queue.claim_many(limit=9)) == 3

    def test_what_runs_already_at_a_rate_does_not_keep_a_closed_key_closed(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        queue.limits.set("llm", kinds=["call"], key="given", rate=1_000)
        enqueue(queue, 6, limit_key="a")
        first, second, *_ = queue.claim_many(limit=3, lease=600)
        queue.settle(first, Deferred(after=20, closes=True))
        queue.settle(second, Deferred(after=5, closes=True))
        assert [use.closed for use in queue.limits.show("a")] == [True]
        clock.advance(19)
        assert queue.claim_many(limit=9, lease=600) == []
        clock.advance(2)
        probe = queue.claim_many(limit=9, lease=600)
        assert (len(probe), queue.claim_many(limit=9)) == (1, [])
        finish(queue, probe)
        assert len(queue.claim_many(limit=9, lease=600)) == 4

    def test_a_probe_may_close_it_again(self, queue: Queue, clock: ManualClock) -> None:
        queue.limits.set("llm", kinds=["call"], rate=1_000)
        enqueue(queue, 4)
        for _ in range(3):
            [claim] = queue.claim_many(limit=1, lease=600)
            queue.settle(claim, Deferred(after=20, closes=True))
            assert queue.claim_many(limit=9) == []
            clock.advance(seconds=21)
        probe = queue.claim_many(limit=9, lease=600)
        assert len(probe) == 1
        finish(queue, probe)
        assert len(drain(queue)) == 3

    def test_it_applies_to_jobs_that_come_later_and_opens_although_none_waits(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        queue.limits.set("api", kinds=["call"], concurrency=5)
        enqueue(queue, 1)
        [claim] = queue.claim_many(limit=5)
        queue.settle(claim, Deferred(after=20, closes=True))
        queue.claim_many(kinds=["none"])
        [later] = enqueue(queue, 1)
        assert queue.claim_many(limit=5) == []
        queue.cancel(later)
        clock.advance(seconds=30)
        finish(queue, queue.claim_many(limit=5))
        enqueue(queue, 4)
        assert len(queue.claim_many(limit=5)) == 4

    def test_without_a_limit_it_is_a_deferral(self, queue: Queue) -> None:
        enqueue(queue, 2)
        claim = queue.claim()
        assert claim is not None
        queue.settle(claim, Deferred(after=20, closes=True))
        assert len(queue.claim_many(limit=9)) == 1

    def test_a_key_that_was_closed_opens_although_a_new_limit_counts_its_probe(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        queue.limits.set("rate", kinds=["mail"], rate=1_000, per=1)
        queue.enqueue_many([NewJob("mail", job_id=name) for name in "abc"])
        queue.settle(claim_one(queue), Deferred(after=5, closes=True))
        clock.advance(6)
        [probe] = queue.claim_many(worker="w", limit=3)
        queue.limits.set("three", kinds=["mail"], key="tenant", concurrency=3)
        queue.settle(probe, Done())
        clock.advance(2)
        assert len(queue.claim_many(worker="w", limit=3)) == 2
