"""Every return value or exception of a handler becomes one outcome that settle accepts."""

from __future__ import annotations

import asyncio
import socket
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, strategies as st

from holdfast import (
    Artifact,
    Backoff,
    Cancelled,
    Defer,
    Deferred,
    Done,
    Fail,
    Failed,
    InvalidInput,
    LeaseLost,
    NewJob,
    Outcome,
    Queue,
    Released,
    Retry,
)
from holdfast.domain import limits
from holdfast.domain.outcomes import check_outcome
from holdfast.errors import StoreBusy
from holdfast.tasks.arguments import PayloadInvalid
from holdfast.tasks.context import context_of
from holdfast.tasks.handler_state import HandlerState
from holdfast.tasks.outcomes import outcome_of
from holdfast.types import Policy
from tests.tasks.attempts import running
from tests.tasks.models import Note, Order, Point

MOMENT = datetime(2026, 1, 2, tzinfo=UTC)


class SMTPServerDisconnected(OSError): ...  # noqa: N818


class UnshowableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def raised(error: BaseException) -> BaseException:
    """Return *error* with the traceback it has after being raised."""
    try:
        raise error
    except BaseException as caught:
        return caught


def ended(value: object, policy: Policy | None = None, state: HandlerState | None = None) -> Outcome:
    """Return the outcome after checking that settle would accept it."""
    outcome = outcome_of(value, policy or Policy(), state or running())
    check_outcome(outcome, tenant="default", fresh_id=lambda: "id")
    return outcome


def failed(value: object, policy: Policy | None = None, state: HandlerState | None = None) -> Failed:
    outcome = ended(value, policy, state)
    assert isinstance(outcome, Failed)
    return outcome


# --- returned ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "result"),
    [
        (None, None),
        ({"a": [1, "x"]}, {"a": [1, "x"]}),
        (Point(1, 2), {"x": 1, "y": 2}),
        ([Point(1), MOMENT], [{"x": 1, "y": 0}, "2026-01-02T00:00:00+00:00"]),
        ((1, Decimal("1.5")), [1, "1.5"]),
        (Note("a", MOMENT), {"text": "a", "at": "2026-01-02T00:00:00Z", "ranks": {}}),
        (Order(number=1, placed_at=MOMENT), {"number": 1, "placed_at": "2026-01-02T00:00:00Z", "lines": []}),
        (Done(Point(1)), {"x": 1, "y": 0}),
    ],
)
def test_what_is_returned_is_the_result(value: object, result: object) -> None:
    assert ended(value) == Done(result)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "result: a object cannot be encoded as JSON"),
        ({"a": [b"x"]}, "result.a[0]: a bytes cannot be encoded as JSON"),
        ({1: 2}, "result: has the key 1"),
        ("a\0b", "result: contains the character U+0000"),
        ("x" * limits.RESULT_BYTES_MAX, "result: is 1048578 bytes"),
        (Done(follow_ups=[{"payload": 1}]), "follow_ups[0].kind: is missing"),
        (Done(artifacts=[Artifact("a/b", b"")]), "artifacts[0].name: "),
        (Done(artifacts=3), "artifacts: must be a list"),  # type: ignore[arg-type]
        (Failed("x", reason="Not A Code"), "reason: "),
        (Deferred(), "after: give either after or until"),
    ],
)
def test_what_cannot_be_stored_fails_for_good(value: object, message: str) -> None:
    outcome = failed(value)

    assert (outcome.reason, outcome.permanent) == ("result_invalid", True)
    assert outcome.message.startswith(message)


@pytest.mark.parametrize("outcome", [Failed("no", reason="smtp"), Deferred(after=3), Released()])
def test_an_outcome_that_is_returned_is_the_outcome(outcome: Outcome) -> None:
    assert ended(outcome) is outcome


def test_a_returned_success_is_joined_with_what_was_collected() -> None:
    state = running()
    context = context_of(state)
    context.attach("a", b"collected")
    context.attach("b", b"collected")
    context.follow_up("first")

    outcome = ended(Done(1, [NewJob("second")], [Artifact("b", b"returned")]), state=state)

    assert outcome == Done(
        1, (NewJob("first"), NewJob("second")), (Artifact("a", b"collected"), Artifact("b", b"returned"))
    )


