"""The bench of the model gateway runs from end to end; the figures themselves are not tested."""

from __future__ import annotations

import pytest
from bench.gateway import main


@pytest.mark.slow("it starts model servers and gateways")
def test_the_bench_of_the_gateway_reports_every_figure() -> None:
    small = ["--requests", "3", "--streams", "4", "--seconds", "0.2", "--rounds", "1"]

    figures = main(["--only", "idle", "--only", "streams", "--only", "backlog", *small])

    assert [one.name for one in figures] == [
        "one idle request: added p50",
        "streams: added p99 of each chunk",
        "streams: throughput",
        "mixed backlog: swaps with pinned lengths",
    ]
    assert figures[-1].met
