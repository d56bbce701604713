"""Middleware runs around an isolated handler in its own process, and is told of its end in the worker."""

from __future__ import annotations

import os
from typing import Any

import pytest

from holdfast import testing
from tests.chaos.threads import wait_until
from tests.support.stores import Harness
from tests.worker.isolation import collection, within_middleware
from tests.worker.workers import running_worker, wait_finished


@pytest.mark.parametrize("task", [within_middleware.where, collection.included])
def test_an_isolated_handler_runs_within_it_in_its_own_process(durable_harness: Harness, task: Any) -> None:
    store = durable_harness.open()
    within_middleware.recorded.clear()
    with testing.redirected(within_middleware.queue, to=store):
        made = task.enqueue()
        # Only one kind, so that the process imports only what this task needs.
        with running_worker(within_middleware.queue, kinds=[task.kind]):
            result = wait_finished(store, made.id).result
            wait_until(lambda: bool(within_middleware.recorded))

    assert result["within"] == made.id
    assert result["process"] != os.getpid()
    assert [(end.isolated, end.outcome) for end in within_middleware.recorded] == [(True, "done")]
