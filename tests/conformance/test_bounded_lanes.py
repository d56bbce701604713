"""Lanes with a bound of waiting jobs, and with a target for the age of the oldest."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast import Done, Queue
from holdfast.errors import QueueFull
from tests.support.assertions import refused
from tests.support.clock import ManualClock
from tests.support.job_states import start
from tests.support.sessions import say, take, texts
from tests.support.stores import Harness


def fill(queue: Queue, count: int, **options: Any) -> None:
    queue.enqueue_many([{"kind": f"k{n % 2}", "lane": "l", "priority": n % 3, **options} for n in range(count)])


@pytest.mark.parametrize("order", ["fair", "strict"])
def test_a_full_lane_refuses_new_jobs_of_that_tenant(queue: Queue, clock: ManualClock, order: Any) -> None:
    queue.lanes.set("l", max_waiting=5, order=order)
    fill(queue, 5)
    with pytest.raises(QueueFull, match="max_waiting") as refusal:
        queue.enqueue("k0", lane="l")
    assert (refusal.value.lane, refusal.value.limit) == ("l", 5)
    fill(queue, 5, tenant="acme")
    queue.enqueue("k0", lane="other")
    assert queue.claim(lanes=["l"], tenant="default") is not None
    clock.advance(1)
    queue.enqueue("k0", lane="l")
    clock.advance(1)
    with pytest.raises(QueueFull, match=r"^jobs\[1\]"):
        queue.enqueue_many([{"kind": "k0", "lane": "other"}, {"kind": "k0", "lane": "l"}])
    assert queue.counts(by="lane") == {"l": 11, "other": 1}
    queue.lanes.set("l", max_waiting=0)
    fill(queue, 3)


def test_a_call_is_stored_as_a_whole_or_not_at_all(queue: Queue) -> None:
    queue.lanes.set("l", max_waiting=5)
    with pytest.raises(QueueFull, match=r"^jobs\[5\]") as refusal:
        fill(queue, 6)
    assert (refusal.value.lane, refusal.value.limit) == ("l", 5)

    def add_members() -> None:
        with queue.group("g") as group:
            for _ in range(6):
                group.enqueue("k0", lane="l")

    with pytest.raises(QueueFull):
        add_members()
    assert queue.counts() == {}
    assert queue.groups.list() == []
    fill(queue, 5)


def test_what_was_counted_is_used_for_a_tenth_of_a_second(harness: Harness) -> None:
    queue, other = harness.open(), harness.open()
    queue.lanes.set("l", max_waiting=5)
    queue.enqueue("k0", lane="l")
    other.enqueue_many([{"kind": "k0", "lane": "l"} for _ in range(4)])
    harness.clock.advance(0.099)
    queue.enqueue("k0", lane="l")
    harness.clock.advance(0.001)
    with pytest.raises(QueueFull):
        queue.enqueue("k0", lane="l")


def test_duplicates_follow_ups_callbacks_and_requeues_are_accepted(queue: Queue, clock: ManualClock) -> None:
    parent = queue.enqueue("a", lane="l", on_end={"kind": "end", "lane": "l"})
    claim = start(queue, parent.job)
    failed = queue.enqueue("b", lane="l")
    queue.cancel(failed.id)
    queue.enqueue("k0", lane="l", dedupe_key="k")
    named = queue.enqueue("k0", lane="l", job_id="named")
    queue.lanes.set("l", max_waiting=2)
    with pytest.raises(QueueFull):
        queue.enqueue("k0", lane="l")

    assert not queue.enqueue("k0", lane="l", dedupe_key="k", on_duplicate="replace").created
    assert not queue.enqueue("k0", lane="l", job_id="named").created
    queue.settle(claim, Done(follow_ups=[{"kind": "next", "lane": "l"}]))
    clock.advance(1)
    queue.claim_many(kinds=["none"])
    queue.requeue(failed.id)
    assert {job.kind for job in queue.jobs(state="ready")} == {"k0", "next", "end", "b"}
    assert named.created


def test_parked_jobs_count(queue: Queue, clock: ManualClock) -> None:
    queue.limits.set("one", lanes=["l"], key="tenant", concurrency=1)
    queue.lanes.set("l", max_waiting=4)
    fill(queue, 4)
    assert len(queue.claim_many(lanes=["l"], limit=4)) == 1
    assert queue.counts()["parked"] == 3
    clock.advance(1)
    fill(queue, 1)
    with pytest.raises(QueueFull):
        fill(queue, 1)


def test_a_late_lane_is_reported(queue: Queue, clock: ManualClock) -> None:
    assert queue.lanes.set("l", target_age=60).target_age == 60
    fill(queue, 2)

    def findings() -> list[tuple[str, str]]:
        return [(one.status, one.detail) for one in queue.admin.report().findings if one.name == "late lanes"]

    assert findings() == [("ok", "none")]
    clock.advance(61)
    assert findings() == [
        ("warning", "in lane l the oldest ready job has waited 61 seconds; the target is 60 seconds")
    ]
    overview = queue.admin.overview()
    [lane] = [one for one in overview.lanes if one.lane == "l"]
    assert (lane.target_age, lane.oldest_age_seconds) == (60, 61)
    [need] = [one for one in overview.needs if one.about == "lane"]
    assert (need.subject, need.cause) == ("l", "its target age is 60 seconds")
    queue.lanes.set("l", target_age=0)
    assert findings() == []


@pytest.mark.validation
@pytest.mark.parametrize("options", [{"max_waiting": -1}, {"max_waiting": 1_000_001}, {"target_age": -1}])
def test_bad_settings_are_refused(queue: Queue, options: dict[str, Any]) -> None:
    with refused(queue, next(iter(options))):
        queue.lanes.set("l", **options)


def late_events(queue: Queue) -> list[tuple[str, str]]:
    return [(event.lane, event.job_id) for event in queue.events() if event.name == "late"]


def look(queue: Queue) -> None:
    """Run the maintenance of a claim that finds no job."""
    assert queue.claim(kinds=["none"]) is None


def is_late(queue: Queue) -> bool:
    return {lane.name: lane.late for lane in queue.lanes.list()}["l"]


def test_one_event_is_written_when_a_lane_becomes_late(queue: Queue, clock: ManualClock) -> None:
    queue.lanes.set("l", target_age=60)
    first = queue.enqueue("k", lane="l", priority=9)
    clock.advance(1)
    queue.enqueue_many([{"kind": "k", "lane": "l", "tenant": tenant} for tenant in ("a", "z")])
    queue.enqueue("k", lane="other")
    clock.advance(58)
    look(queue)
    assert (late_events(queue), is_late(queue)) == ([], False)
    for _ in range(3):
        clock.advance(30)
        look(queue)
        assert (late_events(queue), is_late(queue)) == ([("l", first.id)], True)
    # The event belongs to the oldest job, and changes nothing about it.
    job = queue.get(first.id)
    assert job is not None
    assert (job.state, job.priority) == ("ready", 9)
    assert [claim.job.id for claim in queue.claim_many(lanes=["l"], limit=1)] == [first.id]


def test_a_lane_that_recovered_can_become_late_again(queue: Queue, clock: ManualClock) -> None:
    queue.lanes.set("l", target_age=60)
    first = queue.enqueue("k", lane="l")
    clock.advance(61)
    look(queue)
    start(queue, first.job)
    second = queue.enqueue("k", lane="l")
    clock.advance(29)
    look(queue)
    assert not is_late(queue)
    clock.advance(32)
    look(queue)
    assert late_events(queue) == [("l", first.id), ("l", second.id)]


def test_a_lane_whose_age_stays_near_its_target_is_late_once(queue: Queue, clock: ManualClock) -> None:
    queue.lanes.set("l", target_age=60)
    jobs = []
    for _ in range(3):
        jobs.append(queue.enqueue("k", lane="l"))
        clock.advance(21)
    look(queue)
    for enqueued in jobs[:2]:
        # The oldest was a little older than the target; the next is a little younger, and then older.
        queue.settle(start(queue, enqueued.job), Done())
        for _ in range(2):
            look(queue)
            assert is_late(queue)
            clock.advance(16)
    assert len(late_events(queue)) == 1
    queue.enqueue("k", lane="l")
    queue.settle(start(queue, jobs[2].job), Done())
    clock.advance(16)
    look(queue)
    assert not is_late(queue)


def test_paused_lanes_and_lanes_without_a_target_are_not_late(queue: Queue, clock: ManualClock) -> None:
    queue.lanes.set("l", target_age=60)
    queue.enqueue("k", lane="l")
    clock.advance(61)
    look(queue)
    assert is_late(queue)
    queue.lanes.set("l", state="paused")
    look(queue)
    assert not is_late(queue)
    clock.advance(61)
    look(queue)
    assert len(late_events(queue)) == 1
    queue.lanes.set("l", state="active")
    look(queue)
    assert (is_late(queue), len(late_events(queue))) == (True, 2)
    queue.lanes.set("l", target_age=0)
    look(queue)
    assert not is_late(queue)


def test_the_entry_of_a_session_can_make_a_lane_late(queue: Queue, clock: ManualClock) -> None:
    queue.lanes.set("l", target_age=60)
    [entry] = say(queue, "hello", lane="l")
    clock.advance(61)
    look(queue)
    assert late_events(queue) == [("l", entry)]
    assert texts(take(queue)) == ["hello"]


def test_claims_at_the_same_time_write_one_event(queue: Queue, clock: ManualClock) -> None:
    queue.lanes.set("l", target_age=60)
    late = queue.enqueue("k", lane="l")
    clock.advance(61)
    with ThreadPoolExecutor(8) as threads:
        [*threads.map(lambda _: look(queue), range(32))]
    assert late_events(queue) == [("l", late.id)]
