"""A store's clock that moves only when a test moves it, and starts with the same time in every run."""

from __future__ import annotations

from holdfast import Now, testing

START_MS = 1_700_000_000_000


class ManualClock(testing.ManualClock):
    """Starts in November 2023 and does not advance by itself."""

    def __init__(self) -> None:
        self._now = Now(START_MS, START_MS)
