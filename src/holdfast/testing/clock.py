"""A store clock that only a test advances."""

from __future__ import annotations

import time
from datetime import datetime

from holdfast.domain import errors, limits, validation
from holdfast.domain.clock import Now
from holdfast.domain.validation import Duration


class ManualClock:
    """A clock that starts at the current time, or at *at*, and stands still: `connect(url, clock=ManualClock())`."""

    def __init__(self, at: datetime | None = None) -> None:
        wall_ms = time.time_ns() // 1_000_000 if at is None else validation.timestamp_ms(at, "at")
        self._now = Now(wall_ms, wall_ms)

    def now(self) -> Now:
        """Return the wall-clock and the lease-clock time."""
        return self._now

    @property
    def time(self) -> datetime:
        """The time of the wall clock."""
        return validation.datetime_of(self._now.wall_ms)

    def advance(self, seconds: Duration) -> None:
        """Advance both clocks by *seconds*: jobs become due and leases expire."""
        passed_ms = validation.duration_ms(seconds, "seconds", 0, limits.TIMESTAMP_MS_MAX)
        self._now = Now(self._now.wall_ms + passed_ms, self._now.lease_ms + passed_ms)

    def travel_to(self, time: datetime) -> None:
        """Advance both clocks until the wall clock shows *time*."""
        passed_ms = validation.timestamp_ms(time, "time") - self._now.wall_ms
        if passed_ms < 0:
            raise errors.InvalidInput("time", f"{time} has passed; use shift_wall_clock to set the wall clock back")
        self._now = Now(self._now.wall_ms + passed_ms, self._now.lease_ms + passed_ms)

    def shift_wall_clock(self, seconds: float) -> None:
        """Move the wall clock by *seconds*, forward or back, without advancing the lease clock."""
        self._now = Now(self._now.wall_ms + round(seconds * 1000), self._now.lease_ms)
