"""The bench of the dashboard runs from end to end; the figures themselves are not tested."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.dashboard import FILTERS, main

pytestmark = pytest.mark.slow("it fills a store, starts a server and reads every page once")


def test_every_page_is_read(tmp_path: Path) -> None:
    small = ["--jobs", "200", "--rounds", "1"]
    figures = main([*small, "--folder", str(tmp_path), "--json", str(tmp_path / "figures.json")])
    assert len(figures) == len(FILTERS) + 10
    assert all(one.kilobytes < 60 for one in figures)
    assert "/flow" in (tmp_path / "figures.json").read_text(encoding="utf-8")
