"""Middleware and codec of a queue apply to an isolated handler in its own process."""

from __future__ import annotations

import os
from typing import Any

import pytest

from holdfast import Queue, testing
from holdfast.errors import CodecFailed
from tests.chaos.processes import PATIENCE_SECONDS
from tests.chaos.threads import wait_until
from tests.support.stores import Harness
from tests.worker.isolation import collection, within_middleware
from tests.worker.workers import running_worker


@pytest.mark.parametrize("task", [within_middleware.where, collection.included], ids=lambda task: task.kind)
def test_an_isolated_handler_runs_within_it_in_its_own_process(durable_harness: Harness, task: Any) -> None:
    store = durable_harness.open()
    within_middleware.recorded.clear()
    with testing.redirected(within_middleware.queue, to=store):
        made = task.enqueue("4111-1111")
        # Only one kind, so that the process imports only what this task needs.
        with running_worker(within_middleware.queue, kinds=[task.kind]):
            result = made.result(timeout=PATIENCE_SECONDS)
            wait_until(lambda: bool(within_middleware.recorded))

    assert result["within"] == made.id
    assert result["secret"] == "4111-1111"
    with pytest.raises(CodecFailed):
        store.get(made.id).payload  # noqa: B018
    assert result["process"] != os.getpid()
    assert [(end.isolated, end.outcome) for end in within_middleware.recorded] == [(True, "done")]


def test_a_transaction_in_an_isolated_process_uses_both(shared_queue: Queue) -> None:
    with testing.redirected(within_middleware.queue, to=shared_queue):
        made = within_middleware.committed.enqueue("4111-1111")
        with running_worker(within_middleware.queue):
            assert made.result(timeout=PATIENCE_SECONDS)["secret"] == "4111-1111"
        [follow_up] = within_middleware.queue.jobs(kind="next")

    assert (follow_up.payload, follow_up.headers) == ("4111-1111", {"by": "middleware"})
    for job in shared_queue.jobs():
        with pytest.raises(CodecFailed):
            job.payload  # noqa: B018
    with pytest.raises(CodecFailed):
        shared_queue.get(made.id).result  # noqa: B018
