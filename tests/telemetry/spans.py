"""The spans that a test has created with the real library."""

from __future__ import annotations

from typing import NamedTuple

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, Tracer


class Spans(NamedTuple):
    """A tracer provider and the exporter of its ended spans."""

    provider: TracerProvider
    exporter: InMemorySpanExporter

    @property
    def tracer(self) -> Tracer:
        return self.provider.get_tracer("test")

    def names(self) -> list[str]:
        return sorted(span.name for span in self.exporter.get_finished_spans())

    def all(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [found] = self.all(name)
        return found


def context_of(span: ReadableSpan) -> SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


def is_below(child: ReadableSpan, parent: ReadableSpan) -> bool:
    return child.parent is not None and child.parent.span_id == context_of(parent).span_id


def links(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]
