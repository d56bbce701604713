"""The bench of the HTTP service runs from end to end; the figures themselves are not tested."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.service import main

pytestmark = pytest.mark.slow("it starts a server and measures each figure once")


def test_every_target_is_measured(tmp_path: Path) -> None:
    small = ["--seconds", "0.05", "--rounds", "1", "--waiters", "20", "--streams", "3", "--events", "50"]
    figures = main([*small, "--folder", str(tmp_path), "--json", str(tmp_path / "figures.json")])
    judged = [one.name for one in figures if one.met is not None]
    assert judged == [
        "64 connections: enqueue",
        "64 connections: claim + settle",
        "20 waiters: p99 from settle to answer",
        "SSE deliveries",
    ]
    assert len(figures) == 7
    assert "SSE deliveries" in (tmp_path / "figures.json").read_text(encoding="utf-8")
