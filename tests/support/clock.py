"""A store's clock that moves only when a test moves it, and starts with the same time in every run."""

from __future__ import annotations

from datetime import datetime

from holdfast import testing
from holdfast.domain.validation import datetime_of
from holdfast.types import Now

START_MS = 1_700_000_000_000


class ManualClock(testing.ManualClock):
    """Starts in November 2023 and does not advance by itself."""

    def __init__(self) -> None:
        self._now = Now(START_MS, START_MS)


def lease_end(clock: testing.ManualClock, seconds: float) -> datetime:
    """Return when a lease of *seconds* that begins now expires."""
    return datetime_of(clock.now().lease_ms + round(seconds * 1000))
