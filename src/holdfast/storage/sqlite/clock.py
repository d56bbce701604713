"""Clocks: the wall clock for due times, and for leases a clock that does not jump.

Leases use the kernel's boot-time clock, which cannot be set and which continues while the machine sleeps. It restarts
with each boot, so the file stores an offset for the boot in which it was last used. After another boot the sum starts
beyond every lease ever granted: jobs that ran when the machine went down have expired.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from holdfast.domain.clock import Now
from holdfast.storage.sqlite.sql import QUERIES

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def _boot() -> str | None:
    """Return the identifier of this boot, or None if the system does not provide one."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return None


class SystemClock:
    """The clock of one database file on this machine. Without a boot identifier, leases use the wall clock."""

    def __init__(self, lease_offset_ms: int | None) -> None:
        self._lease_offset_ms = lease_offset_ms

    def now(self) -> Now:
        """Return the time of both clocks."""
        wall_ms = time.time_ns() // 1_000_000
        if self._lease_offset_ms is None:
            return Now(wall_ms, wall_ms)
        return Now(wall_ms, boot_time_ms() + self._lease_offset_ms)


def boot_time_ms() -> int:
    """Return the milliseconds since boot, including sleep."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def stored_clock(connection: sqlite3.Connection) -> SystemClock | None:
    """Return the clock that the file stores for this boot, if any."""
    boot = _boot()
    if boot is None or not hasattr(time, "CLOCK_BOOTTIME"):
        return SystemClock(None)
    known = connection.execute(QUERIES["clock_read"]).fetchone()
    remembered, _, offset = known[0].partition(" ") if known else ("", "", "")
    return SystemClock(int(offset)) if remembered == boot else None


def set_clock(connection: sqlite3.Connection) -> None:
    """Start the lease clock for this boot, unless another process has; requires an open write transaction."""
    if stored_clock(connection) is None:
        [latest] = connection.execute(QUERIES["clock_latest_lease"]).fetchone()
        offset_ms = max(time.time_ns() // 1_000_000, latest + 1) - boot_time_ms()
        connection.execute(QUERIES["clock_write"], {"value": f"{_boot()} {offset_ms}"})
