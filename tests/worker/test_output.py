"""The output of handlers: written in few commits while they run, and completely before they settle."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from holdfast import (
    Backoff,
    Cancelled,
    Context,
    InvalidInput,
    LeaseLost,
    Queue,
    SessionContext,
)
from holdfast.client.queue_state import state_of
from holdfast.client.sync_api.worker_calls import WorkerCalls
from holdfast.domain import limits
from holdfast.domain.output import OutputWrite
from holdfast.testing import drain
from tests.chaos.processes import Child
from tests.chaos.threads import in_background, wait_until
from tests.support.claims import expire_leases
from tests.support.faults import Faults
from tests.support.job_states import start
from tests.support.stores import Harness, statements_of
from tests.worker.children import emit_by_hand, open_queue
from tests.worker.places import PLACES, new_store_url
from tests.worker.timers import MovableTimer
from tests.worker.workers import (
    LEASE_SECONDS,
    REAL_LEASE_SECONDS,
    Outage,
    Time,
    live,
    running_worker,
    wait_finished,
    wait_for_event,
)

PATIENCE = 60
AWAITED = pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaited"])


def text_of(queue: Queue, job_id: str) -> str:
    return "".join(chunk.text for chunk in queue.stream(job_id, timeout=PATIENCE))


@AWAITED
def test_text_is_stored_in_order_before_the_job_is_done(queue: Queue, awaited: bool) -> None:
    if awaited:

        @queue.task("talk")
        async def talk_awaited(context: Context) -> None:
            for n in range(200):
                context.emit(f"{n} ")
                await asyncio.sleep(0)
    else:

        @queue.task("talk")
        def talk(context: Context) -> None:
            for n in range(200):
                context.emit(f"{n} ")

    enqueued = queue.enqueue("talk", {})
    with running_worker(queue):
        job = wait_finished(queue, enqueued.id)

    assert job.state == "done"
    assert text_of(queue, enqueued.id) == "".join(f"{n} " for n in range(200))


def test_a_reader_sees_text_while_the_handler_runs(queue: Queue) -> None:
    proceed = threading.Event()

    @queue.task("talk")
    def talk(context: Context) -> None:
        context.emit("now")
        wait_for_event(proceed)
        context.emit(" then")

    enqueued = queue.enqueue("talk", {})
    with running_worker(queue):
        stream = iter(queue.stream(enqueued.id, timeout=PATIENCE))
        assert next(stream).text == "now"
        assert queue.get(enqueued.id).state == "running"
        proceed.set()
        assert [chunk.text for chunk in stream] == [" then"]


def test_a_fast_emitter_costs_few_commits(harness: Harness) -> None:
    queue = live(harness)
    moving = Time(harness, stands_still=True)
    emitted, proceed = threading.Event(), threading.Event()

    @queue.task("talk")
    def talk(context: Context) -> None:
        context.emit("first")
        wait_until(lambda: len(queue.output(context.job.id)) == 1)
        for _ in range(1_000):
            context.emit("x")
        emitted.set()
        wait_for_event(proceed)

    enqueued = queue.enqueue("talk", {})
    with running_worker(queue, timer=moving.timer):
        wait_for_event(emitted)
        # The time stands still, so that 100 ms after the first write never pass.
        assert [chunk.text for chunk in queue.output(enqueued.id)] == ["first"]
        moving.timer.advance(0.1)
        wait_until(lambda: len(queue.output(enqueued.id)) == 2)
        proceed.set()
        wait_finished(queue, enqueued.id)

    assert [len(chunk.text) for chunk in queue.output(enqueued.id)] == [5, 1_000]
    assert statements_of(queue).count("output_append") == 2


class LeaseThread(Faults):
    """Records the statements that the thread which renews leases has sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[str] = []

    def __call__(self, name: str) -> None:
        if threading.current_thread().name == "holdfast-leases":
            self.sent.append(name)
        super().__call__(name)


