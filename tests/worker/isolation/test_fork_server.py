"""What the worker and its isolated processes say to each other, word by word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Queue
from holdfast.worker.isolation import codec, log_records, task_locator
from holdfast.worker.isolation.process_pool import Child, ForkServerProcess, NoProcess, Pool
from tests.chaos.threads import wait_until
from tests.support.claims import claim_one
from tests.worker.isolation import handlers
from tests.worker.isolation.processes import is_gone


def _setup() -> dict[str, Any]:
    places = {task.kind: task_locator.place_of(task) for task in handlers.tasks.tasks if task.policy.isolate}
    about = {"store": None, "worker": "w", "incarnation": "i", "levels": log_records.levels()}
    return {**task_locator.surroundings(), **about, "places": places}


@pytest.fixture(scope="module")
def template() -> Iterator[ForkServerProcess]:
    made = ForkServerProcess(_setup())
    assert made.wait_ready() == {}
    yield made
    made.close()


@pytest.fixture
def child(template: ForkServerProcess) -> Iterator[Child]:
    forked = template.fork()
    yield forked
    forked.close()


def _request(queue: Queue, task: Any, **arguments: Any) -> dict[str, Any]:
    queue.include(handlers.tasks, again=True)
    queue.enqueue(task.kind, arguments)
    claim = claim_one(queue)
    return {
        "kind": task.kind,
        "place": task_locator.place_of(task),
        "memory_limit": None,
        **codec.claim_to(claim),
    }


def test_a_stop_that_comes_before_its_attempt_has_begun_is_heeded(queue: Queue, child: Child, tmp_path: Path) -> None:
    request = _request(queue, handlers.ignore, started=str(tmp_path / "never"))
    child.channel.send({"stop": "cancel", "key": [codec.claim_from(request).job.seq, 1]})
    child.channel.send(request)

    answer = child.channel.receive()
    assert answer is not None
    assert answer[0]["outcome"] == "released"


def test_a_stop_of_another_attempt_is_not(queue: Queue, child: Child) -> None:
    request = _request(queue, handlers.echo, value=7)
    child.channel.send({"stop": "cancel", "key": [codec.claim_from(request).job.seq, 99]})
    child.channel.send(request)

    answer = child.channel.receive()
    assert answer is not None
    assert (answer[0]["outcome"], answer[0]["result"]) == ("done", 7)


def test_a_claim_comes_back_as_it_went(queue: Queue) -> None:
    queue.enqueue(
        "any", {"a": "\u2028"}, tags={"t": "1"}, affinity="model", requires=["gpu"], backoff=handlers.AT_ONCE
    )
    claim = claim_one(queue, capabilities=["gpu"])

    assert codec.claim_from(codec.claim_to(claim)) == claim


def test_a_process_ends_when_it_is_let_go(template: ForkServerProcess) -> None:
    child = template.fork()
    child.close()

    wait_until(lambda: is_gone(child.pid))


def test_a_template_that_is_gone_forks_no_more() -> None:
    template = ForkServerProcess({**_setup(), "places": {}})
    template.wait_ready()
    template.close()

    with pytest.raises(NoProcess):
        template.fork()


def test_a_closed_pool_starts_nothing() -> None:
    pool = Pool(_setup, 10)
    pool.close()

    with pytest.raises(NoProcess, match="goes down"):
        pool.take()


def test_a_template_that_cannot_start_is_an_error_and_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")

    with pytest.raises(NoProcess):
        ForkServerProcess(_setup()).wait_ready()
