from __future__ import annotations

import sys
import unicodedata
from datetime import UTC, datetime

import pytest

from holdfast.cli import formatting, params, tables
from holdfast.cli.tables import Column
from holdfast.domain.validation import datetime_of


@pytest.mark.parametrize(
    ("typed", "seconds"),
    [
        ("0", 0),
        ("30s", 30),
        ("5m", 300),
        ("2h", 7_200),
        ("7d", 604_800),
        ("2w", 1_209_600),
        ("1.5h", 5_400),
        ("250ms", 0.25),
    ],
)
def test_a_duration_is_read_in_its_unit(typed: str, seconds: float) -> None:
    assert params.duration(typed) == seconds


@pytest.mark.parametrize(
    "typed", ["", "s", "7", "30", "1.5", "00", "-5", "5 m", "5M", "1h30m", "nan", "inf", "1e3", "٣s"]
)
def test_an_invalid_duration_is_refused(typed: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        params.duration(typed)


def test_the_text_of_a_duration_is_a_valid_option_value() -> None:
    assert [params.duration(str(params.duration(typed))) for typed in ("0", "2.5s", "250ms", "7d")] == [
        0,
        2.5,
        0.25,
        604_800,
    ]


def test_a_timestamp_is_read_with_its_time_zone() -> None:
    assert params.timestamp("2030-01-31T09:00:00Z") == datetime(2030, 1, 31, 9, tzinfo=UTC)
    assert params.timestamp("2030-01-31T11:00:00+02:00") == datetime(2030, 1, 31, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    ("at_ms", "seen"),
    [
        (0, "2d ago"),
        (172_800_000, "now"),
        (172_799_500, "now"),
        (172_740_000, "1m ago"),
        (172_797_000, "3s ago"),
        (172_800_001, "in 1s"),
        (176_400_000, "in 1h"),
        (999_999_999_999, "in 11572d"),
    ],
)
def test_a_timestamp_is_shown_relative_to_now(at_ms: int, seen: str) -> None:
    assert formatting.relative(datetime_of(at_ms), datetime_of(172_800_000)) == seen


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [
        (0, "0ms"),
        (-5, "0ms"),
        (340, "340ms"),
        (2_100, "2.1s"),
        (12_000, "12s"),
        (185_000, "3m 5s"),
        (7_200_000, "2h"),
    ],
)
def test_a_duration_is_shown_in_its_largest_units(milliseconds: int, shown: str) -> None:
    assert formatting.duration(milliseconds) == shown


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (999, "999 B"), (1_400_000, "1.4 MB"), (16_777_216, "16.8 MB")]
)
def test_a_size_is_shown_in_its_unit(count: int, shown: str) -> None:
    assert formatting.size(count) == shown


def test_one_line_is_the_first_that_is_not_blank() -> None:
    assert formatting.one_line("\n  \n first \nsecond") == "first"
    assert formatting.one_line("") == ""


def test_clean_keeps_text_and_replaces_control_characters() -> None:
    assert formatting.clean("Zoë 東京 [red]\n\tx") == "Zoë 東京 [red]\n\tx"
    assert formatting.clean("\x1b[2J\x9b\x07\u202e\r\x7f") == "\ufffd[2J" + "\ufffd" * 5


def test_clean_replaces_every_control_format_line_and_paragraph_character() -> None:
    # Two join letters and emoji; the others are visible parts of Arabic and Kaithi numbers, and of Syriac.
    kept = {0x200C, 0x200D, *range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
    unsafe = {
        code
        for code in range(sys.maxunicode + 1)
        if unicodedata.category(chr(code)) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
    }

    cleaned = {code for code in range(sys.maxunicode + 1) if formatting.clean(chr(code), keep="") != chr(code)}

    assert {0x61C, 0x2028, 0x2029, 0x202E, 0x2066, 0x200F} <= cleaned
    assert cleaned >= unsafe - kept
    assert cleaned & kept == set()


def test_columns_of_a_higher_rank_are_left_out_first_and_those_of_rank_0_never() -> None:
    columns = [Column("ID", ["x" * 36]), Column("A", ["y" * 20], rank=1), Column("B", ["z" * 20], rank=2)]

    assert [column.title for column in tables.fitting(columns, 120)] == ["ID", "A", "B"]
    assert [column.title for column in tables.fitting(columns, 70)] == ["ID", "A"]
    assert [column.title for column in tables.fitting(columns, 10)] == ["ID"]


def test_a_column_with_only_its_hidden_value_is_left_out() -> None:
    columns = [Column("ID", ["1", "2"]), Column("LANE", ["default", "default"], hide_if="default")]

    assert [column.title for column in tables.fitting(columns, 80)] == ["ID"]


def test_the_widest_columns_are_shortened_until_all_fit_but_not_below_their_minimum() -> None:
    columns = [Column("ID", ["x" * 36]), Column("A", ["y" * 20], min_width=10), Column("B", ["z" * 90], min_width=10)]

    assert tables.widths(columns, 200) == [36, 20, 90]
    assert tables.widths(columns, 100) == [36, 20, 40]
    assert tables.widths(columns, 70) == [36, 15, 15]
    assert tables.widths(columns, 20) == [36, 10, 10]