def test_text_is_written_with_the_lease_renewal_that_is_due(harness: Harness) -> None:
    harness.faults = recorded = LeaseThread()
    queue = live(harness)
    moving = Time(harness, stands_still=True)
    emitted, proceed = threading.Event(), threading.Event()

    @queue.task("talk")
    def talk(context: Context) -> None:
        context.emit("first")
        wait_until(lambda: len(queue.output(context.job.id)) == 1)
        context.emit("second")
        emitted.set()
        wait_for_event(proceed)

    enqueued = queue.enqueue("talk", {})
    with running_worker(queue, timer=moving.timer, lease=30):
        wait_for_event(emitted)
        recorded.sent.clear()
        moving.timer.advance(10)
        wait_until(lambda: len(queue.output(enqueued.id)) == 2)
        first_commit = recorded.sent[: recorded.sent.index("commit")]
        proceed.set()
        wait_finished(queue, enqueued.id)

    assert {"job_lease", "output_append"} <= set(first_commit)


class SlowWrites(LeaseThread):
    """Each write of text takes 200 ms of the timer, in which more is emitted: text is always due."""

    def __init__(self, timer: MovableTimer) -> None:
        super().__init__()
        self.written = threading.Event()
        self.emits = threading.Lock()
        self.context: Context | None = None
        self._timer = timer

    def __call__(self, name: str) -> None:
        super().__call__(name)
        with self.emits:
            if name == "committed" and self.context is not None and "output_append" in self.sent:
                self.sent.clear()
                self.written.set()
                self._timer.advance(0.2)
                self.context.emit("x")


def test_a_handler_that_always_has_text_to_write_learns_of_its_cancellation_before_the_next_renewal(
    harness: Harness,
) -> None:
    moving = Time(harness, stands_still=True)
    harness.faults = slow = SlowWrites(moving.timer)
    queue = live(harness)
    started = moving.timer.monotonic()
    stopped_after: list[float] = []

    @queue.task("talk")
    def talk(context: Context) -> None:
        slow.context = context
        context.emit("first")
        wait_for_event(slow.written)
        queue.cancel(context.job.id)
        context.wait_cancelled()
        stopped_after.append(moving.timer.monotonic() - started)
        with slow.emits:
            slow.context = None
        context.raise_if_cancelled()

    enqueued = queue.enqueue("talk", {})
    with running_worker(queue, timer=moving.timer, lease=3_000):
        job = wait_finished(queue, enqueued.id)

    assert job.state == "cancelled"
    # A lease is renewed when a third of it has passed.
    assert stopped_after[0] < 1_000


def test_each_attempt_writes_its_text_and_a_retry_goes_on(queue: Queue) -> None:
    @queue.task("talk", backoff=Backoff(base=0))
    def talk(context: Context) -> None:
        context.emit(f"attempt {context.attempt}")
        if context.attempt == 1:
            raise ValueError("once")

    enqueued = queue.enqueue("talk", {})
    with running_worker(queue):
        wait_finished(queue, enqueued.id)

    assert [(chunk.number, chunk.attempt, chunk.text) for chunk in queue.output(enqueued.id)] == [
        (1, 1, "attempt 1"),
        (2, 2, "attempt 2"),
    ]


def test_text_before_a_timeout_is_stored(queue: Queue) -> None:
    @queue.task("talk", timeout=0.05, max_attempts=1)
    def talk(context: Context) -> None:
        context.emit("so far")
        context.wait_cancelled()

    enqueued = queue.enqueue("talk", {})
    with running_worker(queue):
        job = wait_finished(queue, enqueued.id)

    assert job.failure is not None
    assert job.failure.reason == "timeout"
    assert text_of(queue, enqueued.id) == "so far"


def test_a_turn_of_a_session_emits_to_its_first_entry(queue: Queue) -> None:
    @queue.session_task("chat", join=True)
    def chat(context: SessionContext[str], messages: list[str]) -> None:
        context.emit(messages[0])
        wait_until(lambda: len(queue.output(context.job.id)) == 1)
        context.emit(messages[1])

    ids = [chat.enqueue(text, session="s").id for text in ("a", "b")]
    # The time stands still, so the second text is written only before the turn settles.
    with running_worker(queue, timer=MovableTimer(stands_still=True)):
        for job_id in ids:
            wait_finished(queue, job_id)

    assert [text_of(queue, job_id) for job_id in ids] == ["ab", ""]


