"""Enqueue: every option is stored, for one job and many, all or none.

Every store must pass this file unchanged.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Backoff, Conflict, Done, InvalidInput, JobNotFound, NewJob, Queue, Refused
from holdfast.errors import KindRetired, LaneDraining
from tests.support.claims import claim_one
from tests.support.clock import ManualClock
from tests.support.stores import Harness

pytestmark = pytest.mark.in_memory


def time_from_now(clock: ManualClock, seconds: float = 0) -> datetime:
    """Return the time of the store's wall clock *seconds* from now."""
    return datetime.fromtimestamp(clock.now().wall_ms / 1000, UTC) + timedelta(seconds=seconds)


def stored(queue: Queue) -> int:
    return sum(queue.counts().values())


OPTIONS: list[tuple[dict[str, Any], str, Any]] = [
    ({"lane": "mail"}, "lane", "mail"),
    ({"tenant": "acme"}, "tenant", "acme"),
    ({"priority": 1_000}, "priority", 1_000),
    ({"priority": -1_000}, "priority", -1_000),
    ({"requires": ["gpu"]}, "requires", ("gpu",)),
    ({"affinity": "llama3"}, "affinity", "llama3"),
    ({"affinity": None}, "affinity", None),
    ({"headers": {"traceparent": "00-ab-cd-01"}}, "headers", {"traceparent": "00-ab-cd-01"}),
    ({"tags": {"order": "42", "who": "Zoë 👩‍🚀"}}, "tags", {"order": "42", "who": "Zoë 👩‍🚀"}),
    ({"max_attempts": 1}, "max_attempts", 1),
    ({"max_attempts": 1_000}, "max_attempts", 1_000),
    ({"backoff": Backoff(1.5, 3.0, 9.0, 0.25)}, "backoff", Backoff(1.5, 3.0, 9.0, 0.25)),
    ({"backoff": None}, "backoff", Backoff(jitter=0.2)),
    ({"job_id": "order-42"}, "id", "order-42"),
    ({"dedupe_key": "k"}, "dedupe_key", "k"),
]
PAYLOADS: list[Any] = [
    None,
    False,
    0,
    -0.5,
    "",
    "text",
    [],
    {},
    {"to": "ada@example.org", "deep": [{"a": [None, True, 1.5]}]},
    2**63,
    -(2**70),
    10**999,
    1e308,
    5e-324,
    "\u202eright to left\u202c 👩‍👩‍👧 'quoted'; -- drop",
    "\\u0000 is text here",
    "line\nbreak\ttab \x01",
]
NAMES = ["'; drop table holdfast_job; --", "שלום", "\u202eabc", "👩‍👩‍👧‍👦", "a b", "%", "_", "x" * 200, "😀" * 200]


