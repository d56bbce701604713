"""The cost of limits by key: every figure is measured."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO

import pytest
from bench.postgres.server import Arena
from rich.console import Console

from bench import limits


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """The store: a new database, or None for a new file."""
    if request.param == "sqlite":
        yield None
        return
    with Arena() as arena, arena.fresh() as made:
        yield made


@pytest.mark.slow("the bench has its own server")
def test_a_short_run_has_a_figure_for_every_limit(url: str | None) -> None:
    costs = limits.measure(url, rounds=1, jobs=20, keys=2, parked=4)

    assert set(costs.microseconds) == {limits.PLAIN, *limits.LIMITS}
    assert all(costs.ratio(name) > 0 for name in limits.LIMITS)
    assert costs.claim_ratio > 0
    assert costs.fan_in > 0
    text = StringIO()
    limits.show(costs, Console(file=text, width=120))
    assert "claim beside full keys" in text.getvalue()
