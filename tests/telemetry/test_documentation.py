"""The page on telemetry and the list of metrics agree."""

from __future__ import annotations

import re

import pytest

from holdfast.telemetry.metric_definitions import METRICS, Metric
from tests.project.sources import DOCS, table_rows

PAGE = DOCS / "telemetry.md"


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_is_documented_as_it_is(metric: Metric) -> None:
    labels = ", ".join(metric.labels) or "none"

    assert table_rows(PAGE)[metric.name] == [metric.kind, labels, metric.description, metric.source]


def test_the_page_names_no_metric_that_does_not_exist() -> None:
    named = set(re.findall(r"\bholdfast_\w+", PAGE.read_text(encoding="utf-8")))

    assert named == {metric.name for metric in METRICS}


def test_names_follow_the_conventions_of_prometheus() -> None:
    for metric in METRICS:
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.name.endswith("_seconds") == ("_age_" in metric.name or metric.kind == "histogram")
