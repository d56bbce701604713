"""Schedules that a program declares with its tasks, and workers that set and fire them."""

from __future__ import annotations

import logging

import pytest

import holdfast
from holdfast import Misconfigured, Tasks
from holdfast.client.queue_state import state_of
from tests.chaos.threads import wait_until
from tests.support.stores import Harness
from tests.worker.workers import live, running_worker


def test_a_worker_sets_and_fires_what_its_program_declares(harness: Harness) -> None:
    queue, ran = live(harness), list[str]()

    @queue.schedule("often", every=1, payload={"text": "hello"})
    @queue.task("report")
    def report(text: str) -> None:
        ran.append(text)

    with running_worker(queue):
        wait_until(lambda: bool(ran))
    one = queue.schedules.get("often")
    assert (one.owner, one.payload) == (__name__, {"text": "hello"})


def test_a_name_of_another_program_is_left_alone_with_a_warning(
    queue: holdfast.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.schedules.set("often", kind="other", every=60)

    @queue.schedule("often", every=30)
    @queue.task("report")
    def report() -> None: ...

    with caplog.at_level(logging.WARNING, "holdfast.worker"), running_worker(queue):
        wait_until(lambda: "schedule often is not declared by this worker: it was set by a call" in caplog.text)
    assert queue.schedules.get("often").kind == "other"


def test_a_collection_declares_schedules_too(queue: holdfast.Queue) -> None:
    tasks = Tasks()

    @tasks.schedule("a", every=60)
    @tasks.task("first")
    def first() -> None: ...

    queue.include(tasks)

    @tasks.schedule("b", cron="@daily", tenant="acme")
    @tasks.task("second")
    def second() -> None: ...

    declared = state_of(queue).tasks.schedules
    assert sorted(declared) == [("acme", "b"), ("default", "a")]
    assert {owner for _, owner in declared.values()} == {__name__}


def test_a_schedule_is_declared_once_and_on_a_task(queue: holdfast.Queue) -> None:
    @queue.schedule("a", every=60)
    @queue.task("first")
    def first() -> None: ...

    with pytest.raises(Misconfigured, match="declared twice"):
        queue.schedule("a", every=30)(first)
    with pytest.raises(Misconfigured, match="on a task"):
        queue.schedule("b", every=30)(lambda: None)
    with pytest.raises(holdfast.InvalidInput, match="cron"):
        queue.schedule("c", cron="x")(first)
    with pytest.raises(holdfast.InvalidInput, match="arguments"):
        queue.schedule("d", every=30, payload={"missing": 1})(first)
