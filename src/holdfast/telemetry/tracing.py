"""OpenTelemetry spans of enqueue, claim, run and settle, connected by the W3C trace context in a job's headers.

The spans follow the semantic conventions for messaging: enqueue sends, claim receives, run processes, settle settles.
The context is added to the stored job and not to the call's arguments, so that a repeated call is still recognized.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

from opentelemetry.context import Context as TraceContext
from opentelemetry.trace import Link, Span, SpanKind, Tracer, TracerProvider, get_current_span, get_tracer
from opentelemetry.trace.propagation import set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from holdfast.client.middleware import ClaimCall, EndedAttempt, JobDraft, Middleware
from holdfast.client.queue_state import QueueState
from holdfast.domain import claims, results, strict_json
from holdfast.domain.job import Job, row_of
from holdfast.domain.outcomes import Outcome
from holdfast.tasks.context import Context
from holdfast.tasks.session_context import BaseSessionContext
from holdfast.telemetry.spans import OpenSpan, RunSpan, attributes, fail, fail_with_error
from holdfast.version import __version__
from holdfast.worker import isolation

_W3C = TraceContextTextMapPropagator()
_HEADER = "traceparent"


def trace_queue(state: QueueState, provider: TracerProvider | None) -> None:
    """Create spans for a queue and the workers that use it."""
    tracer = get_tracer("holdfast", __version__, provider)
    middleware = (one for one in state.middleware if not isinstance(one, TracingMiddleware))
    state.middleware = (TracingMiddleware(tracer), *middleware)


class TracingMiddleware(Middleware):
    """Middleware that creates spans for enqueue, claim, run and settle."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._settling: dict[tuple[int, int], Span] = {}
        """The spans of open settle calls, by number and epoch of the job, as parents of its follow-ups."""

    def enqueue(self, jobs: Sequence[JobDraft]) -> Generator[None, Sequence[results.StoredJob], None]:
        """Enqueue jobs in one span; their headers carry its context."""
        claim = jobs[0].claim if jobs else None
        settling = None if claim is None else self._settling.get(_key(claim))
        parent = None if settling is None else set_span_in_context(settling)
        kinds = {job.kind for job in jobs}
        values = attributes("enqueue", "send", {job.lane for job in jobs}, kinds)
        if len(jobs) == 1:
            values["messaging.message.id"] = jobs[0].id
        else:
            values["messaging.batch.message_count"] = len(jobs)
        span = self._tracer.start_span(_span_name("enqueue", kinds), parent, SpanKind.PRODUCER, values)
        with OpenSpan(span):
            _add_trace_context(jobs, span)
            stored = yield
            if len(stored) == 1:
                span.set_attribute("messaging.message.id", stored[0].job.id)
                span.set_attribute("holdfast.job.created", stored[0].created)

    def claim(self, call: ClaimCall) -> Generator[None, Sequence[claims.Claim], None]:
        """Claim jobs; create a span unless no job was claimed."""
        with _ClaimSpan(self._tracer, call) as span:
            span.claims = yield

    def settle(
        self, outcomes: Sequence[tuple[claims.Claim, Outcome]]
    ) -> Generator[None, Sequence[claims.Settlement], None]:
        """Settle outcomes, each in a span of its job's trace."""
        with ExitStack() as open_spans:
            spans = [open_spans.enter_context(self._settle_span(*pair)) for pair in outcomes]
            settlements = yield
            for span, settlement in zip(spans, settlements, strict=True):
                if settlement.error is not None:
                    fail_with_error(span, settlement.error)
                elif settlement.job is not None:
                    span.set_attribute("holdfast.job.state", settlement.job.state)

    @contextmanager
    def _settle_span(self, claim: claims.Claim, outcome: Outcome) -> Iterator[Span]:
        job = claim.job
        values = attributes("settle", "settle", {job.lane}, {job.kind})
        values["messaging.message.id"] = job.id
        values["holdfast.job.outcome"] = type(outcome).__name__.lower()
        _add_session(values, job)
        parent = _creation_context(row_of(job).headers_json).context
        # A caller that settles directly may be in a span of another trace.
        current_context = get_current_span().get_span_context()
        links = [Link(current_context)] if current_context.is_valid and parent is not None else []
        span = self._tracer.start_span(_span_name("settle", {job.kind}), parent, SpanKind.CLIENT, values, links)
        self._settling[_key(claim)] = span
        try:
            with OpenSpan(span):
                yield span
        finally:
            self._settling.pop(_key(claim), None)

    def run(self, context: Context) -> Generator[None, Any, None]:
        """Run a handler in a span of its job's trace, except in an isolated process: see `ended`."""
        if isolation.inside:
            yield
            return
        entries = context.entries if isinstance(context, BaseSessionContext) else (context.job,)
        with RunSpan(self._run_span(entries, None)):
            yield

    def ended(self, attempt: EndedAttempt) -> None:
        """Create the span of a handler that ran in an isolated process, whose own spans may be lost with it."""
        if attempt.isolated and attempt.seconds is not None:
            entries = [claim.job for claim in attempt.claims]
            span = self._run_span(entries, time.time_ns() - round(attempt.seconds * 1e9))
            if attempt.outcome == "failed":
                failure = attempt.jobs[0].failure if attempt.jobs else None
                fail(span, "failed" if failure is None else failure.reason, failure.message if failure else "")
            span.end()

    def _run_span(self, entries: Sequence[Job], started_ns: int | None) -> Span:
        """Start the span of a run: of a job, or of the entries of a turn."""
        job = entries[0]
        values = attributes("run", "process", {job.lane}, {job.kind})
        values.update(
            {
                "messaging.message.id": job.id,
                "messaging.client.id": job.worker or "",
                "holdfast.job.attempt": job.attempt,
                "holdfast.job.epoch": job.epoch,
            }
        )
        if job.entry is not None:
            values["messaging.batch.message_count"] = len(entries)
            _add_session(values, job)
        links = [link for entry in entries for link in _creation_context(row_of(entry).headers_json).links]
        parent = _creation_context(row_of(job).headers_json).context
        return self._tracer.start_span(
            _span_name("run", {job.kind}), parent, SpanKind.CONSUMER, values, links, start_time=started_ns
        )


