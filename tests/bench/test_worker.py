"""The bench of the worker runs, at a tiny size, and its figures make sense."""

from __future__ import annotations

from pathlib import Path

from bench.worker import run_worker


def test_every_figure_is_there(tmp_path: Path) -> None:
    found = run_worker(tmp_path, rounds=1, jobs=200, idle_seconds=0.05)

    assert min(found.raw, found.blocking, found.awaited, found.sleeping, found.sleeping_bare) > 0
    assert found.core_bound < min(found.raw, found.sleeping_bare)
    assert found.idle_share >= 0
