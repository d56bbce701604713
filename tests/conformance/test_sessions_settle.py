"""A session claim is renewed, settled and released as a whole in one commit, or raises `LeaseLost`.

Every store must pass this file unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from holdfast import (
    Artifact,
    Backoff,
    Conflict,
    Deferred,
    Done,
    Failed,
    InvalidInput,
    JobNotFound,
    LeaseLost,
    NewJob,
    Outcome,
    Queue,
    Released,
)
from holdfast.types import SessionClaim
from tests.support.claims import known
from tests.support.clock import ManualClock
from tests.support.sessions import SESSION, say, states, take, texts

LEASE = 30.0


class TestSettling:
    def test_one_outcome_settles_all(self, queue: Queue) -> None:
        say(queue, 1, 2)

        jobs = queue.sessions.settle(take(queue), Done({"ok": True}))

        assert [(job.payload, job.state, job.result) for job in jobs] == [
            (1, "done", {"ok": True}),
            (2, "done", {"ok": True}),
        ]
        assert states(queue) == {1: "done", 2: "done"}

    def test_each_entry_may_have_its_own_outcome(self, queue: Queue) -> None:
        say(queue, 1, 2, 3, 4)

        queue.sessions.settle(take(queue), [Done(), Failed("no", permanent=True), Deferred(after=5), Released()])

        assert states(queue) == {1: "done", 2: "failed", 3: "scheduled", 4: "ready"}

    def test_a_release_uses_no_attempts_and_keeps_the_order(self, queue: Queue) -> None:
        say(queue, 1, 2)
        queue.sessions.settle(take(queue), Released())

        again = take(queue)
        assert texts(again) == [1, 2]
        assert [job.attempt for job in again.entries] == [1, 1]

    def test_entries_that_failed_together_are_retried_together(self, queue: Queue) -> None:
        ids = say(queue, 1, 2, 3, backoff=Backoff(base=1_000, jitter=1.0))

        queue.sessions.settle(take(queue), Failed("not now"))

        # The delay is random, and the same for all.
        assert len({queue.get(job_id).due_at for job_id in ids}) == 1

    def test_each_entry_has_its_own_number_of_attempts(self, queue: Queue) -> None:
        say(queue, 1, max_attempts=2)
        for _ in range(2):
            queue.sessions.settle(take(queue), Failed("no", retry_after=0))

        assert states(queue) == {1: "failed"}

    def test_follow_ups_of_one_outcome_for_all_are_enqueued_once(self, queue: Queue) -> None:
        [first, second] = say(queue, 1, 2)
        queue.sessions.settle(take(queue), Done(follow_ups=[NewJob("next")], artifacts=[Artifact("log", b"x")]))

        assert queue.counts(by="kind") == {"chat.message": 2, "next": 1}
        assert [len(queue.artifacts(first)), len(queue.artifacts(second))] == [1, 0]

    def test_a_follow_up_may_be_an_entry_of_the_same_session(self, queue: Queue) -> None:
        say(queue, 1)
        queue.sessions.settle(take(queue), Done(follow_ups=[NewJob("chat.message", 2, session=SESSION)]))

        assert texts(take(queue)) == [2]

    def test_every_entry_has_its_events(self, queue: Queue) -> None:
        ids = say(queue, 1, 2)
        queue.sessions.settle(take(queue), Done())

        assert [(event.name, event.job_id) for event in queue.events()] == [("done", job_id) for job_id in ids]

    def test_a_refused_follow_up_refuses_all(self, queue: Queue) -> None:
        queue.enqueue("next", job_id="taken")
        say(queue, 1, 2)
        turn = take(queue)

        with pytest.raises(Conflict):
            queue.sessions.settle(turn, [Done(), Done(follow_ups=[NewJob("other", job_id="taken")])])

        assert states(queue) == {1: "running", 2: "running"}
        queue.sessions.settle(turn, Done())

    def test_so_does_one_that_depends_on_a_missing_job(self, queue: Queue) -> None:
        say(queue, 1)
        turn = take(queue)
        with pytest.raises(JobNotFound, match="missing"):
            queue.sessions.settle(turn, Done(follow_ups=[NewJob("other", after=["missing"])]))
        queue.sessions.settle(turn, Done())

    def test_and_one_of_another_tenant_that_depends_on_an_entry(self, queue: Queue) -> None:
        [entry] = say(queue, 1)
        turn = take(queue)
        with pytest.raises(JobNotFound, match=r"^after\[0\]: no job"):
            queue.sessions.settle(turn, Done(follow_ups=[NewJob("other", tenant="other", after=[entry])]))
        queue.sessions.settle(turn, Done())

    @pytest.mark.parametrize("outcome", [[Done()], [Done()] * 3, "done", [Done(), None]])
    def test_outcomes_that_do_not_fit_are_refused(self, queue: Queue, outcome: Any) -> None:
        say(queue, 1, 2)

        with pytest.raises(InvalidInput, match="outcome"):
            queue.sessions.settle(take(queue), outcome)

    def test_waiting_for_an_entry_ends_with_it(self, queue: Queue) -> None:
        [entry] = say(queue, 1)
        queue.sessions.settle(take(queue), Done("answer"))

        assert queue.wait(entry, timeout=0).result == "answer"

    def test_progress_is_stored_for_each_entry(self, queue: Queue) -> None:
        [first, second] = say(queue, 1, 2)
        turn = take(queue)
        queue.progress(turn.claims[1], phase="thinking")

        assert [queue.get(first).phase, queue.get(second).phase] == [None, "thinking"]
        queue.sessions.settle(turn, Done())


OUTCOMES: list[Outcome | list[Outcome]] = [
    Done({"ok": 1}),
    Failed("no"),
    Failed("no", permanent=True),
    Deferred(after=5),
    Released(),
    [Done(1), Released()],
    [Done(follow_ups=[NewJob("next")]), Failed("no")],
]


class TestRepeatedSettles:
    @pytest.mark.parametrize("outcome", OUTCOMES, ids=str)
    def test_a_repeated_settle_succeeds_and_changes_nothing(self, queue: Queue, outcome: Any) -> None:
        ids = say(queue, 1, 2)
        turn = take(queue)
        queue.sessions.settle(turn, outcome)
        before = [known(queue, job_id) for job_id in ids]

        queue.sessions.settle(turn, outcome)

        assert [known(queue, job_id) for job_id in ids] == before

    def test_another_outcome_is_refused(self, queue: Queue) -> None:
        say(queue, 1, 2)
        turn = take(queue)
        queue.sessions.settle(turn, Done())

        with pytest.raises(LeaseLost):
            queue.sessions.settle(turn, [Done(), Failed("no")])


WRITES: dict[str, Callable[[Queue, SessionClaim], object]] = {
    "heartbeat": lambda queue, turn: queue.sessions.heartbeat(turn),
    "done": lambda queue, turn: queue.sessions.settle(turn, Done()),
    "done with more": lambda queue, turn: queue.sessions.settle(
        turn, Done(follow_ups=[NewJob("next")], artifacts=[Artifact("log", b"late")])
    ),
    "failed": lambda queue, turn: queue.sessions.settle(turn, Failed("late")),
    "released": lambda queue, turn: queue.sessions.settle(turn, Released()),
    "one each": lambda queue, turn: queue.sessions.settle(turn, [Done() for _ in turn.entries]),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
class TestAStaleHolder:
    def refuse(self, queue: Queue, turn: SessionClaim, write: Callable[[Queue, SessionClaim], object]) -> None:
        before = [known(queue, job.id) for job in turn.entries]
        with pytest.raises(LeaseLost):
            write(queue, turn)
        assert [known(queue, job.id) for job in turn.entries] == before

    def test_is_refused_when_it_expired_and_nothing_changes(
        self, queue: Queue, clock: ManualClock, write: Callable[[Queue, SessionClaim], object]
    ) -> None:
        say(queue, 1, 2)
        turn = take(queue, lease=LEASE)
        clock.advance(LEASE)

        self.refuse(queue, turn, write)

    def test_is_refused_when_it_was_claimed_again_and_nothing_changes(
        self, queue: Queue, clock: ManualClock, write: Callable[[Queue, SessionClaim], object]
    ) -> None:
        say(queue, 1, 2)
        turn = take(queue, lease=LEASE)
        clock.advance(LEASE)
        take(queue, worker="other")

        self.refuse(queue, turn, write)

    def test_is_refused_when_one_entry_is_lost_and_nothing_changes(
        self, queue: Queue, write: Callable[[Queue, SessionClaim], object]
    ) -> None:
        [_, second, _] = say(queue, 1, 2, 3)
        turn = take(queue, lease=LEASE)
        queue.cancel(second, force=True)

        self.refuse(queue, turn, write)

    def test_is_refused_when_the_session_was_taken_over_and_nothing_changes(
        self, queue: Queue, write: Callable[[Queue, SessionClaim], object]
    ) -> None:
        say(queue, 1, 2)
        turn = take(queue, lease=LEASE)
        queue.sessions.open(SESSION, worker="other", take_over=True)

        self.refuse(queue, turn, write)


class TestRenewal:
    def test_a_heartbeat_extends_all(self, queue: Queue, clock: ManualClock) -> None:
        say(queue, 1, 2)
        turn = take(queue, lease=LEASE)
        clock.advance(LEASE - 1)
        queue.sessions.heartbeat(turn)
        clock.advance(LEASE - 1)

        assert [job.state for job in queue.sessions.settle(turn, Done())] == ["done", "done"]

    def test_it_reports_a_cancel_request_of_any_entry(self, queue: Queue) -> None:
        [_, second] = say(queue, 1, 2)
        turn = take(queue)

        assert not queue.sessions.heartbeat(turn).cancel_requested
        queue.cancel(second)
        assert queue.sessions.heartbeat(turn).cancel_requested

    def test_it_may_be_longer_than_the_first(self, queue: Queue) -> None:
        say(queue, 1)
        turn = take(queue, lease=1)

        assert queue.sessions.heartbeat(turn, lease=60).lease_until > turn.lease_until


class RollbackError(Exception):
    """Raised by the caller."""


class TestWithStateOfTheCaller:
    @pytest.fixture
    def transcript(self, queue: Queue) -> Queue:
        with queue.transaction() as tx:
            tx.execute("create table transcript (line text)")
        return queue

    def lines(self, queue: Queue) -> list[str]:
        with queue.transaction() as tx:
            return [line for (line,) in tx.execute("select line from transcript")]

    def test_state_and_settlement_commit_together(self, transcript: Queue) -> None:
        say(transcript, 1, 2)
        turn = take(transcript)

        with transcript.transaction() as tx:
            tx.execute("insert into transcript values ('answer')")
            assert len(tx.sessions.settle(turn, Done())) == 2

        assert (self.lines(transcript), states(transcript)) == (["answer"], {1: "done", 2: "done"})

    def test_or_not_at_all(self, transcript: Queue) -> None:
        say(transcript, 1, 2)
        turn = take(transcript)

        with suppress(RollbackError), transcript.transaction() as tx:
            tx.execute("insert into transcript values ('answer')")
            tx.sessions.settle(turn, Done())
            tx.enqueue("chat.message", 3, session=SESSION)
            raise RollbackError

        assert (self.lines(transcript), states(transcript)) == ([], {1: "running", 2: "running"})
        transcript.sessions.settle(turn, Done())

    def test_a_stale_holder_commits_nothing_of_its_state(self, transcript: Queue, clock: ManualClock) -> None:
        say(transcript, 1)
        turn = take(transcript, lease=LEASE)
        clock.advance(LEASE)

        def settle_late() -> None:
            with transcript.transaction() as tx:
                tx.execute("insert into transcript values ('late')")
                tx.sessions.settle(turn, Done())

        with pytest.raises(LeaseLost):
            settle_late()
        assert self.lines(transcript) == []

    def test_an_entry_enqueued_in_a_transaction_is_visible_after_the_commit(self, queue: Queue) -> None:
        with queue.transaction() as tx:
            tx.enqueue("chat.message", 1, session=SESSION)
            tx.enqueue("chat.message", 2, session=SESSION, message_id="k")
            assert not tx.enqueue("chat.message", 9, session=SESSION, message_id="k").created

        assert states(queue) == {1: "ready", 2: "ready"}