class _ClaimSpan:
    """The span of a claim, created after the claim; a claim without jobs creates none."""

    def __init__(self, tracer: Tracer, call: ClaimCall) -> None:
        self.claims: Sequence[claims.Claim] = ()
        self._tracer = tracer
        self._call = call
        self._started_ns = time.time_ns()

    def __enter__(self) -> _ClaimSpan:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not self.claims and error is None:
            return
        # A claim of a named session names no lanes.
        lanes = set(self._call.lanes or {claim.job.lane for claim in self.claims})
        values = attributes("claim", "receive", lanes, {claim.job.kind for claim in self.claims})
        values["messaging.batch.message_count"] = len(self.claims)
        values["messaging.client.id"] = self._call.worker
        if self.claims:
            _add_session(values, self.claims[0].job)
        links = [link for claim in self.claims for link in _creation_context(row_of(claim.job).headers_json).links]
        span = self._tracer.start_span(
            _span_name("claim", lanes),
            kind=SpanKind.CLIENT,
            attributes=values,
            links=links,
            start_time=self._started_ns,
        )
        OpenSpan(span).__exit__(kind, error, trace)


def _key(claim: claims.Claim) -> tuple[int, int]:
    return claim.job.number, claim.job.epoch


def _add_session(values: dict[str, Any], job: Job) -> None:
    session = job.session
    if session is not None:
        values["holdfast.session"] = session


class _CreationContext(NamedTuple):
    """The trace context in which a job was enqueued, as a parent and as a link."""

    context: TraceContext | None
    links: tuple[Link, ...]


# Headers are decoded at claim, run and settle, and jobs of one enqueue share them; so cache the result.
@lru_cache(4_096)
def _creation_context(headers_json: str) -> _CreationContext:
    if _HEADER not in headers_json:
        return _CreationContext(None, ())
    context = _W3C.extract(strict_json.decode(headers_json))
    span_context = get_current_span(context).get_span_context()
    return _CreationContext(context, (Link(span_context),)) if span_context.is_valid else _CreationContext(None, ())


def _add_trace_context(jobs: Sequence[JobDraft], span: Span) -> None:
    """Add the context of *span* to the headers of *jobs*, unless their headers have a context."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, set_span_in_context(span))
    for job in jobs if carrier else ():
        if not any(name.lower() == _HEADER for name in job.headers):
            job.headers.update(carrier)


def _span_name(operation: str, objects: Sequence[str] | set[str]) -> str:
    return f"{operation} {next(iter(objects))}" if len(objects) == 1 else operation
