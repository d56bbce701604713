"""OpenTelemetry spans of enqueue, claim, run and settle, connected by the W3C trace context in a job's headers.

The spans follow the semantic conventions for messaging: enqueue sends, claim receives, run processes, settle settles.
The context is added to the stored job and not to the call's arguments, so that a repeated call is still recognized.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from functools import lru_cache
from typing import Any, NamedTuple

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Tracer, TracerProvider, get_current_span, get_tracer
from opentelemetry.trace.propagation import set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from holdfast.client.middleware import AttemptObserver, CheckedSettlements, Middleware
from holdfast.client.queue_state import QueueState
from holdfast.domain import strict_json
from holdfast.domain.claims import Claim, ClaimRequest, Settlement
from holdfast.domain.job import Job, row_of
from holdfast.domain.new_job import CheckedJob, JobSettings
from holdfast.domain.results import StoredJob
from holdfast.telemetry.spans import OpenSpan, RunSpan, attributes, fail, fail_with_error
from holdfast.version import __version__

_W3C = TraceContextTextMapPropagator()
_HEADER = "traceparent"


def trace_queue(state: QueueState, provider: TracerProvider | None) -> None:
    """Create spans for a queue and the workers that use it."""
    tracer = get_tracer("holdfast", __version__, provider)
    middleware = (one for one in state.middleware if not isinstance(one, TracingMiddleware))
    state.middleware = (TracingMiddleware(tracer), *middleware)
    observers = (observer for observer in state.observers if not isinstance(observer, TracingObserver))
    state.observers = (*observers, TracingObserver(tracer))


class TracingMiddleware(Middleware):
    """Middleware that creates spans for enqueue, claim and settle."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def enqueue(self, jobs: Sequence[CheckedJob]) -> Generator[Sequence[CheckedJob], Sequence[StoredJob], None]:
        """Enqueue jobs in one span; their headers carry its context."""
        with OpenSpan(enqueue_span(self._tracer, jobs, None)) as span:
            stored = yield _with_trace_context(jobs, span)
            if len(stored) == 1:
                span.set_attribute("holdfast.job.created", stored[0].created)

    def claim(self, request: ClaimRequest) -> Generator[ClaimRequest, Sequence[Claim], None]:
        """Claim jobs; create a span unless no job was claimed."""
        with _ClaimSpan(self._tracer, request) as span:
            span.claims = yield request

    def settle(self, outcomes: CheckedSettlements) -> Generator[CheckedSettlements, Sequence[Settlement], None]:
        """Settle outcomes, each in a span of its job's trace."""
        with _SettleSpans(self._tracer, outcomes) as spans:
            spans.record((yield spans.traced))


def enqueue_span(tracer: Tracer, jobs: Sequence[CheckedJob], parent: Context | None) -> Span:
    """Start the span of an enqueue of these jobs and return it."""
    kinds = {job.settings.route.kind for job in jobs}
    values = attributes("enqueue", "send", {job.settings.route.lane for job in jobs}, kinds)
    if len(jobs) == 1:
        values["messaging.message.id"] = jobs[0].id
    else:
        values["messaging.batch.message_count"] = len(jobs)
    return tracer.start_span(_span_name("enqueue", kinds), parent, SpanKind.PRODUCER, values)


class _ClaimSpan:
    """The span of a claim, created after the claim; a claim without jobs creates none."""

    def __init__(self, tracer: Tracer, request: ClaimRequest) -> None:
        self.claims: Sequence[Claim] = ()
        self._tracer = tracer
        self._request = request
        self._started_ns = time.time_ns()

    def __enter__(self) -> _ClaimSpan:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not self.claims and error is None:
            return
        values = attributes("claim", "receive", set(self._request.lanes), {claim.job.kind for claim in self.claims})
        values["messaging.batch.message_count"] = len(self.claims)
        values["messaging.client.id"] = self._request.worker
        links = [link for claim in self.claims for link in _creation_context(row_of(claim.job).headers_json).links]
        name = _span_name("claim", self._request.lanes)
        span = self._tracer.start_span(
            name, kind=SpanKind.CLIENT, attributes=values, links=links, start_time=self._started_ns
        )
        OpenSpan(span).__exit__(kind, error, trace)


