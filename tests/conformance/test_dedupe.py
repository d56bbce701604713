"""Dedupe keys: keep, replace and run again, in every state of the first job.

Every store must pass this file unchanged.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

import pytest

from holdfast import Conflict, Deferred, Done, Failed, NewJob, Queue, Released
from holdfast.types import Enqueued
from tests.support.assertions import duplicate
from tests.support.claims import changed_job, claim_one
from tests.support.clock import ManualClock

Arrange: TypeAlias = Callable[[Queue, ManualClock], None]


def ids(queue: Queue) -> list[str]:
    return sorted(job.id for job in queue.jobs())


def enqueue_first(queue: Queue, **options: Any) -> Enqueued[Any]:
    return queue.enqueue("sync", "first", job_id="first", dedupe_key="k", **options)


def trigger(queue: Queue, payload: Any = "second", **options: Any) -> Enqueued[Any]:
    return queue.enqueue("sync", payload, dedupe_key="k", **options)


# --- the first job in each state -----------------------------------------------------------------------------------


def scheduled(queue: Queue, clock: ManualClock) -> None:
    enqueue_first(queue, delay=60)


def ready(queue: Queue, clock: ManualClock) -> None:
    enqueue_first(queue)


def running(queue: Queue, clock: ManualClock) -> None:
    enqueue_first(queue)
    claim_one(queue)


def cancel_requested(queue: Queue, clock: ManualClock) -> None:
    running(queue, clock)
    queue.cancel("first")


def in_backoff(queue: Queue, clock: ManualClock) -> None:
    enqueue_first(queue)
    queue.settle(claim_one(queue), Failed("not yet", retry_after=60))


def deferred(queue: Queue, clock: ManualClock) -> None:
    enqueue_first(queue)
    queue.settle(claim_one(queue), Deferred(after=60))


def released(queue: Queue, clock: ManualClock) -> None:
    enqueue_first(queue)
    queue.settle(claim_one(queue), Released())


def requeued(queue: Queue, clock: ManualClock) -> None:
    failed(queue, clock)
    queue.requeue("first")


def done(queue: Queue, clock: ManualClock) -> None:
    enqueue_first(queue)
    queue.settle(claim_one(queue), Done())


def failed(queue: Queue, clock: ManualClock) -> None:
    enqueue_first(queue)
    queue.settle(claim_one(queue), Failed("never", permanent=True))


def cancelled(queue: Queue, clock: ManualClock) -> None:
    enqueue_first(queue)
    queue.cancel("first")


def retired(queue: Queue, clock: ManualClock) -> None:
    enqueue_first(queue)
    queue.kinds.retire("sync")
    queue.kinds.restore("sync")


NEVER_CLAIMED: list[Arrange] = [scheduled, ready]
CLAIMED_AND_WAITING: list[Arrange] = [in_backoff, deferred, released, requeued]
RUNNING: list[Arrange] = [running, cancel_requested]
UNFINISHED: list[Arrange] = [*NEVER_CLAIMED, *CLAIMED_AND_WAITING, *RUNNING]
FINISHED: list[Arrange] = [done, failed, cancelled, retired]


class TestKeep:
    @pytest.mark.parametrize("arrange", UNFINISHED)
    def test_an_unfinished_first_is_returned_and_no_job_added(
        self, queue: Queue, clock: ManualClock, arrange: Arrange
    ) -> None:
        arrange(queue, clock)
        before = queue.get("first")
        assert duplicate(trigger(queue)) == before
        assert queue.get("first") == before
        assert ids(queue) == ["first"]

    def test_keep_is_the_default(self, queue: Queue) -> None:
        enqueue_first(queue)
        assert trigger(queue) == trigger(queue, on_duplicate="keep")

    def test_a_duplicate_records_no_event(self, queue: Queue) -> None:
        enqueue_first(queue, events="all")
        trigger(queue, events="all")
        assert [event.name for event in queue.events()] == ["enqueued"]

    @pytest.mark.parametrize("on_duplicate", ["keep", "replace", "run_again"])
    @pytest.mark.parametrize("arrange", FINISHED)
    def test_a_finished_first_does_not_hold_the_key(
        self, queue: Queue, clock: ManualClock, arrange: Arrange, on_duplicate: str
    ) -> None:
        arrange(queue, clock)
        before = queue.get("first")
        enqueued = trigger(queue, on_duplicate=on_duplicate)
        assert (enqueued.created, enqueued.job.state, enqueued.job.payload) == (True, "ready", "second")
        assert queue.get("first") == before
        assert ids(queue) == sorted(["first", enqueued.id])


class TestReplace:
    @pytest.mark.parametrize("arrange", NEVER_CLAIMED)
    def test_a_first_that_was_never_claimed_gets_only_the_new_content(
        self, queue: Queue, clock: ManualClock, arrange: Arrange
    ) -> None:
        arrange(queue, clock)
        before = queue.get("first")
        enqueued = trigger(
            queue, on_duplicate="replace", tags={"t": "2"}, headers={"h": "2"}, priority=9, max_attempts=1
        )
        after = queue.get("first")
        assert duplicate(enqueued) == after
        assert (after.payload, after.tags, after.headers) == ("second", {"t": "2"}, {"h": "2"})
        emptied = [changed_job(job, payload_json="", tags_json="", headers_json="") for job in (before, after)]
        assert emptied[0] == emptied[1]

    def test_a_replaced_job_runs_with_the_new_payload_in_the_old_position(self, queue: Queue) -> None:
        enqueue_first(queue)
        queue.enqueue("other", job_id="later")
        trigger(queue, on_duplicate="replace")
        assert [(claim.job.id, claim.job.payload) for claim in queue.claim_many()] == [
            ("first", "second"),
            ("later", None),
        ]

    @pytest.mark.parametrize("arrange", [*CLAIMED_AND_WAITING, *RUNNING])
    def test_a_first_that_was_claimed_is_a_conflict_and_unchanged(
        self, queue: Queue, clock: ManualClock, arrange: Arrange
    ) -> None:
        arrange(queue, clock)
        before = queue.get("first")
        with pytest.raises(Conflict) as caught:
            trigger(queue, on_duplicate="replace")
        assert caught.value.job_id == "first"
        assert queue.get("first") == before
        assert ids(queue) == ["first"]

    def test_the_replacement_is_recorded_if_all_events_are(self, queue: Queue) -> None:
        enqueue_first(queue, events="all")
        trigger(queue, on_duplicate="replace", tags={"t": "2"})
        recorded = [(event.name, event.number, event.tags) for event in queue.events()]
        assert recorded == [("enqueued", 1, {}), ("replaced", 2, {"t": "2"})]


class TestRunAgain:
    @pytest.mark.parametrize("arrange", [*NEVER_CLAIMED, *CLAIMED_AND_WAITING])
    def test_a_first_that_waits_is_kept(self, queue: Queue, clock: ManualClock, arrange: Arrange) -> None:
        arrange(queue, clock)
        before = queue.get("first")
        assert duplicate(trigger(queue, on_duplicate="run_again")) == before
        assert ids(queue) == ["first"]

    @pytest.mark.parametrize("arrange", RUNNING)
    def test_a_running_first_gets_a_blocked_successor_with_its_own_id(
        self, queue: Queue, clock: ManualClock, arrange: Arrange
    ) -> None:
        arrange(queue, clock)
        before = queue.get("first")
        enqueued = trigger(queue, on_duplicate="run_again", priority=3)
        assert (enqueued.created, enqueued.job.state, enqueued.job.payload, enqueued.job.priority) == (
            True,
            "blocked",
            "second",
            3,
        )
        assert enqueued.id != "first"
        assert queue.get(enqueued.id) == enqueued.job
        assert queue.get("first") == before
        assert queue.claim() is None

    def test_a_further_trigger_replaces_the_successors_content_and_returns_it(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        running(queue, clock)
        successor = trigger(queue, on_duplicate="run_again")
        again = trigger(queue, "third", on_duplicate="run_again", tags={"t": "3"}, headers={"h": "3"})
        assert (again.id, again.created) == (successor.id, False)
        job = queue.get(successor.id)
        assert job == again.job
        assert (job.state, job.payload, job.tags, job.headers) == ("blocked", "third", {"t": "3"}, {"h": "3"})
        assert ids(queue) == sorted(["first", successor.id])

    def test_keep_and_replace_still_find_the_first(self, queue: Queue, clock: ManualClock) -> None:
        running(queue, clock)
        successor = trigger(queue, on_duplicate="run_again")
        assert trigger(queue, "third").id == "first"
        with pytest.raises(Conflict):
            trigger(queue, "third", on_duplicate="replace")
        assert queue.get(successor.id).payload == "second"

    def test_a_cancelled_successor_makes_room_for_another(self, queue: Queue, clock: ManualClock) -> None:
        running(queue, clock)
        gone = trigger(queue, on_duplicate="run_again")
        queue.cancel(gone.id)
        enqueued = trigger(queue, "third", on_duplicate="run_again")
        assert (enqueued.created, enqueued.job.state) == (True, "blocked")
        assert queue.get(gone.id).state == "cancelled"

    def test_a_successor_past_its_deadline_fails_while_it_is_blocked(self, queue: Queue, clock: ManualClock) -> None:
        enqueue_first(queue)
        claim_one(queue, lease=600)
        successor = trigger(queue, on_duplicate="run_again", deadline=10)
        clock.advance(10)
        assert queue.claim() is None
        assert queue.get(successor.id).state == "failed"
        assert trigger(queue, on_duplicate="run_again").created


class TestScope:
    def test_a_key_counts_within_its_kind(self, queue: Queue) -> None:
        queue.enqueue("a", dedupe_key="k")
        assert queue.enqueue("b", dedupe_key="k").created

    def test_a_key_counts_within_its_tenant(self, queue: Queue) -> None:
        queue.enqueue("a", dedupe_key="k", tenant="acme")
        assert queue.enqueue("a", dedupe_key="k", tenant="other").created

    def test_a_key_counts_across_lanes(self, queue: Queue) -> None:
        queue.enqueue("a", dedupe_key="k", lane="one")
        assert not queue.enqueue("a", dedupe_key="k", lane="two").created

    def test_a_key_of_the_tenant_counts_across_its_kinds_only(self, queue: Queue) -> None:
        first = queue.enqueue("a", dedupe_key="k", dedupe_scope="tenant", tenant="acme")
        again = queue.enqueue("b", dedupe_key="k", dedupe_scope="tenant", tenant="acme")
        assert (again.id, again.created) == (first.id, False)
        assert queue.enqueue("b", dedupe_key="k", dedupe_scope="tenant", tenant="other").created

    @pytest.mark.parametrize("options", [{"on_duplicate": "replace"}, {"debounce": 5}])
    def test_it_gives_no_job_the_content_of_another_kind(self, queue: Queue, options: dict[str, Any]) -> None:
        """The handler of the one kind would get the payload of the other."""
        first = queue.enqueue("a", {"a": 1}, dedupe_key="k", dedupe_scope="tenant")
        with pytest.raises(Conflict, match="of kind 'a'"):
            queue.enqueue("b", {"b": 2}, dedupe_key="k", dedupe_scope="tenant", **options)
        assert queue.get(first.id).payload == {"a": 1}
        queue.enqueue("a", {"a": 3}, dedupe_key="k", dedupe_scope="tenant", **options)
        assert queue.get(first.id).payload == {"a": 3}

    def test_nor_the_successor(self, queue: Queue) -> None:
        tenant_wide: dict[str, Any] = {"dedupe_key": "k", "dedupe_scope": "tenant", "on_duplicate": "run_again"}
        queue.enqueue("a", {"a": 1}, **tenant_wide)
        queue.claim()
        successor = queue.enqueue("b", {"b": 2}, **tenant_wide)
        assert successor.created
        with pytest.raises(Conflict, match="of kind 'b'"):
            queue.enqueue("a", {"a": 3}, **tenant_wide)
        assert queue.get(successor.id).payload == {"b": 2}

    def test_the_two_scopes_are_separate(self, queue: Queue) -> None:
        queue.enqueue("a", dedupe_key="k", dedupe_scope="tenant")
        assert queue.enqueue("a", dedupe_key="k", dedupe_scope="kind").created

    def test_keys_differ_by_case_and_accent_form(self, queue: Queue) -> None:
        enqueued = [queue.enqueue("a", dedupe_key=key) for key in ("k", "K", "é", "e\u0301", "k ")]
        assert all(answer.created for answer in enqueued)

    def test_a_key_as_long_as_the_limit_is_kept(self, queue: Queue) -> None:
        queue.enqueue("a", dedupe_key="x" * 500)
        assert not queue.enqueue("a", dedupe_key="x" * 500).created


class TestManyAtOnce:
    def test_the_second_of_one_key_in_one_call_finds_the_first(self, queue: Queue) -> None:
        enqueued = queue.enqueue_many([NewJob("a", number, dedupe_key="k") for number in range(3)])
        assert [answer.created for answer in enqueued] == [True, False, False]
        assert len({answer.id for answer in enqueued}) == 1
        assert queue.get(enqueued[0].id).payload == 0

    def test_replace_within_one_call_leaves_the_last_payload(self, queue: Queue) -> None:
        jobs = [NewJob("a", number, dedupe_key="k", on_duplicate="replace", events="all") for number in range(3)]
        enqueued = queue.enqueue_many(jobs)
        assert [answer.created for answer in enqueued] == [True, False, False]
        assert queue.get(enqueued[0].id).payload == 2
        assert [event.name for event in queue.events()] == ["enqueued", "replaced", "replaced"]

    def test_run_again_within_one_call_makes_one_successor_with_the_last_payload(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        running(queue, clock)
        jobs = [NewJob("sync", number, dedupe_key="k", on_duplicate="run_again") for number in range(3)]
        enqueued = queue.enqueue_many(jobs)
        assert [answer.created for answer in enqueued] == [True, False, False]
        assert queue.get(enqueued[0].id).payload == 2
        assert ids(queue) == sorted(["first", enqueued[0].id])

    def test_keys_and_plain_jobs_mix(self, queue: Queue) -> None:
        held = queue.enqueue("a", 0, dedupe_key="held")
        enqueued = queue.enqueue_many(
            [
                NewJob("a", 1),
                NewJob("a", 2, dedupe_key="held"),
                NewJob("a", 3, dedupe_key="new"),
                NewJob("a", 4, dedupe_key="held", on_duplicate="replace"),
                NewJob("a", 5),
            ]
        )
        assert [answer.created for answer in enqueued] == [True, False, True, False, True]
        assert enqueued[1].id == enqueued[3].id == held.id
        assert queue.get(held.id).payload == 4
        assert [claim.job.payload for claim in queue.claim_many()] == [4, 1, 3, 5]

    def test_a_conflict_late_in_the_call_undoes_an_earlier_replacement(self, queue: Queue) -> None:
        waiting = queue.enqueue("a", 0, dedupe_key="waiting")
        queue.enqueue("b", 0, dedupe_key="claimed")
        claim_one(queue, kinds=["b"])
        with pytest.raises(Conflict):
            queue.enqueue_many(
                [
                    NewJob("a", 1, dedupe_key="waiting", on_duplicate="replace"),
                    NewJob("b", 1, dedupe_key="claimed", on_duplicate="replace"),
                ]
            )
        assert queue.get(waiting.id) == waiting.job


def random_jobs(chances: random.Random, tenant: str) -> list[dict[str, Any]]:
    """Return jobs that collide with each other and with existing jobs, by id and by key."""
    jobs = []
    for number in range(chances.randint(2, 12)):
        job: dict[str, Any] = {"kind": "sync", "payload": number, "tenant": tenant, "events": "all"}
        if chances.random() < 0.3:
            # The same id always has the same content; otherwise most calls would be conflicts.
            job |= {"job_id": f"{tenant}:{chances.randint(1, 3)}", "payload": "by id"}
        if chances.random() < 0.8:
            job["dedupe_key"] = "k1" if "job_id" in job else f"k{chances.randint(1, 4)}"
            job["on_duplicate"] = "run_again" if "job_id" in job else chances.choice(["keep", "replace", "run_again"])
        jobs.append(job)
    return jobs


def described(queue: Queue, tenant: str, answers: list[Enqueued[Any]]) -> object:
    """Return results, jobs and events, with ids replaced by their index in the results."""
    places: dict[str, int] = {}
    answered = [(places.setdefault(answer.id, len(places)), answer.created) for answer in answers]
    stored = [(places.get(job.id, -1), job.payload, job.state) for job in queue.jobs(tenant=tenant)]
    return answered, stored, [(places.get(event.job_id, -1), event.name) for event in queue.events(tenant=tenant)]


class TestOneOrMany:
    @staticmethod
    def arrange(queue: Queue, tenant: str) -> None:
        """Create a running job with the first key, a ready one with the second, one in backoff with the third."""
        queue.enqueue_many([{"kind": "sync", "dedupe_key": key, "tenant": tenant} for key in ("k1", "k3", "k2")])
        _, third = queue.claim_many(tenant=tenant, limit=2)
        queue.settle(third, Failed("not yet", retry_after=60))

    @pytest.mark.parametrize("seed", range(40))
    def test_many_at_once_have_the_same_effect_as_one_after_another(self, queue: Queue, seed: int) -> None:
        for tenant in ("singly", "at once"):
            self.arrange(queue, tenant)
        singly, at_once, answers = random_jobs(random.Random(seed), "singly"), [], []
        for job, same_job in zip(singly, random_jobs(random.Random(seed), "at once"), strict=True):
            # A refused job would refuse the whole call, so it is left out.
            with suppress(Conflict):
                answers.append(queue.enqueue(**job))
                at_once.append(same_job)
        enqueued = queue.enqueue_many(at_once)
        assert described(queue, "at once", enqueued) == described(queue, "singly", answers)
