"""Fairness: in a fair lane tenants are served in rounds; a strict lane ignores tenants."""

from __future__ import annotations

import pytest

from holdfast import Done, Job, NewJob, Queue, Released
from tests.support.claims import claim_ids, claim_one, claim_singly
from tests.support.clock import ManualClock
from tests.support.stores import Harness


def enqueue_for(queue: Queue, tenants: str, lane: str = "default") -> list[str]:
    """Enqueue one job for each letter; the letter is its tenant."""
    enqueued = queue.enqueue_many([NewJob("mail", tenant=tenant, lane=lane) for tenant in tenants])
    return [one.id for one in enqueued]


def served(queue: Queue, limit: int, lane: str = "default") -> str:
    """Claim a batch and return the tenants of its jobs."""
    return "".join(claim.job.tenant for claim in queue.claim_many(limit=limit, lanes=[lane]))


class TestRounds:
    def test_tenants_are_served_in_rounds_regardless_of_enqueue_order(self, queue: Queue) -> None:
        enqueue_for(queue, "cccbbbaaa")
        assert "".join(job.tenant for job in claim_singly(queue)) == "abcabcabc"

    def test_within_a_tenant_enqueue_order_holds(self, queue: Queue) -> None:
        enqueued = enqueue_for(queue, "aabb")
        assert claim_ids(queue) == [enqueued[0], enqueued[2], enqueued[1], enqueued[3]]

    def test_the_round_continues_after_the_last_claim(self, queue: Queue) -> None:
        enqueue_for(queue, "abcd" * 3)
        assert [served(queue, limit) for limit in (3, 2, 4, 1, 2)] == ["abc", "da", "bcda", "b", "cd"]

    def test_the_round_continues_if_the_last_served_tenant_has_no_jobs_left(self, queue: Queue) -> None:
        enqueue_for(queue, "abc")
        assert served(queue, 2) == "ab"
        enqueue_for(queue, "a")
        assert served(queue, 2) == "ca"

    def test_a_new_tenant_is_served_at_its_position(self, queue: Queue) -> None:
        enqueue_for(queue, "aaacccc")
        assert served(queue, 1) == "a"
        enqueue_for(queue, "b")
        assert served(queue, 4) == "bcac"

    def test_a_tenant_alone_is_served_without_a_pause(self, queue: Queue) -> None:
        enqueue_for(queue, "aaaa")
        assert served(queue, 4) == "aaaa"

    @pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13])
    def test_batches_take_the_same_jobs_as_single_claims(self, queue: Queue, size: int) -> None:
        tenants = "aaaaaabbbccccd" * 2
        enqueue_for(queue, tenants, lane="singly")
        enqueue_for(queue, tenants, lane="in entries")
        singly = "".join(job.tenant for job in claim_singly(queue, lanes=["singly"]))
        entries = iter(lambda: served(queue, size, "in entries"), "")
        assert "".join(entries) == singly

    def test_tenants_are_ordered_by_code_point(self, queue: Queue) -> None:
        tenants = ["Zoe", "ada", "Émile", "émile", "zoe", "10", "9"]
        queue.enqueue_many([NewJob("mail", tenant=tenant) for tenant in tenants])
        assert [job.tenant for job in claim_singly(queue)] == sorted(tenants)

    @pytest.mark.parametrize("limits", [(7, 7), (3, 4, 7)], ids=str)
    def test_tenants_that_are_claimed_together_are_ordered_by_code_point(
        self, queue: Queue, limits: tuple[int, ...]
    ) -> None:
        tenants = ["Zoe", "ada", "Émile", "émile", "zoe", "10", "9"]
        for _ in range(2):
            queue.enqueue_many([NewJob("mail", tenant=tenant) for tenant in tenants])
        taken = [claim.job.tenant for limit in limits for claim in queue.claim_many(limit=limit)]
        assert taken == 2 * sorted(tenants)

    def test_a_higher_priority_goes_before_fairness(self, queue: Queue) -> None:
        enqueue_for(queue, "abc")
        queue.enqueue("mail", tenant="c", priority=1)
        assert served(queue, 4) == "cabc"

    def test_settling_and_releasing_do_not_change_fairness(self, queue: Queue) -> None:
        enqueue_for(queue, "aabbcc")
        queue.settle(claim_one(queue), Done())
        queue.settle(claim_one(queue), Released())
        assert served(queue, 2) == "ca"