class TestOne:
    def test_a_bare_job_is_ready_and_has_the_documented_defaults(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("email.send")
        job = queue.get(enqueued.id)
        assert enqueued.created
        assert job == enqueued.job
        assert (job.kind, job.lane, job.tenant, job.state) == ("email.send", "default", "default", "ready")
        assert (job.payload, job.headers, job.tags, job.requires, job.affinity) == (None, {}, {}, (), None)
        assert (job.priority, job.attempt, job.max_attempts, job.epoch) == (0, 0, 5, 0)
        assert (job.enqueued_at, job.due_at, job.deadline_at) == (time_from_now(clock), time_from_now(clock), None)
        assert (job.started_at, job.finished_at, job.result, job.failure) == (None, None, None, None)

    @pytest.mark.parametrize(("options", "attribute", "expected"), OPTIONS, ids=lambda value: repr(value)[:40])
    def test_every_option_is_returned(
        self, queue: Queue, options: dict[str, Any], attribute: str, expected: Any
    ) -> None:
        enqueued = queue.enqueue("work", **options)
        assert getattr(enqueued.job, attribute) == expected
        assert queue.get(enqueued.id) == enqueued.job

    @pytest.mark.parametrize("payload", PAYLOADS, ids=lambda value: repr(value)[:20])
    def test_every_payload_is_returned_exactly(self, queue: Queue, payload: Any) -> None:
        enqueued = queue.enqueue("work", payload)
        assert repr(queue.get(enqueued.id).payload) == repr(payload)
        assert repr(claim_one(queue).job.payload) == repr(payload)

    @pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
    def test_any_valid_name_is_accepted_in_every_field(self, queue: Queue, name: str) -> None:
        options: dict[str, Any] = {"tags": {name: name}, "headers": {name: name}, "job_id": name, "dedupe_key": name}
        enqueued = queue.enqueue(name, lane=name, tenant=name, affinity=name, requires=[name], **options)
        claim = claim_one(queue, lanes=[name], kinds=[name], tenant=name, capabilities=[name], worker=name)
        assert claim.job.id == enqueued.id == name
        assert (claim.job.kind, claim.job.tags, claim.job.headers) == (name, {name: name}, {name: name})
        assert queue.counts(by="tenant") == {name: 1}

    def test_requirements_are_a_set(self, queue: Queue) -> None:
        enqueued = queue.enqueue("work", requires=["gpu", "avx", "gpu"])
        assert sorted(queue.get(enqueued.id).requires) == ["avx", "gpu"]

    def test_another_client_of_the_store_sees_it(self, harness: Harness) -> None:
        enqueued = harness.open().enqueue("work", {"n": 1})
        assert harness.open().get(enqueued.id) == enqueued.job

    def test_the_largest_payload_is_kept(self, queue: Queue) -> None:
        text = "x" * ((1 << 20) - 2)
        assert queue.get(queue.enqueue("work", text).id).payload == text

    def test_another_tenant_does_not_find_it(self, queue: Queue) -> None:
        enqueued = queue.enqueue("work", tenant="acme")
        with pytest.raises(JobNotFound):
            queue.get(enqueued.id, tenant="other")
        assert queue.get(enqueued.id, tenant="acme") == enqueued.job


class TestTheEffectOfOptions:
    def test_a_higher_priority_goes_first(self, queue: Queue) -> None:
        queue.enqueue_many([{"kind": "work", "job_id": str(level), "priority": level} for level in (0, -5, 7)])
        assert [claim.job.id for claim in queue.claim_many()] == ["7", "0", "-5"]

    def test_a_lane_is_claimed_only_by_name(self, queue: Queue) -> None:
        queue.enqueue("work", lane="mail")
        assert queue.claim() is None
        assert queue.claim(lanes=["mail"]) is not None

    def test_a_worker_needs_every_capability_required(self, queue: Queue) -> None:
        queue.enqueue("work", requires=["gpu", "avx"])
        assert queue.claim(capabilities=["gpu"]) is None
        assert queue.claim(capabilities=["gpu", "avx", "more"]) is not None

    def test_an_affinity_is_preferred_but_not_required(self, queue: Queue) -> None:
        queue.enqueue("work", job_id="first")
        queue.enqueue("work", job_id="beside", affinity="llama3")
        assert claim_one(queue, affinity="llama3").job.id == "beside"
        assert claim_one(queue, affinity="llama3").job.id == "first"

    def test_a_job_with_all_events_is_recorded_from_its_enqueue(self, queue: Queue) -> None:
        queue.enqueue("quiet")
        enqueued = queue.enqueue("recorded", events="all", tags={"order": "42"})
        assert [(event.name, event.job_id, event.tags) for event in queue.events()] == [
            ("enqueued", enqueued.id, {"order": "42"})
        ]


class TestTimes:
    @pytest.mark.parametrize("delay", [60, 60.0, timedelta(minutes=1)])
    def test_a_delayed_job_is_scheduled_until_it_is_due(
        self, queue: Queue, clock: ManualClock, delay: float | timedelta
    ) -> None:
        enqueued = queue.enqueue("work", delay=delay)
        assert (enqueued.job.state, enqueued.job.due_at) == ("scheduled", time_from_now(clock, 60))
        clock.advance(59.999)
        assert queue.claim() is None
        clock.advance(0.001)
        assert claim_one(queue).job.id == enqueued.id

    def test_no_delay_is_too_short_to_count(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("work", delay=0.0001)
        assert queue.claim() is None
        clock.advance(0.001)
        assert claim_one(queue).job.id == enqueued.id

    def test_a_job_with_a_delay_of_0_is_ready_at_once(self, queue: Queue) -> None:
        assert queue.enqueue("work", delay=0).job.state == "ready"

    def test_a_job_with_run_at_waits_for_that_time(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("work", run_at=time_from_now(clock, 5))
        assert (enqueued.job.state, enqueued.job.due_at) == ("scheduled", time_from_now(clock, 5))
        clock.advance(4.999)
        assert queue.claim() is None
        clock.advance(0.001)
        assert claim_one(queue).job.id == enqueued.id

    def test_a_time_in_the_past_means_now(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("work", run_at=time_from_now(clock, -3_600))
        assert (enqueued.job.state, enqueued.job.due_at) == ("ready", time_from_now(clock))

    def test_the_latest_time_is_stored(self, queue: Queue) -> None:
        latest = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
        assert queue.get(queue.enqueue("work", run_at=latest).id).due_at == latest

    def test_a_job_not_started_by_its_deadline_fails(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("work", deadline=10)
        assert queue.get(enqueued.id).deadline_at == time_from_now(clock, 10)
        clock.advance(10)
        assert queue.claim() is None
        job = queue.get(enqueued.id)
        assert job.failure is not None
        assert (job.state, job.failure.failure_class, job.failure.reason) == (
            "failed",
            "permanent",
            "deadline_passed",
        )

    def test_a_job_started_by_its_deadline_may_end_after_it(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue("work", deadline=time_from_now(clock, 10))
        clock.advance(9.999)
        claim = claim_one(queue)
        clock.advance(10)
        assert queue.settle(claim, Done()).state == "done"

    def test_a_deadline_before_the_delay_is_over_is_still_kept(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("work", delay=60, deadline=30)
        clock.advance(30)
        assert queue.claim() is None
        assert queue.get(enqueued.id).state == "failed"


class TestMany:
    def test_answers_and_claims_keep_the_order_of_the_call(self, queue: Queue) -> None:
        enqueued = queue.enqueue_many([{"kind": "work", "payload": number} for number in range(500)])
        assert [answer.job.payload for answer in enqueued] == list(range(500))
        assert all(answer.created for answer in enqueued)
        assert [claim.job.payload for claim in queue.claim_many(limit=500)] == list(range(500))

    def test_they_may_be_dicts_or_new_jobs_with_all_options(self, queue: Queue) -> None:
        enqueued = queue.enqueue_many(
            [
                NewJob("a", [1], priority=2, tags={"t": "1"}),
                {"kind": "b", "payload": {"x": 1}, "lane": "mail", "tenant": "acme", "delay": 5, "job_id": "b-1"},
            ]
        )
        first, second = (queue.get(answer.id) for answer in enqueued)
        assert [first, second] == [answer.job for answer in enqueued]
        assert (first.kind, first.payload, first.priority, first.tags) == ("a", [1], 2, {"t": "1"})
        assert (second.id, second.lane, second.tenant, second.state) == ("b-1", "mail", "acme", "scheduled")

    def test_an_empty_list_is_accepted(self, queue: Queue) -> None:
        assert queue.enqueue_many([]) == []
        assert stored(queue) == 0

    def test_a_tuple_is_accepted(self, queue: Queue) -> None:
        assert len(queue.enqueue_many((NewJob("a"), NewJob("b")))) == 2

    def test_as_many_as_the_limit_are_taken_at_once(self, queue: Queue) -> None:
        assert len(queue.enqueue_many([NewJob("work")] * 10_000)) == 10_000
        assert stored(queue) == 10_000

    def test_one_bad_item_refuses_all_and_is_named(self, queue: Queue) -> None:
        jobs: list[dict[str, Any]] = [{"kind": "work", "payload": number} for number in range(5)]
        jobs[3]["payload"] = {"a": [float("nan")]}
        with pytest.raises(InvalidInput) as caught:
            queue.enqueue_many(jobs)
        assert caught.value.field == "jobs[3].payload.a[0]"
        assert stored(queue) == 0

    def test_one_for_a_draining_lane_refuses_all(self, queue: Queue) -> None:
        queue.lanes.set("mail", state="draining")
        with pytest.raises(LaneDraining):
            queue.enqueue_many([NewJob("work", events="all"), NewJob("work", lane="mail"), NewJob("work")])
        assert stored(queue) == 0
        assert len(queue.events()) == 0

    def test_one_of_a_retired_kind_refuses_all(self, queue: Queue) -> None:
        queue.kinds.retire("old")
        with pytest.raises(KindRetired):
            queue.enqueue_many([NewJob("work"), NewJob("old")])
        assert stored(queue) == 0

    def test_one_conflict_refuses_all(self, queue: Queue) -> None:
        queue.enqueue("work", 1, job_id="taken")
        with pytest.raises(Conflict):
            queue.enqueue_many([NewJob("work", job_id="free"), NewJob("work", 2, job_id="taken")])
        assert stored(queue) == 1
        assert queue.get("taken").payload == 1


class TestDrainingAndRetired:
    def test_a_draining_lane_refuses_jobs_and_the_error_names_it(self, queue: Queue) -> None:
        queue.lanes.set("mail", state="draining")
        with pytest.raises(LaneDraining) as caught:
            queue.enqueue("work", lane="mail")
        assert caught.value.lane == "mail"
        assert stored(queue) == 0

    def test_other_lanes_accept_jobs(self, queue: Queue) -> None:
        queue.lanes.set("mail", state="draining")
        assert queue.enqueue("work").created

    def test_jobs_in_a_draining_lane_are_claimed(self, queue: Queue) -> None:
        enqueued = queue.enqueue("work", lane="mail")
        queue.lanes.set("mail", state="draining")
        claim = claim_one(queue, lanes=["mail"])
        assert queue.settle(claim, Done()).state == "done"
        assert claim.job.id == enqueued.id

    def test_a_lane_set_active_again_accepts_jobs_again(self, queue: Queue) -> None:
        queue.lanes.set("mail", state="draining")
        queue.lanes.set("mail", state="active")
        assert queue.enqueue("work", lane="mail").created

    def test_a_paused_lane_accepts_jobs_and_none_is_claimed(self, queue: Queue) -> None:
        queue.lanes.set("mail", state="paused")
        assert queue.enqueue("work", lane="mail").created
        assert queue.claim(lanes=["mail"]) is None

    def test_another_client_respects_the_lane_at_once(self, harness: Harness) -> None:
        operator, producer = harness.open(), harness.open()
        producer.enqueue("work", lane="mail")
        operator.lanes.set("mail", state="draining")
        with pytest.raises(LaneDraining):
            producer.enqueue("work", lane="mail")

    def test_a_retired_kind_is_refused_until_it_is_restored(self, queue: Queue) -> None:
        queue.kinds.retire("old")
        with pytest.raises(KindRetired) as caught:
            queue.enqueue("old")
        assert caught.value.kind == "old"
        assert stored(queue) == 0
        queue.kinds.restore("old")
        assert queue.enqueue("old").created


class TestLife:
    def test_a_closed_queue_is_reopened_by_its_next_use(self, durable_harness: Harness) -> None:
        queue = durable_harness.open()
        queue.enqueue("work")
        queue.close()
        enqueued = queue.enqueue("work", {"n": 1}, job_id="after")
        assert queue.get("after") == enqueued.job

    def test_closing_twice_or_before_the_first_use_is_harmless(self, durable_harness: Harness) -> None:
        queue = durable_harness.open()
        queue.close()
        queue.close()
        assert queue.enqueue("work").created

    def test_a_with_block_closes_the_queue_and_the_next_call_reopens_it(self, durable_harness: Harness) -> None:
        with durable_harness.open() as queue:
            assert queue.enqueue("work").created
        assert queue.enqueue("work").created


class TestTheRefusedItem:
    def test_a_refusal_by_the_store_names_the_item_too(self, queue: Queue) -> None:
        queue.lanes.set("closed", state="draining")
        queue.enqueue("old")
        queue.kinds.retire("old")
        queue.enqueue("work", {"n": 1}, job_id="taken")
        for bad in ({"kind": "work", "lane": "closed"}, {"kind": "old"}, {"kind": "work", "job_id": "taken"}):
            with pytest.raises(Refused, match=r"^jobs\[1\]: ") as refusal:
                queue.enqueue_many([{"kind": "work"}, bad, {"kind": "work"}])
            assert refusal.value.path == "jobs[1]"
        assert queue.counts() == {"ready": 1, "retired": 1}

    def test_a_refused_follow_up_is_named_among_the_others(self, queue: Queue) -> None:
        queue.lanes.set("closed", state="draining")
        queue.enqueue("work")
        claim = queue.claim()
        assert claim is not None
        with pytest.raises(Refused, match=r"^follow_ups\[1\]: "):
            queue.settle(claim, Done(follow_ups=[{"kind": "next"}, {"kind": "next", "lane": "closed"}]))
