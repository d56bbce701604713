from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from holdfast.service.settings import ServiceSettings
from tests.conftest import FAILED
from tests.support.filesystems import quick_folder
from tests.support.service import Server
from tests.support.stores import DURABLE_ENGINES, Harness


def _served(request: pytest.FixtureRequest, engine: str) -> Iterator[Server]:
    marker = request.node.get_closest_marker("service_settings")
    settings = ServiceSettings(**(marker.kwargs if marker else {}))
    with quick_folder() as folder:
        harness = Harness(engine, folder)
        running = Server(harness, settings)
        running.start()
        try:
            yield running
        finally:
            running.stop()
            harness.close(trusted=not request.node.stash.get(FAILED, False))


@pytest.fixture(params=DURABLE_ENGINES)
def served(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server on each engine."""
    yield from _served(request, request.param)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server on one engine, for behaviour that does not depend on the store."""
    yield from _served(request, DURABLE_ENGINES[0])


@pytest.fixture
def many_files() -> Iterator[None]:
    """Let the test open thousands of connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8_192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
