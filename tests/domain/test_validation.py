"""Validation of single arguments: valid values are returned in stored form, other ones raise with the field."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from math import nan
from typing import Any

import pytest
from hypothesis import given, strategies as st

from holdfast import InvalidInput
from holdfast.domain import limits, strict_json, validation
from holdfast.domain.outcomes import check_outcome

SOUND_NAMES = [
    "a",
    "memory.extract",
    "'; drop table jobs; --",
    "שלום עולם",
    "مرحبا \u202e",
    "👩‍👩‍👧‍👦",
    "e\u0301",
    "a b",
    "%_?*",
    "n" * limits.NAME_CHARS_MAX,
    "😀" * limits.NAME_CHARS_MAX,
]
UNSOUND_NAMES: list[Any] = [
    "",
    " ",
    "\u2003\u00a0",
    "n" * (limits.NAME_CHARS_MAX + 1),
    "n" * 10_000,
    "a\0b",
    "a\nb",
    "tab\t",
    "\x1b[31m",
    "\x7f",
    "\x85",
    "half \ud83d",
    "\udc00",
    None,
    1,
    True,
    b"bytes",
    ["list"],
]


def str_start(value: object) -> str:
    """Return a test id of limited length."""
    return repr(value)[:20]


class TestNames:
    @pytest.mark.parametrize("value", SOUND_NAMES)
    def test_a_sound_name_passes_unchanged(self, value: str) -> None:
        assert validation.name(value, "kind") == value

    @pytest.mark.parametrize("value", UNSOUND_NAMES)
    def test_an_unsound_name_is_refused_with_its_field(self, value: Any) -> None:
        with pytest.raises(InvalidInput) as caught:
            validation.name(value, "kind")
        assert caught.value.field == "kind"

    def test_an_optional_name_may_be_none_but_not_empty(self) -> None:
        assert validation.optional_name(None, "affinity") is None
        with pytest.raises(InvalidInput):
            validation.optional_name("", "affinity")

    def test_names_keep_their_order_and_lose_their_repetitions(self) -> None:
        assert validation.names(["b", "a", "b"], "kinds", 2) == ("b", "a")

    @pytest.mark.parametrize(
        ("values", "field"),
        [("gpu", "requires"), (["a", ""], "requires[1]"), (["a", "b", "c"], "requires"), (b"gpu", "requires[0]")],
    )
    def test_an_invalid_list_of_names_is_refused_with_the_path(self, values: Any, field: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            validation.names(values, "requires", 2)
        assert caught.value.field == field

    @pytest.mark.parametrize("values", [5, None, 1.5])
    def test_what_is_no_list_at_all_is_refused(self, values: Any) -> None:
        with pytest.raises(InvalidInput) as caught:
            validation.names(values, "requires", 2)
        assert caught.value.field == "requires"

    @pytest.mark.parametrize(
        "code", ["smtp", "smtp_refused", "http.503", "0", "a:b-c", "a" * limits.REASON_CHARS_MAX]
    )
    def test_a_reason_is_a_short_code(self, code: str) -> None:
        assert validation.reason(code, "reason") == code

    @pytest.mark.parametrize("code", ["", "Smtp", "no spaces", "_a", "é", "a" * (limits.REASON_CHARS_MAX + 1), None])
    def test_any_other_reason_is_refused(self, code: Any) -> None:
        with pytest.raises(InvalidInput) as caught:
            validation.reason(code, "reason")
        assert caught.value.field == "reason"


class TestMaps:
    def test_a_map_of_short_strings_passes(self) -> None:
        value = {"trace": "00-ab", "line": "two\nlines", "empty": ""}
        assert validation.string_map(value, "headers", 3, 9) == value

    @pytest.mark.parametrize(
        ("value", "field"),
        [
            ({"a": "1", "b": "2", "c": "3"}, "tags"),
            ([("a", "1")], "tags"),
            ("a=1", "tags"),
            ({"a": 1}, "tags.a"),
            ({"a": None}, "tags.a"),
            ({"a": "x" * 10}, "tags.a"),
            ({"a": "nul\0"}, "tags.a"),
            ({"a": "\ud800"}, "tags.a"),
            ({"": "x"}, "tags (a key)"),
            ({1: "x"}, "tags (a key)"),
            ({"a\0": "x"}, "tags (a key)"),
        ],
    )
    def test_any_other_map_is_refused_with_the_path(self, value: Any, field: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            validation.string_map(value, "tags", 2, 9)
        assert caught.value.field == field


class TestNumbers:
    @given(st.integers(-1000, 1000))
    def test_an_integer_in_range_passes(self, value: int) -> None:
        assert validation.integer(value, "priority", -1000, 1000) == value

    @pytest.mark.parametrize("value", [-1001, 1001, 2**63, True, 1.0, "1", None])
    def test_any_other_integer_is_refused(self, value: Any) -> None:
        with pytest.raises(InvalidInput) as caught:
            validation.integer(value, "priority", -1000, 1000)
        assert caught.value.field == "priority"

    def test_an_integer_too_long_to_be_shown_is_refused_like_any_other(self) -> None:
        with pytest.raises(InvalidInput) as caught:
            validation.integer(10**5000, "priority", -1000, 1000)
        assert caught.value.field == "priority"

    @pytest.mark.parametrize(
        "value", [-0.1, 100.5, float("nan"), float("inf"), True, "1", None, 10**400], ids=str_start
    )
    def test_a_number_out_of_range_or_not_finite_is_refused(self, value: Any) -> None:
        with pytest.raises(InvalidInput) as caught:
            validation.number(value, "percent", 0, 100)
        assert caught.value.field == "percent"

    @pytest.mark.parametrize("value", [0, 1, None, "true"])
    def test_a_flag_is_true_or_false_and_nothing_like_it(self, value: Any) -> None:
        with pytest.raises(InvalidInput):
            validation.flag(value, "force")

    @pytest.mark.parametrize("value", ["Keep", None, [], {}])
    def test_a_choice_outside_the_list_is_refused_with_the_list(self, value: Any) -> None:
        with pytest.raises(InvalidInput, match="'keep', 'replace'"):
            validation.one_of(value, "on_duplicate", ("keep", "replace"))


class TestDurations:
    def test_a_text_is_refused_with_what_a_duration_is(self) -> None:
        text: Any = "5m"
        with pytest.raises(InvalidInput, match="delay: must be a number of seconds or a timedelta, not str"):
            validation.duration_ms(text, "delay")

    @given(st.timedeltas(timedelta(0), timedelta(days=366)))
    def test_a_timedelta_is_never_shortened_and_grows_by_less_than_a_millisecond(self, value: timedelta) -> None:
        stored = timedelta(milliseconds=validation.duration_ms(value, "delay"))
        assert timedelta(0) <= stored - value < timedelta(milliseconds=1)

    @given(st.integers(0, 366 * 86_400 * 10**6))
    def test_seconds_and_timedelta_mean_the_same(self, microseconds: int) -> None:
        value = timedelta(microseconds=microseconds)
        assert validation.duration_ms(value.total_seconds(), "delay") == validation.duration_ms(value, "delay")

    @given(st.integers(0, limits.PAUSE_MS_MAX))
    def test_whole_milliseconds_stay_as_they_are(self, milliseconds: int) -> None:
        assert validation.duration_ms(milliseconds / 1000, "delay") == milliseconds

    @given(st.floats(0, 366 * 86_400))
    def test_seconds_are_not_shortened_by_as_much_as_a_microsecond(self, seconds: float) -> None:
        assert validation.duration_ms(seconds, "delay") >= seconds * 1000 - 0.001

    @pytest.mark.parametrize(
        "value",
        [-1, -0.001, timedelta(seconds=-1), float("nan"), float("inf"), True, "5", None, 366 * 86_400 + 1, 10**400],
        ids=str_start,
    )
    def test_any_other_duration_is_refused(self, value: Any) -> None:
        with pytest.raises(InvalidInput) as caught:
            validation.duration_ms(value, "delay")
        assert caught.value.field == "delay"


class Nowhere(tzinfo):
    """A time zone without an offset: Python considers such a datetime naive."""

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        return None

    def dst(self, moment: datetime | None) -> timedelta | None:
        return None

    def tzname(self, moment: datetime | None) -> str | None:
        return None


OFFSETS = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


class TestMoments:
    @given(st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30), timezones=OFFSETS))
    def test_a_time_is_never_made_earlier(self, value: datetime) -> None:
        stored = validation.datetime_of(validation.timestamp_ms(value, "run_at"))
        assert timedelta(0) <= stored - value < timedelta(milliseconds=1)

    def test_the_time_zone_does_not_matter(self) -> None:
        there = datetime(2024, 1, 1, 12, tzinfo=timezone(timedelta(hours=5)))
        assert validation.timestamp_ms(there, "run_at") == validation.timestamp_ms(there.astimezone(UTC), "run_at")

    @pytest.mark.parametrize(
        "value",
        [
            datetime(2024, 1, 1),  # without a time zone, which is the point
            datetime(2024, 1, 1, tzinfo=Nowhere()),
            datetime(1969, 12, 31, tzinfo=UTC),
            datetime.min.replace(tzinfo=UTC),
            datetime.max.replace(tzinfo=timezone(-timedelta(hours=12))),
            1_700_000_000,
            "2024-01-01",
            None,
        ],
    )
    def test_any_other_time_is_refused(self, value: Any) -> None:
        with pytest.raises(InvalidInput) as caught:
            validation.timestamp_ms(value, "run_at")
        assert caught.value.field == "run_at"


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("has no text")


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    ["x" * 1_000_000, 10**5000, nested(5000), Unprintable(), {"a": "b" * 10_000}],
    ids=["text", "integer", "list", "unprintable", "dict"],
)
def test_a_message_shows_an_invalid_value_of_any_type_and_size_in_short(value: object) -> None:
    calls: list[Callable[[], object]] = [
        lambda: validation.flag(value, "force"),
        lambda: validation.one_of(value, "state", ("done",)),
        lambda: check_outcome(value, tenant="a", fresh_id=str),  # type: ignore[arg-type]
        lambda: strict_json.encode({(value if isinstance(value, int) else 1): 1}, "payload", 1000),
        lambda: strict_json.encode({"k" * 1_000_000: nan}, "payload", 10_000_000),
    ]
    for call in calls:
        with pytest.raises(InvalidInput) as refused:
            call()
        assert len(str(refused.value)) < 500