@AWAITED
def test_text_of_a_handler_with_a_transaction_is_stored_with_its_settlement(queue: Queue, awaited: bool) -> None:
    if awaited:

        @queue.task("talk")
        async def talk_awaited(context: Context) -> None:
            context.emit("before ")
            async with context.transaction():
                context.emit("within ")
            context.emit("after")
    else:

        @queue.task("talk")
        def talk(context: Context) -> None:
            context.emit("before ")
            with context.transaction():
                context.emit("within ")
            context.emit("after")

    enqueued = queue.enqueue("talk", {})
    with running_worker(queue) as working:
        job = wait_finished(queue, enqueued.id)
        wait_until(lambda: working.worker.status().ended == {"done": 1})

    assert job.state == "done"
    assert text_of(queue, enqueued.id) == "before within after"


def test_text_of_a_transaction_that_is_rolled_back_is_stored_once(queue: Queue) -> None:
    @queue.task("talk", max_attempts=1)
    def talk(context: Context) -> None:
        context.emit("before ")
        with context.transaction():
            context.emit("within ")
        raise ValueError("after")

    enqueued = queue.enqueue("talk", {})
    with running_worker(queue):
        assert wait_finished(queue, enqueued.id).state == "failed"

    assert text_of(queue, enqueued.id) == "before within "


def test_an_answer_that_was_lost_repeats_no_text(harness: Harness) -> None:
    outage = Outage(harness)
    queue = live(harness)
    started, proceed = threading.Event(), threading.Event()

    @queue.task("talk")
    def talk(context: Context) -> None:
        started.set()
        wait_for_event(proceed)
        context.emit("once")
        wait_until(lambda: len(queue.output(context.job.id)) == 1)

    enqueued = queue.enqueue("talk", {})
    with running_worker(queue, lease=LEASE_SECONDS):
        wait_for_event(started)
        outage.lose_answers(1)
        proceed.set()
        wait_until(lambda: outage.answers_lost)
        wait_finished(queue, enqueued.id)

    assert [chunk.text for chunk in queue.output(enqueued.id)] == ["once"]


def test_text_emitted_while_the_store_is_away_is_written_when_it_returns(harness: Harness) -> None:
    outage = Outage(harness)
    queue = live(harness)
    started, proceed = threading.Event(), threading.Event()

    @queue.task("talk")
    def talk(context: Context) -> None:
        started.set()
        wait_for_event(proceed)
        context.emit("kept ")
        outage.wait_struck(2)
        context.emit("too")

    enqueued = queue.enqueue("talk", {})
    with running_worker(queue, lease=30):
        wait_for_event(started)
        with outage:
            proceed.set()
            outage.wait_struck(4)
        assert wait_finished(queue, enqueued.id).state == "done"

    assert text_of(queue, enqueued.id) == "kept too"


def test_the_handler_of_a_lost_lease_is_told_by_its_own_text(harness: Harness) -> None:
    queue = harness.open()
    started, proceed, told = threading.Event(), threading.Event(), threading.Event()

    @queue.task("talk")
    def talk(context: Context) -> None:
        if context.epoch > 1:
            return
        started.set()
        wait_for_event(proceed)
        context.emit("zombie")
        context.wait_cancelled()
        with pytest.raises(LeaseLost):
            context.emit("more")
        told.set()
        raise Cancelled("lost")

    enqueued = queue.enqueue("talk", {})
    with running_worker(queue, lease=30):
        wait_for_event(started)
        harness.clock.advance(60)
        proceed.set()
        wait_for_event(told)
        wait_finished(queue, enqueued.id)

    assert len(queue.output(enqueued.id)) == 0


