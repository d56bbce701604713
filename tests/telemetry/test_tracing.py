"""The spans of a job form one trace, connected by its headers; tracing changes nothing else in the stored job."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from opentelemetry import trace as api
from opentelemetry.trace import SpanKind, StatusCode

import holdfast
from holdfast import Backoff, Context, Defer, Done, Failed, NewJob, telemetry, testing
from holdfast.client.queue_state import state_of
from holdfast.types import EndedAttempt
from tests.chaos.threads import wait_until
from tests.support.clock import ManualClock
from tests.support.stores import Harness
from tests.telemetry.spans import Spans, context_of, is_below, links
from tests.worker.workers import Outage, running_worker, wait_finished, wait_for_event


@pytest.fixture
def traced(queue: holdfast.Queue, spans: Spans) -> holdfast.Queue:
    telemetry.trace(queue, tracer_provider=spans.provider)
    return queue


def test_a_job_carries_the_context_of_its_enqueue_in_its_headers(traced: holdfast.Queue, spans: Spans) -> None:
    with spans.tracer.start_as_current_span("request"):
        result = traced.enqueue("mail", headers={"x": "1"})

    span = spans.one("enqueue mail")
    assert is_below(span, spans.one("request"))
    context = context_of(span)
    traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    assert result.job.headers == {"x": "1", "traceparent": traceparent}
    assert span.kind is SpanKind.PRODUCER
    assert span.attributes == {
        "messaging.system": "holdfast",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.destination.name": "default",
        "messaging.message.id": result.id,
        "holdfast.job.kind": "mail",
        "holdfast.job.created": True,
    }


def test_a_context_that_the_caller_brings_is_left_alone(traced: holdfast.Queue) -> None:
    brought = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    assert traced.enqueue("mail", headers={"Traceparent": brought}).job.headers == {"Traceparent": brought}


def test_many_jobs_of_one_call_share_its_span(traced: holdfast.Queue, spans: Spans) -> None:
    result = traced.enqueue_many([NewJob("mail"), NewJob("mail", headers={"x": "1"}), NewJob("scan", lane="slow")])

    span = spans.one("enqueue")
    assert {one.job.headers["traceparent"].split("-")[2] for one in result} == {f"{context_of(span).span_id:016x}"}
    assert [one.job.headers.get("x") for one in result] == [None, "1", None]
    assert span.attributes is not None
    assert span.attributes["messaging.batch.message_count"] == 3


def test_a_claim_and_a_settle_by_hand_are_joined_to_the_enqueue(traced: holdfast.Queue, spans: Spans) -> None:
    traced.enqueue_many([NewJob("mail"), NewJob("mail")])
    claims = traced.claim_many(worker="w", limit=2)
    traced.settle(claims[0], Done())

    enqueued, claimed, settled = spans.one("enqueue mail"), spans.one("claim default"), spans.one("settle mail")
    assert links(claimed) == [context_of(enqueued).span_id] * 2
    assert (claimed.kind, settled.kind) == (SpanKind.CLIENT, SpanKind.CLIENT)
    assert claimed.attributes is not None
    assert claimed.attributes["messaging.batch.message_count"] == 2
    assert claimed.attributes["messaging.client.id"] == "w"
    assert is_below(settled, enqueued)
    assert settled.attributes is not None
    assert settled.attributes["holdfast.job.outcome"] == "done"
    assert settled.attributes["holdfast.job.state"] == "done"


def test_a_claim_that_finds_nothing_leaves_no_span(traced: holdfast.Queue, spans: Spans) -> None:
    assert traced.claim() is None
    assert spans.names() == []


def test_a_settle_that_is_refused_says_so(traced: holdfast.Queue, spans: Spans, clock: ManualClock) -> None:
    traced.enqueue("mail")
    claim = traced.claim(lease=1)
    assert claim is not None
    clock.advance(2)

    with pytest.raises(holdfast.LeaseLost):
        traced.settle(claim, Done())

    refused = spans.one("settle mail")
    assert refused.status.status_code is StatusCode.ERROR
    assert refused.attributes is not None
    assert refused.attributes["error.type"] == "lease_lost"


def test_a_call_that_the_store_refuses_ends_its_span_with_the_error(traced: holdfast.Queue, spans: Spans) -> None:
    traced.enqueue("mail", job_id="one")
    with pytest.raises(holdfast.Conflict):
        traced.enqueue("mail", {"other": 1}, job_id="one")

    [_, refused] = spans.all("enqueue mail")
    assert refused.status.status_code is StatusCode.ERROR
    assert refused.attributes is not None
    assert refused.attributes["error.type"] == "conflict"


def test_an_enqueue_sent_again_under_another_span_is_still_the_same(traced: holdfast.Queue) -> None:
    first = traced.enqueue("mail", {"n": 1}, job_id="one")
    again = traced.enqueue("mail", {"n": 1}, job_id="one")

    assert not again.created
    assert again.job == first.job


def test_a_settle_sent_again_with_its_follow_ups_is_still_the_same(traced: holdfast.Queue) -> None:
    traced.enqueue("mail")
    claim = traced.claim()
    assert claim is not None
    outcome = Done(follow_ups=[NewJob("next")])

    traced.settle(claim, outcome)
    traced.settle(claim, outcome)

    assert traced.counts(by="kind") == {"mail": 1, "next": 1}


def test_a_transaction_and_an_awaited_queue_are_traced_as_well(harness: Harness, spans: Spans) -> None:
    queue = harness.open_async()
    telemetry.trace(queue, tracer_provider=spans.provider)

    async def main() -> holdfast.types.AsyncEnqueued[Any]:
        async with queue.transaction() as transaction:
            result = await transaction.enqueue("mail")
        claim = await queue.claim()
        assert claim is not None
        await queue.settle(claim, Failed("no", permanent=True))
        await queue.close()
        return result

    result = asyncio.run(main())

    assert spans.names() == ["claim default", "enqueue mail", "settle mail"]
    assert "traceparent" in result.job.headers


# --- sessions ------------------------------------------------------------------------------------------------------


def test_a_claim_and_a_settle_of_a_turn_are_joined_to_the_enqueues(traced: holdfast.Queue, spans: Spans) -> None:
    made = [traced.enqueue("chat", n, session="s", join=True) for n in range(2)]
    turn = traced.sessions.claim("s", worker="w")
    assert turn is not None
    traced.sessions.settle(turn, Done(follow_ups=[NewJob("next")]))

    enqueued, claimed, settled = spans.all("enqueue chat"), spans.one("claim default"), spans.all("settle chat")
    assert links(claimed) == [context_of(span).span_id for span in enqueued]
    assert claimed.attributes is not None
    assert claimed.attributes["holdfast.session"] == "s"
    assert claimed.attributes["messaging.batch.message_count"] == 2
    by_id = {span.attributes["messaging.message.id"]: span for span in settled if span.attributes}
    assert all(is_below(by_id[one.id], span) for one, span in zip(made, enqueued, strict=True))
    assert {span.attributes["holdfast.job.state"] for span in settled if span.attributes} == {"done"}
    assert is_below(spans.one("enqueue next"), by_id[made[0].id])


def test_a_turn_that_is_refused_says_so(traced: holdfast.Queue, spans: Spans, clock: ManualClock) -> None:
    traced.enqueue("chat", session="s")
    turn = traced.sessions.claim_next(lease=1)
    assert turn is not None
    clock.advance(2)

    with pytest.raises(holdfast.LeaseLost):
        traced.sessions.settle(turn, Done())

    assert spans.one("settle chat").status.status_code is StatusCode.ERROR


def test_a_worker_runs_a_turn_below_its_first_entry_and_links_the_others(
    traced: holdfast.Queue, spans: Spans
) -> None:
    seen: list[int] = []

    @traced.session_task("chat", join=True)
    async def chat(context: holdfast.AsyncSessionContext[int], messages: list[int]) -> None:
        seen.append(api.get_current_span().get_span_context().span_id)

    for n in range(2):
        traced.enqueue("chat", n, session="s", join=True)
    testing.drain(traced)

    enqueued, run = spans.all("enqueue chat"), spans.one("run chat")
    assert seen == [context_of(run).span_id]
    assert is_below(run, enqueued[0])
    assert links(run) == [context_of(span).span_id for span in enqueued]
    assert run.attributes is not None
    assert run.attributes["holdfast.session"] == "s"
    assert run.attributes["messaging.batch.message_count"] == 2


# --- in a worker ---------------------------------------------------------------------------------------------------


def test_a_worker_runs_a_job_below_its_enqueue_and_what_follows_goes_on_with_the_trace(
    traced: holdfast.Queue, spans: Spans
) -> None:
    seen: list[int] = []

    @traced.task("first")
    def first(context: Context) -> None:
        seen.append(api.get_current_span().get_span_context().span_id)
        context.follow_up(second.new())
        third.enqueue()

    @traced.task("second")
    async def second() -> None:
        seen.append(api.get_current_span().get_span_context().span_id)

    @traced.task("third")
    def third() -> None:
        pass

    with spans.tracer.start_as_current_span("request"):
        result = first.enqueue()
    with running_worker(traced) as working:
        wait_finished(traced, result.id)
        for job in traced.jobs():
            wait_finished(traced, job.id)
        working.worker.stop()
        working.end()

    run, settle = spans.one("run first"), spans.one("settle first")
    assert is_below(run, spans.one("enqueue first"))
    assert links(run) == [context_of(spans.one("enqueue first")).span_id]
    assert run.kind is SpanKind.CONSUMER
    assert is_below(settle, spans.one("enqueue first"))
    assert is_below(spans.one("enqueue second"), settle)
    assert is_below(spans.one("run second"), spans.one("enqueue second"))
    assert is_below(spans.one("enqueue third"), run)
    assert is_below(spans.one("run third"), spans.one("enqueue third"))
    assert seen == [context_of(spans.one(f"run {kind}")).span_id for kind in ("first", "second")]
    traces = {context_of(span).trace_id for span in spans.exporter.get_finished_spans() if "claim" not in span.name}
    assert len(traces) == 1


def test_after_a_run_its_span_is_current_no_more(traced: holdfast.Queue, spans: Spans) -> None:
    queue = traced

    @queue.task("task")
    def task() -> None:
        raise ValueError

    @queue.task("awaited")
    async def awaited() -> None: ...

    task.enqueue()
    awaited.enqueue()
    testing.drain(queue, raises=False)

    assert not api.get_current_span().get_span_context().is_valid
    assert is_below(spans.one("run awaited"), spans.one("enqueue awaited"))


def test_what_a_handler_raises_stands_on_its_span(traced: holdfast.Queue, spans: Spans) -> None:
    below: list[bool] = []

    @traced.task("task", backoff=Backoff(base=0))
    def task(context: Context) -> None:
        below.append(api.get_current_span().get_span_context().is_valid)
        if context.attempt == 1 and not context.job.deferrals:
            raise Defer(after=0)
        if context.attempt == 1:
            raise ValueError("not yet")

    result = task.enqueue()
    with running_worker(traced, concurrency=1):
        wait_finished(traced, result.id)

    deferred, failed, done = spans.all("run task")
    assert deferred.status.status_code is done.status.status_code is StatusCode.UNSET
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.attributes is not None
    assert failed.attributes["error.type"] == "ValueError"
    assert [event.name for event in failed.events] == ["exception"]
    assert below == [True, True, True]
    assert all(is_below(run, spans.one("enqueue task")) for run in (deferred, failed, done))


def test_a_handler_that_ran_elsewhere_has_its_span_once_it_is_over(traced: holdfast.Queue, spans: Spans) -> None:
    traced.enqueue("mail")
    claim = traced.claim()
    assert claim is not None
    job = traced.settle(claim, Failed("killed", reason="memory_limit"))
    [tracing] = state_of(traced).middleware

    tracing.ended(EndedAttempt([claim], "failed", [job], 2.5, isolated=True))

    run = spans.one("run mail")
    assert is_below(run, spans.one("enqueue mail"))
    assert run.end_time is not None
    assert run.start_time is not None
    assert run.end_time - run.start_time >= 2.5e9
    assert (run.status.status_code, run.status.description) == (StatusCode.ERROR, "killed")
    assert run.attributes is not None
    assert run.attributes["error.type"] == "memory_limit"


def test_an_attempt_that_never_ran_has_no_span(traced: holdfast.Queue, spans: Spans) -> None:
    traced.enqueue("mail")
    claim = traced.claim()
    assert claim is not None
    [tracing] = state_of(traced).middleware

    tracing.ended(EndedAttempt([claim], "released", [], None, isolated=True))

    assert spans.all("run mail") == []


def test_a_lost_answer_does_not_make_a_worker_lose_what_follows(harness: Harness, spans: Spans) -> None:
    outage = Outage(harness)
    queue = harness.open()
    telemetry.trace(queue, tracer_provider=spans.provider)

    @queue.task("first")
    def first(context: Context) -> None:
        context.follow_up(NewJob("second"))
        outage.lose_answers(1)
        began.set()

    result, began = first.enqueue(), threading.Event()
    with running_worker(queue) as working:
        # No earlier store call, so that the lost answer is that of the worker.
        wait_for_event(began)
        wait_until(lambda: outage.answers_lost)
        wait_finished(queue, result.id)
        working.worker.stop()
        working.end()

    assert outage.answers_lost
    assert working.worker.status().ended == {"done": 1}
    assert queue.counts(by="kind") == {"first": 1, "second": 1}


def test_tracing_twice_makes_each_span_once(queue: holdfast.Queue, spans: Spans) -> None:
    for _ in range(2):
        telemetry.trace(queue, tracer_provider=spans.provider)
    queue.task("task")(lambda: None)
    result = queue.enqueue("task", {})
    with running_worker(queue) as working:
        wait_finished(queue, result.id)
        working.worker.stop()
        working.end()

    assert spans.names() == ["claim default", "enqueue task", "run task", "settle task"]


def test_a_queue_that_is_not_traced_stores_no_header(queue: holdfast.Queue, spans: Spans) -> None:
    with spans.tracer.start_as_current_span("request"):
        assert queue.enqueue("mail").job.headers == {}


def test_a_provider_that_traces_nothing_leaves_the_headers_as_they_are(queue: holdfast.Queue) -> None:
    telemetry.trace(queue, tracer_provider=api.NoOpTracerProvider())

    assert queue.enqueue("mail").job.headers == {}


@pytest.mark.parametrize("module", ["opentelemetry", "prometheus_client"])
def test_what_is_not_installed_is_named_with_what_to_install(
    module: str, queue: holdfast.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    for name in [name for name in sys.modules if name.split(".")[0] == module or "holdfast.telemetry." in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    ask: Any = telemetry.trace if module == "opentelemetry" else telemetry.metrics

    with pytest.raises(holdfast.Misconfigured, match=rf"\.\[{module.removesuffix('_client')}\]"):
        ask(queue)
