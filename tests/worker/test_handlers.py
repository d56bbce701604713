"""The return value or exception of a handler decides its job."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from holdfast import Artifact, Backoff, Context, Defer, Done, Fail, Job, LeaseLost, Misconfigured, Queue, Retry
from holdfast.worker.worker import Worker
from tests.chaos.threads import wait_until
from tests.support.clock import ManualClock
from tests.worker.timers import MovableTimer
from tests.worker.workers import (
    LEASE_SECONDS,
    in_state,
    running_worker,
    wait_finished,
    wait_for_event,
    without_tasks,
)


def test_blocking_and_awaited_handlers_return_their_results(queue: Queue) -> None:
    @queue.task("double")
    def double(number: int) -> int:
        return number * 2

    @queue.task("treble")
    async def treble(number: int) -> dict[str, int]:
        await asyncio.sleep(0)
        return {"is": number * 3}

    doubled, trebled = double.enqueue(21), treble.enqueue(number=5)
    with running_worker(queue):
        assert wait_finished(queue, doubled.id).result == 42
        job = wait_finished(queue, trebled.id)

    assert job.state == "done"
    assert job.result == {"is": 15}
    assert job.attempt == 1


def test_blocking_handlers_run_in_threads_and_awaited_ones_in_the_loop(queue: Queue) -> None:
    @queue.task("blocking")
    def blocking() -> str:
        return threading.current_thread().name

    @queue.task("awaited")
    async def awaited() -> str:
        return threading.current_thread().name

    first, second, third = blocking.enqueue(), awaited.enqueue(), awaited.enqueue()
    with running_worker(queue):
        names = [str(wait_finished(queue, enqueued.id).result) for enqueued in (first, second, third)]

    assert names[0].startswith("holdfast-slot")
    assert names[1] == names[2]
    assert names[0] != names[1]


@pytest.mark.parametrize("handler_type", ["sync", "async"])
def test_an_exception_is_a_transient_failure_with_its_story(queue: Queue, handler_type: str) -> None:
    if handler_type == "sync":

        @queue.task("break")
        def breaks() -> None:
            raise ValueError("no such thing")
    else:

        @queue.task("break")
        async def breaks_too() -> None:
            raise ValueError("no such thing")

    enqueued = queue.enqueue("break", {})
    with running_worker(queue):
        job = in_state(queue, enqueued.id, "scheduled")

    assert job.failure is not None
    assert (job.failure.failure_class, job.failure.reason) == ("transient", "value_error")
    assert "no such thing" in job.failure.message
    assert "raise ValueError" in (job.failure.traceback or "")
    assert job.attempt == 1


def test_the_last_attempt_fails_the_job(queue: Queue, clock: ManualClock) -> None:
    @queue.task("break", max_attempts=2, backoff=Backoff(base=5))
    def breaks() -> None:
        raise ValueError

    enqueued = breaks.enqueue()
    with running_worker(queue):
        in_state(queue, enqueued.id, "scheduled")
        clock.advance(5)
        job = wait_finished(queue, enqueued.id)

    assert (job.state, job.attempt) == ("failed", 2)
    assert [attempt.outcome for attempt in queue.attempts(enqueued.id)] == ["failed", "failed"]


@pytest.mark.parametrize("form", ["raised", "returned"])
@pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaited"])
class TestAsking:
    """A handler may raise or return its outcome."""

    def run(self, queue: Queue, answer: object, *, form: str, awaited: bool, state: str) -> Job:
        def answered() -> object:
            if form == "raised" and isinstance(answer, BaseException):
                raise answer
            return answer

        async def answered_later() -> object:
            return answered()

        queue.task("ask")(answered_later if awaited else answered)
        enqueued = queue.enqueue("ask", {})
        with running_worker(queue):
            return in_state(queue, enqueued.id, state)

    def test_retry_names_the_pause(self, queue: Queue, clock: ManualClock, form: str, awaited: bool) -> None:
        job = self.run(queue, Retry("later", after=70), form=form, awaited=awaited, state="scheduled")

        assert job.due_at == clock.time + timedelta(milliseconds=70_000)
        assert job.attempt == 1
        assert job.failure is not None
        assert (job.failure.reason, job.failure.message) == ("retry", "later")

    def test_defer_gives_the_attempt_back(self, queue: Queue, clock: ManualClock, form: str, awaited: bool) -> None:
        answer = Defer(after=timedelta(minutes=1))
        job = self.run(queue, answer, form=form, awaited=awaited, state="scheduled")

        assert job.due_at == clock.time + timedelta(milliseconds=60_000)
        assert job.attempt == 0

    def test_fail_is_final(self, queue: Queue, form: str, awaited: bool) -> None:
        job = self.run(queue, Fail("never", reason="refused"), form=form, awaited=awaited, state="failed")

        assert job.failure is not None
        assert (job.failure.failure_class, job.failure.reason) == ("permanent", "refused")
        assert job.attempt == 1


def test_permanent_on_and_retry_on_decide_by_class(queue: Queue) -> None:
    @queue.task("strict", permanent_on=KeyError)
    def strict(option: str) -> None:
        raise KeyError if option == "key" else ValueError

    @queue.task("lenient", retry_on=ValueError)
    def lenient(option: str) -> None:
        raise {"key": KeyError, "value": ValueError, "line": ConnectionResetError}[option]

    for_good = [strict.enqueue("key"), lenient.enqueue("key")]
    for_now = [strict.enqueue("value"), lenient.enqueue("value"), lenient.enqueue("line")]
    with running_worker(queue):
        failed = [in_state(queue, enqueued.id, "failed") for enqueued in for_good]
        waiting = [in_state(queue, enqueued.id, "scheduled") for enqueued in for_now]

    assert {job.failure.failure_class for job in failed if job.failure} == {"permanent"}
    assert {job.failure.failure_class for job in waiting if job.failure} == {"transient"}


def test_a_broken_connection_is_transient(queue: Queue) -> None:
    @queue.task("call")
    async def call() -> None:
        raise ConnectionRefusedError("nobody there")

    enqueued = call.enqueue()
    with running_worker(queue):
        job = in_state(queue, enqueued.id, "scheduled")

    assert job.failure is not None
    assert job.failure.failure_class == "transient"


def test_a_payload_that_does_not_fit_fails_for_good_and_runs_nothing(queue: Queue) -> None:
    ran = threading.Event()

    @queue.task("double")
    def double(number: int) -> None:
        ran.set()

    other = without_tasks(queue)
    wrong = [other.enqueue("double", payload) for payload in ({"number": "x"}, {}, {"other": 1}, [1], None, "text")]
    with running_worker(queue):
        jobs = [wait_finished(queue, enqueued.id) for enqueued in wrong]

    assert {job.state for job in jobs} == {"failed"}
    assert {(job.failure.failure_class, job.failure.reason) for job in jobs if job.failure} == {
        ("permanent", "payload_invalid")
    }
    assert not ran.is_set()


def test_a_result_that_is_not_json_fails_for_good_and_stops_no_other(queue: Queue) -> None:
    @queue.task("odd")
    def odd(bad: bool) -> object:
        return object() if bad else "fine"

    enqueued = [odd.enqueue(bad=True), odd.enqueue(bad=False)]
    with running_worker(queue):
        bad, fine = (wait_finished(queue, one.id) for one in enqueued)

    assert bad.failure is not None
    assert bad.failure.reason == "result_invalid"
    assert fine.state == "done"


def test_an_unknown_kind_stays_queued(queue: Queue) -> None:
    @queue.task("known")
    def known() -> None: ...

    unknown = queue.enqueue("unknown", {})
    enqueued = known.enqueue()
    with running_worker(queue):
        wait_finished(queue, enqueued.id)

    assert queue.get(unknown.id).state == "ready"
    assert queue.get(unknown.id).epoch == 0


def test_a_worker_without_tasks_or_with_a_kind_nobody_declared_does_not_start(queue: Queue) -> None:
    with pytest.raises(Misconfigured):
        Worker(queue).run()

    queue.task("known")(lambda: None)
    with pytest.raises(Misconfigured):
        Worker(queue, kinds=["known", "unknown"]).run()


class UnspeakableError(Exception):
    """An error whose `__str__` raises."""

    def __str__(self) -> str:
        raise RuntimeError("not to be shown")


@pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaited"])
@pytest.mark.parametrize(
    "error",
    [UnspeakableError(), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()],
    ids=repr,
)
def test_no_error_of_a_handler_takes_its_slot_away(queue: Queue, error: BaseException, awaited: bool) -> None:
    def breaks() -> None:
        raise error

    async def breaks_too() -> None:
        raise error

    queue.task("break")(breaks_too if awaited else breaks)
    enqueued = [queue.enqueue("break", {}, max_attempts=1) for _ in range(3)]
    with running_worker(queue, concurrency=1):
        jobs = [wait_finished(queue, one.id) for one in enqueued]

    assert {job.state for job in jobs} == {"failed"}


def test_what_a_context_collected_arrives_with_the_settlement(queue: Queue) -> None:
    @queue.task("report")
    def report(context: Context) -> Done:
        context.attach("page.html", b"<p>", "text/html")
        context.follow_up("mail", {"to": "ada"})
        return Done("written", artifacts=[Artifact("raw", b"\0")])

    enqueued = queue.enqueue("report", {})
    with running_worker(queue, kinds=["report"]):
        job = wait_finished(queue, enqueued.id)

    assert job.result == "written"
    assert queue.artifact(enqueued.id, "page.html").data == b"<p>"
    assert [artifact.name for artifact in queue.artifacts(enqueued.id)] == ["page.html", "raw"]
    assert [(found.kind, found.payload) for found in queue.jobs(state="ready").jobs] == [("mail", {"to": "ada"})]


def test_what_a_context_collected_is_dropped_with_a_failure(queue: Queue) -> None:
    @queue.task("report", max_attempts=1)
    async def report(context: Context) -> None:
        context.attach("page.html", b"<p>")
        context.follow_up("mail", {"to": "ada"})
        raise ValueError

    enqueued = report.enqueue()
    with running_worker(queue, kinds=["report"]):
        wait_finished(queue, enqueued.id)

    assert queue.artifacts(enqueued.id) == []
    assert queue.counts() == {"failed": 1}


def test_progress_arrives_while_the_handler_runs(queue: Queue) -> None:
    timer, noted, seen = MovableTimer(), threading.Event(), threading.Event()

    @queue.task("long")
    def long(context: Context) -> None:
        context.progress("loading", 40)
        noted.set()
        wait_for_event(seen)

    enqueued = queue.enqueue("long", {})
    with running_worker(queue, lease=LEASE_SECONDS, timer=timer):
        wait_for_event(noted)
        timer.advance(LEASE_SECONDS / 2)
        wait_until(lambda: queue.get(enqueued.id).phase == "loading")
        assert queue.get(enqueued.id).percent == 40
        seen.set()
        assert wait_finished(queue, enqueued.id).state == "done"


def test_progress_from_a_thread_that_outlives_the_handler_is_refused(queue: Queue) -> None:
    contexts: list[Context] = []

    @queue.task("short")
    def short(context: Context) -> None:
        contexts.append(context)

    enqueued = queue.enqueue("short", {})
    with running_worker(queue):
        wait_finished(queue, enqueued.id)

    with pytest.raises(LeaseLost):
        contexts[0].progress("late")


def test_a_context_tells_of_its_attempt(queue: Queue) -> None:
    @queue.task("tell")
    def tell(context: Context) -> list[object]:
        return [context.job.id, context.attempt, context.epoch, context.worker]

    enqueued = queue.enqueue("tell", {})
    with running_worker(queue, worker="w7"):
        assert wait_finished(queue, enqueued.id).result == [enqueued.id, 1, 1, "w7"]


def test_an_outcome_that_the_store_refuses_fails_for_good_and_stops_no_other(queue: Queue) -> None:
    queue.lanes.set("closed", state="draining")

    @queue.task("hand_on")
    def hand_on(context: Context, lane: str) -> None:
        context.follow_up("next", lane=lane)

    enqueued = [hand_on.enqueue(lane) for lane in ("closed", "default")]
    with running_worker(queue):
        refused, fine = (wait_finished(queue, one.id) for one in enqueued)

    assert refused.failure is not None
    assert (refused.failure.failure_class, refused.failure.reason) == ("permanent", "lane_draining")
    assert fine.state == "done"
