from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Queue
from tests.support.stores import Harness


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Harness]:
    """A store for claims about the worker alone, which hold whatever the engine is."""
    made = Harness("sqlite-file", tmp_path)
    yield made
    made.close()


@pytest.fixture
def local_queue(local: Harness) -> Queue:
    return local.open()
