"""Helpers for spans: common attributes, context managers and error status."""

from collections.abc import Set
from contextvars import Token
from types import TracebackType
from typing import Any

from opentelemetry import context as current
from opentelemetry.trace import Span, Status, StatusCode
from opentelemetry.trace.propagation import set_span_in_context

from holdfast.domain import errors
from holdfast.tasks.control_flow import Cancelled, Defer, OutcomeRequest


def attributes(operation: str, operation_type: str, lanes: Set[str], kinds: Set[str]) -> dict[str, Any]:
    """Return the attributes of the semantic conventions for messaging, and the kind if all jobs share it."""
    values: dict[str, Any] = {
        "messaging.system": "holdfast",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation_type,
    }
    if len(lanes) == 1:
        values["messaging.destination.name"] = next(iter(lanes))
    if len(kinds) == 1:
        values["holdfast.job.kind"] = next(iter(kinds))
    return values


class OpenSpan:
    """A context manager that ends a span, with the error of its block if there is one."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def __enter__(self) -> Span:
        return self._span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, GeneratorExit):
            # A closed coroutine gets GeneratorExit; its context is the actual error.
            error = error.__context__
        if error is not None:
            fail_with_error(self._span, error)
        self._span.end()


class RunSpan:
    """A context manager for the span of a handler; it is the current span while the handler runs."""

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
            # A requested outcome needs no traceback.
            if isinstance(error, Exception) and not isinstance(error, OutcomeRequest):
                self._span.record_exception(error)
            reason = getattr(error, "reason", None) if isinstance(error, OutcomeRequest) else None
            fail(self._span, reason or type(error).__qualname__, str(error))
        self._span.end()


def fail_with_error(span: Span, error: BaseException) -> None:
    """Set the error status of *span* from *error*."""
    fail(span, error.code if isinstance(error, errors.HoldfastError) else type(error).__qualname__, str(error))


def fail(span: Span, error_type: str, message: str) -> None:
    """Set the error status of *span*."""
    span.set_attribute("error.type", error_type)
    span.set_status(Status(StatusCode.ERROR, message))
