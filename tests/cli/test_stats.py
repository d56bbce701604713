from __future__ import annotations

import pytest

from holdfast.cli.stats import bar
from tests.cli.conftest import Cli


def test_stats_counts_by_state_in_life_cycle_order_with_a_bar(cli: Cli, failed_job: str) -> None:
    cli.queue.enqueue_many([{"kind": "a"}, {"kind": "a"}, {"kind": "b", "delay": 60}])

    head, _, *rows = cli.text("stats").splitlines()

    assert head.split() == ["STATE", "JOBS", "SHARE"]
    assert [row.split()[:2] for row in rows] == [["scheduled", "1"], ["ready", "2"], ["failed", "1"], ["total", "4"]]
    assert "█" in rows[0]


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("state", {"ready": 2, "failed": 1}),
        ("kind", {"a": 2, "email.send": 1}),
        ("lane", {"default": 2, "bulk": 1}),
        ("tenant", {"default": 2, "acme": 1}),
        ("failure_class", {"permanent": 1}),
    ],
)
def test_stats_in_json(cli: Cli, failed_job: str, by: str, expected: dict[str, int]) -> None:
    cli.queue.enqueue_many([{"kind": "a", "lane": "bulk"}, {"kind": "a", "tenant": "acme"}])

    answer = cli.json("stats", "--by", by)

    assert answer.pop("unserved")
    assert answer == {"by": by, "counts": expected, "total": sum(expected.values())}


def test_stats_by_kind_puts_the_most_first(cli: Cli) -> None:
    cli.queue.enqueue_many([{"kind": "few"}, {"kind": "many"}, {"kind": "many"}])

    rows = cli.text("stats", "--by", "kind").splitlines()[2:]

    assert [row.split()[0] for row in rows] == ["many", "few", "total"]


def test_stats_of_one_tenant(cli: Cli) -> None:
    cli.queue.enqueue_many([{"kind": "a"}, {"kind": "a", "tenant": "acme"}])

    assert cli.json("stats", "--tenant", "acme")["total"] == 1


def test_a_store_without_jobs_has_nothing_to_count(cli: Cli) -> None:
    cli.queue.migrate()

    assert cli.run("stats").stderr == "there are no jobs to count\n"
    assert cli.json("stats") == {"by": "state", "counts": {}, "total": 0, "unserved": []}


def test_counting_by_another_property_is_refused(cli: Cli) -> None:
    assert "'colour' is not one of" in cli.refusal("stats", "--by", "colour", code=2)


def test_a_bar_is_empty_only_for_zero() -> None:
    assert bar(0, 1_000) == ""
    assert bar(1, 1_000_000) == "▏"
    assert len(bar(1_000, 1_000)) == 40
    assert bar(1, 1_000_000, ascii_only=True) == "#"


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_stats_fit_the_terminal(cli: Cli, columns: int) -> None:
    cli.queue.enqueue_many([{"kind": "a"}, {"kind": "b"}])

    assert max(map(len, cli.text("stats", "--by", "kind", columns=columns).splitlines())) <= columns
