"""Settling one job: the effect of each outcome."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast import (
    Artifact,
    Backoff,
    Claim,
    Conflict,
    Deferred,
    Done,
    Failed,
    HoldfastError,
    InvalidInput,
    Job,
    JobNotFound,
    LeaseLost,
    NewJob,
    Outcome,
    Queue,
    Released,
)
from holdfast.errors import KindRetired, LaneDraining
from holdfast.types import Failure
from tests.support.assertions import failure_of
from tests.support.claims import claim_one, known
from tests.support.clock import ManualClock

pytestmark = pytest.mark.in_memory

DAY = 24 * 3600


def claimed(queue: Queue) -> Claim:
    """Enqueue one job and claim it."""
    queue.enqueue("mail")
    return claim_one(queue)


def spread(seconds: float) -> Any:
    """Return a value that equals a delay of about *seconds*, within the jitter of the default backoff."""
    return pytest.approx(seconds, rel=0.2)


def pause(job: Job, clock: ManualClock) -> float:
    """Return the seconds until *job* is due."""
    return (job.due_at - clock.time).total_seconds()


class TestDone:
    def test_a_done_job_has_its_result_and_its_end(self, queue: Queue, clock: ManualClock) -> None:
        claim = claimed(queue)
        clock.advance(5)
        job = queue.settle(claim, Done({"sent": [1, None]}))
        assert (job.state, job.result, job.failure) == ("done", {"sent": [1, None]}, None)
        assert (job.finished_at, job.lease_until) == (clock.time, None)
        assert queue.get(job.id) == job
        assert [event.name for event in queue.events()] == ["done"]

    def test_it_keeps_no_failure_of_an_earlier_attempt(self, queue: Queue) -> None:
        queue.settle(claimed(queue), Failed("no", retry_after=0))
        assert queue.settle(claim_one(queue), Done()).failure is None

    def test_follow_ups_and_artifacts_come_with_the_settlement(self, queue: Queue) -> None:
        queue.enqueue("mail", tenant="ada")
        claim = claim_one(queue)
        follow_ups: list[NewJob | dict[str, object]] = [
            NewJob("next", {"n": 1}),
            {"kind": "next", "tenant": "zoe", "delay": 5, "job_id": "chosen"},
        ]
        queue.settle(claim, Done(follow_ups=follow_ups, artifacts=[Artifact("log", b"text", "text/plain")]))
        by_id = {job.id: job for job in queue.jobs(kind="next")}
        assert sorted((job.tenant, job.state) for job in by_id.values()) == [("ada", "ready"), ("zoe", "scheduled")]
        assert by_id["chosen"].tenant == "zoe"
        assert queue.artifact(claim.job.id, "log") == Artifact("log", b"text", "text/plain")

    def test_a_follow_up_with_a_key_in_use_returns_the_existing_job(self, queue: Queue) -> None:
        first = queue.enqueue("next", dedupe_key="k", delay=60)
        queue.settle(claimed(queue), Done(follow_ups=[NewJob("next", dedupe_key="k")]))
        assert [job.id for job in queue.jobs(kind="next")] == [first.id]

    def test_a_done_job_frees_its_key_for_its_own_follow_up(self, queue: Queue) -> None:
        queue.enqueue("mail", dedupe_key="k")
        claim = claim_one(queue)
        queue.settle(claim, Done(follow_ups=[NewJob("mail", dedupe_key="k")]))
        assert queue.counts() == {"done": 1, "ready": 1}


class TestRefusedFollowUps:
    """A refused follow-up refuses the whole settle, and the lease is still held."""

    @pytest.mark.parametrize(
        ("follow_up", "error"),
        [
            (NewJob("next", lane="closed"), LaneDraining),
            (NewJob("old"), KindRetired),
            (NewJob("next", job_id="taken"), Conflict),
            (NewJob("next", after=["missing"]), JobNotFound),
        ],
    )
    def test_a_refused_follow_up_leaves_nothing_of_the_settle(
        self, queue: Queue, follow_up: NewJob, error: type[HoldfastError]
    ) -> None:
        queue.enqueue("other", job_id="taken", delay=60)
        queue.lanes.set("closed", state="draining")
        queue.kinds.retire("old")
        claim = claimed(queue)
        before = known(queue, claim.job.id)
        outcome = Done(1, follow_ups=[NewJob("next"), follow_up], artifacts=[Artifact("log", b"text")])
        with pytest.raises(error):
            queue.settle(claim, outcome)
        assert known(queue, claim.job.id) == before
        assert queue.settle(claim, Done(2)).result == 2

    def test_a_follow_up_of_another_tenant_does_not_find_the_settled_job(self, queue: Queue) -> None:
        claim = claimed(queue)
        follow_up = NewJob("next", tenant="other", after=[claim.job.id])
        with pytest.raises(JobNotFound) as refused:
            queue.settle(claim, Done(follow_ups=[NewJob("next"), follow_up]))
        assert (refused.value.job_id, refused.value.path) == (claim.job.id, "follow_ups[1].after[0]")
        [settlement] = queue.settle_many([(claim, Done(follow_ups=[follow_up]))])
        assert str(settlement.error) == f"after[0]: no job {claim.job.id!r}"
        assert queue.settle(claim, Done(2)).result == 2

    def test_an_invalid_follow_up_is_named_and_nothing_is_stored(self, queue: Queue) -> None:
        claim = claimed(queue)
        with pytest.raises(InvalidInput) as refused:
            queue.settle(claim, Done(follow_ups=[NewJob("next"), NewJob("next", priority=5000)]))
        assert refused.value.field == "follow_ups[1].priority"
        assert queue.counts() == {"running": 1}

    def settle_and_roll_back(self, queue: Queue, claim: Claim) -> None:
        with queue.transaction() as transaction:
            transaction.settle(claim, Done(follow_ups=[NewJob("next")], artifacts=[Artifact("log", b"text")]))
            raise KeyError("changed my mind")

    def test_follow_ups_rolled_back_with_the_callers_transaction_leave_nothing(self, queue: Queue) -> None:
        claim = claimed(queue)
        before = known(queue, claim.job.id)
        with pytest.raises(KeyError, match="changed my mind"):
            self.settle_and_roll_back(queue, claim)
        assert known(queue, claim.job.id) == before


class TestFailed:
    def test_a_transient_failure_is_retried_after_a_delay(self, queue: Queue, clock: ManualClock) -> None:
        claim = claimed(queue)
        failed = Failed("smtp refused", reason="smtp", traceback="Traceback …")
        job = queue.settle(claim, failed)
        assert (job.state, job.attempt, job.outcome) == ("scheduled", 1, "failed")
        assert job.failure is not None
        assert job.failure == Failure("transient", "smtp", "smtp refused", "Traceback …")
        clock.advance(pause(job, clock) - 0.001)
        assert queue.claim() is None
        clock.advance(0.001)
        again = claim_one(queue).job
        assert (again.attempt, again.failure) == (2, job.failure)

    def test_the_default_backoff_doubles_from_a_minute_to_an_hour(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue("mail", max_attempts=10)
        pauses = []
        for _ in range(9):
            job = queue.settle(claim_one(queue), Failed("no"))
            pauses.append(pause(job, clock))
            clock.advance(pauses[-1])
        assert pauses == [spread(seconds) for seconds in (60, 120, 240, 480, 960, 1920, 3600, 3600, 3600)]

    def test_a_job_has_five_attempts_by_default(self, queue: Queue) -> None:
        queue.enqueue("mail")
        for attempt in range(1, 6):
            claim = claim_one(queue)
            assert claim.job.attempt == attempt
            job = queue.settle(claim, Failed(f"attempt {attempt}", reason="smtp", retry_after=0))
        assert (job.state, failure_of(job).failure_class, failure_of(job).reason) == ("failed", "transient", "smtp")
        assert (job.attempt, failure_of(job).message) == (5, "attempt 5")
        assert queue.claim() is None
        assert [event.name for event in queue.events()] == ["failed"]

    def test_a_job_may_have_only_one_attempt(self, queue: Queue) -> None:
        queue.enqueue("mail", max_attempts=1)
        assert queue.settle(claim_one(queue), Failed("no", retry_after=5)).state == "failed"

    def test_a_permanent_failure_ends_the_job_at_its_first_attempt(self, queue: Queue, clock: ManualClock) -> None:
        job = queue.settle(claimed(queue), Failed("no such address", reason="address", permanent=True))
        assert (job.state, job.attempt, failure_of(job).failure_class) == ("failed", 1, "permanent")
        assert job.finished_at == clock.time

    @pytest.mark.parametrize(
        ("outcome", "seconds"),
        [
            (Failed("no", retry_after=10), 10),
            (Failed("no", retry_after=timedelta(minutes=3)), 180),
            (Failed("no", backoff=Backoff(base=7)), 7),
            (Failed("no", retry_after=4, backoff=Backoff(base=7)), 4),
            (Failed("no"), spread(60)),
        ],
    )
    def test_a_settle_may_set_the_delay(
        self, queue: Queue, clock: ManualClock, outcome: Failed, seconds: float
    ) -> None:
        assert pause(queue.settle(claimed(queue), outcome), clock) == seconds

    def test_a_delay_of_0_makes_the_job_ready_at_once(self, queue: Queue) -> None:
        job = queue.settle(claimed(queue), Failed("no", retry_after=0))
        assert job.state == "ready"
        assert claim_one(queue).job.id == job.id

    def test_a_job_may_have_its_own_backoff(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue("mail", backoff=Backoff(base=2, factor=3, cap=50))
        pauses = []
        for _ in range(4):
            job = queue.settle(claim_one(queue), Failed("no"))
            pauses.append(pause(job, clock))
            clock.advance(pauses[-1])
        assert pauses == [2, 6, 18, 50]

    def test_a_backoff_given_at_one_settle_does_not_apply_to_the_next(self, queue: Queue, clock: ManualClock) -> None:
        queue.settle(claimed(queue), Failed("no", backoff=Backoff(base=0)))
        assert pause(queue.settle(claim_one(queue), Failed("no")), clock) == spread(120)

    def test_jitter_spreads_the_delays_within_its_bounds(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue_many([NewJob("mail", backoff=Backoff(base=100, jitter=0.5)) for _ in range(50)])
        settled = queue.settle_many([(claim, Failed("no")) for claim in queue.claim_many()])
        pauses = {pause(one.job, clock) for one in settled if one.job is not None}
        assert 50 <= min(pauses) < max(pauses) <= 150
        assert len(pauses) > 10

    def test_attempts_without_backoff_count_for_the_next_delay(self, queue: Queue, clock: ManualClock) -> None:
        queue.settle(claimed(queue), Released())
        queue.settle(claim_one(queue), Failed("no", retry_after=0))
        assert pause(queue.settle(claim_one(queue), Failed("no")), clock) == spread(120)


class TestDeferred:
    def test_a_deferral_waits_and_uses_no_attempt(self, queue: Queue, clock: ManualClock) -> None:
        job = queue.settle(claimed(queue), Deferred(after=30))
        assert (job.state, job.attempt, job.outcome, job.failure) == ("scheduled", 0, "deferred", None)
        assert (pause(job, clock), job.deferrals) == (30, 1)
        clock.advance(30)
        assert claim_one(queue).job.attempt == 1

    def test_it_may_name_a_time(self, queue: Queue, clock: ManualClock) -> None:
        claim = claimed(queue)
        until = claim.job.enqueued_at + timedelta(hours=2)
        assert queue.settle(claim, Deferred(until=until)).due_at == until

    @pytest.mark.parametrize("hours", [-2, 0])
    def test_a_time_in_the_past_makes_it_ready_at_once(self, queue: Queue, hours: int) -> None:
        claim = claimed(queue)
        until = claim.job.enqueued_at + timedelta(hours=hours)
        assert queue.settle(claim, Deferred(until=until)).state == "ready"
        assert claim_one(queue).job.id == claim.job.id

    @pytest.mark.parametrize("options", [{}, {"after": 5, "until": "time"}])
    def test_it_requires_either_a_delay_or_a_time(self, queue: Queue, options: dict[str, object]) -> None:
        claim = claimed(queue)
        given = {option: claim.job.enqueued_at if value == "time" else value for option, value in options.items()}
        with pytest.raises(InvalidInput):
            queue.settle(claim, Deferred(**given))  # type: ignore[arg-type]  # what is tested
        assert queue.get(claim.job.id).state == "running"

    def test_any_number_of_deferrals_uses_no_attempt(self, queue: Queue) -> None:
        queue.enqueue("mail", max_attempts=1)
        for _ in range(20):
            queue.settle(claim_one(queue), Deferred(after=0))
        assert claim_one(queue).job.attempt == 1

    def test_deferred_for_more_than_seven_days_in_a_row_a_job_fails(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue("mail")
        for _ in range(7):
            assert queue.settle(claim_one(queue), Deferred(after=DAY)).state == "scheduled"
            clock.advance(DAY)
        # Exactly seven days are not more than seven days.
        assert queue.settle(claim_one(queue), Deferred(after=0.001)).state == "scheduled"
        clock.advance(0.001)
        job = queue.settle(claim_one(queue), Deferred(after=DAY))
        assert (job.state, failure_of(job).reason, failure_of(job).failure_class) == (
            "failed",
            "deferred_too_long",
            "transient",
        )

    @pytest.mark.parametrize("between", [Failed("no", retry_after=0), Released()])
    def test_another_outcome_in_between_restarts_the_seven_days(
        self, queue: Queue, clock: ManualClock, between: Outcome
    ) -> None:
        queue.settle(claimed(queue), Deferred(after=6 * DAY))
        clock.advance(6 * DAY)
        queue.settle(claim_one(queue), between)
        queue.settle(claim_one(queue), Deferred(after=6 * DAY))
        clock.advance(6 * DAY)
        assert queue.settle(claim_one(queue), Deferred(after=1)).state == "scheduled"


class TestReleased:
    def test_a_released_job_is_ready_at_once_and_has_used_no_attempt(self, queue: Queue, clock: ManualClock) -> None:
        claim = claimed(queue)
        clock.advance(5)
        job = queue.settle(claim, Released())
        assert (job.state, job.attempt, job.outcome, job.releases) == ("ready", 0, "released", 1)
        assert job.due_at == clock.time
        assert claim_one(queue).job.attempt == 1

    def test_the_hundred_and_first_release_in_a_row_counts_as_a_failure(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        queue.enqueue("mail", max_attempts=2)
        for _ in range(100):
            assert queue.settle(claim_one(queue), Released()).attempt == 0
        job = queue.settle(claim_one(queue), Released())
        assert (job.state, job.attempt, failure_of(job).reason) == ("scheduled", 1, "released_too_often")
        assert (failure_of(job).failure_class, pause(job, clock)) == ("transient", spread(60))
        clock.advance(pause(job, clock))
        assert queue.settle(claim_one(queue), Released()).state == "ready"

    def test_released_too_often_at_its_last_attempt_a_job_fails(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("holdfast.domain.limits.RELEASES_MAX", 5)
        queue.enqueue("mail", max_attempts=1)
        for _ in range(6):
            job = queue.settle(claim_one(queue), Released())
        assert (job.state, failure_of(job).reason) == ("failed", "released_too_often")

    def test_another_outcome_in_between_restarts_the_count(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("holdfast.domain.limits.RELEASES_MAX", 5)
        queue.enqueue("mail", max_attempts=1)
        for _ in range(5):
            queue.settle(claim_one(queue), Released())
        queue.settle(claim_one(queue), Deferred(after=0))
        assert queue.settle(claim_one(queue), Released()).state == "ready"


class TestARequestedCancel:
    @pytest.mark.parametrize(
        "outcome",
        [Failed("no"), Failed("no", retry_after=0), Deferred(after=5), Released()],
        ids=["failed", "failed without a pause", "deferred", "released"],
    )
    def test_every_outcome_that_would_retry_the_job_cancels_it(
        self, queue: Queue, clock: ManualClock, outcome: Outcome
    ) -> None:
        claim = claimed(queue)
        queue.cancel(claim.job.id)
        job = queue.settle(claim, outcome)
        assert (job.state, job.finished_at) == ("cancelled", clock.time)
        assert queue.claim() is None
        assert [event.name for event in queue.events()] == ["cancelled"]

    def test_a_job_that_succeeds_anyway_is_done(self, queue: Queue) -> None:
        claim = claimed(queue)
        queue.cancel(claim.job.id)
        assert queue.settle(claim, Done(1)).state == "done"

    def test_a_permanent_failure_stays_a_failure(self, queue: Queue) -> None:
        claim = claimed(queue)
        queue.cancel(claim.job.id)
        assert queue.settle(claim, Failed("no", permanent=True)).state == "failed"

    def test_a_forced_cancel_wins_and_the_settle_is_refused(self, queue: Queue) -> None:
        first, second = claimed(queue), claimed(queue)
        queue.settle(first, Done())
        with pytest.raises(Conflict):
            queue.cancel(first.job.id, force=True)
        queue.cancel(second.job.id, force=True)
        with pytest.raises(LeaseLost):
            queue.settle(second, Done())
        assert [queue.get(claim.job.id).state for claim in (first, second)] == ["done", "cancelled"]
