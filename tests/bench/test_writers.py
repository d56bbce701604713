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
