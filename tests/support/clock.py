"""A store's clock that moves only when a test moves it."""

from __future__ import annotations

from holdfast import Now

START_MS = 1_700_000_000_000


class ManualClock:
    """Starts in November 2023 and stands still."""

    def __init__(self) -> None:
        self._now = Now(START_MS, START_MS)

    def now(self) -> Now:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass, for due moments and leases alike."""
        passed_ms = round(seconds * 1000)
        self._now = Now(self._now.wall_ms + passed_ms, self._now.lease_ms + passed_ms)

    def set_wall_clock(self, seconds: float) -> None:
        """Move the wall clock by so many seconds, forward or back, without any time passing."""
        self._now = self._now._replace(wall_ms=self._now.wall_ms + round(seconds * 1000))
