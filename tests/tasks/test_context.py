"""A context describes the attempt to its handler, collects the handler's data and never calls the store."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import holdfast
from holdfast import Artifact, Cancelled, Context, Done, InvalidInput, LeaseLost, Misconfigured, NewJob, Queue
from holdfast.domain import limits
from holdfast.domain.claims import Note
from holdfast.tasks.context import context_of
from holdfast.tasks.handler_state import HandlerState
from holdfast.tasks.outcomes import outcome_of
from holdfast.tasks.policy import Policy
from tests.chaos.processes import PATIENCE_SECONDS
from tests.tasks.attempts import running


def send(to: str) -> None: ...


def test_a_context_tells_of_its_attempt(queue: Queue) -> None:
    queue.enqueue("email.send", {"to": "ada"})
    claim = queue.claim(worker="w1")
    assert claim is not None

    context = Context(claim)

    assert context.job == claim.job
    assert (context.attempt, context.epoch, context.worker) == (1, claim.epoch, "w1")
    assert context.lease_token == claim.lease_token
    assert not context.cancelled
    assert claim.job.id in repr(context)


# --- progress ------------------------------------------------------------------------------------------------------


def test_the_newest_progress_is_taken_once() -> None:
    state = running()
    context = context_of(state)
    assert state.take_progress() is None

    context.progress("loading", 10)
    context.progress(percent=40)
    context.progress("working")

    assert state.take_progress() == Note("working", 40.0)
    assert state.take_progress() is None


def test_progress_after_the_end_of_the_attempt_is_refused_and_not_noted() -> None:
    state = running()
    context = context_of(state)
    state.end()

    with pytest.raises(LeaseLost, match="has ended"):
        context.progress("late", 99)

    assert state.take_progress() is None


def test_a_word_that_was_not_noted_again_is_left_open() -> None:
    state = running()
    context = context_of(state)
    context.progress("loading", 10)
    state.take_progress()

    context.progress(percent=20)

    assert state.take_progress() == Note(None, 20.0)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"phase": ""}, "phase"),
        ({"phase": "x" * (limits.PHASE_CHARS_MAX + 1)}, "phase"),
        ({"percent": 101}, "percent"),
        ({"percent": -1}, "percent"),
        ({"percent": "1"}, "percent"),
    ],
)
def test_progress_that_cannot_be_stored_is_refused_and_not_noted(options: Any, field: str) -> None:
    state = running()
    context = context_of(state)

    with pytest.raises(InvalidInput) as caught:
        context.progress(**options)

    assert caught.value.field == field
    assert state.take_progress() is None


# --- artifacts and follow-ups --------------------------------------------------------------------------------------


def test_artifacts_are_kept_and_one_of_the_same_name_is_replaced() -> None:
    context = context_of(running())

    context.attach("a.txt", b"1", "text/plain")
    context.attach("b.bin", b"2")
    context.attach("a.txt", b"3")

    assert context.artifacts == (Artifact("a.txt", b"3"), Artifact("b.bin", b"2"))


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (("", b""), "name"),
        (("a/b", b""), "name"),
        (("a", "text"), "data"),
        (("a", bytearray(b"x")), "data"),
        (("a", b"x" * (limits.ARTIFACT_BYTES_MAX + 1)), "data"),
        (("a", b"", ""), "media_type"),
    ],
    ids=["no name", "path", "text", "bytearray", "too large", "no type"],
)
def test_an_artifact_that_cannot_be_stored_is_refused(call: Any, field: str) -> None:
    context = context_of(running())

    with pytest.raises(InvalidInput) as caught:
        context.attach(*call)

    assert caught.value.field == field
    assert context.artifacts == ()


def test_there_is_a_limit_to_artifacts_but_not_to_replacing_them() -> None:
    context = context_of(running())
    for number in range(limits.ARTIFACTS_MAX):
        context.attach(f"{number}", b"")

    context.attach("0", b"new")
    with pytest.raises(InvalidInput, match=f"limit of {limits.ARTIFACTS_MAX} artifacts"):
        context.attach("one more", b"")

    assert len(context.artifacts) == limits.ARTIFACTS_MAX


def test_a_follow_up_is_given_by_kind_by_task_or_as_a_new_job(queue: Queue) -> None:
    context, task = context_of(running()), queue.task("email.send", priority=2)(send)

    context.follow_up("plain", {"a": 1}, delay=5)
    context.follow_up(task, {"to": "ada"})
    context.follow_up(task, {"to": "eve"}, priority=3)
    context.follow_up(task.new("bob"))

    assert context.follow_ups == (
        NewJob("plain", {"a": 1}, delay=5),
        NewJob("email.send", {"to": "ada"}, priority=2),
        NewJob("email.send", {"to": "eve"}, priority=3),
        NewJob("email.send", {"to": "bob"}, priority=2),
    )


def test_a_follow_up_is_kept_as_it_was_given() -> None:
    context, payload = context_of(running()), {"n": 1}

    context.follow_up("a", payload)
    payload["n"] = 2

    assert context.follow_ups == (NewJob("a", {"n": 1}),)


@pytest.mark.parametrize(
    ("call", "options", "field"),
    [
        (("",), {}, "kind"),
        ((3,), {}, "kind"),
        (("a", object()), {}, "payload"),
        (("a",), {"priority": "high"}, "priority"),
        (("a",), {"urgency": 1}, "urgency"),
        ((NewJob("a"), {"x": 1}), {}, "payload"),
        ((NewJob("a"),), {"priority": 1}, "priority"),
    ],
)
def test_a_follow_up_that_cannot_be_stored_is_refused(call: Any, options: Any, field: str) -> None:
    context = context_of(running())

    with pytest.raises(InvalidInput) as caught:
        context.follow_up(*call, **options)

    assert caught.value.field == field
    assert context.follow_ups == ()


def test_there_is_a_limit_to_follow_ups() -> None:
    context = context_of(running())
    for _ in range(limits.FOLLOW_UPS_MAX):
        context.follow_up("a")

    with pytest.raises(InvalidInput, match=f"limit of {limits.FOLLOW_UPS_MAX} follow-ups"):
        context.follow_up("a")


def test_what_was_collected_commits_with_the_settlement(queue: Queue) -> None:
    queue.enqueue("email.send", {"to": "ada"}, tenant="acme")
    claim = queue.claim()
    assert claim is not None
    state = HandlerState(claim)
    context = context_of(state)

    context.attach("letter.txt", b"Dear Ada", "text/plain")
    context.follow_up("email.archive", {"to": "ada"})
    queue.settle(claim, outcome_of({"sent": 1}, Policy(), state))

    assert queue.get(claim.job.id).result == {"sent": 1}
    assert queue.artifact(claim.job.id, "letter.txt").data == b"Dear Ada"
    assert [(job.kind, job.tenant) for job in queue.jobs(state="ready")] == [("email.archive", "acme")]


def test_many_threads_may_collect_at_once() -> None:
    context = context_of(running())

    def work(number: int) -> None:
        context.attach(f"{number}", b"")
        context.follow_up("a", number)
        context.progress(percent=number)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(100)))

    assert {artifact.name for artifact in context.artifacts} == {str(number) for number in range(100)}
    assert sorted(new.payload for new in context.follow_ups) == list(range(100))


# --- stopping ------------------------------------------------------------------------------------------------------


def test_a_handler_sees_that_it_shall_stop_and_why() -> None:
    state = running()
    context = context_of(state)
    context.raise_if_cancelled()
    assert context.stop_reason is None

    assert state.request_stop("timeout")
    assert not state.request_stop("cancel")

    assert context.cancelled
    assert context.stop_reason == "timeout"
    with pytest.raises(Cancelled):
        context.raise_if_cancelled()


def test_a_catcher_of_exceptions_does_not_swallow_the_stop() -> None:
    assert not issubclass(Cancelled, Exception)


def test_waiting_ends_when_the_handler_shall_stop() -> None:
    state, waits = running(), threading.Event()
    context = context_of(state)

    def handler() -> bool:
        waits.set()
        return context.wait_cancelled()

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(handler)
        assert waits.wait(PATIENCE_SECONDS)
        state.request_stop()
        assert waiting.result(PATIENCE_SECONDS)

    assert context.wait_cancelled(0)


def test_waiting_ends_after_its_time() -> None:
    assert not context_of(running()).wait_cancelled(0)


@pytest.mark.parametrize("timeout", [-1, "1", float("nan")])
def test_waiting_takes_a_duration(timeout: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^timeout: "):
        context_of(running()).wait_cancelled(timeout)


# --- the rest ------------------------------------------------------------------------------------------------------


def test_a_record_of_the_logger_carries_the_job(caplog: pytest.LogCaptureFixture) -> None:
    context = context_of(running())

    with caplog.at_level(logging.INFO, "holdfast.task"):
        context.logger.info("sent %d", 3, extra={"to": "ada"})

    [record] = caplog.records
    assert (record.name, record.getMessage()) == ("holdfast.task.email.send", "sent 3")
    fields = vars(record)
    assert (fields["job_id"], fields["kind"], fields["attempt"]) == (context.job.id, "email.send", 1)
    assert fields["to"] == "ada"


def test_a_transaction_needs_a_worker() -> None:
    with pytest.raises(Misconfigured, match="only in a handler that a worker runs"):
        context_of(running()).transaction()


@pytest.mark.parametrize("timeout", [0, limits.TRANSACTION_MS_MAX / 1000 + 1, "1"])
def test_a_transaction_is_bounded_in_time(timeout: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^timeout: "):
        context_of(running()).transaction(timeout=timeout)


def test_the_worker_opens_the_transaction_with_the_time_it_has() -> None:
    state, waits = running(), []
    context = context_of(state)

    def open_transaction(seconds: float) -> Any:
        waits.append(seconds)
        return "the block"

    state.open_transaction = open_transaction

    assert context.transaction() == "the block"  # type: ignore[comparison-overlap]
    context.transaction(timeout=1.5)
    assert waits == [5.0, 1.5]


def test_an_attempt_that_collected_nothing_is_plainly_done() -> None:
    assert outcome_of(None, Policy(), running()) == Done()
    assert holdfast.Context is Context
