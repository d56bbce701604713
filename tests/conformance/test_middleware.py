"""Middleware runs around every enqueue, claim and settle, of jobs and of sessions, sync and async.

Every store must pass this file unchanged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Sequence
from typing import Any

import pytest

import holdfast
from holdfast import Claim, Conflict, Done, Failed, InvalidInput, LeaseLost, Middleware, NewJob, Outcome, Queue, Tasks
from holdfast.client.queue_state import state_of
from holdfast.types import ClaimCall, JobDraft, Settlement, StoredJob
from tests.support.assertions import refused
from tests.support.clock import ManualClock
from tests.support.kinds import publish
from tests.support.sessions import SESSION, say, take
from tests.support.stores import Harness


class Recorder(Middleware):
    """Records each call and its result, and marks every new job."""

    def __init__(self, name: str = "one") -> None:
        self.name = name
        self.seen: list[Any] = []

    def enqueue(self, jobs: Sequence[JobDraft]) -> Generator[None, Sequence[StoredJob], None]:
        for job in jobs:
            job.headers["by"] = job.headers.get("by", "") + self.name
            job.tags["kind"] = job.kind
        self.seen.append(("enqueue", [(job.kind, None if job.claim is None else job.claim.job.id) for job in jobs]))
        try:
            stored = yield
        except Exception as error:
            self.seen.append(("not enqueued", type(error)))
            raise
        self.seen.append(("enqueued", [(one.job.kind, one.created) for one in stored]))

    def claim(self, call: ClaimCall) -> Generator[None, Sequence[Claim], None]:
        claims = yield
        if claims:
            self.seen.append(("claim", call.of, call.session, call.worker, [claim.job.kind for claim in claims]))

    def settle(self, outcomes: Sequence[tuple[Claim, Outcome]]) -> Generator[None, Sequence[Settlement], None]:
        self.seen.append(("settle", [(claim.job.kind, type(outcome)) for claim, outcome in outcomes]))
        try:
            settlements = yield
        except Exception as error:
            self.seen.append(("not settled", type(error)))
            raise
        found = [one.job.state if one.job is not None else type(one.error) for one in settlements]
        self.seen.append(("settled", found))


def within(queue: Queue, *middleware: Middleware) -> Queue:
    """Return *queue* with *middleware*."""
    state_of(queue).middleware = middleware
    return queue


@pytest.fixture
def recorder(queue: Queue) -> Recorder:
    made = Recorder()
    within(queue, made)
    return made


class TestJobs:
    def test_enqueue_claim_and_settle_run_within_it(self, queue: Queue, recorder: Recorder) -> None:
        queue.enqueue("mail")
        claim = queue.claim(worker="w")
        assert claim is not None
        queue.settle(claim, Done())

        assert recorder.seen == [
            ("enqueue", [("mail", None)]),
            ("enqueued", [("mail", True)]),
            ("claim", "jobs", None, "w", ["mail"]),
            ("settle", [("mail", Done)]),
            ("settled", ["done"]),
        ]

    def test_the_headers_and_tags_that_it_sets_are_stored(self, queue: Queue, recorder: Recorder) -> None:
        made = queue.enqueue("mail", headers={"a": "1"}, tags={"b": "2"})
        many = queue.enqueue_many([NewJob("scan"), NewJob("mail", headers={"by": "me "})])

        assert queue.get(made.id).headers == {"a": "1", "by": "one"}
        assert queue.get(made.id).tags == {"b": "2", "kind": "mail"}
        assert [one.job.headers["by"] for one in many] == ["one", "me one"]
        assert recorder.seen[-1] == ("enqueued", [("scan", True), ("mail", True)])

    def test_the_first_of_the_list_is_the_outermost(self, queue: Queue) -> None:
        within(queue, Recorder("outer "), Recorder("inner"))

        assert queue.enqueue("mail").job.headers["by"] == "outer inner"

    def test_what_it_changes_does_not_change_whether_an_enqueue_is_the_same(self, queue: Queue) -> None:
        within(queue, Recorder("first"))
        first = queue.enqueue("mail", {"n": 1}, job_id="one")
        within(queue, Recorder("second"))
        again = queue.enqueue("mail", {"n": 1}, job_id="one")

        assert not again.created
        assert again.job.headers == first.job.headers

    def test_tags_of_the_catalog_and_of_middleware_are_both_stored(self, queue: Queue, harness: Harness) -> None:
        tasks = Tasks()
        tasks.task("mail", tags={"team": "post"})(lambda: None)
        publish(queue, tasks)
        other = within(harness.open(), Recorder())

        assert other.enqueue("mail", {}).job.tags == {"team": "post", "kind": "mail"}

    def test_settle_and_claim_is_both(self, queue: Queue, recorder: Recorder) -> None:
        queue.enqueue_many([NewJob("a"), NewJob("b")])
        [first] = queue.claim_many(limit=1, worker="w")
        recorder.seen.clear()

        both = queue.settle_and_claim([(first, Done())], worker="w")

        assert [one.ok for one in both.settlements] == [True]
        assert recorder.seen == [
            ("settle", [("a", Done)]),
            ("claim", "jobs", None, "w", ["b"]),
            ("settled", ["done"]),
        ]

    def test_the_transaction_of_an_async_queue_runs_within_it_as_well(self, harness: Harness) -> None:
        queue, recorder = harness.open_async(), Recorder()
        state_of(queue).middleware = (recorder,)

        async def main() -> None:
            async with queue.transaction() as tx:
                await tx.enqueue("mail")
            await queue.close()

        asyncio.run(main())

        assert [seen[0] for seen in recorder.seen] == ["enqueue", "enqueued"]

    def test_an_async_queue_runs_within_it_as_well(self, harness: Harness) -> None:
        queue, recorder = harness.open_async(), Recorder()
        state_of(queue).middleware = (recorder,)

        async def main() -> None:
            await queue.enqueue("mail")
            claim = await queue.claim(worker="w")
            assert claim is not None
            await queue.settle(claim, Failed("no", permanent=True))
            await queue.close()

        asyncio.run(main())

        assert [seen[0] for seen in recorder.seen] == ["enqueue", "enqueued", "claim", "settle", "settled"]
        assert recorder.seen[-1] == ("settled", ["failed"])

    def test_it_sees_what_the_store_refuses(self, queue: Queue, recorder: Recorder, clock: ManualClock) -> None:
        queue.enqueue("mail", job_id="one")
        with pytest.raises(Conflict):
            queue.enqueue("scan", job_id="one")
        assert recorder.seen[-1] == ("not enqueued", Conflict)

        claim = queue.claim(lease=1)
        assert claim is not None
        clock.advance(2)
        with pytest.raises(LeaseLost):
            queue.settle(claim, Done())
        assert recorder.seen[-1] == ("settled", [LeaseLost])


class TestFollowUps:
    def test_they_are_enqueued_within_it(self, queue: Queue, recorder: Recorder) -> None:
        made = queue.enqueue("mail")
        claim = queue.claim()
        assert claim is not None
        recorder.seen.clear()

        outcome = Done(follow_ups=[NewJob("next")])
        queue.settle(claim, outcome)
        queue.settle(claim, outcome)

        assert recorder.seen[:4] == [
            ("settle", [("mail", Done)]),
            ("enqueue", [("next", made.id)]),
            ("enqueued", []),
            ("settled", ["done"]),
        ]
        [follow_up] = queue.jobs(kind="next")
        assert follow_up.headers == {"by": "one"}

    def test_they_are_not_enqueued_if_their_settlement_is_refused(
        self, queue: Queue, recorder: Recorder, clock: ManualClock
    ) -> None:
        queue.enqueue("mail")
        claim = queue.claim(lease=1)
        assert claim is not None
        clock.advance(2)

        with pytest.raises(LeaseLost):
            queue.settle(claim, Done(follow_ups=[NewJob("next")]))

        assert recorder.seen[-2:] == [("not enqueued", LeaseLost), ("settled", [LeaseLost])]

    def test_one_that_middleware_refuses_refuses_only_its_own_settlement(self, queue: Queue) -> None:
        within(queue, Refusing("next"))
        queue.enqueue_many([NewJob("a"), NewJob("b"), NewJob("c")])
        first, second, third = queue.claim_many(limit=3)

        settlements = queue.settle_many(
            [(first, Done()), (second, Done(follow_ups=[NewJob("next")])), (third, Done(follow_ups=[NewJob("d")]))]
        )

        assert [one.claim for one in settlements] == [first, second, third]
        assert [one.ok for one in settlements] == [True, False, True]
        error = settlements[1].error
        assert isinstance(error, InvalidInput)
        assert "follow_ups: were refused by middleware: ValueError: next" in str(error)
        assert queue.counts(by="kind") == {"a": 1, "b": 1, "c": 1, "d": 1}
        assert queue.get(second.job.id).state == "running"


class TestSessions:
    def test_their_entries_claims_and_settlements_run_within_it(self, queue: Queue, recorder: Recorder) -> None:
        say(queue, 1, 2)
        turn = queue.sessions.claim(SESSION, worker="w")
        assert turn is not None
        jobs = queue.sessions.settle(turn, [Done(), Failed("no", permanent=True)])

        kind = jobs[0].kind
        assert [job.headers["by"] for job in jobs] == ["one", "one"]
        assert [seen for seen in recorder.seen if "enqueue" not in seen[0]] == [
            ("claim", "sessions", SESSION, "w", [kind, kind]),
            ("settle", [(kind, Done), (kind, Failed)]),
            ("settled", ["done", "failed"]),
        ]

    def test_the_next_session_and_a_checkpoint_are_claims(self, queue: Queue, recorder: Recorder) -> None:
        say(queue, 1)
        turn = queue.sessions.claim_next(worker="w")
        assert turn is not None
        say(queue, 2)
        more = queue.sessions.checkpoint(turn)
        assert more is not None
        kind = turn.entries[0].kind

        claims = [seen for seen in recorder.seen if seen[0] == "claim"]
        assert claims == [("claim", "sessions", session, "w", [kind]) for session in (None, SESSION)]

    def test_follow_ups_of_a_turn_are_enqueued_within_it(self, queue: Queue, recorder: Recorder) -> None:
        say(queue, 1, 2)
        queue.sessions.settle(take(queue), Done(follow_ups=[NewJob("next")]))

        [follow_up] = queue.jobs(kind="next")
        assert follow_up.headers == {"by": "one"}
        assert recorder.seen[-1] == ("settled", ["done", "done"])

    def test_a_refused_follow_up_refuses_the_turn(self, queue: Queue) -> None:
        say(queue, 1, 2)
        turn = take(queue)
        within(queue, Refusing("next"))

        with pytest.raises(InvalidInput, match="refused by middleware"):
            queue.sessions.settle(turn, Done(follow_ups=[NewJob("next")]))

        assert {job.state for job in queue.jobs()} == {"running"}

    def test_a_refused_settlement_is_an_error_in_it(
        self, queue: Queue, recorder: Recorder, clock: ManualClock
    ) -> None:
        say(queue, 1)
        turn = take(queue)
        clock.advance(3_600)

        with pytest.raises(LeaseLost):
            queue.sessions.settle(turn, Done())

        assert recorder.seen[-1] == ("not settled", LeaseLost)

    def test_an_async_queue_does_the_same(self, harness: Harness) -> None:
        queue, recorder = harness.open_async(), Recorder()
        state_of(queue).middleware = (recorder,)

        async def main() -> None:
            await queue.enqueue("chat", session="s", tenant="t")
            turn = await queue.sessions.claim_next(worker="w")
            assert turn is not None
            await queue.sessions.settle(turn, Done())
            await queue.close()

        asyncio.run(main())

        assert [seen[0] for seen in recorder.seen] == ["enqueue", "enqueued", "claim", "settle", "settled"]


class Refusing(Middleware):
    """Refuses to enqueue one kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def enqueue(self, jobs: Sequence[JobDraft]) -> Generator[None, Sequence[StoredJob], None]:
        if any(job.kind == self.kind for job in jobs):
            raise ValueError(self.kind)
        yield


