"""A store's clock that moves only when a test moves it."""

from __future__ import annotations

import time
from datetime import datetime

from holdfast.domain import limits, validation
from holdfast.domain.clock import Now
from holdfast.domain.errors import InvalidInput
from holdfast.domain.validation import Duration


class ManualClock:
    """Stands still at the moment it was made, or at *at*: `connect(url, clock=ManualClock())`."""

    def __init__(self, at: datetime | None = None) -> None:
        wall_ms = time.time_ns() // 1_000_000 if at is None else validation.timestamp_ms(at, "at")
        self._now = Now(wall_ms, wall_ms)

    def now(self) -> Now:
        """Read both clocks."""
        return self._now

    @property
    def moment(self) -> datetime:
        """What the wall clock shows."""
        return validation.datetime_of(self._now.wall_ms)

    def advance(self, seconds: Duration) -> None:
        """Let time pass, for due moments and leases alike."""
        passed_ms = validation.duration_ms(seconds, "seconds", 0, limits.TIMESTAMP_MS_MAX)
        self._now = Now(self._now.wall_ms + passed_ms, self._now.lease_ms + passed_ms)

    def travel_to(self, moment: datetime) -> None:
        """Let time pass until *moment*."""
        passed_ms = validation.timestamp_ms(moment, "moment") - self._now.wall_ms
        if passed_ms < 0:
            raise InvalidInput("moment", f"{moment} has passed; time goes forward, only a wall clock is set back")
        self._now = Now(self._now.wall_ms + passed_ms, self._now.lease_ms + passed_ms)

    def set_wall_clock(self, seconds: float) -> None:
        """Move the wall clock by so many seconds, forward or back, without any time passing: leases stay."""
        self._now = self._now._replace(wall_ms=self._now.wall_ms + round(seconds * 1000))