class TestAFlood:
    def test_a_flood_of_one_tenant_does_not_starve_the_others(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("mail", tenant="flood") for _ in range(3000)])
        queue.enqueue_many([NewJob("mail", tenant=tenant) for tenant in ("ada", "zoe")])
        first = [claim.job.tenant for claim in queue.claim_many(limit=3)]
        assert sorted(first) == ["ada", "flood", "zoe"]

    def test_a_late_tenant_waits_for_at_most_one_job_of_the_flood(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("mail", tenant="flood") for _ in range(500)])
        for _ in range(5):
            queue.claim_many(limit=20)
        queue.enqueue("mail", tenant="late")
        assert "late" in [claim.job.tenant for claim in queue.claim_many(limit=2)]

    def test_many_tenants_each_get_one_job_before_any_gets_two(self, queue: Queue) -> None:
        tenants = [f"tenant-{number:03}" for number in range(120)]
        for _ in range(3):
            queue.enqueue_many([NewJob("mail", tenant=tenant) for tenant in tenants])
        for _ in range(3):
            assert [job.tenant for entry in range(4) for job in _entry(queue, 30)] == tenants

    def test_a_flood_over_several_kinds_counts_as_one_tenant(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob(f"kind-{number % 5}", tenant="flood") for number in range(100)])
        queue.enqueue_many([NewJob("mail", tenant="ada") for _ in range(4)])
        tenants = [claim.job.tenant for claim in queue.claim_many(limit=8)]
        assert tenants == ["ada", "flood"] * 4

    def test_a_flood_over_several_lanes_counts_as_one_tenant(self, queue: Queue) -> None:
        enqueue_for(queue, "z" * 20, lane="one")
        enqueue_for(queue, "z" * 20, lane="two")
        enqueue_for(queue, "a" * 3, lane="two")
        tenants = "".join(claim.job.tenant for claim in queue.claim_many(limit=6, lanes=["one", "two"]))
        assert tenants == "azazaz"


def _entry(queue: Queue, limit: int) -> list[Job]:
    return [claim.job for claim in queue.claim_many(limit=limit)]


class TestFairnessScopes:
    def test_different_subscriptions_do_not_affect_each_others_fairness(self, queue: Queue) -> None:
        enqueue_for(queue, "abc" * 6)
        assert served(queue, 2) == "ab"
        by_kind = [claim_one(queue, kinds=["mail"]).job.tenant for _ in range(2)]
        by_means = [claim_one(queue, capabilities=["gpu"]).job.tenant for _ in range(2)]
        by_lanes = [claim_one(queue, lanes=["default", "side"]).job.tenant for _ in range(2)]
        assert (by_kind, by_means, by_lanes) == (["a", "b"], ["a", "b"], ["a", "b"])
        assert served(queue, 2) == "ca"

    def test_workers_of_one_subscription_share_its_fairness(self, queue: Queue) -> None:
        enqueue_for(queue, "abc" * 2)
        names = [claim_one(queue, worker=f"w{number}", lease=5 + number).job.tenant for number in range(6)]
        assert names == list("abcabc")

    def test_other_clients_share_the_fairness(self, harness: Harness) -> None:
        clients = [harness.open() for _ in range(3)]
        enqueue_for(clients[0], "abc" * 2)
        assert [claim_one(clients[number % 3]).job.tenant for number in range(6)] == list("abcabc")

    def test_a_claim_for_one_tenant_does_not_change_fairness(self, queue: Queue) -> None:
        enqueue_for(queue, "abc" * 4)
        assert served(queue, 1) == "a"
        assert len(claim_ids(queue, 2, tenant="c")) == 2
        assert served(queue, 2) == "bc"

    def test_an_empty_claim_does_not_change_fairness(self, queue: Queue) -> None:
        enqueue_for(queue, "ab")
        assert served(queue, 1) == "a"
        queue.lanes.set("default", state="paused")
        assert served(queue, 1) == ""
        queue.lanes.set("default", state="active")
        enqueue_for(queue, "ac")
        assert served(queue, 3) == "bca"

    def test_jobs_with_a_preferred_affinity_have_their_own_round(self, queue: Queue) -> None:
        enqueue_for(queue, "abc")
        queue.enqueue_many([NewJob("mail", tenant=tenant, affinity="llama") for tenant in "ccba"])
        assert served(queue, 1) == "a"
        favoured = [claim_one(queue, affinity="llama").job.tenant for _ in range(3)]
        assert favoured == ["a", "b", "c"]
        assert served(queue, 2) == "bc"

    def test_each_priority_has_its_own_round(self, queue: Queue) -> None:
        enqueue_for(queue, "abc" * 2)
        tenants = ""
        for _ in range(6):
            queue.enqueue("mail", tenant="a", priority=5)
            tenants += served(queue, 2)[1]
        assert tenants == "abcabc"

    def test_settle_and_claim_keeps_the_fairness(self, queue: Queue) -> None:
        enqueue_for(queue, "abc" * 2)
        claims = queue.claim_many(limit=1)
        tenants = [claims[0].job.tenant]
        for _ in range(4):
            claims = queue.settle_and_claim([(claims[0], Done())], limit=1).claims
            tenants.append(claims[0].job.tenant)
        assert tenants == list("abcab")


