"""The jobs a worker claims: lanes, kinds, tenant, capabilities, drain order, affinity, exclusive."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from holdfast import Conflict, Context, InvalidInput, NewJob, Queue
from holdfast.worker.worker import Worker
from tests.chaos.processes import PATIENCE_SECONDS
from tests.chaos.threads import in_background, wait_until
from tests.support.claims import claim_one
from tests.worker.timers import MovableTimer
from tests.worker.workers import running_worker, wait_finished, wait_for_event


class Notes:
    """Two tasks that record the jobs they ran, in order."""

    def __init__(self, queue: Queue) -> None:
        self.ran: list[str] = []
        self.queue = queue
        for kind in ("first", "second"):
            queue.task(kind)(self._note)

    def _note(self, context: Context) -> None:
        self.ran.append(context.job.id)

    def enqueue(self, job_id: str, kind: str = "first", **options: Any) -> None:
        self.queue.enqueue(kind, {}, job_id=job_id, **options)

    def ran_with(self, last: str, **options: Any) -> list[str]:
        """Run a worker until *last* has ended."""
        with running_worker(self.queue, concurrency=1, **options):
            wait_finished(self.queue, last)
        return self.ran


def test_only_its_lanes(queue: Queue) -> None:
    notes = Notes(queue)
    notes.enqueue("there", lane="other")
    notes.enqueue("here")

    assert notes.ran_with("here", lanes=["default"]) == ["here"]


def test_by_default_the_lanes_that_its_tasks_name(queue: Queue) -> None:
    queue.task("quiet", lane="backstage")(lambda: None)
    enqueued = queue.enqueue("quiet", {}, lane="backstage")
    with running_worker(queue):
        assert wait_finished(queue, enqueued.id).state == "done"


def test_only_its_kinds(queue: Queue) -> None:
    notes = Notes(queue)
    notes.enqueue("other", "second")
    notes.enqueue("mine", "first")

    assert notes.ran_with("mine", kinds=["first"]) == ["mine"]


def test_only_its_tenant(queue: Queue) -> None:
    notes = Notes(queue)
    notes.enqueue("theirs", tenant="b")
    notes.enqueue("ours", tenant="a")

    assert notes.ran_with("ours", tenant="a") == ["ours"]


def test_only_what_it_is_capable_of(queue: Queue) -> None:
    notes = Notes(queue)
    notes.enqueue("hard", requires=["gpu"])
    notes.enqueue("easy")

    assert notes.ran_with("easy") == ["easy"]
    assert notes.ran_with("hard", capabilities=["gpu"]) == ["easy", "hard"]


def test_listed_drains_the_kinds_in_their_order(queue: Queue) -> None:
    notes = Notes(queue)
    for number in range(3):
        notes.enqueue(f"up {number}", "first")
        notes.enqueue(f"down {number}", "second")

    ran = notes.ran_with("up 2", kinds=["second", "first"], drain="listed")

    assert ran == ["down 0", "down 1", "down 2", "up 0", "up 1", "up 2"]


def test_what_it_has_loaded_comes_first(queue: Queue) -> None:
    notes = Notes(queue)
    notes.enqueue("cold", affinity="llama")
    notes.enqueue("warm", affinity="mistral")

    assert notes.ran_with("cold", affinity="mistral") == ["warm", "cold"]


def test_a_task_declared_while_the_worker_runs_is_served(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    notes = Notes(queue)
    with caplog.at_level(logging.INFO, logger="holdfast.worker"), running_worker(queue):
        notes.enqueue("before")
        wait_finished(queue, "before")
        queue.task("late", lane="late")(lambda: "served")
        enqueued = queue.enqueue("late", {}, lane="late")
        assert wait_finished(queue, enqueued.id).result == "served"

    assert "now claims jobs of kind late too" in caplog.text


def test_a_task_declared_later_for_another_lane_is_told_of(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    notes = Notes(queue)
    with running_worker(queue, lanes=["default"]):
        notes.enqueue("before")
        wait_finished(queue, "before")
        queue.task("late", lane="late")(lambda: None)
        notes.enqueue("after")
        wait_finished(queue, "after")
        wait_until(lambda: "kind late was declared for lane late" in caplog.text)


def test_a_worker_for_named_kinds_takes_no_others_that_are_declared_later(queue: Queue) -> None:
    notes = Notes(queue)
    with running_worker(queue, kinds=["first"]):
        notes.enqueue("before")
        wait_finished(queue, "before")
        queue.task("late")(lambda: None)
        late = queue.enqueue("late", {})
        notes.enqueue("after")
        wait_finished(queue, "after")

    assert queue.get(late.id).state == "ready"


def test_an_exclusive_worker_takes_back_its_predecessors_jobs_at_once(queue: Queue) -> None:
    notes = Notes(queue)
    notes.enqueue("left behind")
    claim_one(queue, worker="only", incarnation="before", lease=3600, exclusive=True)

    assert notes.ran_with("left behind", worker="only", exclusive=True) == ["left behind"]
    assert queue.get("left behind").attempt == 1
    assert queue.get("left behind").epoch == 2


def test_the_predecessor_of_an_exclusive_worker_is_told_and_ends(queue: Queue) -> None:
    started, told = threading.Event(), threading.Event()
    attempts: list[int] = []

    @queue.task("long")
    def long(context: Context) -> None:
        attempts.append(context.epoch)
        started.set()
        if context.epoch == 1 and context.wait_cancelled(30):
            told.set()

    enqueued = long.enqueue()
    options: dict[str, Any] = {"worker": "only", "exclusive": True, "lease": 600, "concurrency": 1}
    timer = MovableTimer()
    before = in_background(Worker(queue, timer=timer, **options).run)
    wait_for_event(started)
    with running_worker(queue, **options):
        wait_until(lambda: queue.get(enqueued.id).epoch == 2)
        timer.advance(300)
        wait_for_event(told)
        assert wait_finished(queue, enqueued.id).epoch == 2
        with pytest.raises(Conflict):
            before.result(PATIENCE_SECONDS)

    assert attempts == [1, 2]


@pytest.mark.parametrize("option", ["wait", "lease_token", "hold_left"])
def test_options_that_the_worker_controls_are_refused(queue: Queue, option: str) -> None:
    options: dict[str, Any] = {option: 1}
    with pytest.raises(InvalidInput) as caught:
        Worker(queue, **options)
    assert caught.value.field == option


@pytest.mark.parametrize(
    ("option", "value"),
    [("concurrency", 0), ("concurrency", 1001), ("grace", -1), ("retention", "day"), ("lease", 0), ("worker", "")],
)
def test_a_worker_checks_its_options(queue: Queue, option: str, value: object) -> None:
    options: dict[str, Any] = {option: value}
    with pytest.raises(InvalidInput) as caught:
        Worker(queue, **options)
    assert caught.value.field == option


def test_an_unknown_option_is_refused_with_those_of_a_worker(queue: Queue) -> None:
    options: dict[str, Any] = {"concurency": 4}
    with pytest.raises(InvalidInput, match=r"did you mean 'concurrency'.*the options of a worker are .*retention"):
        Worker(queue, **options)


def test_an_idle_worker_wakes_at_once(queue: Queue) -> None:
    notes = Notes(queue)
    with running_worker(queue):
        wait_until(lambda: len(queue.admin.workers()) == 1)
        for number in range(30):
            # Without notifications each would take up to a second, and all together longer than the wait.
            notes.enqueue(f"{number}")
            wait_finished(queue, f"{number}")

    assert len(notes.ran) == 30


def test_status_tells_what_runs_and_how_attempts_ended(queue: Queue) -> None:
    started, proceed = threading.Event(), threading.Event()

    @queue.task("long")
    def long(wrong: bool) -> None:
        started.set()
        wait_for_event(proceed)
        if wrong:
            raise ValueError

    enqueued = [long.enqueue(wrong=False), long.enqueue(wrong=True)]
    with running_worker(queue, worker="w1") as working:
        wait_for_event(started)
        wait_until(lambda: len(working.worker.status().running) == 2)
        status = working.worker.status()
        assert {job.job_id for job in status.running} == {one.id for one in enqueued}
        assert {(job.kind, job.attempt) for job in status.running} == {("long", 1)}
        assert (status.worker, status.stopping) == ("w1", False)
        proceed.set()
        wait_until(lambda: working.worker.status().ended == {"done": 1, "retried": 1})
        assert working.worker.status().running == ()


def test_tenants_take_turns_in_a_busy_worker(queue: Queue) -> None:
    notes = Notes(queue)
    queue.enqueue_many([NewJob("first", {}, job_id=f"a{number}", tenant="a") for number in range(20)])
    queue.enqueue_many([NewJob("first", {}, job_id=f"b{number}", tenant="b") for number in range(2)])

    ran = notes.ran_with("a19")

    assert max(ran.index("b0"), ran.index("b1")) < 6
