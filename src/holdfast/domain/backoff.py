"""Backoff: how long a job waits before its next attempt."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.domain import errors, limits, validation
from holdfast.domain.validation import Duration


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a job waits after a failed attempt: `base * factor^(attempt-1)`, at most `cap`, spread by `jitter`.

    A jitter of 0.2 spreads each wait evenly between 80 % and 120 % of its length, so
    that jobs that failed at the same time are not retried at the same time.
    """

    base: Duration = 60.0
    """The wait after the first failed attempt, in seconds."""
    factor: float = 2.0
    """By how much each further wait is longer."""
    cap: Duration = 3600.0
    """The longest wait, before the jitter, in seconds."""
    jitter: float = 0.0
    """The spread of each wait, from 0 to 1."""

    def __post_init__(self) -> None:
        validation.duration_ms(self.base, "backoff.base")
        validation.duration_ms(self.cap, "backoff.cap")
        validation.number(self.factor, "backoff.factor", 1.0, 100.0)
        validation.number(self.jitter, "backoff.jitter", 0.0, 1.0)


DEFAULT = Backoff(jitter=0.2)
"""The backoff of jobs and tasks that do not define one."""


def pause_ms(backoff: Backoff, attempt: int, chance: float) -> int:
    """Return the wait after the failed *attempt*; *chance* from 0 to 1 selects the jitter."""
    base_ms, cap_ms = _millis(backoff.base), _millis(backoff.cap)
    raised = min(base_ms * _power(backoff.factor, attempt - 1), cap_ms)
    spread = 1.0 + backoff.jitter * (2.0 * chance - 1.0)
    return min(round(raised * spread), limits.PAUSE_MS_MAX)


def to_json(backoff: Backoff) -> str:
    """Return the stored form of *backoff*."""
    return json.dumps([_millis(backoff.base), float(backoff.factor), _millis(backoff.cap), float(backoff.jitter)])


def from_json(text: str) -> Backoff:
    """Return the backoff that `to_json` stored."""
    base_ms, factor, cap_ms, jitter = json.loads(text)
    return Backoff(base_ms / 1000, factor, cap_ms / 1000, jitter)


def _power(factor: float, exponent: int) -> float:
    try:
        return factor**exponent
    except OverflowError:
        # Not infinity: zero times infinity is not a number.
        return sys.float_info.max


def _millis(value: Duration) -> int:
    return validation.duration_ms(value, "backoff")


# Limits the exponent: after a day of failures the power would overflow a float.
_DOUBLINGS_MAX = 64


def is_unavailable(error: BaseException) -> bool:
    """Return whether the store did not respond, so that the same call may succeed later."""
    return isinstance(error, errors.Unavailable)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Repeat a call after pauses that double from *first* to at most *last* seconds.

    A share of each pause, *jitter*, is random, so that callers that failed together do not repeat together. *calls*
    bounds the number of calls, None does not. *retryable* decides after which errors a call is repeated.
    """

    first: float
    last: float
    jitter: float = 0.5
    calls: int | None = None
    retryable: Callable[[BaseException], bool] = is_unavailable

    def repeats(self, error: BaseException, failures: int) -> bool:
        """Return whether to repeat a call that raised *error*, its *failures*-th failure in a row, counted from 1."""
        return (self.calls is None or failures < self.calls) and self.retryable(error)

    def pause_seconds(self, failures: int, chance: float) -> float:
        """Return how long to wait after the *failures*-th failure; *chance*, from 0 to 1, selects the jitter."""
        longest = min(self.first * 2.0 ** min(max(failures - 1, 0), _DOUBLINGS_MAX), self.last)
        return longest * (1.0 - self.jitter * chance)