class _SettleSpans:
    """The spans of a settle: one for each job, in the job's trace, and one for its follow-ups."""

    def __init__(self, tracer: Tracer, outcomes: CheckedSettlements) -> None:
        self._tracer = tracer
        self._open = ExitStack()
        self._spans: list[Span] = []
        self._outcomes = outcomes
        self.traced: CheckedSettlements = outcomes
        """The same outcomes; their follow-ups carry the trace context."""

    def __enter__(self) -> _SettleSpans:
        self._open.__enter__()
        self.traced = [(claim, self._start_span(claim, checked)) for claim, checked in self._outcomes]
        return self

    def _start_span(self, claim: Claim, checked: Any) -> Any:
        job = claim.job
        values = attributes("settle", "settle", {job.lane}, {job.kind})
        values["messaging.message.id"] = job.id
        values["holdfast.job.outcome"] = type(checked.outcome).__name__.lower()
        parent = _creation_context(row_of(job).headers_json).context
        # A caller that settles directly may be in a span of another trace.
        current_context = get_current_span().get_span_context()
        links = [Link(current_context)] if current_context.is_valid and parent is not None else []
        span = self._tracer.start_span(_span_name("settle", {job.kind}), parent, SpanKind.CLIENT, values, links)
        self._spans.append(self._open.enter_context(OpenSpan(span)))
        if not checked.follow_ups:
            return checked
        follow_up_span = enqueue_span(self._tracer, checked.follow_ups, set_span_in_context(span))
        self._open.enter_context(OpenSpan(follow_up_span))
        return checked._replace(follow_ups=tuple(_with_trace_context(checked.follow_ups, follow_up_span)))

    def record(self, settlements: Sequence[Settlement]) -> None:
        """Set the result of each settlement on its span."""
        for span, settlement in zip(self._spans, settlements, strict=True):
            if settlement.error is not None:
                fail_with_error(span, settlement.error)
            elif settlement.job is not None:
                span.set_attribute("holdfast.job.state", settlement.job.state)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._open.__exit__(kind, error, trace)


class TracingObserver(AttemptObserver):
    """Runs each handler in a span of its job's trace."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._started: set[tuple[int, int]] = set()
        """The attempts whose handlers run in this process."""
        self.running = self._running

    def _running(self, claim: Claim) -> RunSpan:
        self._started.add((claim.job.number, claim.job.epoch))
        return RunSpan(self._span(claim, None))

    def ended(self, claim: Claim, outcome: str, job: Job | None, seconds: float | None) -> None:
        """Create the span of a handler that ran in another process, such as an isolated one, after its end."""
        key = (claim.job.number, claim.job.epoch)
        if key in self._started:
            self._started.discard(key)
        elif seconds is not None:
            span = self._span(claim, time.time_ns() - round(seconds * 1e9))
            if outcome == "failed":
                failure = None if job is None else job.failure
                fail(span, "failed" if failure is None else failure.reason, failure.message if failure else "")
            span.end()

    def _span(self, claim: Claim, started_ns: int | None) -> Span:
        job = claim.job
        values = attributes("run", "process", {job.lane}, {job.kind})
        values.update(
            {
                "messaging.message.id": job.id,
                "messaging.client.id": job.worker or "",
                "holdfast.job.attempt": job.attempt,
                "holdfast.job.epoch": job.epoch,
            }
        )
        parent, links = _creation_context(row_of(job).headers_json)
        return self._tracer.start_span(
            _span_name("run", {job.kind}), parent, SpanKind.CONSUMER, values, links, start_time=started_ns
        )


class _CreationContext(NamedTuple):
    """The trace context in which a job was enqueued, as a parent and as a link."""

    context: Context | None
    links: tuple[Link, ...]


# Headers are decoded at claim, run and settle, and jobs of one enqueue share them; so cache the result.
@lru_cache(4_096)
def _creation_context(headers_json: str) -> _CreationContext:
    if _HEADER not in headers_json:
        return _CreationContext(None, ())
    context = _W3C.extract(strict_json.decode(headers_json))
    span_context = get_current_span(context).get_span_context()
    return _CreationContext(context, (Link(span_context),)) if span_context.is_valid else _CreationContext(None, ())


def _with_trace_context(jobs: Sequence[CheckedJob], span: Span) -> list[CheckedJob]:
    """Return *jobs* with the context of *span* in their headers, unless their headers have a context."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, set_span_in_context(span))
    if not carrier:
        return list(jobs)
    updated_by_id: dict[int, JobSettings] = {}
    return [job._replace(settings=_with_headers(job.settings, carrier, updated_by_id)) for job in jobs]


def _with_headers(
    settings: JobSettings, carrier: dict[str, str], updated_by_id: dict[int, JobSettings]
) -> JobSettings:
    # Many jobs share one settings object.
    updated = updated_by_id.get(id(settings))
    if updated is None:
        headers = strict_json.decode(settings.headers_json)
        if not any(name.lower() == _HEADER for name in headers):
            headers = {**headers, **carrier}
        updated = updated_by_id[id(settings)] = settings._replace(headers_json=strict_json.compact(headers))
    return updated


def _span_name(operation: str, objects: Sequence[str] | set[str]) -> str:
    return f"{operation} {next(iter(objects))}" if len(objects) == 1 else operation
