"""Exceptions with which a handler chooses its outcome, and the exception raised in a handler that must stop."""

from __future__ import annotations

from datetime import datetime

from holdfast.domain import errors, validation
from holdfast.domain.validation import Duration


class OutcomeRequest(Exception):  # noqa: N818  # control flow, not an error
    """Base class of exceptions that a handler may raise or return to choose its outcome."""


class Retry(OutcomeRequest):
    """Raised by a handler to retry the job after *after* seconds, or after its backoff.

    The attempt counts; if it was the last one, the job fails. *reason* is a short code. With *closes*, as after a
    response with status 429, no other job with its key for a limit starts within *after* seconds either, and the
    attempt does not count.
    """

    message: str
    """The message for people."""
    after: Duration | None
    """Seconds until the next attempt; None for the backoff."""
    reason: str
    """A short code, such as `rate_limit`."""
    closes: bool
    """Whether it closes the key of the job for a limit until then."""

    def __init__(
        self,
        message: str = "the handler requested a retry",
        *,
        after: Duration | None = None,
        reason: str = "retry",
        closes: bool = False,
    ) -> None:
        if validation.flag(closes, "closes") and after is None:
            raise errors.InvalidInput("after", "must be given with closes")
        super().__init__(_text(message))
        if after is not None:
            validation.duration_ms(after, "after")
        self.message = message
        self.after = after
        self.reason = validation.reason(reason, "reason")
        self.closes = closes


class Defer(OutcomeRequest):
    """Raised by a handler to reschedule the job, after *after* seconds or at *until*; the attempt does not count."""

    after: Duration | None
    """Seconds until the job may be claimed again, unless `until` is set."""
    until: datetime | None
    """The earliest time at which the job may be claimed again, unless `after` is set."""

    def __init__(self, *, after: Duration | None = None, until: datetime | None = None) -> None:
        if (after is None) == (until is None):
            raise errors.InvalidInput("after", "pass either after or until")
        if after is not None:
            validation.duration_ms(after, "after")
        if until is not None:
            validation.timestamp_ms(until, "until")
        super().__init__(f"deferred {f'until {until}' if after is None else f'for {after}'}")
        self.after = after
        self.until = until


class Fail(OutcomeRequest):
    """Raised by a handler to fail the job permanently, even if attempts are left. *reason* is a short code."""

    message: str
    """The message for people."""
    reason: str
    """A short code, such as `no_such_user`."""

    def __init__(self, message: str, *, reason: str = "error") -> None:
        super().__init__(_text(message))
        self.message = message
        self.reason = validation.reason(reason, "reason")


class Cancelled(BaseException):
    """Raised in a handler that should stop, by `Context.raise_if_cancelled` and by checkpoints.

    Like `asyncio.CancelledError` it is not an `Exception`: a handler's `except Exception` does not catch it.
    """


def _text(message: object) -> str:
    if not isinstance(message, str):
        raise errors.InvalidInput("message", f"must be a string, not {type(message).__name__}")
    return message
