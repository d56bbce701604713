from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import postgres_schemas
from tests.support.filesystems import quick_folder
from tests.support.gateway import RunningGateway, StorePlace, running_gateway
from tests.support.model_server import ModelServer, model_server
from tests.support.postgres_server import database_url
from tests.support.stores import DURABLE_ENGINES, migrated_file


@pytest.fixture
def upstream() -> Iterator[ModelServer]:
    """A scripted model server."""
    with model_server() as server:
        yield server


@pytest.fixture
def file() -> Iterator[Path]:
    """A migrated SQLite file."""
    with quick_folder() as folder:
        path = folder / "gateway.db"
        path.write_bytes(migrated_file())
        yield path


def _settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    marker = request.node.get_closest_marker("gateway_settings")
    return dict(marker.kwargs) if marker else {}


@pytest.fixture
def gateway(request: pytest.FixtureRequest, upstream: ModelServer, file: Path) -> Iterator[RunningGateway]:
    """A gateway on SQLite before the scripted model server."""
    with running_gateway(str(file), f"http://127.0.0.1:{upstream.port}", **_settings(request)) as running:
        yield running


@pytest.fixture(params=DURABLE_ENGINES)
def place(request: pytest.FixtureRequest, file: Path) -> Iterator[StorePlace]:
    """A migrated store of each engine."""
    if request.param == "sqlite":
        yield StorePlace(str(file), "holdfast", file)
        return
    with postgres_schemas.migrated_schema() as schema:
        yield StorePlace(database_url(), schema, file)


@pytest.fixture
def served(request: pytest.FixtureRequest, upstream: ModelServer, place: StorePlace) -> Iterator[RunningGateway]:
    """A gateway on each engine."""
    with place.gateway(f"http://127.0.0.1:{upstream.port}", **_settings(request)) as running:
        yield running
