"""Spans by OpenTelemetry: enqueue, claim, run and settle, joined by the W3C trace context in a job's headers.

The conventions for messaging are kept: an enqueue sends, a claim receives, a run processes, a settle settles. The
context is put into what is stored and not into what was asked for, so that a call sent again is still the same call.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import lru_cache
from typing import Any, NamedTuple

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Tracer, TracerProvider, get_current_span, get_tracer
from opentelemetry.trace.propagation import set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from holdfast.client.middleware import CheckedSettlements, Middleware, Watch
from holdfast.client.operations import Operations
from holdfast.domain import strict_json
from holdfast.domain.claims import Claim, ClaimRequest, Lease, Settlement
from holdfast.domain.job import Job
from holdfast.domain.new_job import CheckedJob, JobSettings
from holdfast.domain.results import Enqueued
from holdfast.storage.runners import Runner
from holdfast.storage.store import Store
from holdfast.telemetry.spans import OpenSpan, RunSpan, attributes, fail, fail_with
from holdfast.version import __version__

_W3C = TraceContextTextMapPropagator()
_HEADER = "traceparent"


def trace_operations(operations: Operations, provider: TracerProvider | None) -> None:
    """Let *operations*, and the workers that use them, make spans."""
    tracer = get_tracer("holdfast", __version__, provider)
    shared = operations.shared
    shared.middleware = TracingMiddleware(shared.middleware.store, tracer)
    others = (watch for watch in operations.watches if not isinstance(watch, TracingWatch))
    shared.watches = (*others, TracingWatch(tracer))


class TracingMiddleware(Middleware):
    """Enqueues, claims and settles, each in a span."""

    def __init__(self, store: Store, tracer: Tracer) -> None:
        super().__init__(store)
        self._tracer = tracer

    async def enqueue_one(self, runner: Runner, checked: CheckedJob) -> Enqueued:
        """Store one job under a span, whose context it carries."""
        with OpenSpan(enqueue_span(self._tracer, [checked], None)) as span:
            made = await super().enqueue_one(runner, *_carrying([checked], span))
            span.set_attribute("holdfast.job.created", made.created)
            return made

    async def enqueue(self, runner: Runner, checked: Sequence[CheckedJob]) -> list[Enqueued]:
        """Store jobs under one span, whose context they carry."""
        with OpenSpan(enqueue_span(self._tracer, checked, None)) as span:
            return await super().enqueue(runner, _carrying(checked, span))

    async def claim(self, runner: Runner, request: ClaimRequest) -> list[Claim]:
        """Lease what there is; a span tells of it unless there was nothing."""
        with _ClaimSpan(self._tracer, request) as span:
            span.claims = await super().claim(runner, request)
            return span.claims

    async def settle(self, runner: Runner, outcomes: CheckedSettlements) -> list[Settlement]:
        """Record outcomes, each under a span of its job's own trace."""
        with _SettleSpans(self._tracer, outcomes) as spans:
            settlements = await super().settle(runner, spans.carried)
            spans.note(settlements)
            return settlements

    async def settle_and_claim(
        self, runner: Runner, outcomes: CheckedSettlements, started: Sequence[Lease], request: ClaimRequest
    ) -> tuple[list[Settlement], list[Claim]]:
        """Do all of it in one commit."""
        with _SettleSpans(self._tracer, outcomes) as spans, _ClaimSpan(self._tracer, request) as span:
            settlements, span.claims = await super().settle_and_claim(runner, spans.carried, started, request)
            spans.note(settlements)
            return settlements, span.claims


def enqueue_span(tracer: Tracer, jobs: Sequence[CheckedJob], parent: Context | None) -> Span:
    """Return the open span of an enqueue of these jobs."""
    kinds = {job.settings.route.kind for job in jobs}
    said = attributes("enqueue", "send", {job.settings.route.lane for job in jobs}, kinds)
    if len(jobs) == 1:
        said["messaging.message.id"] = jobs[0].id
    else:
        said["messaging.batch.message_count"] = len(jobs)
    return tracer.start_span(_named("enqueue", kinds), parent, SpanKind.PRODUCER, said)


class _ClaimSpan:
    """The span of a claim, made once it is known what there was; one that found nothing leaves none."""

    def __init__(self, tracer: Tracer, request: ClaimRequest) -> None:
        self.claims: list[Claim] = []
        self._tracer = tracer
        self._request = request
        self._begun_ns = time.time_ns()

    def __enter__(self) -> _ClaimSpan:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not self.claims and error is None:
            return
        said = attributes("claim", "receive", set(self._request.lanes), {claim.job.kind for claim in self.claims})
        said["messaging.batch.message_count"] = len(self.claims)
        said["messaging.client.id"] = self._request.worker
        links = [link for claim in self.claims for link in _creation(claim.job.headers_json).links]
        name = _named("claim", self._request.lanes)
        span = self._tracer.start_span(
            name, kind=SpanKind.CLIENT, attributes=said, links=links, start_time=self._begun_ns
        )
        OpenSpan(span).__exit__(kind, error, trace)