@pytest.mark.parametrize("wrong", [3, [3], "x"])
def test_a_wrong_list_beside_what_was_collected_is_named(wrong: Any) -> None:
    state = running()
    context = context_of(state)
    context.attach("a", b"")

    assert failed(Done(artifacts=wrong), state=state).message.startswith("artifacts")


def test_a_failure_brings_nothing_that_was_collected() -> None:
    state = running()
    context = context_of(state)
    context.attach("a", b"")
    context.follow_up("next")

    assert ended(Failed("no"), state=state) == Failed("no")


@pytest.mark.parametrize(
    ("value", "outcome"),
    [
        (None, Done(usage={"tokens": 7})),
        (Done(1, usage={"tokens": 9}), Done(1, usage={"tokens": 9})),
        (Failed("no"), Failed("no", usage={"tokens": 7})),
        (Deferred(after=3), Deferred(after=3, usage={"tokens": 7})),
        (Released(), Released()),
    ],
)
def test_what_was_used_is_reported_with_any_outcome_but_a_release(value: object, outcome: Outcome) -> None:
    state = running()
    context_of(state).used(tokens=3)
    context_of(state).used(tokens=4)
    with pytest.raises(InvalidInput, match=r"usage\.tokens"):
        context_of(state).used(tokens=-1)

    assert ended(value, state=state) == outcome


# --- raised --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no"), "value_error"),
        (SMTPServerDisconnected("no"), "smtp_server_disconnected"),
        (socket.gaierror("no"), "gaierror"),
        (KeyError("no"), "key_error"),
        (StoreBusy("no"), "store_busy"),
        (LeaseLost("a", 1, "no"), "lease_lost"),
        (type("Ünlesbar", (Exception,), {})("no"), "nlesbar"),
        (type("E" * 100, (Exception,), {})("no"), "e" * limits.REASON_CHARS_MAX),
        (type("_", (Exception,), {})("no"), "error"),
        (SystemExit(3), "system_exit"),
        (asyncio.CancelledError(), "cancelled_error"),
    ],
)
def test_an_exception_is_a_transient_failure_named_by_its_class(error: BaseException, reason: str) -> None:
    outcome = failed(raised(error))

    assert (outcome.reason, outcome.permanent, outcome.retry_after) == (reason, False, None)
    assert outcome.traceback is not None
    assert "raise error" in outcome.traceback


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("no"), "no"),
        (ValueError(), "ValueError"),
        (UnshowableError(), "a UnshowableError whose message cannot be shown"),
    ],
)
def test_the_message_is_the_text_of_the_exception(error: Exception, message: str) -> None:
    assert failed(error).message == message


def test_an_unreadable_payload_fails_for_good() -> None:
    outcome = failed(raised(PayloadInvalid("arguments", ".to", "is missing")), Policy(retry_on=(Exception,)))

    assert outcome == Failed("arguments.to: is missing", reason="payload_invalid", permanent=True)


@pytest.mark.parametrize(
    ("policy", "error", "permanent"),
    [
        (Policy(), ValueError(), False),
        (Policy(permanent_on=(ValueError,)), ValueError(), True),
        (Policy(permanent_on=(ValueError,)), UnicodeError(), True),
        (Policy(permanent_on=(ValueError,)), KeyError(), False),
        (Policy(permanent_on=(ConnectionError,)), ConnectionResetError(), True),
        (Policy(retry_on=(ValueError,)), ValueError(), False),
        (Policy(retry_on=(ValueError,)), KeyError(), True),
        (Policy(retry_on=(Exception,), permanent_on=(ValueError,)), ValueError(), True),
        (Policy(retry_on=(Exception,), permanent_on=(ValueError,)), KeyError(), False),
        (Policy(retry_on=(ValueError,)), ConnectionResetError(), False),
        (Policy(retry_on=(ValueError,)), TimeoutError(), False),
        (Policy(retry_on=(ValueError,)), socket.gaierror(), False),
        (Policy(retry_on=(ValueError,)), OSError(113, "no route"), False),
        (Policy(retry_on=(ValueError,)), StoreBusy(), False),
        (Policy(retry_on=(ValueError,)), FileNotFoundError(), True),
        (Policy(retry_on=(FileNotFoundError,)), FileNotFoundError(), False),
    ],
)
def test_a_policy_says_which_errors_are_worth_another_attempt(
    policy: Policy, error: Exception, permanent: bool
) -> None:
    assert failed(error, policy).permanent is permanent