def test_output_that_is_too_large_is_refused_where_it_is_emitted(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OUTPUT_BYTES_MAX", 10)
    errors = []

    @queue.task("talk")
    def talk(context: Context) -> None:
        context.emit("0123456789")
        for bad in ("x", "nul\0", 7):
            try:
                context.emit(bad)  # type: ignore[arg-type]
            except InvalidInput as error:
                errors.append(error.field)
        context.emit("")

    enqueued = queue.enqueue("talk", {})
    with running_worker(queue):
        assert wait_finished(queue, enqueued.id).state == "done"

    assert errors == ["text"] * 3
    assert text_of(queue, enqueued.id) == "0123456789"


def test_an_attempt_whose_output_the_store_refuses_is_not_done(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    job = queue.enqueue("talk", {}).job
    claim = start(queue, job)
    queue.emit(claim, "12345678")
    queue.cancel(job.id, force=True)
    queue.requeue(job.id)
    monkeypatch.setattr(limits, "OUTPUT_BYTES_MAX", 10)

    @queue.task("talk")
    def talk(context: Context) -> None:
        context.emit("abc")

    with running_worker(queue):
        ended = wait_finished(queue, job.id)

    assert ended.failure is not None
    assert (ended.state, ended.failure.reason) == ("failed", "invalid_input")
    assert "output of this job" in ended.failure.message
    assert text_of(queue, job.id) == "12345678"


def test_one_lost_lease_does_not_affect_the_other_writes_of_a_commit(queue: Queue) -> None:
    lost, held = (start(queue, queue.enqueue("a").job) for _ in range(2))
    queue.cancel(lost.job.id, force=True)

    answers = WorkerCalls(state_of(queue).store).append_output(
        [(lost, OutputWrite(0, ["a"])), (held, OutputWrite(0, ["b"]))]
    )

    assert isinstance(answers[0], LeaseLost)
    assert [len(queue.output(claim.job.id)) for claim in (lost, held)] == [0, 1]


def test_drain_stores_output(queue: Queue) -> None:
    @queue.task("talk")
    def talk(context: Context) -> None:
        context.emit("a")
        context.emit("b")

    enqueued = talk.enqueue()
    drain(queue)

    assert text_of(queue, enqueued.id) == "ab"


# --- in processes --------------------------------------------------------------------------------------------------


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with new_store_url(request.param, tmp_path) as url:
        yield url


@pytest.mark.slow("workers run in processes")
def test_what_a_reader_saw_survives_the_kill_of_the_worker_and_the_next_attempt_goes_on(place: str) -> None:
    queue = open_queue(place)
    queue.migrate()

    @queue.task("speak")
    def speak(context: Context) -> None:
        context.emit("from the heir")

    enqueued = queue.enqueue("speak", {})
    seen: list[tuple[int, int, str]] = []

    def read() -> None:
        for chunk in queue.stream(enqueued.id, timeout=PATIENCE):
            seen.append((chunk.number, chunk.epoch, chunk.text))  # noqa: PERF401  # the test looks at it meanwhile

    with queue, Child(emit_by_hand, place, {"worker": "victim", "kinds": ["speak"]}) as victim:
        reading = in_background(read)
        for number in range(3):
            victim.tell(f"text {number} ")
            wait_until(lambda number=number: "".join(text for _, _, text in seen).endswith(f"{number} "))  # type: ignore[misc]
        victim.tell("written, and never shown, or not written")
        victim.kill()
        acknowledged = list(seen)
        expire_leases(queue)
        with running_worker(queue, worker="heir"):
            wait_finished(queue, enqueued.id)
        reading.result(PATIENCE)

        stored = [(chunk.number, chunk.epoch, chunk.text) for chunk in queue.output(enqueued.id)]
    assert stored == seen
    assert seen[: len(acknowledged)] == acknowledged
    assert [number for number, _, _ in seen] == list(range(1, len(seen) + 1))
    assert seen[-1][1:] == (2, "from the heir")
    assert all(earlier[1] <= later[1] for earlier, later in pairwise(seen))


@pytest.mark.slow("workers run in processes")
def test_the_text_of_a_worker_stopped_past_its_lease_is_refused(place: str) -> None:
    queue = open_queue(place)
    queue.migrate()

    @queue.task("speak")
    def speak(context: Context) -> None:
        context.emit("from the heir")

    enqueued = queue.enqueue("speak", {})
    with (
        queue,
        Child(emit_by_hand, place, {"lease": REAL_LEASE_SECONDS, "worker": "sleeper", "kinds": ["speak"]}) as sleeper,
    ):
        sleeper.tell("before ")
        wait_until(lambda: len(queue.output(enqueued.id)) == 1)
        sleeper.stop_between_writes(place)
        expire_leases(queue)
        with running_worker(queue, worker="heir"):
            wait_finished(queue, enqueued.id)
        sleeper.resume()
        sleeper.tell("zombie")
        assert sleeper.hear() == "lost"

        assert text_of(queue, enqueued.id) == "before from the heir"
