"""Times of a calendar: cron expressions in a time zone, right on the nights when clocks change.

An expression that has `*` in its minute or hour follows the clock: it skips the hour that does not exist and runs in
both of two equal hours. One with fixed times runs once: at the first moment after a gap, and in the first of two
equal hours. These are the rules of Debian's cron.
"""

import calendar
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from holdfast.domain import errors

_YEARS_SEARCHED: Final = 10
_MONTHS: Final = {name.lower(): number for number, name in enumerate(calendar.month_abbr) if name}
_WEEKDAYS: Final = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}
_NICKNAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_FIELDS: Final[tuple[tuple[str, int, int, dict[str, int]], ...]] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 7, _WEEKDAYS),
)
_LAST_DAY: Final = "l"
_MINUTE: Final = timedelta(minutes=1)
_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)


class Cron(NamedTuple):
    """A parsed cron expression."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """Sunday is 0."""
    last_day: bool
    """Whether the last day of each month is among the days."""
    either_day: bool
    """Whether the day of the month or that of the week suffices: neither is `*`."""
    fixed: bool
    """Whether it names fixed times of the day: minute and hour have no `*`."""

    def matches(self, day: date) -> bool:
        """Return whether it has times on *day*."""
        in_month = day.day in self.days or (self.last_day and day.day == calendar.monthrange(day.year, day.month)[1])
        in_week = day.isoweekday() % 7 in self.weekdays
        return day.month in self.months and (in_month or in_week if self.either_day else in_month and in_week)


# --- parsing -------------------------------------------------------------------------------------------------------


@lru_cache(1_024)
def parse(text: str, field: str = "cron") -> Cron:
    """Return a parsed expression of five fields, or raise `InvalidInput`."""
    expression = text.strip().lower()
    if expression.startswith("@"):
        if expression not in _NICKNAMES:
            raise errors.InvalidInput(field, f"{text!r} is none of {', '.join(_NICKNAMES)}")
        expression = _NICKNAMES[expression]
    parts = expression.split()
    if len(parts) != len(_FIELDS):
        names = ", ".join(name for name, *_ in _FIELDS)
        raise errors.InvalidInput(field, f"{text!r} has {len(parts)} fields; it must have five: {names}")
    days_text, last_day = _without_last_day(parts[2])
    texts = [*parts[:2], days_text, *parts[3:]]
    minutes, hours, days, months, weekdays = (
        _values(part, spec, field) if part else frozenset[int]() for part, spec in zip(texts, _FIELDS, strict=True)
    )
    return Cron(
        tuple(sorted(minutes)),
        tuple(sorted(hours)),
        days,
        months,
        frozenset(day % 7 for day in weekdays),
        last_day=last_day,
        either_day=not parts[2].startswith("*") and not parts[4].startswith("*"),
        fixed="*" not in parts[0] and "*" not in parts[1],
    )


def _without_last_day(text: str) -> tuple[str, bool]:
    parts = text.split(",")
    return ",".join(part for part in parts if part != _LAST_DAY), _LAST_DAY in parts


def _values(text: str, spec: tuple[str, int, int, dict[str, int]], field: str) -> frozenset[int]:
    _, low, high, names = spec
    found: set[int] = set()
    for part in text.split(","):
        span, _, step_text = part.partition("/")
        first_text, _, last_text = span.partition("-")
        try:
            step = int(step_text) if "/" in part else 1
            if span == "*":
                first, last = low, high
            else:
                first = names.get(first_text) if first_text in names else int(first_text)  # type: ignore[assignment]
                last = (names.get(last_text) if last_text in names else int(last_text)) if "-" in span else first  # type: ignore[assignment]
                if "/" in part and "-" not in span:
                    last = high
        except ValueError:
            raise _invalid(part, spec, field) from None
        if step < 1 or not low <= first <= last <= high or not part.replace("/", "").isascii():
            raise _invalid(part, spec, field)
        found.update(range(first, last + 1, step))
    return frozenset(found)


def _invalid(part: str, spec: tuple[str, int, int, dict[str, int]], field: str) -> errors.InvalidInput:
    name, low, high, names = spec
    named = f", or {next(iter(names))} to {next(reversed(names))}" if names else ""
    return errors.InvalidInput(field, f"{part!r} is no valid {name}; values are from {low} to {high}{named}")


@lru_cache(1_024)
def zone_of(name: str, field: str = "zone") -> tzinfo:
    """Return the time zone of this name, or raise `InvalidInput`."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise errors.InvalidInput(
            field, f"{name!r} is no known time zone; names are like Europe/Berlin (is the package tzdata installed?)"
        ) from None


# --- times ---------------------------------------------------------------------------------------------------------


def times_after(cron: Cron, zone: tzinfo, after: datetime) -> Iterator[datetime]:
    """Yield the times of *cron* after *after*, in UTC and in order, within ten years."""
    day = after.astimezone(zone).date() - _DAY
    last_day = day.replace(year=min(day.year + _YEARS_SEARCHED, 9998), day=1)
    last = after
    while day <= last_day:
        if day.month not in cron.months:
            day = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
            continue
        if cron.matches(day):
            for time in _times_on(cron, zone, day, last):
                if time > last:
                    yield time
                    last = time
        day += _DAY


def newest_time(cron: Cron, zone: tzinfo, after: datetime, until: datetime) -> datetime | None:
    """Return the newest time of *cron* after *after* and up to *until*."""
    for hours in (1, 24, 24 * 32, 24 * 366 * _YEARS_SEARCHED):
        start = max(after, until - timedelta(hours=hours))
        newest = None
        for time in times_after(cron, zone, start):
            if time > until:
                break
            newest = time
        if newest is not None or start == after:
            return newest
    return None


def _times_on(cron: Cron, zone: tzinfo, day: date, after: datetime) -> Iterator[datetime]:
    midnight = datetime.combine(day, datetime.min.time())
    offset = _offset(zone, midnight)
    if offset != _offset(zone, midnight + _DAY):
        yield from _times_on_changing_day(cron, zone, midnight)
        return
    start = midnight.replace(tzinfo=UTC) - offset
    for hour in cron.hours:
        at_hour = start + hour * _HOUR
        if at_hour + _HOUR > after:
            for minute in cron.minutes:
                yield at_hour + minute * _MINUTE


def _times_on_changing_day(cron: Cron, zone: tzinfo, midnight: datetime) -> Sequence[datetime]:
    found: set[datetime] = set()
    for hour in cron.hours:
        for minute in cron.minutes:
            local = midnight + hour * _HOUR + minute * _MINUTE
            first, second = (local.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
            if first.astimezone(zone).replace(tzinfo=None) == local:
                found.add(first)
                if not cron.fixed:
                    # The clock shows it twice.
                    found.add(second)
            elif cron.fixed:
                found.add(_end_of_gap(zone, second, first))
    return sorted(found)


def _end_of_gap(zone: tzinfo, before: datetime, after: datetime) -> datetime:
    """Return the first moment with the offset that *zone* has at *after*, which it has not yet at *before*."""
    offset = after.astimezone(zone).utcoffset()
    low, high = 0, int((after - before).total_seconds())
    while low < high:
        middle = (low + high) // 2
        if (before + timedelta(seconds=middle)).astimezone(zone).utcoffset() == offset:
            high = middle
        else:
            low = middle + 1
    return before + timedelta(seconds=low)


def _offset(zone: tzinfo, local: datetime) -> timedelta:
    return local.replace(tzinfo=zone).utcoffset() or timedelta()
