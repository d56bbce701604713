from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from tests.support.clock import ManualClock
from tests.support.stores import DURABLE_ENGINES, ENGINES, Harness


@pytest.fixture(params=ENGINES)
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    made = Harness(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture(params=DURABLE_ENGINES)
def durable_harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    """A store that outlives its clients, for tests that reopen it."""
    made = Harness(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture
def queue(harness: Harness) -> holdfast.Queue:
    return harness.open()


@pytest.fixture
def clock(harness: Harness) -> ManualClock:
    return harness.clock
