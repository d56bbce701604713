"""The isolation bench runs at a tiny size and returns plausible figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.isolation import run_isolation

pytestmark = pytest.mark.slow("the bench starts isolated processes")


def test_every_figure_is_measured(tmp_path: Path) -> None:
    found = run_isolation(tmp_path, rounds=1, jobs=20)

    assert min(found) > 0
    assert found.cost_ms == found.isolated_ms - found.plain_ms
