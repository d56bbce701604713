"""Cron expressions, in five time zones on the nights when their clocks change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies

from holdfast import InvalidInput
from holdfast.domain import cron

# Zone, the local date and hour of the gap or of the repeated hour, and its length in minutes.
GAPS = {
    "Europe/Berlin": ("2026-03-29", "02", 60),
    "America/New_York": ("2026-03-08", "02", 60),
    "Australia/Lord_Howe": ("2026-10-04", "02", 30),
    "America/Santiago": ("2026-09-06", "00", 60),
    "Africa/Cairo": ("2026-04-24", "00", 60),
}
REPEATED = {
    "Europe/Berlin": ("2026-10-25", "02", 60),
    "America/New_York": ("2026-11-01", "01", 60),
    "Australia/Lord_Howe": ("2026-04-05", "01", 30),
    "America/Santiago": ("2026-04-04", "23", 60),
    "Africa/Cairo": ("2026-10-29", "23", 60),
}


def times(text: str, zone: str, after: str, count: int = 5) -> list[str]:
    """Return the next times after a local time, each as local time and offset."""
    tz = ZoneInfo(zone)
    start = datetime.fromisoformat(after).replace(tzinfo=tz)
    found = islice(cron.times_after(cron.parse(text), tz, start.astimezone(UTC)), count)
    return [time.astimezone(tz).strftime("%Y-%m-%d %H:%M%z") for time in found]


def on_day(text: str, zone: str, day: str) -> list[str]:
    """Return the local times of one day."""
    before = (datetime.fromisoformat(day) - timedelta(minutes=1)).isoformat()
    return [time[11:] for time in times(text, zone, before, 2000) if time.startswith(day)]


@pytest.mark.parametrize("zone", GAPS)
class TestGap:
    def test_a_fixed_time_that_does_not_exist_runs_once_at_the_first_moment_after_the_gap(self, zone: str) -> None:
        day, hour, minutes = GAPS[zone]
        end = datetime.fromisoformat(f"{day} {hour}:00") + timedelta(minutes=minutes)

        assert [time[:5] for time in on_day(f"15 {int(hour)} * * *", zone, day)] == [end.strftime("%H:%M")]

    def test_several_fixed_times_in_the_gap_run_once(self, zone: str) -> None:
        day, hour, _ = GAPS[zone]

        assert len(on_day(f"5,15,25 {int(hour)} * * *", zone, day)) == 1

    def test_a_time_that_follows_the_clock_is_skipped(self, zone: str) -> None:
        day, hour, minutes = GAPS[zone]

        assert on_day(f"*/15 {int(hour)} * * *", zone, day) == [
            time for time in on_day("*/15 * * * *", zone, day) if time.startswith(f"{hour}:")
        ]
        assert len(on_day("* * * * *", zone, day)) == 24 * 60 - minutes

    def test_the_days_around_have_it_once(self, zone: str) -> None:
        day, hour, _ = GAPS[zone]
        around = [datetime.fromisoformat(day) + timedelta(days=days) for days in (-1, 1)]

        for one in around:
            assert [time[:5] for time in on_day(f"15 {int(hour)} * * *", zone, f"{one:%Y-%m-%d}")] == [f"{hour}:15"]


@pytest.mark.parametrize("zone", REPEATED)
class TestRepeatedHour:
    def test_a_fixed_time_runs_in_the_first_of_two_equal_hours(self, zone: str) -> None:
        day, hour, minutes = REPEATED[zone]
        [first] = on_day(f"45 {int(hour)} * * *", zone, day)
        before = [time for time in on_day("* * * * *", zone, day) if time[:5] == first[:5]]

        assert before == [first, before[1]]
        assert len(before) == (2 if minutes > 14 else 1)

    def test_a_time_that_follows_the_clock_runs_in_both(self, zone: str) -> None:
        day, hour, minutes = REPEATED[zone]

        assert len(on_day("* * * * *", zone, day)) == 24 * 60 + minutes
        assert len(on_day(f"* {int(hour)} * * *", zone, day)) == 60 + minutes


def test_every_half_hour_from_two_to_three_does_not_run_on_the_night_without_that_hour() -> None:
    assert times("*/30 2 * * *", "Europe/Berlin", "2026-03-28 03:00", 2) == [
        "2026-03-30 02:00+0200",
        "2026-03-30 02:30+0200",
    ]


def test_a_day_that_does_not_exist_runs_at_the_begin_of_the_next() -> None:
    # Samoa had no 30 December 2011.
    assert times("30 12 * * *", "Pacific/Apia", "2011-12-29 00:00", 3) == [
        "2011-12-29 12:30-1000",
        "2011-12-31 00:00+1400",
        "2011-12-31 12:30+1400",
    ]


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("0 3 * * *", "2026-01-01 03:00", ["01-02 03:00", "01-03 03:00"]),
        ("*/20 9-10 * * MON-FRI", "2026-01-02 10:20", ["01-02 10:40", "01-05 09:00"]),
        ("0 0 1 jan,Jul *", "2026-01-01 00:00", ["07-01 00:00", "01-01 00:00"]),
        ("0 12 13 * 5", "2026-02-05 00:00", ["02-06 12:00", "02-13 12:00"]),
        ("0 12 13 * *", "2026-02-05 00:00", ["02-13 12:00", "03-13 12:00"]),
        ("0 0 L * *", "2028-02-01 00:00", ["02-29 00:00", "03-31 00:00"]),
        ("0 0 1,L * *", "2026-02-01 00:00", ["02-28 00:00", "03-01 00:00"]),
        ("0 0 29 2 *", "2096-03-01 00:00", ["02-29 00:00"]),
        ("5/20 0 * * *", "2026-01-01 00:04", ["01-01 00:05", "01-01 00:25", "01-01 00:45"]),
        ("0 0 * * 7", "2026-01-01 00:00", ["01-04 00:00", "01-11 00:00"]),
        ("@weekly", "2026-01-01 00:00", ["01-04 00:00", "01-11 00:00"]),
        ("@Monthly", "2026-01-01 00:00", ["02-01 00:00"]),
    ],
)
def test_the_fields_of_an_expression(text: str, after: str, expected: list[str]) -> None:
    assert [time[5:16] for time in times(text, "UTC", after, len(expected))] == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *", "* * * 13 *"),
        *("* * * * 8", "5-1 * * * *", "*/0 * * * *", "a * * * *", "1,,2 * * * *", "-1 * * * *", "1- * * * *"),
        *("@reboot", "* * * * mond", "1/ * * * *", "*-5 * * * *", "L * * * *"),
    ],
)
def test_an_invalid_expression_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="cron"):
        cron.parse(text)


@pytest.mark.parametrize("name", ["Europe/Atlantis", "../etc/passwd", "Europe", "", "/etc/localtime", "Ä"])
def test_an_unknown_zone_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="zone"):
        cron.zone_of(name)


FIELD = {
    "minute": strategies.sampled_from(["*", "0", "*/7", "15,45", "30-35"]),
    "hour": strategies.sampled_from(["*", "0", "2", "1-3", "*/5", "23"]),
    "day": strategies.sampled_from(["*", "1", "29-31", "L", "*/10"]),
    "month": strategies.sampled_from(["*", "3", "10-12", "4,9"]),
    "weekday": strategies.sampled_from(["*", "0", "1-5", "sun"]),
}


@given(
    strategies.tuples(*FIELD.values()).map(" ".join),
    strategies.sampled_from(sorted(GAPS)),
    strategies.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 31)),
)
def test_times_are_in_order_and_a_later_start_finds_the_same(text: str, zone: str, start: datetime) -> None:
    parsed, tz, after = cron.parse(text), ZoneInfo(zone), start.replace(tzinfo=UTC)
    found = list(islice(cron.times_after(parsed, tz, after), 40))

    assert found == sorted(set(found))
    assert all(time > after for time in found)
    for index in (0, len(found) // 2):
        if found:
            later = list(islice(cron.times_after(parsed, tz, found[index]), len(found) - index - 1))
            assert later == found[index + 1 :]
            assert cron.newest_time(parsed, tz, after, found[index]) == found[index]
            assert cron.newest_time(parsed, tz, after, found[index] + timedelta(seconds=30)) == found[index]


@given(strategies.sampled_from(sorted(GAPS)), strategies.sampled_from(["*/7 * * * *", "3,40 */2 * * *"]))
def test_times_that_follow_the_clock_are_the_minutes_that_the_clock_shows(zone: str, text: str) -> None:
    """Compare with a walk over all minutes of a week in which the clocks change."""
    parsed, tz = cron.parse(text), ZoneInfo(zone)
    for day, *_ in (GAPS[zone], REPEATED[zone]):
        start = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(days=2)
        minutes = [start + timedelta(minutes=number) for number in range(1, 5 * 24 * 60)]
        shown = [(minute, minute.astimezone(tz)) for minute in minutes]
        walked = [m for m, local in shown if local.minute in parsed.minutes and local.hour in parsed.hours]
        assert list(islice(cron.times_after(parsed, tz, start), len(walked))) == walked
