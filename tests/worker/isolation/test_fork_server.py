"""The messages between the worker, the fork server and isolated processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Queue
from holdfast.tasks.task import definition_of
from holdfast.worker.isolation import codec, log_records, task_locator
from holdfast.worker.isolation.process_pool import Child, ForkServerProcess, Pool, ProcessUnavailable
from tests.chaos.threads import wait_until
from tests.support.claims import claim_one
from tests.worker.isolation import handlers
from tests.worker.isolation.processes import is_gone


def _setup() -> dict[str, Any]:
    places = {
        task.kind: task_locator.locate(definition_of(task)) for task in handlers.tasks.tasks if task.policy.isolate
    }
    about = {"store": None, "worker": "w", "incarnation": "i", "levels": log_records.levels()}
    return {**task_locator.import_environment(), **about, "locations": places}


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServerProcess]:
    enqueued = ForkServerProcess(_setup())
    assert enqueued.wait_ready() == {}
    yield enqueued
    enqueued.close()


@pytest.fixture
def child(fork_server: ForkServerProcess) -> Iterator[Child]:
    forked = fork_server.fork()
    yield forked
    forked.close()


def _request(queue: Queue, task: Any, **arguments: Any) -> dict[str, Any]:
    queue.include(handlers.tasks, again=True)
    queue.enqueue(task.kind, arguments)
    claim = claim_one(queue)
    return {
        "kind": task.kind,
        "location": task_locator.locate(definition_of(task)),
        "memory_limit": None,
        **codec.encode_claim(claim),
    }


def test_a_stop_that_comes_before_its_attempt_has_begun_is_heeded(queue: Queue, child: Child, tmp_path: Path) -> None:
    request = _request(queue, handlers.ignore, started=str(tmp_path / "never"))
    child.channel.send({"stop": "cancel", "key": [codec.decode_claim(request).job.number, 1]})
    child.channel.send(request)

    answer = child.channel.receive()
    assert answer is not None
    assert answer[0]["outcome"] == "released"


def test_a_stop_of_another_attempt_is_not(queue: Queue, child: Child) -> None:
    request = _request(queue, handlers.echo, value=7)
    child.channel.send({"stop": "cancel", "key": [codec.decode_claim(request).job.number, 99]})
    child.channel.send(request)

    answer = child.channel.receive()
    assert answer is not None
    assert (answer[0]["outcome"], answer[0]["result"]) == ("done", 7)


def test_a_claim_comes_back_as_it_went(queue: Queue) -> None:
    queue.enqueue(
        "any", {"a": "\u2028"}, tags={"t": "1"}, affinity="model", requires=["gpu"], backoff=handlers.AT_ONCE
    )
    claim = claim_one(queue, capabilities=["gpu"])

    assert codec.decode_claim(codec.encode_claim(claim)) == claim


def test_a_process_exits_when_its_channel_is_closed(fork_server: ForkServerProcess) -> None:
    child = fork_server.fork()
    child.close()

    wait_until(lambda: is_gone(child.pid))


def test_a_closed_fork_server_forks_no_more() -> None:
    fork_server = ForkServerProcess({**_setup(), "locations": {}})
    fork_server.wait_ready()
    fork_server.close()

    with pytest.raises(ProcessUnavailable):
        fork_server.fork()


def test_a_closed_pool_starts_nothing() -> None:
    pool = Pool(_setup, 10)
    pool.close()

    with pytest.raises(ProcessUnavailable, match="shuts down"):
        pool.acquire()


def test_a_fork_server_that_cannot_start_is_an_error_and_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")

    with pytest.raises(ProcessUnavailable):
        ForkServerProcess(_setup()).wait_ready()
