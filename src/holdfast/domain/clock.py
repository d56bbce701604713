"""Time in the domain: two readings of a store's clock, taken together; durations as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


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


def in_units(seconds: int, count: int) -> str:
    """Return a duration in its *count* largest units: `3m 5s`, `2d`."""
    parts: list[str] = []
    for unit, name in _UNITS:
        whole, seconds = divmod(seconds, unit)
        if whole or parts:
            parts.append(f"{whole}{name}" if whole else "")
        if len(parts) == count:
            break
    return " ".join(filter(None, parts)) or "0s"
