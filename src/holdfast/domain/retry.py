"""Calls that are repeated after a failure: after which errors, how often, and after which pauses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.domain.errors import Unavailable

# Limits the exponent: after a day of failures the power would overflow a float.
_DOUBLINGS_MAX = 64


def is_unavailable(error: BaseException) -> bool:
    """Return whether the store did not respond, so that the same call may succeed later."""
    return isinstance(error, Unavailable)


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
