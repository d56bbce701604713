"""The worker bench runs at a tiny size and returns plausible figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench.__main__ import main
from bench.docs_writer import render_results
from bench.targets import verdicts
from bench.worker import on_files, run_worker

pytestmark = pytest.mark.slow("the bench starts workers")


def test_every_figure_is_measured(tmp_path: Path) -> None:
    found = run_worker(on_files(tmp_path), rounds=1, jobs=200, idle_seconds=0.05)

    assert min(found.raw, found.blocking, found.awaited, found.sleeping, found.sleeping_bare) > 0
    assert found.core_bound < min(found.raw, found.sleeping_bare)
    assert found.engine_bound == min(found.raw, found.slots_bound)
    assert found.idle_share >= 0


def test_the_bench_measures_compares_with_targets_and_stores_the_results(tmp_path: Path) -> None:
    options = ["--engine", "all", "--only", "worker", "--rounds", "1", "--scale", "0.001", "--folder", str(tmp_path)]
    runs = main([*options, "--json", str(tmp_path / "results.json")])
    stored = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))

    for results in runs:
        assert results.worker is not None
        targets = {verdict.path for verdict in verdicts(results) if verdict.found is not None}
        assert {"worker: sync, no-op", "worker: idle", "worker: sleep 1 ms, 100 slots"} <= targets
        assert "settle rate of the engine" in render_results(results)
        assert stored[results.engine]["worker"]["jobs_per_second"]["raw"] > 0
    assert [results.engine for results in runs] == ["sqlite", "postgres"]
