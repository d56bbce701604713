"""Rollups: buckets, percentiles, sums."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from holdfast.domain import limits, rollups
from holdfast.domain.rollups import CountedEnd, Ended, Rollup, RollupRow, Sums

DURATIONS = st.integers(0, 40 * 86_400_000)
NAMES = st.sampled_from(["a", "b", "c"])
ENDED = st.lists(
    st.tuples(
        st.builds(Ended, NAMES, NAMES, st.sampled_from(rollups.OUTCOMES[1:]), st.none() | DURATIONS, DURATIONS),
        st.integers(1, 3),
    )
)
ARRIVED = st.lists(st.tuples(NAMES, NAMES))


@given(DURATIONS)
def test_the_middle_of_a_bucket_is_at_most_an_eighth_away(milliseconds: int) -> None:
    middle = rollups.middle_of(rollups.bucket_of(milliseconds))
    assert abs(middle - milliseconds) <= milliseconds / 8


@given(DURATIONS, DURATIONS)
def test_buckets_are_in_the_order_of_durations(one: int, other: int) -> None:
    assert (rollups.bucket_of(one) <= rollups.bucket_of(other)) or one > other


def test_a_clock_that_went_back_counts_as_no_time() -> None:
    assert rollups.bucket_of(-5) == rollups.bucket_of(0) == 0


@given(st.lists(DURATIONS, min_size=1), st.floats(0.01, 1))
def test_a_percentile_is_near_the_duration_of_that_rank(durations: list[int], fraction: float) -> None:
    histogram: rollups.Histogram = {}
    for one in durations:
        histogram[rollups.bucket_of(one)] = histogram.get(rollups.bucket_of(one), 0) + 1
    found = rollups.percentile(histogram, fraction)
    assert found is not None
    assert any(abs(found - one) <= one / 8 for one in durations)
    assert sum(one <= found * 8 / 7 for one in durations) >= fraction * len(durations) - 1e-6


def test_nothing_has_no_percentile() -> None:
    assert rollups.percentile({}, 0.5) is None


@given(ENDED, ENDED, ARRIVED, ARRIVED)
def test_a_merged_rollup_is_that_of_all_ends(
    one: list[CountedEnd], other: list[CountedEnd], here: list[tuple[str, str]], there: list[tuple[str, str]]
) -> None:
    parts = [rollups.fold(one, here), rollups.fold(other, there)]
    together = rollups.fold(one + other, here + there)
    assert rollups.merge(parts) == rollups.merge(reversed(parts)) == together
    assert rollups.totals(parts) == rollups.totals([together])
    ends = sum(count for _, count in one + other)
    assert sum(rollups.totals(parts).values()) == ends + len(here) + len(there)


@given(ENDED, ARRIVED)
def test_a_rollup_is_stored_as_json_and_read_back(ended: list[CountedEnd], arrived: list[tuple[str, str]]) -> None:
    rollup = rollups.fold(ended, arrived)
    assert rollups.decode(rollups.encode(rollup)) == rollup


def test_rows_are_merged_by_their_minute() -> None:
    one = rollups.encode({("a", "b", "done"): Sums(1, {3: 1}, {4: 1})})
    rows = [RollupRow(1, 10_000, one), RollupRow(2, 50_000, one), RollupRow(3, 60_000, one)]
    merged = {at_ms: rollups.decode(data) for at_ms, data in rollups.merged_rows(rows, 60_000).items()}
    assert merged == {
        0: {("a", "b", "done"): Sums(2, {3: 2}, {4: 2})},
        60_000: {("a", "b", "done"): Sums(1, {3: 1}, {4: 1})},
    }


def test_lanes_and_kinds_beyond_the_limit_are_counted_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ROLLUP_ROUTES_MAX", 2)
    parts: list[Rollup] = [{("lane", str(n), "done"): Sums(1, {}, {})} for n in range(5)]
    assert {key[:2]: sums.jobs for key, sums in rollups.merge(parts).items()} == {
        ("lane", "0"): 1,
        ("lane", "1"): 1,
        (rollups.OTHER, rollups.OTHER): 3,
    }
