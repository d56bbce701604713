"""Limits by key that count weights, such as tokens, instead of starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast import Claim, Deferred, Done, Failed, Queue
from tests.support.assertions import refused
from tests.support.clock import ManualClock


class TestWeights:
    def set(self, queue: Queue, **options: Any) -> None:
        queue.limits.set("tokens", kinds=["call"], key="tenant", rate=1_000, per=100, weight="tokens", **options)

    def started(self, queue: Queue) -> list[Claim]:
        return queue.claim_many(limit=9, lease=3_600)

    def left(self, queue: Queue) -> int | None:
        [use] = queue.limits.show("default")
        return use.left

    def test_starts_count_their_weight_and_light_jobs_do_not_overtake_heavy_ones(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        self.set(queue)
        for tokens in (600, 500, 100):
            queue.enqueue("call", {"tokens": tokens})
        queue.enqueue("call", {"tokens": 10}, tenant="b")
        assert sorted(claim.job.payload["tokens"] for claim in self.started(queue)) == [10, 600]
        assert self.left(queue) == 400
        queue.enqueue("call", {"tokens": 1}, priority=5)
        assert self.started(queue) == []
        assert queue.counts() == {"parked": 3, "running": 2}
        clock.advance(seconds=11)
        # Now it has room for the heavy one, and the light one with the higher priority comes first.
        found = [claim.job.payload for claim in [*self.started(queue), *self.started(queue)]]
        assert {"tokens": 500} in found
        clock.advance(seconds=20)
        for _ in range(2):
            self.started(queue)
        assert queue.counts() == {"running": 5}

    @pytest.mark.parametrize("outcome", [Done({"ok": 1}), Failed("no"), Deferred(after=500)])
    def test_usage_is_a_refund_or_a_debt(
        self, queue: Queue, clock: ManualClock, outcome: Done | Failed | Deferred
    ) -> None:
        self.set(queue)
        queue.enqueue("call", limit_weight=800, max_attempts=1)
        [claim] = self.started(queue)
        assert self.left(queue) == 200
        for _ in range(2):
            # The same settlement again counts once.
            queue.settle(claim, replace(outcome, usage={"tokens": 100, "other": 7}))
        queue.claim_many(kinds=["none"])
        assert self.left(queue) == 900
        queue.enqueue("call", {"tokens": 5}, limit_weight=100, max_attempts=1)
        [claim] = self.started(queue)
        queue.settle(claim, replace(outcome, usage={"tokens": 2_100}))
        queue.claim_many(kinds=["none"])
        assert self.left(queue) == -1_200
        queue.enqueue("call")
        assert self.started(queue) == []
        clock.advance(seconds=121)
        assert len(self.started(queue)) == 1

    def test_what_weighs_more_than_the_burst_starts_when_nothing_of_it_is_used(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        self.set(queue, burst=100)
        first, heavy, last = (queue.enqueue("call", {"tokens": tokens}).id for tokens in (50, 5_000, 1))
        assert [claim.job.id for claim in self.started(queue)] == [first]
        assert queue.why(heavy).reasons
        clock.advance(seconds=6)
        assert [claim.job.id for claim in self.started(queue)] == [heavy]
        assert self.left(queue) == -4_900
        clock.advance(seconds=480)
        assert self.started(queue) == []
        clock.advance(seconds=20)
        assert [claim.job.id for claim in self.started(queue)] == [last]

    def test_the_heaviest_jobs_at_the_slowest_rate_leave_a_debt_that_the_store_can_keep(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        queue.limits.set("tokens", kinds=["call"], key="tenant", rate=1, per=86_400, weight="tokens")
        queue.enqueue("call", {"tokens": 10**12})
        last = queue.enqueue("call").id
        [claim] = self.started(queue)
        queue.settle(claim, Done(usage={"tokens": 1_000_000_000}))
        assert self.started(queue) == []
        assert self.left(queue) == -36_600
        assert "36,600 tokens left" in queue.why(last).summary
        queue.limits.set("tokens", kinds=["call"], key="tenant", rate=1_000_000_000, per=1, weight="tokens")
        clock.advance(1)
        assert [claim.job.id for claim in self.started(queue)] == [last]

    def test_why_names_what_it_needs(self, queue: Queue) -> None:
        self.set(queue)
        queue.enqueue("call", {"tokens": 900})
        waiting = queue.enqueue("call", {"tokens": 300}).id
        self.started(queue)
        [reason] = [one for one in queue.why(waiting).reasons if one.code == "limit"]
        assert "100 tokens left, 300 needed" in reason.text
        assert (reason.detail["needs"], reason.detail["left"]) == (300, 100)
        assert reason.until is not None

    def test_bad_weights_and_usage_are_refused(self, queue: Queue) -> None:
        with refused(queue, "rate"):
            queue.limits.set("tokens", kinds=["call"], concurrency=1, weight="tokens")
        with refused(queue, "limit_weight"):
            queue.enqueue("call", limit_weight=0)
        queue.enqueue("call")
        claim = queue.claim()
        assert claim is not None
        for usage, field in [({"tokens": -1}, "usage.tokens"), ("tokens", "usage"), ({"": 1}, "usage")]:
            with refused(queue, field):
                queue.settle(claim, Done(usage=usage))  # type: ignore[arg-type]
