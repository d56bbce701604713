"""Backoff: how long a job waits before its next attempt."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

from holdfast.domain import limits, validation
from holdfast.domain.validation import Duration


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a job waits after a failed attempt: `base * factor^(attempt-1)`, at most `cap`, spread by `jitter`.

    `base` and `cap` are seconds. A jitter of 0.2 spreads each wait evenly between 80 % and 120 % of its length, so
    that jobs that failed at the same time are not retried at the same time.
    """

    base: Duration = 60.0
    """The wait after the first failed attempt."""
    factor: float = 2.0
    """By how much each further wait is longer."""
    cap: Duration = 3600.0
    """The longest wait, before the jitter."""
    jitter: float = 0.0
    """The spread of each wait, from 0 to 1."""

    def __post_init__(self) -> None:
        validation.duration_ms(self.base, "backoff.base")
        validation.duration_ms(self.cap, "backoff.cap")
        validation.number(self.factor, "backoff.factor", 1.0, 100.0)
        validation.number(self.jitter, "backoff.jitter", 0.0, 1.0)

    def pause_ms(self, attempt: int, chance: float) -> int:
        """Return the wait after the failed *attempt*; *chance* from 0 to 1 selects the jitter. For internal use."""
        base_ms, cap_ms = _millis(self.base), _millis(self.cap)
        raised = min(base_ms * _power(self.factor, attempt - 1), cap_ms)
        spread = 1.0 + self.jitter * (2.0 * chance - 1.0)
        return min(round(raised * spread), limits.PAUSE_MS_MAX)

    def to_json(self) -> str:
        """Return the stored form. For internal use."""
        return json.dumps([_millis(self.base), float(self.factor), _millis(self.cap), float(self.jitter)])

    @classmethod
    def from_json(cls, text: str) -> Backoff:
        """Return the backoff that `to_json` stored. For internal use."""
        base_ms, factor, cap_ms, jitter = json.loads(text)
        return cls(base_ms / 1000, factor, cap_ms / 1000, jitter)


DEFAULT = Backoff(jitter=0.2)
"""The backoff of jobs and tasks that do not define one."""


def _power(factor: float, exponent: int) -> float:
    try:
        return factor**exponent
    except OverflowError:
        # Not infinity: zero times infinity is not a number.
        return sys.float_info.max


def _millis(value: Duration) -> int:
    return validation.duration_ms(value, "backoff")
