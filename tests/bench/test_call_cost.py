"""The cost of single calls: every target has a figure, and the mixed worker takes plain claims."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from bench import call_cost


def test_a_short_run_has_a_figure_for_every_target() -> None:
    costs = call_cost.measure(rounds=2, calls=40)

    assert {target.name for target in call_cost.TARGETS} | {"bare single", "bare bulk"} <= set(costs.microseconds)
    limits = ("single enqueue", "claim one", "settle one", "settle and claim one", "drain")
    assert {name for name in costs.beside() if name.startswith(call_cost.STATEMENTS)} == {
        call_cost.STATEMENTS + name for name in (*limits, call_cost.EMPTY)
    }
    assert {call_cost.MINIMAL, call_cost.HANDLED} <= set(costs.beside())
    assert all(microseconds > 0 for microseconds in costs.microseconds.values())
    assert min(costs.plain_shares.values()) > 0.5
    assert {target.name for target in call_cost.TARGETS} | {"bare single", "bare bulk"} == set(costs.pages)
    assert costs.pages["settle and claim one"] < costs.pages["claim one"] + costs.pages["settle one"]
    assert 1 < costs.pages["bare single"] < costs.pages["single enqueue"]
    assert {row[0] for row in costs.parts()} == set(limits)
    text = StringIO()
    call_cost.show(costs, Console(file=text, width=120))
    assert "drain, 100 tenants" in text.getvalue()
    assert "Pages written to the log" in text.getvalue()


def test_the_parts_of_a_call_add_up_to_it() -> None:
    found = {"single enqueue": 30.0, call_cost.EMPTY: 9.0}
    alone = {call_cost.STATEMENTS + "single enqueue": 20.0, call_cost.STATEMENTS + call_cost.EMPTY: 7.0}
    costs = call_cost.CallCosts(found | alone, {}, {}, 0)

    assert list(costs.parts()) == [("single enqueue", "20.0", "2.0", "8.0")]


def test_pages_are_not_counted_if_a_checkpoint_resets_the_log(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("create table some (value)")

        def write(size: int) -> None:
            connection.execute("insert into some values (zeroblob(?))", (size,))
            connection.commit()

        # Nine of the value, that of the table, and the first of the file.
        assert call_cost.written_pages(path, lambda: write(40_000)) == 11
        with pytest.raises(RuntimeError, match="checkpoint"):
            call_cost.written_pages(path, lambda: write(5_000_000))
