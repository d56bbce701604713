"""What a handler raises to say how its attempt shall end, and what is raised in one that has to stop."""

from __future__ import annotations

from datetime import datetime

from holdfast.domain import validation
from holdfast.domain.errors import InvalidInput
from holdfast.domain.validation import Duration


class Ask(Exception):  # noqa: N818  # not an error: an answer in the form of one
    """Base of what a handler may raise, or return, to choose its outcome."""


class Retry(Ask):
    """Try again: after so many seconds if given, else by the backoff. The attempt is spent, the last one fails."""

    def __init__(
        self, message: str = "the handler asked for a retry", *, after: Duration | None = None, reason: str = "retry"
    ) -> None:
        super().__init__(_text(message))
        if after is not None:
            validation.duration_ms(after, "after")
        self.message = message
        self.after = after
        self.reason = validation.reason(reason, "reason")


class Defer(Ask):
    """Come back later: after so many seconds, or at a moment. The attempt is given back."""

    def __init__(self, *, after: Duration | None = None, until: datetime | None = None) -> None:
        if (after is None) == (until is None):
            raise InvalidInput("after", "give either after or until")
        if after is not None:
            validation.duration_ms(after, "after")
        if until is not None:
            validation.timestamp_ms(until, "until")
        super().__init__(f"deferred {f'until {until}' if after is None else f'for {after}'}")
        self.after = after
        self.until = until


class Fail(Ask):
    """Give up: the job fails for good, whatever attempts are left."""

    def __init__(self, message: str, *, reason: str = "error") -> None:
        super().__init__(_text(message))
        self.message = message
        self.reason = validation.reason(reason, "reason")


class Cancelled(BaseException):
    """The handler shall stop: see `Context.raise_if_cancelled`.

    Not an `Exception`, as in asyncio, so that a handler that catches those does not swallow it.
    """


def _text(message: object) -> str:
    if not isinstance(message, str):
        raise InvalidInput("message", f"must be a string, not {type(message).__name__}")
    return message