class Failing(Middleware):
    """Raises before or after each call."""

    def __init__(self, *, before: bool) -> None:
        self.before = before

    def enqueue(self, jobs: Sequence[JobDraft]) -> Generator[None, Sequence[StoredJob], None]:
        yield
        raise ValueError("after enqueue")

    def claim(self, call: ClaimCall) -> Generator[None, Sequence[Claim], None]:
        if self.before:
            raise ValueError("before claim")
        yield
        raise ValueError("after claim")

    def settle(self, outcomes: Sequence[tuple[Claim, Outcome]]) -> Generator[None, Sequence[Settlement], None]:
        if self.before:
            raise ValueError("before settle")
        try:
            yield
        finally:
            raise ValueError("after settle")


class Collector(Middleware):
    """Collects the results of outcomes."""

    def __init__(self) -> None:
        self.results: list[Any] = []

    def settle(self, outcomes: Sequence[tuple[Claim, Outcome]]) -> Generator[None, Sequence[Settlement], None]:
        self.results += [outcome.result for _, outcome in outcomes if isinstance(outcome, Done)]
        yield


def test_outcomes_with_equal_results_are_passed_on_as_they_were_given(queue: Queue) -> None:
    collector, results = Collector(), [{"ok": 1} for _ in range(3)]
    within(queue, collector)
    queue.enqueue_many([NewJob("mail") for _ in results])
    claims = queue.claim_many(limit=3)

    queue.settle_many([(claim, Done(result)) for claim, result in zip(claims, results, strict=True)])

    assert [id(result) for result in collector.results] == [id(result) for result in results]


