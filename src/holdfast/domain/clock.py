"""What the domain knows of time: two readings of a store's clock, taken together."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Now(NamedTuple):
    """One reading of the store's clock.

    Two readings because a wall clock may be set by hand: moments that people chose (due, deadline) are
    judged by `wall_ms`, leases by `lease_ms`, which only ever moves forward at the pace of real time.
    """

    wall_ms: int
    lease_ms: int


class Clock(Protocol):
    """Anything that tells the time to a store."""

    def now(self) -> Now:
        """Read both clocks."""
        ...
