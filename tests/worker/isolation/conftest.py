from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pytest

from holdfast import Queue
from holdfast.worker.isolation import process_pool
from tests.support.forked_python import ForkedPython
from tests.support.postgres_schemas import migrated_schema
from tests.support.postgres_server import database_url
from tests.support.stores import DURABLE_ENGINES, Harness
from tests.worker.isolation.handlers import tasks
from tests.worker.isolation.workers import opened

# Modules that test the start of the interpreter itself.
STARTS_INTERPRETERS = {"test_fork_server.py", "test_task_locator.py"}


class ForkedSubprocess:
    """What the pool uses of the module `subprocess`; the fork server is forked from a process that imported it."""

    DEVNULL = subprocess.DEVNULL
    TimeoutExpired = subprocess.TimeoutExpired
    _args_from_interpreter_flags = staticmethod(subprocess._args_from_interpreter_flags)  # type: ignore[attr-defined]

    class Popen(ForkedPython):
        """The fork server of a worker."""

        imports = (*ForkedPython.imports, "holdfast.worker.isolation.fork_server", "holdfast.storage.postgres.store")


@pytest.fixture(autouse=True)
def _forked_fork_servers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.path.name not in STARTS_INTERPRETERS:
        monkeypatch.setattr(process_pool, "subprocess", ForkedSubprocess)


@pytest.fixture
def queue(durable_harness: Harness) -> Queue:
    queue = durable_harness.open()
    queue.include(tasks, again=True)
    return queue


class Shared(NamedTuple):
    """A queue that other processes can open too: it uses the clock of its store."""

    queue: Queue
    options: dict[str, str]
    """The URL of the queue."""


@pytest.fixture(params=DURABLE_ENGINES)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shared]:
    with ExitStack() as stack:
        options = {"url": str(tmp_path / "shared.db")}
        if request.param == "postgres":
            schema = stack.enter_context(migrated_schema())
            options = {"url": f"{database_url()}?options={quote(f'-csearch_path={schema}')}", "schema": schema}
        queue = opened(options)
        queue.migrate()
        yield Shared(queue, options)
        queue.close()


@pytest.fixture
def shared_queue(shared: Shared) -> Queue:
    return shared.queue
