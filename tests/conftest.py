from __future__ import annotations

import gc
import math
import os
import signal
from collections.abc import Generator, Iterator, Sequence

import pytest
from hypothesis import HealthCheck, settings, strategies

import holdfast
from holdfast.storage import rollup_buffer
from tests.support import http_engine, order, postgres_server
from tests.support.clock import ManualClock
from tests.support.filesystems import MEMORY_FOLDER, quick_folder
from tests.support.stores import CHEAPEST_ENGINE, DURABLE_ENGINES, ENGINES, Harness

FAILED = pytest.StashKey[bool]()

# A loaded machine must not fail a test by the time that its examples take.
for name, examples in (("quick", 30), ("thorough", 300)):
    settings.register_profile(
        name, max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile("quick")

# What was counted is written with the row of a worker. After ten seconds, any other write would be one more.
rollup_buffer.WRITE_SECONDS = math.inf


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--over-http`, with which the conformance suite runs over HTTP."""
    parser.addoption("--over-http", action="store_true", help="run tests/conformance with the HTTP client")


def pytest_configure(config: pytest.Config) -> None:
    """Say where the PostgreSQL servers are, order the tests, and let what they start be interrupted."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell lets what it runs in the background ignore interrupts, and with it all that the tests start.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN or hasattr(config, "workerinput"):
        # So does nohup with hangups. A handler, unlike SIG_IGN, is not inherited by what the tests start.
        signal.signal(signal.SIGHUP, lambda *_: None)
    config.pluginmanager.register(order)
    # Nothing that collecting creates is garbage.
    gc.disable()
    if not hasattr(config, "workerinput"):
        postgres_server.begin_run()
        if MEMORY_FOLDER is not None and config.getoption("hypothesis_profile") != "thorough":
            # Syncing a file is free there. `make test-long` uses the disk.
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY_FOLDER)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a harness of each engine that proves something: see the markers `validation` and `in_memory`."""
    if "harness" in metafunc.fixturenames:
        over_http = metafunc.config.getoption("over_http") and http_engine.runs(metafunc.definition)
        metafunc.parametrize("harness", ["http"] if over_http else _engines(metafunc.definition), indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Require a reason in the marker `slow`; leave out what cannot work over HTTP."""
    if config.getoption("over_http"):
        http_engine.select(config, items)
    unexplained = [item.nodeid for item in items for marker in item.iter_markers("slow") if not marker.args]
    if unexplained:
        raise pytest.UsageError('the marker slow needs a reason, slow("it waits for …"): ' + ", ".join(unexplained))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep the garbage collector from visiting all tests again and again: that took a sixth of the time of a run."""
    if session.config.option.collectonly:
        # In a new checkout, `make test` begins with this. Hypothesis finds the characters of UTF-8 and keeps them in
        # a file; without it each test process would spend two seconds on them.
        strategies.text().validate()
    gc.enable()
    gc.collect()
    gc.freeze()


def _engines(test: pytest.Item) -> Sequence[str]:
    if test.get_closest_marker("validation"):
        return [CHEAPEST_ENGINE]
    return ENGINES if test.get_closest_marker("in_memory") else DURABLE_ENGINES


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember for the fixtures whether their test failed."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    yield from _harness(request)


@pytest.fixture(params=DURABLE_ENGINES)
def durable_harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    """A store that outlives its clients, for tests that reopen it."""
    yield from _harness(request)


def _harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    with quick_folder() as folder:
        made = http_engine.HttpHarness(folder) if request.param == "http" else Harness(request.param, folder)
        yield made
        made.close(trusted=not request.node.stash[FAILED])


@pytest.fixture
def monkeypatch(request: pytest.FixtureRequest) -> Iterator[pytest.MonkeyPatch | http_engine.SharedPatches]:
    """Patches of this process, and of the limits of the server if a conformance test runs over HTTP."""
    over_http = request.config.getoption("over_http") and http_engine.runs(request.node)
    patches = http_engine.SharedPatches() if over_http else pytest.MonkeyPatch()
    yield patches
    patches.undo()


@pytest.fixture
def queue(harness: Harness) -> holdfast.Queue:
    return harness.open()


@pytest.fixture
def clock(harness: Harness) -> ManualClock:
    return harness.clock
