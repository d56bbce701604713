from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.engines import ENGINES
from tests.support.postgres_server import fresh_database


@pytest.fixture(params=ENGINES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty store that several processes can open."""
    if request.param == "sqlite":
        yield str(tmp_path / "jobs.db")
        return
    with fresh_database() as url:
        yield url
