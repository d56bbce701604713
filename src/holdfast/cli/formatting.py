"""Format ages, durations, timestamps and sizes, and make text safe to print on a terminal."""

import re
from datetime import datetime, timedelta

from holdfast.domain import clock
from holdfast.types import Failure

# Characters that move a terminal's cursor, change its title, end a line, or reverse or hide text: Unicode's control,
# format, line and paragraph characters and surrogates, except the two that join letters and emoji (U+200C, U+200D)
# and visible format characters such as U+06DD.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\ud800-\udfff\ufeff"
    "\ufff9-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f]"
)
_SECOND = timedelta(seconds=1)
_SIZES = ((1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB"))


def clean(text: str, keep: str = "\n\t") -> str:
    """Return *text* with every unsafe character that is not in *keep* replaced."""
    return _UNSAFE.sub(lambda found: found[0] if found[0] in keep else "\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str) -> str:
    """Return the first line of *text* that is not blank, safe to print."""
    lines = (clean(line, keep="").strip() for line in text.splitlines())
    return next((line for line in lines if line), "")


def duration(milliseconds: float) -> str:
    """Return a duration in its two largest units: `340ms`, `12s`, `3m 5s`, `2d 4h`."""
    if milliseconds < 1_000:
        return f"{max(milliseconds, 0):.0f}ms"
    if milliseconds < 10_000:
        return f"{milliseconds / 1000:.1f}s"
    return clock.in_units(round(milliseconds / 1000), 2)


def interval(seconds: float) -> str:
    """Return an interval as it was set: `5s`, `1m 30s`."""
    return f"{seconds:g}s" if seconds < 60 else clock.in_units(round(seconds), 4)


def age(at: datetime, now: datetime) -> str:
    """Return the age of a timestamp in its largest unit: `now`, `12s`, `3m`, `2d`."""
    passed = (now - at) // _SECOND
    return clock.in_units(passed, 1) if passed >= 1 else "now"


def relative(at: datetime, now: datetime) -> str:
    """Return a timestamp relative to now: `in 5m`, `now`, `3s ago`."""
    if at > now:
        return f"in {clock.in_units(-((now - at) // _SECOND), 1)}"
    passed = age(at, now)
    return passed if passed == "now" else f"{passed} ago"


def timestamp(at: datetime) -> str:
    """Return a timestamp in UTC, to the second."""
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def both(at: datetime, now: datetime) -> str:
    """Return a timestamp in UTC and relative to now."""
    return f"{timestamp(at)} ({relative(at, now)})"


def size(count: int) -> str:
    """Return a size in bytes: `512 B`, `1.4 MB`."""
    for unit, name in _SIZES:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"


def number(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun: `1 job`, `2,000 jobs`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def failure(failed: Failure) -> str:
    """Return a failure in one line."""
    return f"{failed.reason}: {one_line(failed.message)}"
