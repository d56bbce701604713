"""Schedules: one job for each tick, whoever claims, however the clock moves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Conflict, Done, Failed, InvalidInput, Queue, Tasks
from holdfast.client.queue_state import state_of
from holdfast.client.sync_api.worker_calls import WorkerCalls
from holdfast.domain import cron, limits, schedules
from holdfast.errors import ScheduleNotFound
from holdfast.operations.claim import seconds_to_next_change
from holdfast.operations.jobs import seconds_to_due
from holdfast.storage.runners import SyncRunner
from holdfast.tasks.task import definition_of
from holdfast.types import Finding
from tests.support.assertions import refused
from tests.support.clock import ManualClock
from tests.support.job_states import start
from tests.support.kinds import publish
from tests.support.stores import Harness

HOUR = 3600


def at(clock: ManualClock, time: str) -> None:
    """Set the clock to a time in UTC."""
    wanted = datetime.fromisoformat(time).replace(tzinfo=UTC)
    clock.shift_wall_clock((wanted - clock.time).total_seconds())


def fired(queue: Queue, kind: str = "report") -> list[str]:
    """Claim, which fires what is due; return the ticks of all jobs, oldest first."""
    queue.claim_many(kinds=["none"])
    return [job.headers["holdfast-tick"][:16] for job in reversed(list(queue.jobs(kind=kind, limit=1000)))]


def calls(queue: Queue) -> WorkerCalls:
    """Return the calls that only workers make."""
    return WorkerCalls(state_of(queue).store)


@pytest.fixture
def noon(clock: ManualClock) -> ManualClock:
    """The clock of the store, at noon."""
    at(clock, "2026-06-01 12:00:30")
    return clock


class TestSetting:
    def test_a_schedule_is_set_listed_and_removed(self, queue: Queue) -> None:
        one = queue.schedules.set("nightly", kind="report", payload={"a": 1}, cron="0 3 * * *", zone="Europe/Berlin")

        assert (one.name, one.tenant, one.kind, one.payload) == ("nightly", "default", "report", {"a": 1})
        assert (one.cron, one.every, one.zone) == ("0 3 * * *", None, "Europe/Berlin")
        assert (one.missed, one.overlap, one.paused, one.owner) == ("one", "allow", False, None)
        assert one.next_at is not None
        assert queue.schedules.list() == [one] == [queue.schedules.get("nightly")]
        assert queue.schedules.remove("nightly") == one
        with pytest.raises(ScheduleNotFound):
            queue.schedules.get("nightly")
        assert fired(queue) == []

    def test_names_belong_to_a_tenant(self, queue: Queue) -> None:
        first = queue.schedules.set("a", kind="report", every=60)
        other = queue.schedules.set("a", kind="report", every=90, tenant="acme")

        assert queue.schedules.list() == [other, first]
        assert queue.schedules.list(tenant="acme") == [other] == [queue.schedules.get("a", tenant="acme")]
        queue.schedules.remove("a")
        assert queue.schedules.list() == [other]
        with pytest.raises(ScheduleNotFound):
            queue.schedules.pause("a", tenant="other")

    def test_every_option_reaches_the_jobs(self, queue: Queue, noon: ManualClock) -> None:
        options: dict[str, Any] = {"lane": "slow", "priority": 3, "tags": {"t": "1"}, "max_attempts": 2}
        queue.schedules.set(
            "a", kind="report", every=60, headers={"h": "2"}, requires=["gpu"], deadline=600, tenant="acme", **options
        )
        noon.advance(60)
        queue.claim_many(kinds=["none"])

        [job] = queue.jobs()
        assert (job.lane, job.priority, job.tags, job.max_attempts) == ("slow", 3, {"t": "1"}, 2)
        assert (job.requires, job.tenant) == (("gpu",), "acme")
        assert job.headers == {"h": "2", "holdfast-schedule": "a", "holdfast-tick": "2026-06-01T12:01:00+00:00"}
        assert job.deadline_at == noon.time + timedelta(seconds=600)

    def test_an_unchanged_schedule_keeps_its_ticks_and_another_one_starts_after_now(
        self, queue: Queue, noon: ManualClock
    ) -> None:
        first = queue.schedules.set("a", kind="report", every=HOUR)
        noon.advance(10)
        assert queue.schedules.set("a", kind="report", every=HOUR) == first
        assert queue.schedules.set("a", kind="report", every=HOUR, priority=1).next_at == first.next_at
        changed = queue.schedules.set("a", kind="report", every=60)
        assert changed.next_at == datetime(2026, 6, 1, 12, 1, tzinfo=UTC)
        noon.advance(60)
        assert fired(queue) == ["2026-06-01T12:01"]

    @pytest.mark.validation
    @pytest.mark.parametrize(
        ("options", "field"),
        [
            ({}, "cron"),
            ({"cron": "* * * * *", "every": 5}, "cron"),
            ({"cron": "61 * * * *"}, "cron"),
            ({"cron": "0 0 30 2 *"}, "cron"),
            ({"every": 0.5}, "every"),
            ({"every": 5, "zone": "Europe/Berlin"}, "zone"),
            ({"cron": "* * * * *", "zone": "Mars/Olympus"}, "zone"),
            ({"every": 5, "missed": "all"}, "missed"),
            ({"every": 5, "overlap": "queue"}, "overlap"),
            ({"every": 5, "priority": 10_000}, "priority"),
            ({"every": 5, "deadline": datetime(2030, 1, 1, tzinfo=UTC)}, "deadline"),
            ({"every": 5, "job_id": "x"}, "job_id"),
            ({"every": 5, "session": "x"}, "session"),
            ({"every": 5, "headers": {str(n): "" for n in range(31)}}, "headers"),
        ],
    )
    def test_bad_options_are_refused(self, queue: Queue, options: dict[str, Any], field: str) -> None:
        with refused(queue, field):
            queue.schedules.set("a", kind="report", **options)

    @pytest.mark.validation
    @pytest.mark.parametrize("name", ["", "a:b", "a/b", "x" * 121, 7])
    def test_bad_names_are_refused(self, queue: Queue, name: Any) -> None:
        with refused(queue, "name"):
            queue.schedules.set(name, kind="report", every=5)

    @pytest.mark.validation
    def test_callers_cannot_choose_the_ids_of_ticks(self, queue: Queue) -> None:
        with refused(queue, "job_id"):
            queue.enqueue("report", job_id="holdfast:schedule:a:20260101T000000Z")

    @pytest.mark.validation
    def test_a_payload_must_fit_the_task_of_the_queue(self, queue: Queue) -> None:
        @queue.task("report")
        def report(day: str) -> None: ...

        with refused(queue, "payload.day"):
            queue.schedules.set("a", kind="report", payload={"date": "x"}, every=5)


class TestFiring:
    def test_each_tick_enqueues_one_job(self, queue: Queue, noon: ManualClock) -> None:
        queue.schedules.set("a", kind="report", cron="*/5 * * * *")
        assert fired(queue) == []
        for _ in range(11):
            noon.advance(60)
            fired(queue)

        assert fired(queue) == ["2026-06-01T12:05", "2026-06-01T12:10"]
        assert queue.get("holdfast:schedule:a:20260601T120500Z").kind == "report"

    def test_a_claim_takes_the_job_of_the_tick_that_it_fires(self, queue: Queue, noon: ManualClock) -> None:
        queue.schedules.set("a", kind="report", every=60)
        assert queue.claim(kinds=["report"]) is None
        noon.advance(60)

        claim = queue.claim(kinds=["report"])
        assert claim is not None
        settled = queue.settle_and_claim([(claim, Done())], kinds=["report"])
        assert settled.claims == []
        noon.advance(60)
        queue.enqueue("report")
        both = queue.claim_many(kinds=["report"])
        assert len(both) == 2

    def test_an_idle_worker_waits_until_the_earliest_tick(self, queue: Queue, noon: ManualClock) -> None:
        queue.schedules.set("late", kind="report", cron="@daily")
        queue.schedules.set("early", kind="report", every=60)
        noon.advance(20)
        assert SyncRunner(state_of(queue).store).read(seconds_to_next_change) == 10

    def test_a_waiting_claim_and_a_session_claim_fire_as_well(self, queue: Queue, noon: ManualClock) -> None:
        queue.schedules.set("a", kind="report", every=60)
        noon.advance(60)
        queue.sessions.claim_next(kinds=["none"])
        assert [job.state for job in queue.jobs()] == ["ready"]
        noon.advance(60)
        queue.claim(kinds=["none"], wait=0.01)
        assert len(queue.jobs().jobs) == 2

    def test_ticks_that_were_missed_are_made_up_by_one_job_for_the_newest(
        self, queue: Queue, noon: ManualClock
    ) -> None:
        queue.schedules.set("minutes", kind="report", cron="* * * * *")
        queue.schedules.set("seconds", kind="report", every=1)
        noon.advance(400 * 24 * HOUR)

        assert fired(queue) == ["2027-07-06T12:00", "2027-07-06T12:00"]
        assert fired(queue) == ["2027-07-06T12:00", "2027-07-06T12:00"]

    def test_or_skipped_if_the_newest_is_over_a_minute_late(self, queue: Queue, noon: ManualClock) -> None:
        queue.schedules.set("a", kind="report", cron="0 * * * *", missed="skip")
        noon.advance(2 * HOUR + 40)
        assert fired(queue) == []
        assert "missed" in str(queue.schedules.get("a").problem)
        noon.advance(HOUR - 60)
        assert fired(queue) == ["2026-06-01T15:00"]
        assert queue.schedules.get("a").problem is None

    def test_a_tick_is_not_repeated_when_the_clock_goes_back(self, queue: Queue, noon: ManualClock) -> None:
        queue.schedules.set("a", kind="report", every=60)
        noon.advance(60)
        assert len(fired(queue)) == 1
        for seconds in (-45, 20, -90, 60, 30):
            noon.shift_wall_clock(seconds)
            assert len(fired(queue)) == 1
        noon.shift_wall_clock(120)
        assert fired(queue) == ["2026-06-01T12:01", "2026-06-01T12:03"]

    def test_a_tick_does_not_wait_for_many_jobs_to_be_looked_at(self, queue: Queue, noon: ManualClock) -> None:
        queue.schedules.set("a", kind="report", every=60)
        parent = queue.enqueue("first")
        queue.settle(start(queue, parent.job), Done())
        queue.enqueue_many([{"kind": "next", "after": [parent.id]} for _ in range(limits.CHUNK + 1)])
        noon.advance(60)

        assert len(fired(queue)) == 1
        assert len(queue.jobs(state="dependent", limit=10)) == 1

    def test_jumps_of_the_clock_never_repeat_a_tick(self, queue: Queue, noon: ManualClock) -> None:
        queue.schedules.set("a", kind="report", cron="*/10 * * * *")
        ticks: list[str] = []
        for seconds in (700, -3000, 4000, 10, -500, 90_000, -80_000, 81_000, 600, 600):
            noon.shift_wall_clock(seconds)
            ticks = fired(queue)
        assert len(ticks) == len(set(ticks)) >= 5
        assert ticks == sorted(ticks)

    def test_overlapping_jobs_are_skipped_if_asked_for(self, queue: Queue, noon: ManualClock) -> None:
        queue.schedules.set("a", kind="report", every=60, overlap="skip")
        noon.advance(60)
        assert len(fired(queue)) == 1
        noon.advance(60)
        assert len(fired(queue)) == 1
        assert "is still ready" in str(queue.schedules.get("a").problem)
        claim = queue.claim(kinds=["report"])
        assert claim is not None
        noon.advance(10)
        queue.settle(claim, Failed("no", permanent=True))
        noon.advance(50)
        assert fired(queue) == ["2026-06-01T12:01", "2026-06-01T12:03"]

    def test_jobs_of_a_paused_lane_wait_one_for_each_tick_or_one_at_most(
        self, queue: Queue, noon: ManualClock
    ) -> None:
        queue.lanes.set("slow", state="paused")
        queue.schedules.set("each", kind="each", every=60, lane="slow")
        queue.schedules.set("once", kind="once", every=60, lane="slow", overlap="skip")
        for _ in range(3):
            noon.advance(60)
            queue.claim_many(lanes=["slow"])

        assert fired(queue, "each") == ["2026-06-01T12:01", "2026-06-01T12:02", "2026-06-01T12:03"]
        assert fired(queue, "once") == ["2026-06-01T12:01"]
        [waiting] = queue.jobs(kind="once")
        assert "lane slow is paused" in queue.why(waiting.id).summary
        queue.lanes.set("slow", state="active")
        assert len(queue.claim_many(lanes=["slow"], limit=9)) == 4

    def test_the_longest_name_of_a_schedule_and_of_a_tenant_fits_the_ids_of_its_jobs(
        self, queue: Queue, noon: ManualClock
    ) -> None:
        queue.schedules.set("n" * 120, kind="report", every=60, tenant="t" * 120)
        noon.advance(60)
        assert fired(queue) == ["2026-06-01T12:01"]
        assert queue.schedules.get("n" * 120, tenant="t" * 120).problem is None

    def test_a_refused_job_is_a_problem_of_its_schedule_alone(self, queue: Queue, noon: ManualClock) -> None:
        queue.lanes.set("full", state="draining")
        queue.schedules.set("refused", kind="report", every=60, lane="full")
        queue.schedules.set("retired", kind="old", every=60)
        queue.kinds.retire("old")
        queue.schedules.set("works", kind="report", every=60)
        queue.enqueue("other")
        noon.advance(60)

        assert queue.claim(kinds=["other"]) is not None
        assert len(fired(queue)) == 1
        assert "draining" in str(queue.schedules.get("refused").problem)
        assert "retired" in str(queue.schedules.get("retired").problem)
        assert queue.schedules.get("works").problem is None
        queue.lanes.set("full", state="active")
        noon.advance(60)
        assert len(fired(queue)) == 3
        assert queue.schedules.get("refused").problem is None

    def test_the_published_options_of_the_kind_apply_at_each_tick(self, queue: Queue, noon: ManualClock) -> None:
        @queue.task("report", lane="reports", priority=7)
        def report() -> None: ...

        queue.schedules.set("a", kind="report", payload={}, every=60, priority=1)
        calls(queue).publish_kinds({"report": definition_of(report).publication()}, "w")
        noon.advance(60)
        queue.claim_many(kinds=["none"])

        [job] = queue.jobs()
        assert (job.lane, job.priority) == ("reports", 1)

    def test_a_payload_that_workers_would_refuse_is_refused_when_it_is_set(self, queue: Queue) -> None:
        others = Tasks()

        @others.task("report")
        def report(pages: int) -> None: ...

        publish(queue, others)
        with pytest.raises(InvalidInput, match=r"^payload\.pages: is missing"):
            queue.schedules.set("a", kind="report", payload={"page": 1}, every=60)
        assert queue.schedules.list() == []
        assert queue.schedules.set("a", kind="report", payload={"pages": 1}, every=60).problem is None

    def test_a_program_may_set_a_payload_for_its_own_newer_task(self, queue: Queue) -> None:
        earlier = Tasks()

        @earlier.task("report")
        def old(pages: int) -> None: ...

        @queue.task("report")
        def report(page: int) -> None: ...

        publish(queue, earlier)
        assert queue.schedules.set("a", kind="report", payload={"page": 1}, every=60).payload == {"page": 1}

    def test_a_job_that_exists_is_not_enqueued_again(self, queue: Queue, noon: ManualClock) -> None:
        queue.schedules.set("a", kind="report", every=60)
        noon.advance(60)
        [tick] = fired(queue)
        queue.schedules.remove("a")
        noon.shift_wall_clock(-60)
        queue.schedules.set("a", kind="report", every=60)
        noon.shift_wall_clock(60)

        assert fired(queue) == [tick]

    def test_ticks_of_tenants_are_different_jobs(self, queue: Queue, noon: ManualClock) -> None:
        for tenant in ("default", "a", "b"):
            queue.schedules.set("same", kind="report", every=60, tenant=tenant)
        noon.advance(60)

        assert len(fired(queue)) == 3
        assert len({job.id for job in queue.jobs()}) == 3

    def test_more_schedules_than_a_chunk_fire_at_one_tick(self, queue: Queue, noon: ManualClock) -> None:
        every = {"every": 60}
        many = [(schedules.check_schedule(f"s{n}", "report", None, every), "app") for n in range(limits.CHUNK + 1)]
        calls(queue).declare_schedules(many, None)
        noon.advance(60)
        fired(queue)

        assert len(fired(queue)) == limits.CHUNK + 1

    def test_another_client_fires_too(self, harness: Harness, queue: Queue, noon: ManualClock) -> None:
        queue.schedules.set("a", kind="report", every=60)
        other = harness.open()
        noon.advance(60)

        assert fired(other) == fired(queue) == ["2026-06-01T12:01"]


class TestOperating:
    def test_a_paused_schedule_fires_nothing_and_goes_on_after_now(self, queue: Queue, noon: ManualClock) -> None:
        queue.schedules.set("a", kind="report", every=60)
        paused = queue.schedules.pause("a")
        assert (paused.paused, paused.next_at) == (True, None)
        assert queue.schedules.pause("a") == paused
        noon.advance(600)
        assert fired(queue) == []
        resumed = queue.schedules.resume("a")
        assert resumed.next_at == datetime(2026, 6, 1, 12, 11, tzinfo=UTC)
        assert queue.schedules.resume("a") == resumed
        assert fired(queue) == []
        noon.advance(60)
        assert fired(queue) == ["2026-06-01T12:11"]

    def test_a_paused_schedule_that_is_set_stays_paused(self, queue: Queue, noon: ManualClock) -> None:
        queue.schedules.set("a", kind="report", every=60)
        queue.schedules.pause("a")
        assert queue.schedules.set("a", kind="report", every=30).paused
        noon.advance(600)
        assert fired(queue) == []

    def test_run_enqueues_a_job_now_and_changes_no_tick(self, queue: Queue, noon: ManualClock) -> None:
        before = queue.schedules.set("a", kind="report", payload=[1], every=60)
        queue.schedules.pause("a")
        job = queue.schedules.run("a")

        assert (job.kind, job.payload, job.state) == ("report", [1], "ready")
        assert queue.schedules.get("a").last_job_id == job.id
        assert queue.schedules.resume("a").next_at == before.next_at

    def test_preview_shows_the_next_ticks_in_the_zone(self, queue: Queue, clock: ManualClock) -> None:
        at(clock, "2026-03-28 00:00:00")
        queue.schedules.set("a", kind="report", cron="30 2 * * *", zone="Europe/Berlin")

        assert [f"{tick:%d %H:%M%z}" for tick in queue.schedules.preview("a", count=3)] == [
            "28 02:30+0100",
            "29 03:00+0200",
            "30 02:30+0200",
        ]
        queue.schedules.pause("a")
        assert len(queue.schedules.preview("a")) == 5

    def test_changes_are_in_the_audit_log(self, queue: Queue) -> None:
        queue.schedules.set("a", kind="report", every=60)
        queue.schedules.set("a", kind="report", every=60)
        for change in (queue.schedules.pause, queue.schedules.resume, queue.schedules.run, queue.schedules.remove):
            change("a")

        actions = [entry.action for entry in queue.admin.audit_log()]
        assert sorted(actions) == [f"schedules.{name}" for name in ("pause", "remove", "resume", "run", "set")]

    def test_preview_and_run_of_an_unknown_name_are_refused(self, queue: Queue) -> None:
        for call in (queue.schedules.preview, queue.schedules.run, queue.schedules.remove, queue.schedules.resume):
            with pytest.raises(ScheduleNotFound, match="no schedule 'a'"):
                call("a")


class TestNightsWhenClocksChange:
    @pytest.mark.parametrize(
        ("zone", "begin", "ticks"),
        [
            ("Europe/Berlin", "2026-03-28 12:00", ["2026-03-29T01:00", "2026-03-30T00:30"]),
            ("Europe/Berlin", "2026-10-24 12:00", ["2026-10-25T00:30", "2026-10-26T01:30"]),
            ("America/New_York", "2026-03-07 12:00", ["2026-03-08T07:00", "2026-03-09T06:30"]),
            ("America/New_York", "2026-10-31 12:00", ["2026-11-01T07:30", "2026-11-02T07:30"]),
            ("Australia/Lord_Howe", "2026-10-03 00:00", ["2026-10-03T15:30", "2026-10-04T15:30"]),
            ("America/Santiago", "2026-09-05 12:00", ["2026-09-06T05:30", "2026-09-07T05:30"]),
            ("Africa/Cairo", "2026-04-23 12:00", ["2026-04-23T23:30", "2026-04-24T23:30"]),
        ],
    )
    def test_half_past_two_runs_once_in_each_night(
        self, queue: Queue, clock: ManualClock, zone: str, begin: str, ticks: list[str]
    ) -> None:
        at(clock, begin)
        queue.schedules.set("a", kind="report", cron="30 2 * * *", zone=zone)
        for _ in range(2 * 24 * 2):
            clock.advance(HOUR / 2)
            queue.claim_many(kinds=["none"])

        assert fired(queue) == ticks

    def test_each_quarter_of_an_hour_runs_through_the_night(self, queue: Queue, clock: ManualClock) -> None:
        at(clock, "2026-10-24 23:01")
        queue.schedules.set("a", kind="report", cron="*/15 * * * *", zone="Europe/Berlin")
        for _ in range(16):
            clock.advance(HOUR / 4)
            queue.claim_many(kinds=["none"])

        assert len(set(fired(queue))) == 16


class TestDeclared:
    def declare(self, queue: Queue, module: str = "app.tasks", **options: Any) -> list[tuple[str, str | None]]:
        """Declare a schedule as a worker does when it starts."""
        definition = schedules.check_schedule("a", "report", None, {"every": 60, **options})
        return calls(queue).declare_schedules([(definition, module)], None)

    def test_it_belongs_to_its_module_and_is_not_set_by_calls(self, queue: Queue) -> None:
        assert self.declare(queue) == []
        one = queue.schedules.get("a")
        assert (one.owner, one.declared_at is not None) == ("app.tasks", True)
        with pytest.raises(Conflict, match=r"app\.tasks"):
            queue.schedules.set("a", kind="report", every=30)
        assert self.declare(queue, every=30) == []
        assert queue.schedules.get("a").every == 30

    def test_a_pause_outlives_declarations(self, queue: Queue, noon: ManualClock) -> None:
        self.declare(queue)
        queue.schedules.pause("a")
        self.declare(queue, every=30)
        noon.advance(600)
        assert queue.schedules.get("a").paused
        assert fired(queue) == []

    def test_declaring_again_keeps_the_ticks(self, queue: Queue, noon: ManualClock) -> None:
        self.declare(queue)
        before = queue.schedules.get("a").next_at
        noon.advance(20)
        self.declare(queue)
        assert queue.schedules.get("a").next_at == before

    def test_another_module_takes_over_only_what_nobody_declares(self, queue: Queue, clock: ManualClock) -> None:
        self.declare(queue)
        assert self.declare(queue, "other") == [("a", "app.tasks")]
        assert queue.schedules.get("a").owner == "app.tasks"
        clock.advance(2 * HOUR)
        assert self.declare(queue, "other") == []
        assert queue.schedules.get("a").owner == "other"

    def test_what_was_set_by_a_call_stays(self, queue: Queue) -> None:
        queue.schedules.set("a", kind="report", every=30)
        assert self.declare(queue) == [("a", None)]
        assert queue.schedules.get("a").every == 30

    def test_doctor_names_what_no_worker_declares(self, queue: Queue, clock: ManualClock) -> None:
        assert not _findings(queue)
        self.declare(queue)
        assert [finding.status for finding in _findings(queue)] == ["ok"]
        clock.advance(25 * HOUR)
        queue.claim_many(kinds=["none"])
        [finding] = _findings(queue)
        assert finding.status == "warning"
        assert "no worker has declared it since" in finding.detail

    def test_doctor_names_problems_and_overdue_ticks(self, queue: Queue, noon: ManualClock) -> None:
        queue.schedules.set("a", kind="report", every=60)
        noon.advance(300)
        assert "overdue" in _findings(queue)[0].detail
        queue.claim_many(kinds=["none"])
        noon.shift_wall_clock(-48 * HOUR)
        assert "ahead" in _findings(queue)[0].detail


def test_a_job_of_a_tick_runs_like_any_other(queue: Queue, noon: ManualClock) -> None:
    queue.schedules.set("a", kind="report", every=60)
    noon.advance(60)
    fired(queue)
    [job] = queue.jobs()

    assert queue.settle(start(queue, job), Done(1)).result == 1


class TestWithoutTimeZones:
    @pytest.fixture
    def used_up(self, queue: Queue, noon: ManualClock, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
        """A schedule whose stored ticks are used up by processes that do not know its zone."""
        queue.schedules.set("a", kind="report", cron="* * * * *", zone="Europe/Berlin")
        monkeypatch.setattr(cron, "zone_of", _unknown)
        for _ in range(40):
            noon.advance(60)
            fired(queue)
        return monkeypatch

    def test_the_stored_ticks_are_fired_and_further_ones_once_the_zone_is_known(
        self, queue: Queue, noon: ManualClock, used_up: pytest.MonkeyPatch
    ) -> None:
        assert len(fired(queue)) == 32
        assert queue.schedules.get("a").next_at is None
        assert [one.detail for one in _findings(queue)] == ["a: it has no next tick"]

        used_up.undo()
        noon.advance(60)
        assert fired(queue)[32:] == ["2026-06-01T12:41"]
        assert queue.schedules.get("a").next_at == datetime(2026, 6, 1, 12, 42, tzinfo=UTC)

    def test_a_pause_and_a_change_are_as_for_others(
        self, queue: Queue, noon: ManualClock, used_up: pytest.MonkeyPatch
    ) -> None:
        queue.schedules.pause("a")
        assert queue.claim_many(kinds=["none"]) == []
        # No wake row is left, which claims would look at again and again.
        assert SyncRunner(state_of(queue).store).read(seconds_to_due, ticks=True) is None
        used_up.undo()
        assert queue.schedules.resume("a").next_at == datetime(2026, 6, 1, 12, 41, tzinfo=UTC)
        noon.advance(60)
        assert fired(queue)[32:] == ["2026-06-01T12:41"]

    def test_doctor_warns_when_stored_ticks_run_low(
        self, queue: Queue, noon: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue.schedules.set("a", kind="report", cron="* * * * *", zone="Europe/Berlin")
        queue.schedules.set("leap", kind="report", cron="0 0 29 2 *", zone="Europe/Berlin")
        monkeypatch.setattr(cron, "zone_of", _unknown)
        noon.advance(15 * 60)
        fired(queue)
        monkeypatch.undo()
        assert [one.status for one in _findings(queue)] == ["ok"]
        monkeypatch.setattr(cron, "zone_of", _unknown)
        noon.advance(60)
        fired(queue)
        monkeypatch.undo()
        assert [one.detail for one in _findings(queue)] == ["a: only 16 of its ticks are known"]
        noon.advance(60)
        fired(queue)
        assert [one.status for one in _findings(queue)] == ["ok"]


def _findings(queue: Queue) -> list[Finding]:
    return [finding for finding in queue.admin.report().findings if finding.name == "schedules"]


def _unknown(name: str, field: str = "zone") -> Any:
    raise InvalidInput(field, f"{name!r} is unknown here")