class Clearing(Middleware):
    """Clears every list that it is given, as if it were its own."""

    def enqueue(self, jobs: Any) -> Generator[None, Any, None]:
        jobs.clear()
        (yield).clear()

    def claim(self, call: ClaimCall) -> Generator[None, Any, None]:
        (yield).clear()

    def settle(self, outcomes: Any) -> Generator[None, Any, None]:
        outcomes.clear()
        (yield).clear()


def test_what_it_does_with_its_lists_does_not_change_the_call(queue: Queue) -> None:
    within(queue, Clearing(), recorder := Recorder())
    queue.enqueue("work")
    queue.enqueue_many([NewJob("work")])
    claims = queue.claim_many()
    assert [claim.job.kind for claim in claims] == ["work", "work"]
    settlements = queue.settle_many([(claim, Done(1, follow_ups=[NewJob("next")])) for claim in claims])
    assert [one.job is not None and one.job.state for one in settlements] == ["done", "done"]
    assert recorder.seen[-1] == ("settled", ["done", "done"])
    assert queue.counts() == {"done": 2, "ready": 2}


class TestErrors:
    def test_an_error_before_an_enqueue_refuses_it_and_the_outer_ones_see_it(self, queue: Queue) -> None:
        outer = Recorder()
        within(queue, outer, Refusing("mail"))

        with pytest.raises(ValueError, match="mail"):
            queue.enqueue("mail")
        with pytest.raises(ValueError, match="mail"):
            queue.enqueue_many([NewJob("scan"), NewJob("mail")])

        assert queue.counts() == {}
        assert outer.seen[1] == outer.seen[3] == ("not enqueued", ValueError)

    @pytest.mark.parametrize("before", [True, False])
    def test_other_errors_are_logged_and_change_nothing(
        self, queue: Queue, caplog: pytest.LogCaptureFixture, *, before: bool
    ) -> None:
        outer = Recorder()
        within(queue, outer, Failing(before=before))
        with caplog.at_level(logging.ERROR, "holdfast.middleware"):
            made = queue.enqueue("mail")
            claim = queue.claim()
            assert claim is not None
            assert queue.settle(claim, Done(7)).result == 7

        assert made.created
        assert [seen[0] for seen in outer.seen] == ["enqueue", "enqueued", "claim", "settle", "settled"]
        raised = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
        when = "before" if before else "after"
        assert raised == ["after enqueue", f"{when} claim", f"{when} settle"]

    def test_an_error_after_a_refused_call_does_not_hide_the_refusal(
        self, queue: Queue, clock: ManualClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        say(queue, 1)
        turn = take(queue)
        clock.advance(3_600)
        within(queue, Failing(before=False))

        with caplog.at_level(logging.CRITICAL), pytest.raises(LeaseLost):
            queue.sessions.settle(turn, Done())

    def test_a_method_that_yields_twice_is_logged(self, queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
        class Twice(Middleware):
            def enqueue(self, jobs: Sequence[JobDraft]) -> Generator[None, Sequence[StoredJob], None]:
                yield
                yield

        within(queue, Twice())
        assert queue.enqueue("mail").created
        assert "must yield exactly once" in caplog.text

    @pytest.mark.validation
    @pytest.mark.parametrize(
        ("headers", "field"),
        [
            ({"a": 1}, "headers.a"),
            ({"a": "x" * 10_000}, "headers.a"),
            ({str(n): "" for n in range(1_000)}, "headers"),
        ],
    )
    def test_headers_that_cannot_be_stored_are_refused(self, queue: Queue, headers: Any, field: str) -> None:
        class Wrong(Middleware):
            def enqueue(self, jobs: Sequence[JobDraft]) -> Generator[None, Sequence[StoredJob], None]:
                jobs[-1].headers.update(headers)
                yield

        outer = Recorder()
        within(queue, outer, Wrong())

        with refused(queue, field):
            queue.enqueue("mail")
        with refused(queue, f"jobs[1].{field}"):
            queue.enqueue_many([NewJob("a"), NewJob("b")])
        assert outer.seen[-1] == ("not enqueued", InvalidInput)


class TestTheList:
    @pytest.mark.parametrize(
        ("middleware", "problem"),
        [
            (Recorder(), "middleware: must be a list, not Recorder"),
            ([Recorder], "pass an object, not the class"),
            (["trace"], "middleware[0]: must be a Middleware, not 'trace'"),
        ],
    )
    def test_what_is_no_middleware_is_refused(self, middleware: Any, problem: str) -> None:
        for connect in (holdfast.connect, holdfast.connect_async):
            with pytest.raises(InvalidInput) as error:
                connect(":memory:", middleware=middleware)
            assert problem in str(error.value)

    @pytest.mark.parametrize("name", ["enqueue", "claim", "run", "settle", "run_async"])
    def test_a_method_without_a_yield_is_refused(self, name: str) -> None:
        wrong = type("Wrong", (Middleware,), {name: lambda self, argument: None})

        with pytest.raises(InvalidInput, match=rf"middleware\[1\]\.{name}: must be an? .*generator function"):
            holdfast.connect(":memory:", middleware=[Recorder(), wrong()])

    def test_connect_takes_it(self) -> None:
        recorder = Recorder()
        with holdfast.connect(":memory:", middleware=[recorder]) as queue:
            assert queue.enqueue("mail").job.headers == {"by": "one"}