class _SettleSpans:
    """The spans of a settle: one for each job, in the job's own trace, and one for what follows it."""

    def __init__(self, tracer: Tracer, outcomes: CheckedSettlements) -> None:
        self._tracer = tracer
        self._open = ExitStack()
        self._spans: list[Span] = []
        self._outcomes = outcomes
        self.carried: CheckedSettlements = outcomes
        """The same outcomes, their follow-ups carrying the trace on."""

    def __enter__(self) -> _SettleSpans:
        self._open.__enter__()
        self.carried = [(claim, self._begin(claim, checked)) for claim, checked in self._outcomes]
        return self

    def _begin(self, claim: Claim, checked: Any) -> Any:
        job = claim.job
        said = attributes("settle", "settle", {job.lane}, {job.kind})
        said["messaging.message.id"] = job.id
        said["holdfast.job.outcome"] = type(checked.outcome).__name__.lower()
        parent = _creation(job.headers_json).context
        # Whoever settles by hand may be in a span of another trace.
        here = get_current_span().get_span_context()
        links = [Link(here)] if here.is_valid and parent is not None else []
        span = self._tracer.start_span(_named("settle", {job.kind}), parent, SpanKind.CLIENT, said, links)
        self._spans.append(self._open.enter_context(OpenSpan(span)))
        if not checked.follow_ups:
            return checked
        following = enqueue_span(self._tracer, checked.follow_ups, set_span_in_context(span))
        self._open.enter_context(OpenSpan(following))
        return checked._replace(follow_ups=tuple(_carrying(checked.follow_ups, following)))

    def note(self, settlements: Sequence[Settlement]) -> None:
        """Say on each span what became of it."""
        for span, settlement in zip(self._spans, settlements, strict=True):
            if settlement.error is not None:
                fail_with(span, settlement.error)
            elif settlement.job is not None:
                span.set_attribute("holdfast.job.state", settlement.job.state)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._open.__exit__(kind, error, trace)


class TracingWatch(Watch):
    """Runs each handler in a span of its job's own trace."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._begun: set[tuple[int, int]] = set()
        """Attempts whose handlers were seen to begin, and that have not ended."""
        self.running = self._running

    def _running(self, claim: Claim) -> RunSpan:
        self._begun.add((claim.job.seq, claim.job.epoch))
        return RunSpan(self._span(claim, None))

    def ended(self, claim: Claim, outcome: str, job: Job | None, seconds: float | None) -> None:
        """Make the span of a handler that ran elsewhere, such as in a process of its own, once it is over."""
        key = (claim.job.seq, claim.job.epoch)
        if key in self._begun:
            self._begun.discard(key)
        elif seconds is not None:
            span = self._span(claim, time.time_ns() - round(seconds * 1e9))
            if outcome == "failed":
                failure = None if job is None else job.failure
                fail(span, "failed" if failure is None else failure.reason, failure.message if failure else "")
            span.end()

    def _span(self, claim: Claim, begun_ns: int | None) -> Span:
        job = claim.job
        said = attributes("run", "process", {job.lane}, {job.kind})
        said.update(
            {
                "messaging.message.id": job.id,
                "messaging.client.id": job.worker or "",
                "holdfast.job.attempt": job.attempt,
                "holdfast.job.epoch": job.epoch,
            }
        )
        parent, links = _creation(job.headers_json)
        return self._tracer.start_span(
            _named("run", {job.kind}), parent, SpanKind.CONSUMER, said, links, start_time=begun_ns
        )


class _Creation(NamedTuple):
    """The trace context in which a job was enqueued, as a parent and as a link."""

    context: Context | None
    links: tuple[Link, ...]


# A job's headers are asked for at its claim, its run and its settlement, and jobs of one enqueue have the same.
@lru_cache(4_096)
def _creation(headers_json: str) -> _Creation:
    if _HEADER not in headers_json:
        return _Creation(None, ())
    context = _W3C.extract(strict_json.decode(headers_json))
    found = get_current_span(context).get_span_context()
    return _Creation(context, (Link(found),)) if found.is_valid else _Creation(None, ())


def _carrying(jobs: Sequence[CheckedJob], span: Span) -> list[CheckedJob]:
    """Return *jobs* with the context of *span* in their headers, unless they bring one of their own."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, set_span_in_context(span))
    if not carrier:
        return list(jobs)
    changed: dict[int, JobSettings] = {}
    return [job._replace(settings=_with(job.settings, carrier, changed)) for job in jobs]


def _with(settings: JobSettings, carrier: dict[str, str], changed: dict[int, JobSettings]) -> JobSettings:
    # Many jobs come under the same settings, which are the same object then.
    known = changed.get(id(settings))
    if known is None:
        headers = strict_json.decode(settings.headers_json)
        if not any(name.lower() == _HEADER for name in headers):
            headers = {**headers, **carrier}
        known = changed[id(settings)] = settings._replace(headers_json=strict_json.compact(headers))
    return known


def _named(operation: str, objects: Sequence[str] | set[str]) -> str:
    return f"{operation} {next(iter(objects))}" if len(objects) == 1 else operation
