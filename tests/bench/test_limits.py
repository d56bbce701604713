"""The cost of limits by key: every figure is measured."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from bench import limits


def test_a_short_run_has_a_figure_for_every_limit() -> None:
    costs = limits.measure(None, rounds=1, jobs=20, keys=2, parked=4)

    assert set(costs.microseconds) == {limits.PLAIN, *limits.LIMITS}
    assert all(costs.ratio(name) > 0 for name in limits.LIMITS)
    assert costs.claim_ratio > 0
    assert costs.fan_in > 0
    text = StringIO()
    limits.show(costs, Console(file=text, width=120))
    assert "claim beside full keys" in text.getvalue()
