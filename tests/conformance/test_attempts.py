"""Attempts: every claim of a job is an attempt, and the history records how each ended."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast import Deferred, Done, Failed, JobNotFound, Outcome, Queue, Released
from holdfast.types import Failure
from tests.support.clock import ManualClock
from tests.support.job_states import WAITING, State, claimed, job_in, run, start

KEPT = 100


class TestAttempts:
    @pytest.mark.parametrize("state", WAITING)
    def test_a_job_never_claimed_has_none(self, queue: Queue, state: State) -> None:
        assert queue.attempts(job_in(queue, state).id) == []

    def test_a_running_attempt_has_no_end_and_no_outcome(self, queue: Queue, clock: ManualClock) -> None:
        job = queue.enqueue("a").job
        clock.advance(2)
        claimed(queue, worker="w1", incarnation="i1")
        clock.advance(2)

        [attempt] = queue.attempts(job.id)

        assert (attempt.epoch, attempt.number, attempt.worker, attempt.incarnation) == (1, 1, "w1", "i1")
        assert attempt.started_at == job.enqueued_at + timedelta(milliseconds=2_000)
        assert (attempt.ended_at, attempt.outcome, attempt.failure) == (None, None, None)

    def test_all_attempts_are_listed_oldest_first(self, queue: Queue, clock: ManualClock) -> None:
        job = queue.enqueue("a", max_attempts=3).job
        outcomes: list[Outcome | None] = [
            Released(),
            Deferred(after=1),
            Failed("broke", reason="smtp", retry_after=1, traceback="tb"),
            None,
        ]
        for number, outcome in enumerate(outcomes):
            claim = claimed(queue, worker=f"w{number}")
            clock.advance(1)
            if outcome is not None:
                queue.settle(claim, outcome)
            clock.advance(60)
        queue.settle(claimed(queue, worker="last"), Done())

        history = queue.attempts(job.id)

        assert [attempt.outcome for attempt in history] == ["released", "deferred", "failed", "expired", "done"]
        assert [attempt.epoch for attempt in history] == [1, 2, 3, 4, 5]
        assert [attempt.worker for attempt in history] == ["w0", "w1", "w2", "w3", "last"]
        assert [attempt.number for attempt in history][2:] == [1, 2, 3]

    def test_only_failed_attempts_have_a_failure(self, queue: Queue, clock: ManualClock) -> None:
        job = queue.enqueue("a").job
        run(queue, job, Failed("broke", reason="smtp", retry_after=0, traceback="where"))
        run(queue, job, Deferred(after=0))
        start(queue, job)
        clock.advance(31)
        run(queue, job, Done())

        failed, deferred, expired, done = queue.attempts(job.id)

        assert failed.failure == Failure("transient", "smtp", "broke", "where")
        assert deferred.failure is None
        assert expired.failure is not None
        assert (expired.failure.failure_class, expired.failure.reason) == ("transient", "lease_expired")
        assert done.failure is None

    def test_start_and_end_use_the_stores_clock(self, queue: Queue, clock: ManualClock) -> None:
        job = queue.enqueue("a").job
        first = start(queue, job)
        began = clock.time
        clock.advance(7)
        queue.settle(first, Failed("x", retry_after=0))
        second = start(queue, job)
        clock.advance(3)
        queue.settle(second, Done())

        history = queue.attempts(job.id)

        assert [attempt.started_at - began for attempt in history] == [timedelta(0), timedelta(seconds=7)]
        assert [(attempt.ended_at or began) - began for attempt in history] == [
            timedelta(seconds=7),
            timedelta(seconds=10),
        ]

    def test_a_requeue_keeps_the_history(self, queue: Queue) -> None:
        job = job_in(queue, "failed")
        queue.requeue(job.id)
        assert [attempt.outcome for attempt in queue.attempts(job.id)] == ["failed"]
        run(queue, job, Done())

        history = queue.attempts(job.id)

        assert [(attempt.epoch, attempt.number, attempt.outcome) for attempt in history] == [
            (1, 1, "failed"),
            (2, 1, "done"),
        ]

    def test_a_repeated_settle_adds_no_attempt(self, queue: Queue) -> None:
        job = queue.enqueue("a").job
        claim = start(queue, job)
        for _ in range(2):
            queue.settle(claim, Failed("x", retry_after=0))

        assert len(queue.attempts(job.id)) == 1

    def test_the_newest_hundred_are_kept(self, queue: Queue) -> None:
        job = queue.enqueue("a").job
        for round_ in range(KEPT + 5):
            run(queue, job, Deferred(after=0) if round_ % 2 else Released())

        epochs = [attempt.epoch for attempt in queue.attempts(job.id)]

        assert epochs[-1] == KEPT + 5
        assert len(epochs) == KEPT
        assert epochs == sorted(epochs)

    def test_an_unknown_job_is_not_found(self, queue: Queue) -> None:
        with pytest.raises(JobNotFound):
            queue.attempts("missing")
