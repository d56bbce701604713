"""The history of attempts, repeated settles, and races between settles."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from holdfast import (
    Artifact,
    Claim,
    Conflict,
    Deferred,
    Done,
    Failed,
    Job,
    LeaseLost,
    NewJob,
    Outcome,
    Queue,
    Released,
)
from tests.support.claims import changed_job, claim_ids, claim_one, known
from tests.support.clock import ManualClock
from tests.support.stores import Harness


def claimed(queue: Queue) -> Claim:
    """Enqueue one job and claim it."""
    queue.enqueue("mail")
    return claim_one(queue)


class TestHistory:
    def test_every_attempt_is_stored_with_its_own_end(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("mail")
        outcomes: list[Outcome] = [
            Failed("no", reason="smtp", retry_after=0),
            Deferred(after=0),
            Released(),
            Failed("again", reason="dns", retry_after=0),
            Done(),
        ]
        started = []
        for number, outcome in enumerate(outcomes):
            claim = claim_one(queue, worker=f"w{number}", incarnation=f"i{number}")
            started.append((claim.epoch, claim.job.attempt, f"w{number}", f"i{number}", clock.time))
            clock.advance(1)
            queue.settle(claim, outcome)
        attempts = queue.attempts(enqueued.id)
        assert [(a.epoch, a.number, a.worker, a.incarnation, a.started_at) for a in attempts] == started
        assert [a.number for a in attempts] == [1, 2, 2, 2, 3]
        assert [a.outcome for a in attempts] == ["failed", "deferred", "released", "failed", "done"]
        assert [(a.ended_at or a.started_at) - a.started_at for a in attempts] == [timedelta(seconds=1)] * 5
        reasons = [a.failure.reason if a.failure else None for a in attempts]
        assert reasons == ["smtp", None, None, "dns", None]

    @pytest.mark.parametrize("outcome", [Failed("no", reason="smtp"), Deferred(after=5), Released()])
    def test_a_job_that_ends_while_it_waits_has_no_further_attempt(self, queue: Queue, outcome: Outcome) -> None:
        cancelled, retired = claimed(queue), claimed(queue)
        queue.settle_many([(cancelled, outcome), (retired, outcome)])
        before = queue.attempts(cancelled.job.id)
        queue.cancel(cancelled.job.id)
        queue.kinds.retire("mail")
        assert queue.attempts(cancelled.job.id) == before
        assert [a.outcome for a in queue.attempts(retired.job.id)] == [a.outcome for a in before]
        assert len(before) == 1

    def test_a_forced_cancel_ends_the_running_attempt(self, queue: Queue, clock: ManualClock) -> None:
        claim = claimed(queue)
        clock.advance(2)
        queue.cancel(claim.job.id, force=True)
        [attempt] = queue.attempts(claim.job.id)
        assert (attempt.outcome, attempt.ended_at) == ("cancelled", clock.time)

    def test_a_running_attempt_has_no_end(self, queue: Queue) -> None:
        claim = claimed(queue)
        [attempt] = queue.attempts(claim.job.id)
        assert (attempt.epoch, attempt.ended_at, attempt.outcome) == (1, None, None)

    def test_a_job_never_claimed_has_no_attempts(self, queue: Queue) -> None:
        assert queue.attempts(queue.enqueue("mail").id) == []

    def test_the_newest_hundred_are_kept(self, queue: Queue) -> None:
        enqueued = queue.enqueue("mail")
        for _ in range(105):
            queue.settle(claim_one(queue), Deferred(after=0))
        epochs = [attempt.epoch for attempt in queue.attempts(enqueued.id)]
        assert epochs == list(range(6, 106))

    def test_attempts_before_a_requeue_stay_in_the_history(self, queue: Queue) -> None:
        claim = claimed(queue)
        queue.settle(claim, Failed("no", permanent=True, reason="smtp"))
        queue.requeue(claim.job.id)
        queue.settle(claim_one(queue), Done())
        attempts = queue.attempts(claim.job.id)
        assert [(a.epoch, a.number, a.outcome) for a in attempts] == [(1, 1, "failed"), (2, 1, "done")]
        assert attempts[0].failure is not None

    def test_all_transitions_of_a_job_with_all_events_are_recorded(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue("mail", events="all")
        for outcome in (Failed("no", retry_after=1), Deferred(after=1), Released(), Done()):
            queue.settle(claim_one(queue), outcome)
            clock.advance(1)
        names = [event.name for event in queue.events()]
        recorded = "enqueued claimed retrying promoted claimed deferred promoted claimed released claimed done"
        assert names == recorded.split()


OUTCOMES: list[Outcome] = [
    Done({"a": 1, "b": [2]}),
    Done(1, follow_ups=[NewJob("next"), NewJob("next", job_id="chosen")], artifacts=[Artifact("log", b"x")]),
    Failed("no", retry_after=30),
    Failed("no", permanent=True),
    Deferred(after=30),
    Released(),
]


def _run_again(queue: Queue, clock: ManualClock, job: Job) -> Claim:
    if job.state == "failed":
        queue.requeue(job.id)
    clock.advance(30)
    return claim_one(queue)


class TestARepeatedSettle:
    @pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
    def test_it_succeeds_and_changes_nothing_more(self, queue: Queue, clock: ManualClock, outcome: Outcome) -> None:
        claim = claimed(queue)
        first = queue.settle(claim, outcome)
        before = known(queue, claim.job.id)
        clock.advance(10)
        assert queue.settle(claim, outcome) == first
        assert known(queue, claim.job.id) == before

    @pytest.mark.parametrize("outcome", OUTCOMES[2:], ids=lambda outcome: type(outcome).__name__)
    def test_it_succeeds_after_the_job_has_been_claimed_again(
        self, queue: Queue, clock: ManualClock, outcome: Outcome
    ) -> None:
        claim = claimed(queue)
        job = queue.settle(claim, outcome)
        second = _run_again(queue, clock, job)
        before = known(queue, job.id)
        assert queue.settle(claim, outcome).id == job.id
        assert known(queue, job.id) == before
        assert queue.settle(second, Done()).state == "done"

    def test_it_succeeds_after_the_lease_would_have_expired(self, queue: Queue, clock: ManualClock) -> None:
        claim = claimed(queue)
        queue.settle(claim, Done(1))
        clock.advance(3600)
        assert queue.settle(claim, Done(1)).result == 1

    @pytest.mark.parametrize("first", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
    def test_another_outcome_is_refused(self, queue: Queue, first: Outcome) -> None:
        claim = claimed(queue)
        queue.settle(claim, first)
        before = known(queue, claim.job.id)
        for other in (Done("other"), Failed("other"), Deferred(after=31)):
            with pytest.raises(LeaseLost):
                queue.settle(claim, other)
        assert known(queue, claim.job.id) == before

    @pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
    def test_with_another_token_it_is_refused(self, queue: Queue, clock: ManualClock, outcome: Outcome) -> None:
        claim = claimed(queue)
        job = queue.settle(claim, outcome)
        forged = Claim(changed_job(claim.job, lease_token="other"), claim.lease_ms)
        with pytest.raises(LeaseLost):
            queue.settle(forged, outcome)
        if job.state != "done":
            _run_again(queue, clock, job)
            with pytest.raises(LeaseLost):
                queue.settle(forged, outcome)

    def test_done_with_another_artifact_or_follow_up_is_another_outcome(self, queue: Queue) -> None:
        claim = claimed(queue)
        queue.settle(claim, Done(follow_ups=[NewJob("next", 1)], artifacts=[Artifact("log", b"one")]))
        for other in (
            Done(),
            Done(follow_ups=[NewJob("next", 2)], artifacts=[Artifact("log", b"one")]),
            Done(follow_ups=[NewJob("next", 1)], artifacts=[Artifact("log", b"two")]),
        ):
            with pytest.raises(LeaseLost):
                queue.settle(claim, other)
        assert len(queue.jobs(kind="next")) == 1


class TestRaces:
    def test_two_clients_that_race_to_settle_have_one_winner(self, harness: Harness) -> None:
        queues = [harness.open(), harness.open()]
        for round_ in range(15):
            claim = claimed(queues[0])
            start = threading.Barrier(2)

            def settle(number: int, claim: Claim = claim, start: threading.Barrier = start) -> Job | LeaseLost:
                start.wait()
                try:
                    return queues[number].settle(claim, Done(number))
                except LeaseLost as lost:
                    return lost

            with ThreadPoolExecutor(2) as pool:
                answers = list(pool.map(settle, range(2)))
            [winner] = [answer for answer in answers if isinstance(answer, Job)]
            assert queues[0].get(claim.job.id) == winner, round_

    def test_a_cancel_that_races_a_settle_has_one_winner(self, harness: Harness) -> None:
        queues = [harness.open(), harness.open()]
        for _ in range(15):
            claim = claimed(queues[0])
            start = threading.Barrier(2)

            def finish(number: int, claim: Claim = claim, start: threading.Barrier = start) -> str | None:
                start.wait()
                try:
                    if number:
                        return queues[1].cancel(claim.job.id, force=True).state
                    return queues[0].settle(claim, Done()).state
                except (LeaseLost, Conflict):
                    return None

            with ThreadPoolExecutor(2) as pool:
                answers = [answer for answer in pool.map(finish, range(2)) if answer]
            assert answers == [queues[0].get(claim.job.id).state]

    def test_of_a_stale_and_a_current_holder_only_one_settles(self, queue: Queue, clock: ManualClock) -> None:
        zombie = claimed(queue)
        clock.advance(30)
        current = claim_one(queue)
        assert current.job.id == zombie.job.id
        with pytest.raises(LeaseLost):
            queue.settle(zombie, Done("zombie"))
        assert queue.settle(current, Done("current")).result == "current"
        with pytest.raises(LeaseLost):
            queue.settle(zombie, Done("current"))
        assert claim_ids(queue) == []
