from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.postgres_server import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A running server of the module's own, which its tests may hit as they like and leave running."""
    made = Server()
    made.start()
    yield made
    made.close()
