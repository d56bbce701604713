"""The bench of many writers."""

from __future__ import annotations

import pytest

from bench import writers


@pytest.mark.slow("starts processes")
@pytest.mark.parametrize("name", list(writers.CALLS))
def test_all_processes_write_for_the_given_time(name: str) -> None:
    times = writers.measure(name, 2, 0.1)

    assert len(times) >= 2
    assert times == sorted(times)
    assert writers.quantile(times, 0.5) <= writers.quantile(times, 0.999) <= times[-1]


@pytest.mark.slow("starts processes")
def test_the_longest_waits_are_compared_round_by_round() -> None:
    found = writers.run_writers(2, 0.1, 2)

    assert set(found) == {"holdfast", "flock", "statements under flock"}
    assert found["flock"].ratio_least == found["flock"].ratio == found["flock"].ratio_most == 1
    for times in found.values():
        assert times.p999_least_ms <= times.p999_ms <= times.p999_most_ms
        assert times.ratio_least <= times.ratio <= times.ratio_most
