"""The dashboard queries every metric of the list, by existing labels, and no other metric."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import Any

from holdfast.telemetry.metric_definitions import METRICS, Metric
from tests.project.sources import DOCS

BOARD: dict[str, Any] = json.loads((DOCS / "grafana" / "holdfast.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = BOARD["panels"]
QUERIES: list[str] = [target["expr"] for panel in PANELS for target in panel.get("targets", [])]
ASKED = re.compile(r"\b(holdfast_\w+?)(?:_bucket|_count|_sum)?(?:\{([^}]*)\}|,)")
KNOWN = {metric.name: metric for metric in METRICS}
# Labels that Prometheus itself adds, and the one of a histogram's buckets.
ADDED = {"job", "instance", "le"}


def _variables() -> list[str]:
    return [variable["query"]["query"] for variable in BOARD["templating"]["list"] if variable["type"] == "query"]


def _queried_metrics(query: str) -> list[tuple[str, str]]:
    return ASKED.findall(query)


def test_it_asks_only_for_metrics_that_exist_by_labels_they_have() -> None:
    for query in [*QUERIES, *_variables()]:
        metrics = _queried_metrics(query)
        assert len(metrics) == query.count("holdfast_") > 0, query
        for name, matchers in metrics:
            labels = set(re.findall(r"(\w+)\s*=~?", matchers))
            assert labels <= {*KNOWN[name].labels, *ADDED}, query


def test_what_it_groups_by_are_labels_of_what_it_groups() -> None:
    for query in QUERIES:
        [(name, _)] = _queried_metrics(query)
        grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")}
        assert grouped <= {*KNOWN[name].labels, *ADDED}, query


def test_it_shows_every_metric_there_is() -> None:
    assert {name for query in QUERIES for name, _ in _queried_metrics(query)} == KNOWN.keys()


def test_it_takes_the_largest_of_what_every_worker_reads_from_the_same_store() -> None:
    for query in QUERIES:
        [(name, _)] = _queried_metrics(query)
        metric: Metric = KNOWN[name]
        if metric.source == "store":
            assert re.match(r"(sum\()?(max|min)( by \([^)]*\) )?\(", query), query


def test_counters_are_asked_for_by_rate_and_gauges_are_not() -> None:
    for query in QUERIES:
        [(name, _)] = _queried_metrics(query)
        assert (KNOWN[name].kind != "gauge") == bool(re.search(r"\b(rate|increase)\(", query)), query


def test_a_histogram_is_asked_for_by_its_buckets() -> None:
    for query in QUERIES:
        [(name, _)] = _queried_metrics(query)
        assert (KNOWN[name].kind == "histogram") == (f"{name}_bucket" in query), query


def test_panels_are_told_apart_explained_and_do_not_overlap() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    assert all(panel["description"] for panel in PANELS if panel["type"] != "row")
    for one, other in combinations([panel["gridPos"] for panel in PANELS], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above
        assert one["x"] + one["w"] <= 24
