"""Backoff: its pauses, their bounds, and invalid arguments."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from holdfast import Backoff, InvalidInput
from holdfast.domain import backoff as backoffs, limits

SECONDS = st.integers(0, 31_000_000).map(lambda milliseconds: milliseconds / 1000)
FACTORS = st.floats(1, 100)
CHANCES = st.floats(0, 1)
ATTEMPTS = st.integers(1, limits.MAX_ATTEMPTS_MAX)


class TestPauses:
    def test_by_default_it_doubles_from_a_minute_to_an_hour(self) -> None:
        pauses = [backoffs.pause_ms(backoffs.DEFAULT, attempt, 0.5) for attempt in range(1, 10)]
        assert pauses == [60_000 * 2**power for power in range(6)] + [3_600_000] * 3

    def test_jobs_that_failed_together_do_not_return_together_by_default(self) -> None:
        pauses = {backoffs.pause_ms(backoffs.DEFAULT, 1, chance / 10) for chance in range(11)}
        assert len(pauses) == 11
        assert (min(pauses), max(pauses)) == (48_000, 72_000)

    @given(SECONDS, FACTORS, SECONDS, CHANCES, ATTEMPTS)
    def test_a_pause_is_never_above_the_cap_nor_below_the_smaller_of_base_and_cap(
        self, base: float, factor: float, cap: float, chance: float, attempt: int
    ) -> None:
        pause_ms = backoffs.pause_ms(Backoff(base, factor, cap), attempt, chance)
        assert round(min(base, cap) * 1000) <= pause_ms <= round(cap * 1000)

    @given(SECONDS, FACTORS, SECONDS, st.integers(1, limits.MAX_ATTEMPTS_MAX - 1))
    def test_a_later_attempt_never_waits_less(self, base: float, factor: float, cap: float, attempt: int) -> None:
        made = Backoff(base, factor, cap)
        assert backoffs.pause_ms(made, attempt + 1, 0.5) >= backoffs.pause_ms(made, attempt, 0.5)

    @given(SECONDS, FACTORS, SECONDS, CHANCES, ATTEMPTS)
    def test_without_jitter_chance_changes_nothing(
        self, base: float, factor: float, cap: float, chance: float, attempt: int
    ) -> None:
        made = Backoff(base, factor, cap)
        assert backoffs.pause_ms(made, attempt, chance) == backoffs.pause_ms(made, attempt, 0.5)

    @given(SECONDS, FACTORS, st.floats(0, 1), CHANCES, ATTEMPTS)
    def test_jitter_stays_within_its_share_of_the_pause(
        self, base: float, factor: float, jitter: float, chance: float, attempt: int
    ) -> None:
        plain_ms = backoffs.pause_ms(Backoff(base, factor), attempt, 0.5)
        spread_ms = backoffs.pause_ms(Backoff(base, factor, jitter=jitter), attempt, chance)
        assert abs(spread_ms - plain_ms) <= plain_ms * jitter + 1

    @pytest.mark.parametrize(("chance", "pause_ms"), [(0.0, 8_000), (0.25, 9_000), (0.5, 10_000), (1.0, 12_000)])
    def test_chance_places_the_pause_evenly_within_the_jitter(self, chance: float, pause_ms: int) -> None:
        assert backoffs.pause_ms(Backoff(10, jitter=0.2), 1, chance) == pause_ms

    def test_a_gentle_factor_goes_on_growing_through_many_attempts(self) -> None:
        gentle = Backoff(1, factor=1.01, cap=86_400)
        assert backoffs.pause_ms(gentle, 500, 0.5) == round(1_000 * 1.01**499)

    def test_the_steepest_factor_does_not_overflow_at_the_last_attempt(self) -> None:
        assert backoffs.pause_ms(Backoff(1, factor=100, cap=60), limits.MAX_ATTEMPTS_MAX, 1.0) == 60_000

    def test_jitter_on_the_longest_cap_stays_within_the_longest_pause(self) -> None:
        longest = timedelta(milliseconds=limits.PAUSE_MS_MAX)
        assert backoffs.pause_ms(Backoff(longest, cap=longest, jitter=1), 1, 1.0) == limits.PAUSE_MS_MAX

    def test_a_pause_shorter_than_a_millisecond_is_not_cut_to_none(self) -> None:
        assert backoffs.pause_ms(Backoff(0.0004), 1, 0.5) == 1


class TestStorage:
    @given(SECONDS, FACTORS, SECONDS, st.floats(0, 1))
    def test_it_comes_back_as_it_was_stored(self, base: float, factor: float, cap: float, jitter: float) -> None:
        made = Backoff(base, factor, cap, jitter)
        assert backoffs.from_json(backoffs.to_json(made)) == made

    def test_equal_backoffs_are_stored_alike(self) -> None:
        assert backoffs.to_json(Backoff(60, 2, 3600, 0)) == backoffs.to_json(Backoff(60.0, 2.0, 3600.0, 0.0))

    def test_timedelta_and_seconds_are_stored_alike(self) -> None:
        assert backoffs.to_json(Backoff(timedelta(minutes=1))) == backoffs.to_json(Backoff(60.0))


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "field"),
        [
            ({"base": -1}, "backoff.base"),
            ({"base": float("nan")}, "backoff.base"),
            ({"base": "60"}, "backoff.base"),
            ({"base": True}, "backoff.base"),
            ({"base": 367 * 86_400}, "backoff.base"),
            ({"cap": -0.5}, "backoff.cap"),
            ({"cap": timedelta(days=367)}, "backoff.cap"),
            ({"factor": 0.99}, "backoff.factor"),
            ({"factor": 100.5}, "backoff.factor"),
            ({"factor": float("inf")}, "backoff.factor"),
            ({"factor": None}, "backoff.factor"),
            ({"jitter": -0.1}, "backoff.jitter"),
            ({"jitter": 1.1}, "backoff.jitter"),
            ({"jitter": True}, "backoff.jitter"),
        ],
    )
    def test_an_option_out_of_range_is_refused_by_name(self, options: dict[str, Any], field: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            Backoff(**options)
        assert caught.value.field == field
