"""The cost of single calls: every target has a figure, and the mixed worker takes plain claims."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from bench import call_cost


def test_a_short_run_has_a_figure_for_every_target() -> None:
    costs = call_cost.measure(rounds=2, calls=40)

    assert {target.name for target in call_cost.TARGETS} | {"bare single", "bare bulk"} <= set(costs.microseconds)
    limits = ("single enqueue", "claim one", "settle one", "settle and claim one", "drain")
    assert {name for name in costs.beside() if name.startswith(call_cost.STATEMENTS)} == {
        call_cost.STATEMENTS + name for name in limits
    }
    assert {call_cost.MINIMAL, call_cost.HANDLED} <= set(costs.beside())
    assert all(microseconds > 0 for microseconds in costs.microseconds.values())
    assert min(costs.plain_shares.values()) > 0.5
    text = StringIO()
    call_cost.show(costs, Console(file=text, width=120))
    assert "drain, 100 tenants" in text.getvalue()
