"""The overview: what needs an operator, flow, lanes, workers; and the rollups it is drawn from.

Every store must pass this file unchanged.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast import Deferred, Done, Failed, Queue
from holdfast.client.queue_state import state_of
from holdfast.client.sync_api.worker_calls import WorkerCalls
from holdfast.domain.overview import models_text
from holdfast.types import FlowMinute, Overview, WorkerInfo
from tests.support.claims import claim_one
from tests.support.clock import ManualClock

WORKER = WorkerInfo("w1", "one", "host", 7, "0.1.0", "active", 8, 0, ("default", "bulk"), (), (), ("llama",), 2)


def beat(queue: Queue, worker: WorkerInfo = WORKER) -> None:
    """Write the row of a worker and what this process has counted."""
    WorkerCalls(state_of(queue).store).beat(worker)


def totals(seen: Overview) -> tuple[int, int, int, int, int]:
    def total(name: str) -> int:
        return sum(getattr(minute, name) for minute in seen.flow)

    return total("arrived"), total("done"), total("failed"), total("cancelled"), total("retried")


def about(seen: Overview) -> list[tuple[str, str]]:
    return [(need.about, need.subject) for need in seen.needs]


class TestEmpty:
    def test_an_empty_queue_needs_nothing(self, queue: Queue) -> None:
        seen = queue.admin.overview()

        assert (seen.activity, seen.sentence) == ("idle", "Idle. Nothing needs you.")
        assert (seen.needs, seen.lanes, seen.workers, seen.models) == ((), (), (), ())
        assert (seen.ready, seen.running, seen.oldest_age_seconds) == (0, 0, 0.0)
        assert len(seen.flow) == 60
        assert totals(seen) == (0, 0, 0, 0, 0)


class TestFlow:
    def test_every_arrival_and_end_is_counted_once(self, queue: Queue) -> None:
        queue.enqueue("mail")
        queue.enqueue_many([{"kind": "mail"}, {"kind": "mail", "lane": "bulk"}, {"kind": "mail", "job_id": "last"}])
        queue.enqueue("mail", job_id="last")
        queue.settle(claim_one(queue), Done())
        queue.settle(claim_one(queue), Failed("no", permanent=True))
        queue.settle(claim_one(queue, lanes=["bulk"]), Failed("again", retry_after=3600))
        queue.cancel("last")
        beat(queue)

        seen = queue.admin.overview()

        assert totals(seen) == (4, 1, 1, 1, 1)
        lanes = {one.lane: one for one in seen.lanes}
        assert (lanes["default"].arrived, lanes["default"].done, lanes["default"].failed) == (3, 1, 1)
        assert lanes["bulk"].arrived == 1
        assert lanes["default"].ran_seconds is not None

    def test_follow_ups_and_batches_count(self, queue: Queue) -> None:
        queue.enqueue_many([{"kind": "mail"} for _ in range(20)])
        claims = queue.claim_many(limit=20)
        outcomes = [(claim, Done(follow_ups=[{"kind": "next"}])) for claim in claims[:5]]
        queue.settle_many([*outcomes, *((claim, Done()) for claim in claims[5:])])
        beat(queue)

        assert totals(queue.admin.overview()) == (25, 20, 0, 0, 0)

    def test_what_was_written_is_not_written_again(self, queue: Queue) -> None:
        queue.enqueue("mail")
        beat(queue)
        beat(queue)

        assert totals(queue.admin.overview())[0] == 1

    def test_jobs_are_counted_in_the_minute_in_which_they_end(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue("mail")
        beat(queue)
        clock.advance(600)
        claim = claim_one(queue, lease=60)
        clock.advance(30)
        queue.settle(claim, Done())
        beat(queue)

        seen = queue.admin.overview()
        [arrival] = [index for index, minute in enumerate(seen.flow) if minute.arrived]
        [end] = [index for index, minute in enumerate(seen.flow) if minute.done]

        assert end - arrival in {10, 11}
        [lane] = seen.lanes
        assert lane.waited_seconds is not None
        assert lane.ran_seconds is not None
        assert abs(lane.waited_seconds - 600) < 80
        assert abs(lane.ran_seconds - 30) < 4
        assert (seen.flow[arrival].waited_seconds, seen.flow[end].waited_seconds) == (None, lane.waited_seconds)

    def test_rollups_are_merged_and_the_oldest_deleted(self, queue: Queue, clock: ManualClock) -> None:
        calls = WorkerCalls(state_of(queue).store)
        for _ in range(12):
            queue.enqueue("mail")
            beat(queue)
            clock.advance(10)
        before = queue.admin.overview()
        clock.advance(180)
        while calls.delete_expired():
            pass

        after = queue.admin.overview()

        def arrivals(seen: Overview) -> list[FlowMinute]:
            return [minute for minute in seen.flow if minute.arrived]

        assert totals(after)[0] == 12
        assert arrivals(after) == arrivals(before)
        clock.advance(40 * 86_400)
        while calls.delete_expired():
            pass
        queue.enqueue("mail")
        beat(queue)
        assert totals(queue.admin.overview())[0] == 1


class TestAffinities:
    def test_what_waits_for_a_model_is_counted_beside_who_has_loaded_it(self, queue: Queue) -> None:
        queue.enqueue_many([{"kind": "llm", "affinity": name} for name in ("qwen", "qwen", "llama")])
        beat(queue)
        beat(queue, replace(WORKER, worker="w2", incarnation="two", loaded=("mistral",)))

        seen = [(one.affinity, one.ready, one.workers) for one in queue.admin.overview().affinities]

        assert seen == [("qwen", 2, ()), ("llama", 1, ("w1",)), ("mistral", 0, ("w2",))]


class TestNeeds:
    def test_ready_jobs_without_any_worker_stop_the_queue(self, queue: Queue) -> None:
        queue.enqueue("mail")

        seen = queue.admin.overview()

        assert seen.activity == "stopped"
        assert seen.sentence == "Stopped: jobs are ready and no worker is active. 1 thing needs you."
        [need] = seen.needs
        assert (need.severity, need.about, need.subject, need.count) == ("problem", "unserved", "mail", 1)
        assert need.command == "holdfast jobs list --state ready --kind mail"

    def test_new_failures_come_with_their_cause_and_whose_they_are(self, queue: Queue) -> None:
        beat(queue)
        queue.enqueue("mail", tenant="acme")
        queue.settle(claim_one(queue), Failed("order 7 refused", reason="refused", permanent=True))
        [group] = queue.admin.failures()

        [need] = queue.admin.overview().needs

        assert (need.about, need.subject, need.whose) == ("failure", group.fingerprint, ("acme",))
        assert (need.what, need.cause) == ("mail failed once within the last hour (new)", "refused: order # refused")
        assert need.since_at == group.first_at
        assert need.command == f"holdfast failures show {group.fingerprint}"

    def test_a_failure_needs_nothing_once_it_has_stopped(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue("mail")
        queue.settle(claim_one(queue), Failed("no", permanent=True))
        clock.advance(3601)

        assert queue.admin.overview().needs == ()

    def test_silent_workers_with_jobs_and_lanes_with_old_jobs_are_named(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        beat(queue)
        queue.enqueue("mail", lane="bulk")
        queue.enqueue("mail")
        claim_one(queue, worker="w1", incarnation="one", lease=3600)
        clock.advance(900)
        beat(queue, replace(WORKER, worker="w2", incarnation="two"))

        seen = queue.admin.overview()

        assert about(seen) == [("worker", "w1"), ("lane", "bulk")]
        assert seen.needs[0].count == 1
        assert "has waited for 15 minutes" in seen.needs[1].what
        assert seen.oldest_age_seconds == 900
        assert [one.worker for one in seen.models] == ["w2"]
        assert (seen.models[0].loaded, seen.models[0].switches) == (("llama",), 2)

    def test_models_say_what_waits_for_how_long_they_are_kept_and_what_was_saved(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        beat(queue)
        clock.advance(3600)
        beat(queue, replace(WORKER, hold_left=90.5, switches_saved=7))
        for affinity in ("llama", "llama", "mistral"):
            queue.enqueue("mail", affinity=affinity)
        clock.advance(30)

        [model] = queue.admin.overview().models

        assert (model.waiting, model.hold_left, model.switches_saved) == (2, 60.5, 7)
        assert model.switches_per_hour == pytest.approx(2 / (3630 / 3600))
        assert models_text(model) == "2 waiting, kept 60 seconds more, 2 switches (2.0 an hour), 7 saved"

    def test_a_paused_lane_with_jobs_is_a_warning(self, queue: Queue, clock: ManualClock) -> None:
        beat(queue)
        queue.enqueue("mail", lane="bulk")
        queue.lanes.set("bulk", state="paused")
        clock.advance(10)

        [need] = queue.admin.overview().needs

        assert (need.severity, need.about, need.subject) == ("warning", "lane", "bulk")
        assert need.command == "holdfast lanes set bulk --state active"

    def test_seven_are_shown_and_all_are_counted(self, queue: Queue) -> None:
        queue.enqueue_many([{"kind": f"kind{n}"} for n in range(9)])
        for claim in queue.claim_many(limit=9):
            queue.settle(claim, Failed("broken", permanent=True))

        seen = queue.admin.overview()

        assert (len(seen.needs), seen.needs_total) == (7, 9)
        assert seen.sentence.endswith("9 things need you.")

    def test_a_limit_needs_someone_if_it_is_closed_or_jobs_are_parked_for_long(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        beat(queue)
        queue.limits.set("llm", kinds=["llm"], key="tenant", concurrency=1)
        queue.enqueue_many([{"kind": "llm", "tenant": "acme"} for _ in range(3)])
        running = claim_one(queue, lease=3600)
        assert queue.claim() is None
        assert queue.admin.overview().parked == 2
        assert about(queue.admin.overview()) == []

        clock.advance(1200)
        beat(queue)
        [old] = queue.admin.overview().needs
        assert (old.about, old.subject, old.count, old.command) == ("limit", "llm", 2, "holdfast limits show acme")
        assert old.what == "at limit llm the oldest of 2 parked jobs has waited for 20 minutes"

        queue.settle(running, Deferred(after=60, closes=True))
        [closed] = queue.admin.overview().needs
        assert closed.what == "limit llm is closed for acme; 2 parked jobs"