def test_the_backoff_of_a_task_serves_jobs_that_bring_none() -> None:
    policy = Policy(backoff=Backoff(base=1))

    assert failed(ValueError(), policy).backoff == Backoff(base=1)
    assert failed(Retry(), policy).backoff == Backoff(base=1)
    assert failed(ValueError(), policy, running(backoff=Backoff(base=2))).backoff is None


# --- requested -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [raised, lambda asked: asked], ids=["raised", "returned"])
def test_a_handler_may_ask_for_its_outcome(how: Any) -> None:
    assert ended(how(Retry())) == Failed("the handler requested a retry", reason="retry")
    assert ended(how(Retry("busy", after=30, reason="rate_limit"))) == Failed("busy", "rate_limit", retry_after=30)
    assert ended(how(Retry("busy", after=30, closes=True))) == Deferred(after=30, closes=True)
    assert ended(how(Fail("no such user", reason="no_user"))) == Failed("no such user", "no_user", permanent=True)
    assert ended(how(Defer(after=5))) == Deferred(after=5)
    assert ended(how(Defer(until=MOMENT))) == Deferred(until=MOMENT)


def test_what_was_asked_because_of_an_error_tells_of_it() -> None:
    try:
        try:
            raise ValueError("the true cause")
        except ValueError as error:
            raise Fail("given up") from error
    except Fail as asked:
        outcome = failed(asked)

    assert outcome.traceback is not None
    assert "the true cause" in outcome.traceback


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Retry(after=-1), "after"),
        (lambda: Retry(reason="Not A Code"), "reason"),
        (lambda: Retry(30), "message"),  # type: ignore[arg-type]
        (lambda: Fail("no", reason=""), "reason"),
        (lambda: Fail(None), "message"),  # type: ignore[arg-type]
        (Defer, "after"),
        (lambda: Defer(after=1, until=MOMENT), "after"),
        (lambda: Defer(after=-1), "after"),
        (lambda: Defer(until=datetime(2026, 1, 1)), "until"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_where_it_is_asked(make: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        make()

    assert caught.value.field == field


@pytest.mark.parametrize("error", [Cancelled(), asyncio.CancelledError()])
def test_a_handler_that_stopped_when_told_to_gives_the_job_back(error: BaseException) -> None:
    state = running()
    state.request_stop("shutdown")

    assert ended(error, state=state) == Released()


def test_a_handler_that_was_stopped_for_its_time_has_failed() -> None:
    state = running()
    state.request_stop("timeout")

    outcome = failed(Cancelled(), Policy(timeout_seconds=2.5), state)

    assert (outcome.reason, outcome.permanent) == ("timeout", False)
    assert outcome.message == "the attempt took longer than 2.5 s"


def test_a_job_that_was_cancelled_ends_so_when_its_handler_stops(queue: Queue) -> None:
    queue.enqueue("a")
    claim = queue.claim()
    assert claim is not None
    state = HandlerState(claim)
    queue.cancel(claim.job.id)
    state.request_stop()

    queue.settle(claim, outcome_of(Cancelled(), Policy(), state))

    assert queue.get(claim.job.id).state == "cancelled"


# --- everything ----------------------------------------------------------------------------------------------------

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.datetimes() | st.uuids(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text() | st.integers(), below, max_size=3),
    max_leaves=8,
)
STATE = running()


@given(value=anything)
def test_whatever_is_returned_can_be_settled(value: object) -> None:
    ended(value, state=STATE)


@given(name=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1), text=st.text())
def test_whatever_is_raised_can_be_settled(name: str, text: str) -> None:
    ended(type(name, (Exception,), {})(text), state=STATE)


def test_a_follow_up_that_changes_after_the_end_is_settled_as_it_was() -> None:
    payload = {"pages": [1]}
    named = {"kind": "next", "payload": payload, "priority": 3}
    outcome = outcome_of(Done(None, [NewJob("next", payload, priority=2), named]), Policy(), running())
    payload["pages"].append(2)

    expected = [NewJob("next", {"pages": [1]}, priority=2), NewJob("next", {"pages": [1]}, priority=3)]
    assert outcome == Done(None, tuple(expected))
