from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Queue
from tests.support.stores import Harness

FOLDER = f"{Path(__file__).parent}{os.sep}"
STORES = ("harness", "durable_harness", "shared", "place")
# Each engine implements sync and async transactions separately, so here the handler type matters.
ENGINE_DEPENDENT = "test_transactions.py"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run each test on each engine, and the variants of a test on SQLite only.

    A worker sees its store through the operations alone, which the conformance suite proves on each engine. What is
    tried here on PostgreSQL too is that the worker gets along with how it answers, waits and wakes; the kind of the
    handler, what it returns and which option it was given make no difference to that.
    """
    first: dict[str, dict[str, Any]] = {}
    left_out = [item for item in items if str(item.path).startswith(FOLDER) and not _is_chosen(item, first)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        chosen = set(items).difference(left_out)
        items[:] = [item for item in items if item in chosen]


def _is_chosen(item: pytest.Item, first: dict[str, dict[str, Any]]) -> bool:
    """Return whether to run a test; *first* contains the first variant of each."""
    spec = getattr(item, "callspec", None)
    if spec is None:
        return True
    variant = {name: value for name, value in spec.params.items() if name not in STORES}
    selected = first.setdefault(item.nodeid.partition("[")[0], variant)
    engine = next((spec.params[name] for name in STORES if name in spec.params), None)
    if engine is None or str(engine).startswith("sqlite"):
        return True
    if item.path.name == ENGINE_DEPENDENT:
        return True
    return all(value is selected[name] for name, value in variant.items())


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Harness]:
    """A store for tests that do not depend on the engine."""
    enqueued = Harness("sqlite-file", tmp_path)
    yield enqueued
    enqueued.close()


@pytest.fixture
def local_queue(local: Harness) -> Queue:
    return local.open()
