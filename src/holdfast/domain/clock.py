"""Time in the domain: two readings of a store's clock, taken together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Now:
    """One reading of the store's clock.

    There are two because a wall clock may be set by hand: times chosen by users (due, deadline) are compared with
    `wall_ms`, leases with `lease_ms`, which only moves forward at the pace of real time.
    """

    wall_ms: int
    lease_ms: int


class Clock(Protocol):
    """A clock for a store."""

    def now(self) -> Now:
        """Return the time of both clocks."""
        ...
