"""Limits by key: how many jobs of one key run at once, or start per time."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from holdfast import Artifact, Claim, Conflict, Deferred, Done, Failed, NewJob, Queue
from holdfast.errors import LimitNotFound
from holdfast.operations import flow_limits, maintenance
from holdfast.storage.contract import StoreTransaction
from holdfast.storage.runners import SyncRunner
from tests.support.assertions import refused
from tests.support.claims import claim_one
from tests.support.clock import ManualClock
from tests.support.limited import drain, enqueue, finish, tenants
from tests.support.stores import Harness, store_of


class TestConcurrency:
    def test_each_key_has_its_own_limit_and_jobs_without_room_are_parked(self, queue: Queue) -> None:
        queue.limits.set("llm", kinds=["call"], key="tenant", concurrency=2)
        enqueue(queue, 5, tenant="a")
        enqueue(queue, 5, tenant="b")
        enqueue(queue, 1, kind="other", tenant="a")

        claims = queue.claim_many(limit=20)
        assert tenants(claims) == {"a": 3, "b": 2}
        assert queue.counts() == {"parked": 6, "running": 5}
        [use] = queue.limits.show("a")
        assert (use.limit, use.running, use.parked, use.concurrency, use.opens_at) == ("llm", 2, 3, 2, None)
        assert queue.claim_many(limit=20) == []

        finish(queue, [claim for claim in claims if claim.job.tenant == "a"])
        assert tenants(queue.claim_many(limit=20)) == {"a": 2}

    @pytest.mark.parametrize("limit", [{"concurrency": 3}, {"rate": 3, "per": 3600}], ids=str)
    def test_jobs_of_several_kinds_that_are_claimed_together_share_the_room_of_their_key(
        self, queue: Queue, limit: dict[str, int]
    ) -> None:
        queue.limits.set("llm", kinds=["call", "embed"], **limit)  # type: ignore[arg-type]
        for _ in range(2):
            queue.enqueue_many([NewJob("call"), NewJob("embed")])
            queue.claim_many(limit=10)

        assert queue.counts() == {"running": 3, "parked": 1}

    def test_jobs_of_several_kinds_that_are_claimed_together_count_at_their_own_keys(self, queue: Queue) -> None:
        queue.limits.set("llm", kinds=["call", "embed"], key="tenant", concurrency=1)
        enqueue(queue, 1, tenant="a")
        enqueue(queue, 1, kind="embed", tenant="b")
        enqueue(queue, 1, tenant="c")
        first, second, third = queue.claim_many(limit=3)
        assert [claim.job.tenant for claim in (first, second, third)] == ["a", "b", "c"]

        finish(queue, [second])
        enqueue(queue, 1, tenant="c")
        assert queue.claim_many(limit=3) == []

    @pytest.mark.parametrize(
        ("key", "options"),
        [
            ("all", [{}, {"tenant": "b"}]),
            ("affinity", [{"affinity": "x"}, {"affinity": "x"}]),
            ("tag:model", [{"tags": {"model": "x"}}, {"tags": {"model": "x", "other": "y"}}]),
            ("given", [{"limit_key": "x"}, {"limit_key": "x", "tenant": "b"}]),
        ],
    )
    def test_the_key_comes_from(self, queue: Queue, key: str, options: list[dict[str, Any]]) -> None:
        queue.limits.set("one", kinds=["call"], key=key, concurrency=1)
        for given in options:
            queue.enqueue("call", **given)
        enqueue(queue, 3, kind="other")
        claims = queue.claim_many(limit=10)

        assert Counter(claim.job.kind for claim in claims) == {"call": 1, "other": 3}
        assert len(drain(queue)) == 0
        finish(queue, claims)
        assert len(drain(queue)) == 1

    def test_the_key_may_have_several_sources(self, queue: Queue) -> None:
        queue.limits.set("one", kinds=["call"], key="tenant+tag:model", concurrency=1)
        for tenant, model in (("a", "x"), ("a", "x"), ("a", "y"), ("b", "x"), ("b", None), ("b", None)):
            queue.enqueue("call", tenant=tenant, tags={} if model is None else {"model": model})
        claims = queue.claim_many(limit=10)

        assert tenants(claims) == {"a": 2, "b": 3}
        assert [(use.running, use.parked) for use in queue.limits.show("a / x")] == [(1, 1)]
        finish(queue, claims)
        assert len(drain(queue)) == 1

    def test_a_job_without_a_key_is_not_limited(self, queue: Queue) -> None:
        queue.limits.set("one", kinds=["call"], key="tag:model", concurrency=1)
        enqueue(queue, 3)
        assert len(queue.claim_many(limit=10)) == 3

    def test_a_limit_may_concern_lanes(self, queue: Queue) -> None:
        queue.limits.set("one", lanes=["slow"], concurrency=1)
        enqueue(queue, 2, lane="slow")
        enqueue(queue, 2)
        assert len(queue.claim_many(lanes=["slow", "default"], limit=10)) == 3

    def test_a_claim_of_one_job_passes_many_that_have_no_room(self, queue: Queue) -> None:
        queue.limits.set("one", kinds=["call"], concurrency=1)
        enqueue(queue, 300)
        other = enqueue(queue, 1, kind="other")
        first = queue.claim()
        second = queue.claim()

        assert first is not None and second is not None  # noqa: PT018
        assert [second.job.id] == other

    def test_jobs_are_started_in_claim_order(self, queue: Queue) -> None:
        queue.limits.set("one", kinds=["call"], concurrency=1)
        low, high = enqueue(queue, 3), enqueue(queue, 3, priority=5)
        assert drain(queue) == [*high, *low]

    def test_tenants_take_turns_at_a_shared_gate(self, queue: Queue) -> None:
        queue.limits.set("one", kinds=["call"], concurrency=1)
        for tenant in ("a", "b", "c"):
            enqueue(queue, 4, tenant=tenant)
        order = [queue.get(job_id).tenant for job_id in drain(queue)]
        # The first claim is made before any waits at the gate.
        for start in range(1, 10, 3):
            assert set(order[start : start + 3]) == {"a", "b", "c"}

    def test_a_tenant_that_waits_has_its_turn_although_another_takes_the_room_that_it_is_offered(
        self, queue: Queue
    ) -> None:
        queue.limits.set("one", kinds=["call"], concurrency=1)
        enqueue(queue, 1, tenant="d")
        [running] = queue.claim_many()
        for tenant in ("a", "d"):
            enqueue(queue, 5, tenant=tenant)
        assert queue.claim_many(limit=20) == []
        order = ""
        for _ in range(9):
            assert queue.claim_many() == []
            if running.job.tenant == "d":
                enqueue(queue, 1, tenant="f")
            finish(queue, [running])
            [running] = queue.claim_many()
            order += running.job.tenant
        assert order.count("a") >= 3

    def test_offers_reach_the_routes_that_a_worker_serves(self, queue: Queue) -> None:
        queue.limits.set("one", kinds=["call", "unserved"], concurrency=1)
        enqueue(queue, 3, kind="unserved", priority=9)
        claims = queue.claim_many(limit=10)
        served = enqueue(queue, 5)
        assert queue.claim_many(kinds=["call"], limit=10) == []
        finish(queue, claims)

        done = []
        while found := queue.claim_many(kinds=["call"], limit=10):
            done += [claim.job.id for claim in found]
            finish(queue, found)
        assert done == served

    @pytest.mark.parametrize("outcome", [Failed("no", permanent=True), Failed("no"), Deferred(after=5)])
    def test_every_end_of_an_attempt_makes_room(self, queue: Queue, outcome: Any) -> None:
        queue.limits.set("one", kinds=["call"], concurrency=1)
        first, second = enqueue(queue, 2)
        [claim] = queue.claim_many(limit=2)
        queue.settle(claim, outcome)
        assert claim.job.id == first
        assert [one.job.id for one in queue.claim_many(limit=2)] == [second]

    def test_an_expired_lease_makes_room(self, queue: Queue, clock: ManualClock) -> None:
        queue.limits.set("one", kinds=["call"], key="tenant", concurrency=1)
        enqueue(queue, 2)
        queue.claim_many(limit=2, lease=10)
        assert queue.claim_many(limit=2) == []
        clock.advance(seconds=11)
        assert len(queue.claim_many(limit=2)) == 1

    def test_no_more_jobs_are_offered_than_may_start(self, queue: Queue) -> None:
        queue.limits.set("two", kinds=["call"], concurrency=2)
        enqueue(queue, 8)
        for claim in queue.claim_many(limit=8):
            queue.settle(claim, Failed("no", permanent=True))
            assert queue.claim(kinds=["none"]) is None
        assert queue.counts() == {"failed": 2, "parked": 4, "ready": 2}

    def test_a_lease_that_expires_with_the_last_attempt_makes_room(self, queue: Queue, clock: ManualClock) -> None:
        queue.limits.set("one", kinds=["call"], concurrency=1)
        enqueue(queue, 1, max_attempts=1)
        [last] = enqueue(queue, 1)
        assert len(queue.claim_many(limit=2, lease=10)) == 1
        clock.advance(seconds=11)
        assert [claim.job.id for claim in queue.claim_many(limit=2)] == [last]

    def test_many_claimers_never_exceed_it(self, durable_harness: Harness) -> None:
        queues = [durable_harness.open() for _ in range(4)]
        queues[0].limits.set("llm", kinds=["call"], key="tenant", concurrency=2)
        enqueue(queues[0], 20, tenant="a")
        enqueue(queues[0], 20, tenant="b")
        running: Counter[str] = Counter()
        done: list[str] = []
        lock = threading.Lock()
        problems: list[str] = []

        def work(queue: Queue) -> None:
            idle = 0
            while len(done) < 40 and idle < 2_000:
                claims = queue.claim_many(limit=3, lease=3600)
                idle = 0 if claims else idle + 1
                if not claims:
                    # A gate that another claim had locked is looked at again a little later.
                    durable_harness.clock.advance(seconds=0.02)
                with lock:
                    running.update(claim.job.tenant for claim in claims)
                    problems.extend(f"{running}" for count in running.values() if count > 2)
                with lock:
                    running.subtract(claim.job.tenant for claim in claims)
                    done.extend(claim.job.id for claim in claims)
                finish(queue, claims)

        threads = [threading.Thread(target=work, args=(queue,)) for queue in queues]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not problems
        assert len(set(done)) == len(done) == 40


class TestParkedJobs:
    def parked(self, queue: Queue, **options: Any) -> tuple[Claim, str]:
        """Return a running job that fills the gate, and a parked one."""
        queue.limits.set("one", kinds=["call"], concurrency=1)
        [claim] = [queue.claim() for _ in enqueue(queue, 1)]
        [parked] = enqueue(queue, 1, **options)
        assert queue.claim() is None
        assert queue.get(parked).state == "parked"
        assert claim is not None
        return claim, parked

    def test_it_is_listed_and_counts_as_waiting(self, queue: Queue) -> None:
        _, parked = self.parked(queue)
        assert [job.id for job in queue.jobs(state="parked")] == [parked]
        assert queue.counts()["parked"] == 1

    def test_it_can_be_cancelled_and_requeued(self, queue: Queue) -> None:
        claim, parked = self.parked(queue)
        queue.cancel(parked)
        assert queue.get(parked).state == "cancelled"
        queue.requeue(parked)
        assert queue.claim() is None
        finish(queue, [claim])
        assert drain(queue) == [parked]

    def test_an_offered_job_that_is_cancelled_leaves_its_room_to_others(self, queue: Queue) -> None:
        claim, parked = self.parked(queue)
        [other] = enqueue(queue, 1)
        assert queue.claim() is None
        finish(queue, [claim])
        queue.claim_many(kinds=["none"])
        assert queue.get(parked).state == "ready"
        queue.cancel(parked)
        assert drain(queue) == [other]

    @pytest.mark.parametrize("limit", [1, 5])
    def test_an_offered_job_that_gets_another_key_leaves_its_room_to_others(self, queue: Queue, limit: int) -> None:
        queue.limits.set("model", kinds=["call"], key="tag:model", concurrency=1)
        enqueue(queue, 1, tags={"model": "x"})
        first = queue.claim_many(limit=1)
        moved = queue.enqueue("call", dedupe_key="k", tags={"model": "x"})
        [waiting] = enqueue(queue, 1, tags={"model": "x"})
        assert queue.claim_many(limit=5) == []
        finish(queue, first)
        # A claim of another kind offers the room to the first job that waits; then that needs it elsewhere.
        assert queue.claim_many(kinds=["other"]) == []
        queue.enqueue("call", dedupe_key="k", tags={"model": "y"}, on_duplicate="replace")

        claims = [*queue.claim_many(limit=limit), *queue.claim_many(limit=limit)]
        assert [claim.job.id for claim in claims] == [moved.id, waiting]

    def test_it_fails_when_its_deadline_passes(self, queue: Queue, clock: ManualClock) -> None:
        _, parked = self.parked(queue, deadline=60)
        clock.advance(seconds=20)
        assert queue.get(parked).state == "parked"
        clock.advance(seconds=60)
        queue.claim_many(kinds=["none"])
        assert queue.get(parked).failure is not None
        assert queue.get(parked).state == "failed"

    def test_it_is_retired_with_its_kind(self, queue: Queue) -> None:
        _, parked = self.parked(queue)
        queue.kinds.retire("call")
        assert queue.get(parked).state == "retired"

    def test_it_holds_its_dedupe_key(self, queue: Queue) -> None:
        _, parked = self.parked(queue, dedupe_key="k")
        again = queue.enqueue("call", {"n": 7}, dedupe_key="k", on_duplicate="replace")
        assert (again.id, again.created, queue.get(parked).payload) == (parked, False, {"n": 7})

    def test_it_starts_if_its_new_content_has_a_key_with_room(self, queue: Queue) -> None:
        queue.limits.set("model", kinds=["call"], key="tag:model", concurrency=1)
        enqueue(queue, 1, tags={"model": "x"})
        moved = queue.enqueue("call", dedupe_key="k", tags={"model": "x"}, events="all")
        assert len(queue.claim_many(limit=5)) == 1
        assert queue.get(moved.id).state == "parked"
        again = queue.enqueue("call", dedupe_key="k", tags={"model": "y"}, on_duplicate="replace")
        assert again.job.state == "ready"
        assert [claim.job.id for claim in queue.claim_many(limit=5)] == [moved.id]
        names = [event.name for event in queue.events() if event.job_id == moved.id]
        assert names == ["enqueued", "parked", "replaced", "unblocked", "claimed"]

    def test_it_starts_if_its_new_content_weighs_less(self, queue: Queue, clock: ManualClock) -> None:
        queue.limits.set("tokens", kinds=["call"], rate=100, per=3600, weight="tokens")
        queue.enqueue("call", {"tokens": 90})
        heavy = queue.enqueue("call", {"tokens": 90}, dedupe_key="k")
        [light] = enqueue(queue, 1)
        assert len(queue.claim_many(limit=5, lease=600)) == 1
        clock.advance(60)
        assert queue.claim_many(limit=5) == []
        queue.enqueue("call", {"tokens": 1}, dedupe_key="k", on_duplicate="replace")
        assert [claim.job.id for claim in queue.claim_many(limit=5)] == [heavy.id, light]

    @pytest.mark.parametrize("again", [{"on_duplicate": "replace"}, {"debounce": 1}], ids=str)
    @pytest.mark.parametrize(("first", "then"), [(90, 1), (90, None), (None, 1), (1, 90)])
    def test_a_replaced_job_has_the_weight_that_it_was_given_last(
        self, queue: Queue, clock: ManualClock, again: dict[str, Any], first: int | None, then: int | None
    ) -> None:
        queue.limits.set("tokens", kinds=["call"], rate=100, per=3600, weight="tokens")
        queue.enqueue("call", {"tokens": 50}, dedupe_key="k", limit_weight=first, delay=1)
        queue.enqueue("call", {"tokens": 50}, dedupe_key="k", limit_weight=then, **again)
        clock.advance(2)
        assert claim_one(queue).job.payload == {"tokens": 50}
        assert queue.limits.show("all")[0].left == 100 - (then or 50)

    def test_it_starts_if_it_is_given_another_key_or_weight(self, queue: Queue, clock: ManualClock) -> None:
        queue.limits.set("model", kinds=["call"], key="given", concurrency=1)
        queue.limits.set("tokens", kinds=["call"], rate=100, per=3600, weight="tokens")
        queue.enqueue("call", limit_key="a")
        moved = queue.enqueue("call", dedupe_key="k", limit_key="a")
        heavy = queue.enqueue("call", dedupe_key="h", limit_key="c", limit_weight=100)
        assert len(queue.claim_many(limit=5, lease=600)) == 1
        assert {queue.get(one.id).state for one in (moved, heavy)} == {"parked"}
        queue.enqueue("call", dedupe_key="k", limit_key="b", on_duplicate="replace")
        queue.enqueue("call", dedupe_key="h", limit_key="c", limit_weight=2, on_duplicate="replace")
        assert {claim.job.id for claim in queue.claim_many(limit=5)} == {moved.id, heavy.id}

    @pytest.mark.parametrize(("first", "then"), [("a", "b"), (None, "b"), ("a", None)])
    def test_a_job_replaced_in_the_same_call_has_its_last_key_and_inputs(
        self, queue: Queue, first: str | None, then: str | None
    ) -> None:
        queue.limits.set("model", kinds=["call"], key="given", concurrency=1)

        def call(key: str | None) -> NewJob:
            inputs = [] if key is None else [Artifact(key, b"text")]
            return NewJob("call", dedupe_key="k", on_duplicate="replace", limit_key=key, artifacts=inputs)

        stored, _ = queue.enqueue_many([call(first), call(then)])
        queue.enqueue("call", limit_key=then or "a")
        assert len(queue.claim_many(limit=5)) == (1 if then else 2)
        assert [one.name for one in queue.artifacts(stored.id)] == ([then] if then else [])

    def test_it_gets_another_priority(self, queue: Queue) -> None:
        claim, parked = self.parked(queue)
        [other] = enqueue(queue, 1)
        assert queue.claim() is None
        queue.reprioritize(other, 9)
        finish(queue, [claim])
        assert drain(queue) == [other, parked]

    def test_its_transitions_are_recorded(self, queue: Queue) -> None:
        claim, parked = self.parked(queue, events="all")
        finish(queue, [claim])
        drain(queue)
        names = [event.name for event in queue.events() if event.job_id == parked]
        assert names == ["enqueued", "parked", "unblocked", "claimed", "done"]

    def test_prune_deletes_it_after_it_has_ended(self, queue: Queue, clock: ManualClock) -> None:
        claim, _ = self.parked(queue, limit_key="x")
        finish(queue, [claim])
        drain(queue)
        clock.advance(seconds=60)
        assert queue.admin.prune(older_than=30).jobs == 2
        assert queue.counts() == {}


class TestChanges:
    def test_running_jobs_that_no_gate_counts_are_found_and_counted(self, queue: Queue) -> None:
        queue.limits.set("one", kinds=["call"], key="tenant", concurrency=1)
        enqueue(queue, 1, tenant="a")
        queue.enqueue("call", tenant="a", dedupe_key="k")
        [claim] = queue.claim_many(limit=1)

        async def forget(tx: StoreTransaction) -> None:
            # As if the row was restored from a backup of before the limit.
            await tx.set_gates([(None, claim.job.number)])

        runner = SyncRunner(store_of(queue))
        runner.write(forget)
        [finding] = runner.read(flow_limits.findings)
        assert (finding.status, finding.detail) == ("warning", "1 running jobs are not counted: one")
        runner.write(maintenance.delete_expired)
        [finding] = runner.read(flow_limits.findings)
        assert finding.status == "ok"
        assert queue.claim_many(limit=5) == []
        assert [use.running for use in queue.limits.show("a")] == [1]

    def test_parked_jobs_that_nothing_looks_at_are_found_and_offered_room(self, queue: Queue) -> None:
        queue.limits.set("one", kinds=["call"], concurrency=1)
        _, parked = enqueue(queue, 2)
        finish(queue, queue.claim_many(limit=2))

        async def forget(tx: StoreTransaction) -> None:
            # As if the wake row of that end was lost.
            [gate] = await tx.gates_of_key("all")
            await tx.delete_wakes_of("gate", gate.number)

        runner = SyncRunner(store_of(queue))
        runner.write(forget)
        assert queue.claim_many(limit=2) == []
        [finding] = [one for one in queue.admin.report().findings if one.name == "limits"]
        assert (finding.status, "jobs are parked at 1 keys" in finding.detail) == ("warning", True)
        runner.write(maintenance.delete_expired)
        assert [claim.job.id for claim in queue.claim_many(limit=2)] == [parked]

    def test_gates_that_keep_nothing_in_mind_are_deleted(self, queue: Queue, clock: ManualClock) -> None:
        queue.limits.set("one", kinds=["call"], key="tenant", concurrency=1)
        queue.limits.set("rate", kinds=["call"], key="tag:model", rate=1, per=60)
        enqueue(queue, 2, tenant="a", tags={"model": "x"})
        runner = SyncRunner(store_of(queue))

        def maintained() -> list[str]:
            queue.claim_many(kinds=["none"])
            runner.write(maintenance.delete_expired)
            return [use.limit for key in ("a", "x") for use in queue.limits.show(key)]

        [claim] = queue.claim_many(limit=2)
        assert maintained() == ["one", "rate"]
        queue.cancel(next(iter(queue.jobs(state="parked"))).id)
        finish(queue, [claim])
        assert maintained() == ["rate"]
        clock.advance(61)
        assert maintained() == []

    def test_raising_it_starts_more(self, queue: Queue) -> None:
        queue.limits.set("one", kinds=["call"], concurrency=1)
        enqueue(queue, 9)
        assert len(queue.claim_many(limit=9)) == 1
        queue.limits.set("one", kinds=["call"], concurrency=4)
        assert len(queue.claim_many(limit=9)) == 3

    def test_lowering_it_stops_none_and_starts_none(self, queue: Queue) -> None:
        queue.limits.set("one", kinds=["call"], concurrency=4)
        enqueue(queue, 9)
        claims = queue.claim_many(limit=9)
        queue.limits.set("one", kinds=["call"], concurrency=2)
        finish(queue, claims[:2])
        assert queue.claim_many(limit=9) == []
        finish(queue, claims[2:3])
        assert len(queue.claim_many(limit=9)) == 1

    def test_removing_it_frees_all(self, queue: Queue) -> None:
        queue.limits.set("one", kinds=["call"], concurrency=1)
        enqueue(queue, 450)
        claims = queue.claim_many(limit=9)
        for _ in range(3):
            queue.claim_many(limit=9)
        queue.limits.remove("one")
        assert len(drain(queue, limit=1_000)) == 449
        finish(queue, claims)
        assert queue.counts() == {"done": 450}

    def test_a_new_one_counts_what_runs_already_and_applies_to_what_waits(self, queue: Queue) -> None:
        enqueue(queue, 4)
        first = queue.claim_many(limit=2)
        queue.limits.set("one", kinds=["call"], key="tenant", concurrency=2)
        assert queue.claim_many(limit=9) == []
        finish(queue, first)
        assert len(queue.claim_many(limit=9)) == 2

    def test_a_new_rate_leaves_running_jobs_to_the_limit_that_counts_them(self, queue: Queue) -> None:
        queue.limits.set("one", kinds=["mail"], key="tenant", concurrency=1)
        queue.enqueue_many([NewJob("mail", tenant="a") for _ in range(2)])
        first = claim_one(queue)
        queue.limits.set("rate", kinds=["mail"], key="tenant", rate=1_000, per=1)
        assert queue.claim_many(worker="w", limit=2) == []
        queue.settle(first, Done())
        assert len(queue.claim_many(worker="w", limit=2)) == 1

    def test_a_rate_that_gets_a_number_at_once_counts_what_runs_already(self, queue: Queue) -> None:
        queue.limits.set("one", kinds=["mail"], key="tenant", concurrency=1)
        queue.limits.set("rate", kinds=["mail"], key="tenant", rate=1_000, per=1)
        queue.enqueue_many([NewJob("mail", tenant="a") for _ in range(2)])
        first = claim_one(queue)
        queue.limits.remove("one")
        queue.limits.set("rate", kinds=["mail"], key="tenant", rate=1_000, per=1, concurrency=1)
        assert queue.claim_many(worker="w", limit=2) == []
        queue.settle(first, Done())
        assert len(queue.claim_many(worker="w", limit=2)) == 1

    def test_another_key_starts_with_new_gates(self, queue: Queue) -> None:
        queue.limits.set("one", kinds=["call"], concurrency=1)
        enqueue(queue, 3, tenant="a")
        enqueue(queue, 3, tenant="b")
        claims = queue.claim_many(limit=9)
        queue.limits.set("one", kinds=["call"], key="tenant", concurrency=1)
        claims += queue.claim_many(limit=9)
        assert tenants(claims) == {"a": 1, "b": 1}
        finish(queue, claims)
        assert len(drain(queue)) == 4

    def test_setting_the_same_again_changes_nothing(self, queue: Queue) -> None:
        first = queue.limits.set("one", kinds=["call"], concurrency=1)
        assert queue.limits.set("one", kinds=["call"], concurrency=1) == first
        assert queue.limits.list() == [first] == [queue.limits.get("one")]
        assert queue.limits.remove("one") == first
        with pytest.raises(LimitNotFound):
            queue.limits.get("one")
        with pytest.raises(LimitNotFound):
            queue.limits.remove("one")

    def test_two_limits_of_one_sort_on_the_same_jobs_are_refused(self, queue: Queue) -> None:
        queue.limits.set("one", kinds=["call"], concurrency=1)
        with pytest.raises(Conflict, match="limit 'one' limits the concurrency"):
            queue.limits.set("two", lanes=["default"], concurrency=1)
        queue.limits.set("two", lanes=["default"], rate=1)
        queue.limits.set("three", kinds=["other"], concurrency=1)


@pytest.mark.validation
@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"concurrency": 1}, "kinds"),
        ({"kinds": [], "concurrency": 1}, "kinds"),
        ({"kinds": ["a"]}, "concurrency"),
        ({"kinds": ["a"], "concurrency": 0}, "concurrency"),
        ({"kinds": ["a"], "rate": 1, "per": 0.5}, "per"),
        ({"kinds": ["a"], "concurrency": 1, "burst": 2}, "rate"),
        ({"kinds": ["a"], "concurrency": 1, "key": "tag:"}, "key"),
        ({"kinds": ["a"], "concurrency": 1, "key": "tenant+tenant"}, "key"),
        ({"kinds": ["a"], "concurrency": 1, "key": "all+tenant"}, "key"),
        ({"kinds": ["a"], "rate": 1, "per": 86_400, "burst": 40_000}, "burst"),
        ({"kinds": ["a"], "concurrency": 1, "cap": 1}, "cap"),
    ],
)
def test_bad_options_are_refused(queue: Queue, options: dict[str, Any], field: str) -> None:
    with refused(queue, field):
        queue.limits.set("x", **options)
