"""The pytest plugin: a new queue for each test, on each selected engine."""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.client import queue_state
from holdfast.client.async_api.queue import AsyncQueue
from holdfast.client.connect import connect
from holdfast.client.sync_api.queue import Queue
from holdfast.tasks.definition import TaskTable
from holdfast.testing import clock, inline_worker

ENGINES = ("sqlite", "postgres")
_VARIABLE = "HOLDFAST_TEST_POSTGRES"
_NO_SERVER = (
    "Holdfast has no PostgreSQL server for tests: set --holdfast-postgres, holdfast_postgres in the configuration, "
    f"or {_VARIABLE}"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's options."""
    group = parser.getgroup("holdfast")
    group.addoption("--holdfast-engines", metavar="LIST", help="engines for Holdfast's queues: sqlite,postgres")
    group.addoption("--holdfast-postgres", metavar="URL", help="a server whose user may create schemas")
    parser.addini("holdfast_engines", "engines for Holdfast's queues: sqlite, postgres", "args", ["sqlite"])
    parser.addini("holdfast_postgres", "URL of a server whose user may create schemas", default="")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize tests that use a queue with the engines; with one engine, test names do not change."""
    if "holdfast_engine" in metafunc.fixturenames:
        engines = _engines(metafunc.config)
        if len(engines) > 1:
            metafunc.parametrize("holdfast_engine", engines, indirect=True)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Report how many tests were skipped because no server is configured."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if _NO_SERVER in str(report.longrepr)]
    if skipped:
        tests = f"{len(skipped)} test{'s' * (len(skipped) != 1)}"
        terminalreporter.section("holdfast", sep="=", yellow=True)
        terminalreporter.write_line(f"{tests} did not run on PostgreSQL. {_NO_SERVER}.", yellow=True)


def _engines(config: pytest.Config) -> list[str]:
    option = config.getoption("--holdfast-engines")
    values = config.getini("holdfast_engines") if option is None else [option]
    engines = [engine for value in values for engine in value.replace(",", " ").split()]
    unknown = [engine for engine in engines if engine not in ENGINES]
    if unknown or not engines:
        raise pytest.UsageError(f"holdfast_engines: {unknown or 'nothing'} is not one of {', '.join(ENGINES)}")
    return list(dict.fromkeys(engines))


@pytest.fixture
def holdfast_engine(request: pytest.FixtureRequest) -> str:
    """Return the engine of this test's queue: `sqlite` or `postgres`."""
    engine: str = getattr(request, "param", None) or _engines(request.config)[0]
    return engine


@pytest.fixture
def holdfast_clock() -> clock.ManualClock:
    """Return the manual clock of this test's queue."""
    return clock.ManualClock()


@pytest.fixture
def holdfast_queue(
    holdfast_engine: str, holdfast_clock: clock.ManualClock, tmp_path: Path, pytestconfig: pytest.Config
) -> Iterator[Queue]:
    """Return a queue on a new store: a new file, or a new schema that is dropped after the test."""
    if holdfast_engine == "sqlite":
        with connect(str(tmp_path / "holdfast.db"), durability="relaxed", clock=holdfast_clock) as queue:
            yield queue
        return
    url = _server_url(pytestconfig)
    # Import here: SQLite needs no PostgreSQL driver.
    from holdfast.storage.postgres.migrate import TEST_PREFIX, discard_schema  # noqa: PLC0415

    schema = f"{TEST_PREFIX}{uuid.uuid4().hex[:16]}"
    try:
        with connect(url, schema=schema, clock=holdfast_clock) as queue:
            yield queue
    finally:
        discard_schema(url, schema)


@pytest.fixture
def holdfast_async_queue(holdfast_queue: Queue) -> AsyncQueue:
    """Return the same queue as an `AsyncQueue`."""
    return AsyncQueue(replace(queue_state.state_of(holdfast_queue), tasks=TaskTable()))


@pytest.fixture
def holdfast_redirect(holdfast_queue: Queue) -> Iterator[Callable[[Queue | AsyncQueue], None]]:
    """Return a function that redirects a program's queue to this test's store: `holdfast_redirect(app.queue)`."""
    with ExitStack() as stack:
        yield lambda queue: stack.enter_context(inline_worker.redirected(queue, to=holdfast_queue))


def _server_url(config: pytest.Config) -> str:
    url: str = (
        config.getoption("--holdfast-postgres") or config.getini("holdfast_postgres") or os.environ.get(_VARIABLE, "")
    )
    if not url:
        pytest.skip(_NO_SERVER)
    return url
