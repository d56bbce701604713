"""Claiming: the jobs that a claim may take, its result, and the result of a repeated claim."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Conflict, Deferred, Done, Failed, InvalidInput, NewJob, Queue, Released
from holdfast.errors import LaneDraining
from holdfast.types import ClaimOptions
from tests.support.assertions import refused
from tests.support.claims import claim_all, claim_ids, claim_one, known
from tests.support.clock import ManualClock, lease_end
from tests.support.stores import Harness

pytestmark = pytest.mark.in_memory


class TestTheResultOfAClaim:
    def test_an_empty_queue_has_nothing_to_claim(self, queue: Queue) -> None:
        assert queue.claim() is None
        assert queue.claim_many() == []

    def test_a_claim_carries_the_job_as_it_now_runs(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("mail", {"to": "ada"})
        claim = claim_one(queue, worker="w1", incarnation="w1-a", lease=45)
        job = claim.job
        assert (job.id, job.state, job.payload) == (enqueued.id, "running", {"to": "ada"})
        assert (job.worker, job.incarnation, job.attempt, job.epoch) == ("w1", "w1-a", 1, 1)
        assert (claim.epoch, claim.lease_ms) == (1, 45_000)
        assert job.started_at == clock.time
        assert job.lease_until == lease_end(clock, 45)
        assert queue.get(enqueued.id) == job

    def test_a_lease_lasts_thirty_seconds_by_default(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue("mail")
        assert claim_one(queue).job.lease_until == lease_end(clock, 30)

    def test_a_lease_may_be_given_as_a_timedelta(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue("mail")
        claim = claim_one(queue, lease=timedelta(minutes=2))
        assert claim.job.lease_until == lease_end(clock, 120)

    def test_every_claim_gets_its_own_token_by_default(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("mail"), NewJob("mail"), NewJob("mail")])
        first, second = claim_one(queue), claim_one(queue)
        assert first.lease_token
        assert first.lease_token != second.lease_token
        assert claim_one(queue, lease_token="mine").lease_token == "mine"

    def test_a_queue_has_a_default_worker_name(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("mail"), NewJob("mail")])
        first, second = claim_one(queue).job, claim_one(queue).job
        assert first.worker
        assert first.incarnation
        assert (first.worker, first.incarnation) == (second.worker, second.incarnation)

    def test_a_running_job_is_not_claimed_again(self, queue: Queue) -> None:
        queue.enqueue("mail")
        claim_one(queue)
        assert queue.claim() is None

    @pytest.mark.parametrize(("limit", "taken"), [(1, 1), (3, 3), (5, 5), (1000, 5)])
    def test_a_batch_takes_no_more_than_its_limit(self, queue: Queue, limit: int, taken: int) -> None:
        queue.enqueue_many([NewJob("mail") for _ in range(5)])
        assert len(queue.claim_many(limit=limit)) == taken
        assert queue.counts().get("ready", 0) == 5 - taken

    def test_a_batch_of_a_thousand_is_claimed_in_one_call(self, queue: Queue) -> None:
        enqueued = [enqueued.id for enqueued in queue.enqueue_many([NewJob("mail") for _ in range(1500)])]
        assert claim_ids(queue, 1000) == enqueued[:1000]
        assert claim_ids(queue, 1000) == enqueued[1000:]

    @pytest.mark.validation
    @pytest.mark.parametrize(
        ("field", "options"),
        [
            ("lease", {"lease": 0}),
            ("lease", {"lease": 86_401}),
            ("drain", {"drain": "listed"}),
            ("drain", {"drain": "newest"}),
            ("kinds", {"kinds": "mail"}),
            ("lanes[0]", {"lanes": [""]}),
            ("hold_left", {"affinity": "llama", "hold_left": -1}),
            ("worker", {"worker": ""}),
            ("lease_token", {"lease_token": ""}),
            ("queue", {"queue": "default"}),
        ],
    )
    def test_a_wrong_option_is_named_and_nothing_is_claimed(
        self, queue: Queue, field: str, options: ClaimOptions
    ) -> None:
        enqueued = queue.enqueue("mail")
        with refused(queue, field):
            queue.claim(**options)
        assert queue.get(enqueued.id).state == "ready"

    @pytest.mark.validation
    @pytest.mark.parametrize("limit", [0, -1, 1001])
    def test_a_limit_out_of_bounds_is_refused(self, queue: Queue, limit: int) -> None:
        with refused(queue, "limit"):
            queue.claim_many(limit=limit)


class TestFilters:
    def test_no_kinds_means_any_kind(self, queue: Queue) -> None:
        enqueued = [queue.enqueue(kind).id for kind in ("mail", "scan")]
        assert claim_ids(queue, kinds=None) == enqueued

    def test_an_empty_list_of_kinds_means_none(self, queue: Queue) -> None:
        queue.enqueue("mail")
        assert claim_ids(queue, kinds=[]) == []

    def test_listed_kinds_are_taken_and_unknown_ones_stay_queued(self, queue: Queue) -> None:
        unknown = queue.enqueue("odd")
        scan, mail = queue.enqueue("scan"), queue.enqueue("mail")
        assert claim_ids(queue, kinds=["mail", "scan", "never"]) == [scan.id, mail.id]
        assert queue.get(unknown.id).state == "ready"
        assert claim_ids(queue, kinds=["odd"]) == [unknown.id]

    def test_many_jobs_of_another_kind_in_front_do_not_hide_one(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("other", priority=5) for _ in range(2000)])
        mine = queue.enqueue("mail")
        assert claim_ids(queue, kinds=["mail"]) == [mine.id]

    def test_only_the_default_lane_is_claimed_by_default(self, queue: Queue) -> None:
        queue.enqueue("mail", lane="side")
        mine = queue.enqueue("mail")
        assert claim_ids(queue) == [mine.id]

    def test_only_named_lanes_are_claimed(self, queue: Queue) -> None:
        enqueued = {lane: queue.enqueue("mail", lane=lane).id for lane in ("one", "two", "three")}
        assert claim_ids(queue, lanes=["three", "one", "unused"]) == [enqueued["one"], enqueued["three"]]
        assert claim_ids(queue, lanes=["default"]) == []

    def test_a_tenants_claim_takes_only_that_tenants_jobs(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("mail", tenant="ada", priority=9) for _ in range(300)])
        mine = queue.enqueue("mail", tenant="zoe")
        assert claim_ids(queue, tenant="zoe") == [mine.id]
        assert claim_ids(queue, tenant="missing") == []

    def test_a_tenants_claim_keeps_the_order_of_its_own_jobs(self, queue: Queue) -> None:
        enqueued = [queue.enqueue("mail", tenant="zoe", priority=priority).id for priority in (0, 5, 0)]
        queue.enqueue("mail", tenant="ada")
        assert claim_ids(queue, tenant="zoe") == [enqueued[1], enqueued[0], enqueued[2]]

    @pytest.mark.parametrize(
        ("requires", "capabilities", "fits"),
        [
            ([], [], True),
            ([], ["gpu"], True),
            (["gpu"], [], False),
            (["gpu"], ["gpu"], True),
            (["gpu"], ["net"], False),
            (["gpu", "net"], ["gpu"], False),
            (["gpu", "net"], ["net", "disk", "gpu"], True),
        ],
    )
    def test_a_worker_needs_every_capability_that_a_job_requires(
        self, queue: Queue, requires: list[str], capabilities: list[str], fits: bool
    ) -> None:
        enqueued = queue.enqueue("mail", requires=requires)
        assert claim_ids(queue, capabilities=capabilities) == ([enqueued.id] if fits else [])

    def test_jobs_that_a_worker_cannot_run_do_not_block_others(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("mail", requires=["gpu"], priority=5) for _ in range(500)])
        mine = queue.enqueue("mail")
        assert claim_ids(queue) == [mine.id]

    def test_filters_combine(self, queue: Queue) -> None:
        fitting = queue.enqueue("mail", lane="side", tenant="zoe", requires=["gpu"])
        queue.enqueue("scan", lane="side", tenant="zoe", requires=["gpu"])
        queue.enqueue("mail", lane="default", tenant="zoe", requires=["gpu"])
        queue.enqueue("mail", lane="side", tenant="ada", requires=["gpu"])
        queue.enqueue("mail", lane="side", tenant="zoe", requires=["net"])
        options: ClaimOptions = {"kinds": ["mail"], "lanes": ["side"], "tenant": "zoe", "capabilities": ["gpu"]}
        assert claim_ids(queue, **options) == [fitting.id]


class TestJobsThatAreNotClaimed:
    def test_a_scheduled_job_is_not_claimed_before_it_is_due(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("mail", delay=10)
        clock.advance(9.999)
        assert queue.claim() is None
        clock.advance(0.001)
        assert claim_one(queue).job.id == enqueued.id

    def test_a_blocked_job_is_not_claimed_before_its_predecessor_has_ended(self, queue: Queue) -> None:
        queue.enqueue("mail", dedupe_key="k")
        first = claim_one(queue)
        successor = queue.enqueue("mail", dedupe_key="k", on_duplicate="run_again")
        assert queue.get(successor.id).state == "blocked"
        assert queue.claim() is None
        queue.settle(first, Done())
        assert claim_one(queue).job.id == successor.id

    def test_finished_jobs_are_not_claimed(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("mail") for _ in range(3)])
        done, failed, cancelled = queue.claim_many()
        queue.settle(done, Done())
        queue.settle(failed, Failed("no", permanent=True))
        queue.cancel(cancelled.job.id, force=True)
        assert queue.claim() is None


class TestLanes:
    def test_nothing_is_claimed_from_a_paused_lane_until_it_is_active(self, queue: Queue) -> None:
        enqueued = queue.enqueue("mail")
        queue.lanes.set("default", state="paused")
        assert queue.claim() is None
        queue.lanes.set("default", state="active")
        assert claim_one(queue).job.id == enqueued.id

    def test_a_paused_lane_accepts_jobs_and_blocks_no_other_lane(self, queue: Queue) -> None:
        queue.lanes.set("default", state="paused")
        queue.enqueue("mail", priority=9)
        other = queue.enqueue("mail", lane="side")
        assert claim_ids(queue, lanes=["default", "side"]) == [other.id]

    def test_a_running_job_of_a_paused_lane_may_settle(self, queue: Queue) -> None:
        queue.enqueue("mail")
        claim = claim_one(queue)
        queue.lanes.set("default", state="paused")
        queue.heartbeat(claim)
        assert queue.settle(claim, Done()).state == "done"

    def test_a_draining_lane_is_claimed_from_and_accepts_no_jobs(self, queue: Queue) -> None:
        enqueued = queue.enqueue("mail")
        queue.lanes.set("default", state="draining")
        with pytest.raises(LaneDraining):
            queue.enqueue("mail")
        claim = claim_one(queue)
        assert claim.job.id == enqueued.id
        queue.settle(claim, Failed("again", retry_after=0))
        assert claim_one(queue).job.id == enqueued.id

    def test_another_client_sees_a_lane_paused_at_once(self, harness: Harness) -> None:
        queue, other = harness.open(), harness.open()
        queue.enqueue_many([NewJob("mail"), NewJob("mail")])
        claim_one(other)
        queue.lanes.set("default", state="paused")
        assert other.claim() is None


class TestRetiredKinds:
    def test_waiting_jobs_of_a_retired_kind_are_never_claimed(self, queue: Queue, clock: ManualClock) -> None:
        ready, later = queue.enqueue("odd"), queue.enqueue("odd", delay=5)
        queue.kinds.retire("odd")
        clock.advance(10)
        assert claim_ids(queue) == []
        assert claim_ids(queue, kinds=["odd"]) == []
        queue.kinds.restore("odd")
        assert claim_ids(queue) == []
        assert {queue.get(ready.id).state, queue.get(later.id).state} == {"retired"}

    @pytest.mark.parametrize("outcome", [Released(), Failed("again", retry_after=0), Deferred(after=0)])
    def test_a_running_job_of_a_retired_kind_is_not_claimed_again(
        self, queue: Queue, outcome: Released | Failed | Deferred
    ) -> None:
        queue.enqueue("odd")
        claim = claim_one(queue)
        queue.kinds.retire("odd")
        queue.settle(claim, outcome)
        assert queue.claim() is None
        assert queue.get(claim.job.id).state == "retired"

    def test_an_expired_job_of_a_retired_kind_is_not_claimed_again(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue("odd")
        claim = claim_one(queue, lease=1)
        queue.kinds.retire("odd")
        clock.advance(2)
        assert queue.claim() is None
        assert queue.get(claim.job.id).state == "retired"

    def test_a_running_job_of_a_retired_kind_may_finish(self, queue: Queue) -> None:
        queue.enqueue("odd")
        claim = claim_one(queue)
        queue.kinds.retire("odd")
        assert queue.settle(claim, Done()).state == "done"


def test_claim_accepts_no_limit_and_the_error_names_claim_many(queue: Queue) -> None:
    options: dict[str, Any] = {"limit": 1}
    with pytest.raises(InvalidInput, match="claim_many"):
        queue.claim(**options)


class TestARepeatedClaim:
    """The result of a claim may be lost; a call with the same token returns it again."""

    def test_the_same_token_returns_the_same_claims_and_takes_no_more(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("mail", tenant=tenant) for tenant in "abcab"])
        first = queue.claim_many(limit=3, lease_token="t1")
        again = queue.claim_many(limit=3, lease_token="t1")
        assert again == first
        assert queue.counts() == {"running": 3, "ready": 2}

    def test_a_repeated_single_claim_is_the_same_claim(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("mail"), NewJob("mail")])
        first = claim_one(queue, lease_token="t1")
        assert claim_one(queue, lease_token="t1") == first
        assert claim_one(queue, lease_token="t2").job.id != first.job.id

    def test_the_claims_are_returned_in_the_same_order(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("mail", priority=priority, tenant=t) for priority in (0, 9, 3) for t in "ba"])
        first = claim_ids(queue, 6, lease_token="t1")
        assert claim_ids(queue, 6, lease_token="t1") == first

    def test_another_client_finds_them_too(self, harness: Harness) -> None:
        queue, other = harness.open(), harness.open()
        queue.enqueue("mail")
        first = claim_one(queue, lease_token="t1")
        assert claim_one(other, lease_token="t1").job.id == first.job.id

    def test_after_a_heartbeat_the_claim_returned_shows_the_longer_lease(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        queue.enqueue("mail")
        first = claim_one(queue, lease_token="t1", lease=30)
        clock.advance(20)
        renewal = queue.heartbeat(first)
        clock.advance(20)
        again = claim_one(queue, lease_token="t1", lease=30)
        assert (again.job.id, again.epoch, again.job.attempt) == (first.job.id, first.epoch, 1)
        assert again.lease_until == renewal.lease_until

    def test_after_the_lease_expired_it_is_a_new_claim(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue("mail")
        first = claim_one(queue, lease_token="t1", lease=10)
        clock.advance(10)
        again = claim_one(queue, lease_token="t1", lease=10)
        assert (again.job.id, again.epoch, again.job.attempt) == (first.job.id, first.epoch + 1, 2)

    def test_the_rest_of_a_partly_settled_batch_is_returned(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("mail") for _ in range(4)])
        first = queue.claim_many(limit=3, lease_token="t1")
        queue.settle(first[1], Done())
        assert queue.claim_many(limit=3, lease_token="t1") == [first[0], first[2]]

    def test_the_rest_of_a_partly_released_batch_is_returned(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("mail") for _ in range(3)])
        first = queue.claim_many(limit=3, lease_token="t1")
        queue.settle(first[0], Released())
        assert queue.claim_many(limit=3, lease_token="t1") == first[1:]

    def test_a_paused_lane_does_not_hide_held_claims(self, queue: Queue) -> None:
        queue.enqueue("mail")
        first = claim_one(queue, lease_token="t1")
        queue.lanes.set("default", state="paused")
        assert claim_one(queue, lease_token="t1") == first

    def test_a_repeated_claim_does_not_change_fairness(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("mail", tenant=tenant) for tenant in "abcabc"])
        claim_one(queue, lease_token="t1")
        for _ in range(3):
            claim_one(queue, lease_token="t1")
        assert claim_one(queue).job.tenant == "b"

    @pytest.mark.parametrize(
        "other",
        [
            {"tenant": "b"},
            {"lanes": ["slow"]},
            {"kinds": ["other"]},
            {"kinds": []},
            {"capabilities": []},
            {"limit": 1},
        ],
    )
    def test_the_token_of_another_request_is_refused_and_discloses_nothing(
        self, queue: Queue, other: dict[str, Any]
    ) -> None:
        enqueued = queue.enqueue_many([NewJob("mail", "secret", tenant="a", requires=["gpu"]) for _ in range(2)])
        request: dict[str, Any] = {"worker": "w", "lease_token": "t1", "limit": 2, "capabilities": ["gpu", "cpu"]}
        first = queue.claim_many(**request)
        before = [known(queue, job.id) for job in enqueued]
        with pytest.raises(Conflict, match="lease_token") as caught:
            queue.claim_many(**{**request, **other})
        assert caught.value.job_id is None
        assert not any(text in str(caught.value) for text in ("secret", "mail", enqueued[0].id, "'a'"))
        assert [known(queue, job.id) for job in enqueued] == before
        assert queue.claim_many(**{**request, "tenant": "a", "kinds": ["mail"], "capabilities": ["gpu"]}) == first

    def test_a_plain_claim_does_not_return_entries_of_a_session_claim(self, queue: Queue) -> None:
        queue.enqueue("say", session="s")
        turn = queue.sessions.claim("s", worker="w")
        assert turn is not None
        with pytest.raises(Conflict):
            queue.claim(worker="w", lease_token=turn.lease_token)

    def test_tokens_of_others_are_not_found_by_accident(self, queue: Queue) -> None:
        queue.enqueue("mail")
        claim_one(queue, lease_token="t1")
        assert queue.claim(lease_token="t") is None
        assert queue.claim(lease_token="T1") is None


class TestManyAtOnce:
    def test_threads_that_claim_together_never_share_a_job(self, harness: Harness) -> None:
        threads, jobs = 6, 300
        queues = [harness.open() for _ in range(threads)]
        enqueued = {
            enqueued.id
            for enqueued in queues[0].enqueue_many([NewJob("mail", tenant=f"t{n % 3}") for n in range(jobs)])
        }
        start = threading.Barrier(threads)

        def claim_in_small_batches(queue: Queue) -> list[str]:
            start.wait()
            taken: list[str] = []
            while batch := claim_ids(queue, 7):
                taken += batch
            return taken

        with ThreadPoolExecutor(threads) as pool:
            taken = Counter(job_id for ids in pool.map(claim_in_small_batches, queues) for job_id in ids)
        assert set(taken) == enqueued
        assert set(taken.values()) == {1}

    def test_threads_that_share_one_queue_never_share_a_job(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("mail") for _ in range(100)])

        with ThreadPoolExecutor(4) as pool:
            singles = list(pool.map(lambda _: queue.claim(), range(120)))
        taken = [claim.job.id for claim in singles if claim is not None]
        assert len(taken) == len(set(taken)) == 100

    def test_the_same_token_sent_from_two_threads_takes_once(self, harness: Harness) -> None:
        queues = [harness.open(), harness.open()]
        queues[0].enqueue_many([NewJob("mail") for _ in range(10)])
        start = threading.Barrier(2)

        def send(queue: Queue) -> list[str]:
            start.wait()
            return claim_ids(queue, 4, lease_token="t1")

        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(send, queues)
        assert first == second
        assert queues[0].counts() == {"running": 4, "ready": 6}

    def test_jobs_claimed_and_settled_by_threads_all_end_once(self, harness: Harness) -> None:
        queues = [harness.open() for _ in range(4)]
        queues[0].enqueue_many([NewJob("mail") for _ in range(120)])

        def work(queue: Queue) -> int:
            done = 0
            while claims := queue.claim_many(limit=5):
                done += sum(settled.ok for settled in queue.settle_many([(claim, Done()) for claim in claims]))
            return done

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(work, queues)) == 120
        assert queues[0].counts() == {"done": 120}
        assert claim_all(queues[0]) == []
