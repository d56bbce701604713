"""Ids and replays: a repeated enqueue with the same id changes nothing, and an id never names two jobs.

Every store must pass this file unchanged.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Backoff, Conflict, Done, Failed, JobNotFound, NewJob, Queue
from tests.support.assertions import duplicate
from tests.support.claims import claim_one
from tests.support.clock import ManualClock
from tests.support.stores import Harness


def stored(queue: Queue) -> int:
    return sum(queue.counts().values())


RICH: dict[str, Any] = {
    "payload": {"a": 1, "b": {"c": [1, 2], "d": None}},
    "tenant": "acme",
    "lane": "mail",
    "priority": 3,
    "delay": 60,
    "deadline": 600,
    "requires": ["gpu", "avx"],
    "affinity": "llama3",
    "headers": {"h": "1", "i": "2"},
    "tags": {"t": "1", "u": "2"},
    "max_attempts": 7,
    "backoff": Backoff(1.0, 2.0, 30.0, 0.5),
    "dedupe_key": "k",
    "events": "all",
}
CHANGES: list[dict[str, Any]] = [
    {"payload": {"a": 1}},
    {"payload": {"a": 1.0, "b": {"c": [1, 2], "d": None}}},
    {"payload": {"a": True, "b": {"c": [1, 2], "d": None}}},
    {"payload": {"a": 1, "b": {"c": [2, 1], "d": None}}},
    {"tenant": "other"},
    {"lane": "other"},
    {"priority": 4},
    {"delay": 61},
    {"deadline": 601},
    {"requires": ["gpu"]},
    {"affinity": None},
    {"headers": {"h": "1"}},
    {"tags": {"t": "2", "u": "2"}},
    {"max_attempts": 8},
    {"backoff": None},
    {"dedupe_key": "l"},
    {"events": "terminal"},
]


class TestFreshIds:
    def test_an_id_not_chosen_is_a_uuid_of_version_7(self, queue: Queue) -> None:
        assert uuid.UUID(queue.enqueue("work").id).version == 7

    def test_the_ids_of_many_jobs_are_such_uuids_too(self, queue: Queue) -> None:
        ids = [job.id for job in queue.enqueue_many([{"kind": "work", "payload": number} for number in range(100)])]
        assert {(uuid.UUID(job_id).version, uuid.UUID(job_id).variant) for job_id in ids} == {(7, uuid.RFC_4122)}
        assert all(str(uuid.UUID(job_id)) == job_id for job_id in ids)
        assert len(set(ids)) == 100
        # They go to the end of an index one after the other.
        assert ids == sorted(ids)

    def test_equal_requests_without_an_id_are_different_jobs(self, queue: Queue) -> None:
        enqueued = queue.enqueue_many([NewJob("work", 1)] * 200)
        assert len({answer.id for answer in enqueued}) == 200

    def test_ids_are_text_and_never_numbers(self, queue: Queue) -> None:
        names = ["1", "01", "1.0", "1e0", "0x1", "null", "true", "A", "a", "a ", "é", "e\u0301"]
        enqueued = [queue.enqueue("work", name, job_id=name) for name in names]
        assert all(answer.created for answer in enqueued)
        assert [queue.get(name).payload for name in names] == names

    def test_an_unknown_id_is_not_found(self, queue: Queue) -> None:
        with pytest.raises(JobNotFound) as caught:
            queue.get("missing")
        assert caught.value.job_id == "missing"


class TestReplay:
    def test_the_same_request_returns_the_original(self, queue: Queue, clock: ManualClock) -> None:
        first = queue.enqueue("work", job_id="a", **RICH)
        # The digest contains the relative times of the caller, which count from the first call.
        clock.advance(5)
        again = queue.enqueue("work", job_id="a", **RICH)
        assert (first.created, again.created) == (True, False)
        assert again.job == first.job
        assert stored(queue) == 1
        assert [event.name for event in queue.events()] == ["enqueued"]

    @pytest.mark.parametrize("change", CHANGES, ids="-".join)
    def test_other_content_is_a_conflict_and_changes_nothing(self, queue: Queue, change: dict[str, Any]) -> None:
        first = queue.enqueue("work", job_id="a", **RICH)
        with pytest.raises(Conflict) as caught:
            queue.enqueue("work", job_id="a", **{**RICH, **change})
        assert caught.value.job_id == "a"
        assert queue.get("a") == first.job
        assert stored(queue) == 1

    def test_another_kind_is_a_conflict(self, queue: Queue) -> None:
        queue.enqueue("work", job_id="a")
        with pytest.raises(Conflict):
            queue.enqueue("other", job_id="a")
        assert queue.get("a").kind == "work"

    def test_the_order_of_keys_does_not_matter(self, queue: Queue) -> None:
        queue.enqueue("work", {"a": 1, "b": {"c": 2, "d": 3}}, job_id="a", tags={"t": "1", "u": "2"})
        again = queue.enqueue("work", {"b": {"d": 3, "c": 2}, "a": 1}, job_id="a", tags={"u": "2", "t": "1"})
        assert not again.created

    def test_a_default_spelled_out_is_the_same_request(self, queue: Queue) -> None:
        queue.enqueue("work", job_id="a")
        spelled = queue.enqueue("work", None, job_id="a", lane="default", tenant="default", priority=0, delay=0)
        assert not spelled.created

    def test_the_same_time_in_another_notation_is_the_same_request(self, queue: Queue) -> None:
        queue.enqueue("work", job_id="a", delay=60, backoff=Backoff(60, 2, 3600))
        again = queue.enqueue("work", job_id="a", delay=timedelta(minutes=1), backoff=Backoff(60.0, 2.0, 3600.0))
        assert not again.created

    def test_another_client_may_replay_it(self, harness: Harness) -> None:
        first = harness.open().enqueue("work", [1], job_id="a")
        assert duplicate(harness.open().enqueue("work", [1], job_id="a")) == first.job

    def test_it_returns_the_current_state_of_the_job(self, queue: Queue) -> None:
        queue.enqueue("work", job_id="a")
        claim = claim_one(queue)
        assert queue.enqueue("work", job_id="a").job.state == "running"
        queue.settle(claim, Done({"ok": True}))
        again = queue.enqueue("work", job_id="a")
        assert (again.created, again.job.state, again.job.result) == (False, "done", {"ok": True})

    def test_it_does_not_restart_a_failed_job(self, queue: Queue) -> None:
        queue.enqueue("work", job_id="a")
        queue.settle(claim_one(queue), Failed("no", permanent=True))
        assert queue.enqueue("work", job_id="a").job.state == "failed"
        assert queue.claim() is None

    def test_it_works_while_the_lane_is_draining(self, queue: Queue) -> None:
        first = queue.enqueue("work", job_id="a", lane="mail")
        queue.lanes.set("mail", state="draining")
        assert duplicate(queue.enqueue("work", job_id="a", lane="mail")) == first.job

    def test_it_works_after_the_kind_was_retired(self, queue: Queue) -> None:
        queue.enqueue("work", job_id="a")
        queue.kinds.retire("work")
        again = queue.enqueue("work", job_id="a")
        assert (again.created, again.job.state) == (False, "retired")

    def test_an_id_is_unique_across_tenants(self, queue: Queue) -> None:
        queue.enqueue("work", job_id="a", tenant="acme")
        with pytest.raises(Conflict):
            queue.enqueue("work", job_id="a", tenant="other")
        assert stored(queue) == 1


class TestIdBeforeDedupeKey:
    def test_a_replay_is_recognised_by_its_id_even_if_another_job_holds_its_key(self, queue: Queue) -> None:
        queue.enqueue("work", 1, job_id="first", dedupe_key="k")
        queue.settle(claim_one(queue), Done())
        queue.enqueue("work", 2, job_id="second", dedupe_key="k")
        again = queue.enqueue("work", 1, job_id="first", dedupe_key="k")
        assert (again.id, again.created, again.job.state) == ("first", False, "done")

    def test_a_replay_replaces_nothing(self, queue: Queue) -> None:
        queue.enqueue("work", 1, job_id="first", dedupe_key="k", on_duplicate="replace")
        queue.settle(claim_one(queue), Done())
        queue.enqueue("work", 2, job_id="second", dedupe_key="k")
        queue.enqueue("work", 1, job_id="first", dedupe_key="k", on_duplicate="replace")
        assert queue.get("second").payload == 2

    def test_other_content_is_a_conflict_even_with_keep(self, queue: Queue) -> None:
        queue.enqueue("work", 1, job_id="first", dedupe_key="k")
        with pytest.raises(Conflict):
            queue.enqueue("work", 2, job_id="first", dedupe_key="k")
        assert queue.get("first").payload == 1

    def test_a_new_id_with_a_held_key_adds_no_job(self, queue: Queue) -> None:
        queue.enqueue("work", 1, job_id="first", dedupe_key="k")
        again = queue.enqueue("work", 2, job_id="second", dedupe_key="k")
        assert (again.id, again.created) == ("first", False)
        with pytest.raises(JobNotFound):
            queue.get("second")

    def test_a_replayed_successor_returns_the_successor(self, queue: Queue) -> None:
        queue.enqueue("work", 1, job_id="first", dedupe_key="k")
        claim_one(queue)
        request: dict[str, Any] = {"job_id": "second", "dedupe_key": "k", "on_duplicate": "run_again"}
        enqueued = queue.enqueue("work", 2, **request)
        again = queue.enqueue("work", 2, **request)
        assert (enqueued.created, again.created, again.id, again.job.state) == (True, False, "second", "blocked")


class TestManyIds:
    def test_a_replay_of_many_returns_the_originals_in_order(self, queue: Queue) -> None:
        jobs = [NewJob("work", number, job_id=f"job-{number}") for number in range(20)]
        first = queue.enqueue_many(jobs)
        again = queue.enqueue_many(jobs[::-1])
        assert [answer.id for answer in again] == [answer.id for answer in first][::-1]
        assert not any(answer.created for answer in again)
        assert stored(queue) == 20

    def test_existing_and_new_jobs_may_be_mixed(self, queue: Queue) -> None:
        queue.enqueue("work", job_id="b")
        enqueued = queue.enqueue_many([NewJob("work", job_id=name) for name in "abc"])
        assert [(answer.id, answer.created) for answer in enqueued] == [("a", True), ("b", False), ("c", True)]

    def test_the_same_job_twice_in_one_call_is_one_job(self, queue: Queue) -> None:
        enqueued = queue.enqueue_many([NewJob("work", 1, job_id="a"), NewJob("work", 1, job_id="a")])
        assert [(answer.id, answer.created) for answer in enqueued] == [("a", True), ("a", False)]
        assert stored(queue) == 1

    def test_one_id_for_two_jobs_in_one_call_is_a_conflict_and_stores_neither(self, queue: Queue) -> None:
        with pytest.raises(Conflict):
            queue.enqueue_many([NewJob("work", 1, job_id="a"), NewJob("work", 2, job_id="a")])
        assert stored(queue) == 0