class TestStrictLanes:
    def test_a_strict_lane_ignores_tenants(self, queue: Queue) -> None:
        queue.lanes.set("strict", order="strict")
        enqueued = enqueue_for(queue, "aaabbbcab", lane="strict")
        assert claim_ids(queue, lanes=["strict"]) == enqueued

    def test_a_strict_lane_keeps_priority_then_due_then_enqueue_order(self, queue: Queue, clock: ManualClock) -> None:
        queue.lanes.set("default", order="strict")
        later = queue.enqueue("mail", tenant="a", delay=9)
        sooner = queue.enqueue("mail", tenant="z", delay=5)
        clock.advance(10)
        last = queue.enqueue("mail", tenant="a")
        urgent = queue.enqueue("mail", tenant="m", priority=1)
        assert claim_ids(queue) == [urgent.id, sooner.id, later.id, last.id]

    def test_a_lane_made_strict_reorders_waiting_jobs(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = enqueue_for(queue, "bba" * 200)
        enqueued.append(queue.enqueue("mail", tenant="a", delay=1).id)
        queue.lanes.set("default", order="strict")
        clock.advance(1)
        assert claim_ids(queue, 1000) == enqueued

    def test_a_lane_made_fair_reorders_waiting_jobs(self, queue: Queue) -> None:
        queue.lanes.set("default", order="strict")
        enqueue_for(queue, "ccbbaa")
        queue.lanes.set("default", order="fair")
        assert served(queue, 6) == "abcabc"

    def test_a_job_that_runs_while_its_lane_changes_returns_to_the_new_order(self, queue: Queue) -> None:
        enqueue_for(queue, "b")
        held = claim_one(queue)
        queue.lanes.set("default", order="strict")
        enqueue_for(queue, "aa")
        queue.settle(held, Released())
        assert served(queue, 3) == "baa"

    def test_strict_jobs_between_the_claims_do_not_starve_a_fair_lane(self, queue: Queue) -> None:
        queue.lanes.set("urgent", order="strict")
        enqueue_for(queue, "abc" * 3)
        tenants = ""
        for _ in range(3):
            queue.enqueue("mail", tenant="boss", lane="urgent", priority=9)
            claims = queue.claim_many(limit=2, lanes=["urgent", "default"])
            tenants += claims[1].job.tenant
        assert tenants == "abc"

    def test_a_tenants_claim_over_strict_and_fair_lanes_is_ordered_by_due_time(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        queue.lanes.set("strict", order="strict")
        enqueued = []
        for lane in ("default", "strict", "default", "strict"):
            enqueued += enqueue_for(queue, "a", lane=lane)
            clock.advance(1)
        lanes = ["strict", "default"]
        assert [claim_one(queue, lanes=lanes, tenant="a").job.id for _ in range(4)] == enqueued
