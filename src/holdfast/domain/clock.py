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
    """The wall clock: milliseconds since 1970."""
    lease_ms: int
    """The lease clock, in milliseconds."""


class Clock(Protocol):
    """A clock for a store, which `connect` takes: an object with a method `now`, such as a `ManualClock`."""

    def now(self) -> Now:
        """Return the time of both clocks."""
        ...
