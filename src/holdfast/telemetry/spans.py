"""Single spans: how one ends, what an error says on it, and what all have in common."""

from __future__ import annotations

from collections.abc import Set
from contextvars import Token
from types import TracebackType
from typing import Any

from opentelemetry import context as current
from opentelemetry.trace import Span, Status, StatusCode
from opentelemetry.trace.propagation import set_span_in_context

from holdfast.domain.errors import HoldfastError
from holdfast.tasks.control_flow import Ask, Cancelled, Defer


def attributes(operation: str, kind_of_operation: str, lanes: Set[str], kinds: Set[str]) -> dict[str, Any]:
    """Return what the conventions for messaging want said, and the kind of the jobs if it is one."""
    said: dict[str, Any] = {
        "messaging.system": "holdfast",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind_of_operation,
    }
    if len(lanes) == 1:
        said["messaging.destination.name"] = next(iter(lanes))
    if len(kinds) == 1:
        said["holdfast.job.kind"] = next(iter(kinds))
    return said


class OpenSpan:
    """A span that ends with its block, which may be that of a procedure."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def __enter__(self) -> Span:
        return self._span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, GeneratorExit):
            # What stopped a procedure from outside is what it is closed for.
            error = error.__context__
        if error is not None:
            fail_with(self._span, error)
        self._span.end()


class RunSpan:
    """The span of a handler, current while it runs, so that what it calls stands below it."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._token: Token[current.Context] | None = None

    def __enter__(self) -> Span:
        self._token = current.attach(set_span_in_context(self._span))
        return self._span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            current.detach(self._token)
        if error is not None and not isinstance(error, Defer | Cancelled):
            # What is asked for by an exception needs no traceback.
            if isinstance(error, Exception) and not isinstance(error, Ask):
                self._span.record_exception(error)
            reason = getattr(error, "reason", None) if isinstance(error, Ask) else None
            fail(self._span, reason or type(error).__qualname__, str(error))
        self._span.end()


def fail_with(span: Span, error: BaseException) -> None:
    """Say that *span* came to *error*."""
    fail(span, error.code if isinstance(error, HoldfastError) else type(error).__qualname__, str(error))


def fail(span: Span, kind_of_error: str, message: str) -> None:
    """Say that *span* came to an error."""
    span.set_attribute("error.type", kind_of_error)
    span.set_status(Status(StatusCode.ERROR, message))
