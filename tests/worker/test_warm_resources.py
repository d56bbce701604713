"""Affinities in a worker: loaded before jobs run, the least recently used is unloaded to make room."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast import Backoff, Context, InvalidInput, NewJob, Queue, WarmResources
from holdfast.errors import HandlersStuck
from holdfast.worker.warm_resources import ArrivalOrder
from holdfast.worker.worker import Worker
from tests.chaos.processes import PATIENCE_SECONDS
from tests.chaos.threads import in_background, wait_until
from tests.support.clock import ManualClock
from tests.worker.timers import MovableTimer
from tests.worker.workers import comes, in_state, running_worker, wait_finished, wait_for_event

COLOURS = pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaited"])


class Models:
    """A task whose jobs need a model each, hooks that load and unload models, and a record of all calls."""

    def __init__(self, queue: Queue, *, room: int = 1, awaited: bool = True) -> None:
        self.story: list[str] = []
        self.ran: list[str] = []
        self.loaded: set[str] = set()
        self._room = room
        self._queue = queue
        self._lock = threading.Lock()
        self.load = self._load_later if awaited else self._load
        self._unload_hook = self._unload_later if awaited else self._unload
        queue.task("run")(self._run)

    def warm(self, **options: Any) -> WarmResources:
        """Return the hooks with these options."""
        return WarmResources(load=self.load, unload=self._unload_hook, **options)

    def enqueue(self, models: str, **options: Any) -> list[str]:
        """Enqueue one job for each letter: the letter is its model, a dash means none."""
        jobs = [NewJob("run", {}, affinity=None if letter == "-" else letter, **options) for letter in models]
        return [enqueued.id for enqueued in self._queue.enqueue_many(jobs)]

    def _run(self, context: Context) -> None:
        with self._lock:
            model = context.job.affinity or "-"
            assert model in self.loaded or model == "-", f"{model} is not loaded"
            self.ran.append(model)

    def _load(self, model: str) -> None:
        with self._lock:
            assert len(self.loaded) < self._room, f"{model} has no room beside {self.loaded}"
            self.loaded.add(model)
            self.story.append(f"+{model}")

    def _unload(self, model: str) -> None:
        with self._lock:
            self.loaded.remove(model)
            self.story.append(f"-{model}")

    async def _load_later(self, model: str) -> None:
        await asyncio.sleep(0)
        self._load(model)

    async def _unload_later(self, model: str) -> None:
        await asyncio.sleep(0)
        self._unload(model)


@COLOURS
@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_mixed_backlog_of_two_models_costs_one_switch(queue: Queue, awaited: bool, concurrency: int) -> None:
    models = Models(queue, awaited=awaited)
    models.enqueue("AB" * 20)
    with running_worker(queue, concurrency=concurrency, warm=models.warm()) as working:
        wait_until(lambda: queue.counts() == {"done": 40})
        wait_until(lambda: working.worker.status().loaded == ("B",))
        assert working.worker.status().switches == 1

    assert models.story == ["+A", "-A", "+B"]
    assert models.ran == ["A"] * 20 + ["B"] * 20
    assert {job.attempt for job in queue.jobs(limit=100).jobs} == {1}
    assert not any(job.releases for job in queue.jobs(limit=100).jobs)


@pytest.mark.parametrize(("room", "switches"), [(1, 4), (2, 3), (5, 0)])
def test_a_backlog_of_five_models_costs_a_switch_for_each_that_has_no_room(
    queue: Queue, room: int, switches: int
) -> None:
    models = Models(queue, room=room)
    models.enqueue("ABCDE" * 8)
    with running_worker(queue, concurrency=4, warm=models.warm(capacity=room)) as working:
        wait_until(lambda: queue.counts() == {"done": 40})
        assert working.worker.status().switches == switches
        assert len(working.worker.status().loaded) == room

    assert sorted(entry for entry in models.story if entry.startswith("+")) == ["+A", "+B", "+C", "+D", "+E"]
    assert sorted(models.ran) == sorted("ABCDE" * 8)


def test_what_was_used_longest_ago_makes_room(queue: Queue) -> None:
    models = Models(queue, room=2)
    with running_worker(queue, concurrency=1, warm=models.warm(capacity=2)):
        for model in "ABACAB":
            [job_id] = models.enqueue(model)
            wait_finished(queue, job_id)

    assert models.story == ["+A", "+B", "-B", "+C", "-C", "+B"]


def test_what_is_there_from_the_start_is_not_loaded_again(queue: Queue) -> None:
    models = Models(queue)
    models.loaded.add("B")
    models.enqueue("AABB")
    with running_worker(queue, concurrency=1, affinity="B", warm=models.warm()):
        wait_until(lambda: queue.counts() == {"done": 4})

    assert models.ran == list("BBAA")
    assert models.story == ["-B", "+A"]


def test_jobs_without_affinity_run_while_another_is_loaded(queue: Queue) -> None:
    models = Models(queue)
    loading, proceed = threading.Event(), threading.Event()

    async def load(model: str) -> None:
        loading.set()
        await comes(proceed)
        models.loaded.add(model)

    [slow] = models.enqueue("A")
    with running_worker(queue, concurrency=2, warm=WarmResources(load=load)):
        wait_for_event(loading)
        [plain] = models.enqueue("-")
        assert wait_finished(queue, plain).state == "done"
        assert queue.get(slow).state == "running"
        proceed.set()
        wait_finished(queue, slow)

    assert models.ran == ["-", "A"]


class TestTheBound:
    """After `max_hold` a model is unloaded as soon as jobs of another wait."""

    def test_a_starving_model_gets_its_turn(self, queue: Queue) -> None:
        models, timer = Models(queue), MovableTimer()
        more = threading.Event()

        @queue.task("feed")
        def feed(context: Context) -> None:
            # Each job of A enqueues another, so without the limit B would wait forever.
            if not more.is_set():
                context.follow_up("feed", {}, affinity="A")

        queue.enqueue("feed", {}, affinity="A")
        with running_worker(queue, concurrency=1, lease=600, timer=timer, warm=models.warm(max_hold=20)):
            wait_until(lambda: "+A" in models.story)
            [starving] = models.enqueue("B")
            timer.advance(20)
            assert wait_finished(queue, starving).state == "done"
            more.set()

        assert models.story[:3] == ["+A", "-A", "+B"]

    def test_without_one_it_starves(self, queue: Queue) -> None:
        models = Models(queue)
        rounds = []

        @queue.task("feed")
        def feed(context: Context) -> None:
            rounds.append(1)
            if len(rounds) < 30:
                context.follow_up("feed", {}, affinity="A")

        queue.enqueue("feed", {}, affinity="A")
        with running_worker(queue, concurrency=1, warm=models.warm()):
            wait_until(lambda: "+A" in models.story)
            [starving] = models.enqueue("B")
            wait_until(lambda: len(rounds) == 30)
            assert wait_finished(queue, starving).state == "done"

        assert models.story == ["+A", "-A", "+B"]

    def test_it_bounds_how_often_two_models_take_turns(self, queue: Queue) -> None:
        models = Models(queue)
        models.enqueue("AB" * 50)
        with running_worker(queue, concurrency=1, warm=models.warm(max_hold=3600)) as working:
            wait_until(lambda: queue.counts() == {"done": 100})
            assert working.worker.status().switches == 1

    def test_at_zero_it_switches_at_once_and_still_does_every_job(self, queue: Queue) -> None:
        models = Models(queue)
        models.enqueue("AB" * 5)
        with running_worker(queue, concurrency=1, warm=models.warm(max_hold=0)) as working:
            wait_until(lambda: queue.counts() == {"done": 10})
            assert working.worker.status().switches == 9

        assert models.ran == list("AB" * 5)


class TestAFailedLoad:
    @COLOURS
    def test_the_job_is_tried_again_and_the_model_is_not_taken_for_loaded(
        self, queue: Queue, clock: ManualClock, awaited: bool
    ) -> None:
        models = Models(queue, awaited=awaited)
        calls: list[str] = []

        def load(model: str) -> None:
            calls.append(model)
            if len(calls) == 1:
                raise RuntimeError("out of memory")
            models.loaded.add(model)

        async def load_later(model: str) -> None:
            load(model)

        [job_id] = models.enqueue("A", backoff=Backoff(base=5))
        with running_worker(queue, warm=WarmResources(load=load_later if awaited else load)) as working:
            job = in_state(queue, job_id, "scheduled")
            wait_until(lambda: working.worker.status().ended == {"retried": 1})
            assert working.worker.status().loaded == ()
            clock.advance(5)
            assert wait_finished(queue, job_id).state == "done"

        assert job.failure is not None
        assert (job.failure.failure_class, job.failure.reason) == ("transient", "load_failed")
        assert "could not load 'A': out of memory" in job.failure.message
        assert calls == ["A", "A"]

    def test_an_unload_that_fails_stops_nothing(self, queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
        models = Models(queue, room=2)

        def unload(_model: str) -> None:
            raise ValueError("busy")

        models.enqueue("AB")
        with running_worker(queue, concurrency=1, warm=WarmResources(load=models.load, unload=unload)):
            wait_until(lambda: queue.counts() == {"done": 2})

        assert "could not unload A: busy" in caplog.text


@COLOURS
def test_a_worker_stopped_while_loading_gives_the_job_back_unspent(queue: Queue, awaited: bool) -> None:
    models = Models(queue)
    loading, proceed = threading.Event(), threading.Event()

    async def load_later(model: str) -> None:
        loading.set()
        await comes(proceed)

    def load(model: str) -> None:
        loading.set()
        wait_for_event(proceed)

    enqueued = models.enqueue("AA")
    with running_worker(
        queue, concurrency=2, grace=3600, warm=WarmResources(load=load_later if awaited else load)
    ) as working:
        wait_for_event(loading)
        working.worker.stop()
        working.end()
    proceed.set()

    jobs = [queue.get(job_id) for job_id in enqueued]
    assert [(job.state, job.attempt) for job in jobs] == [("ready", 0)] * 2
    assert models.ran == []


def test_a_job_says_that_it_loads_and_then_that_it_works(queue: Queue) -> None:
    loading, proceed, working_on = threading.Event(), threading.Event(), threading.Event()

    async def load(model: str) -> None:
        loading.set()
        await comes(proceed)

    @queue.task("long")
    def long() -> None:
        wait_for_event(working_on)

    enqueued = queue.enqueue("long", {}, affinity="A")
    # The next renewal would come after twenty minutes.
    with running_worker(queue, lease=3600, warm=WarmResources(load=load)) as working:
        wait_for_event(loading)
        assert queue.get(enqueued.id).phase == "loading"
        assert (working.worker.status().loading, working.worker.status().loaded) == (("A",), ())
        proceed.set()
        wait_until(lambda: queue.get(enqueued.id).phase == "working")
        working_on.set()
        wait_finished(queue, enqueued.id)


def test_a_cancelled_job_does_not_run_after_its_load(queue: Queue) -> None:
    models = Models(queue)
    loading, proceed = threading.Event(), threading.Event()

    async def load(model: str) -> None:
        loading.set()
        await comes(proceed)
        models.loaded.add(model)

    [job_id] = models.enqueue("A")
    with running_worker(queue, warm=WarmResources(load=load), concurrency=1):
        wait_for_event(loading)
        queue.cancel(job_id, force=True)
        proceed.set()
        [other] = models.enqueue("A")
        wait_finished(queue, other)

    assert models.ran == ["A"]
    assert queue.get(job_id).state == "cancelled"


class TestAJobThatIsCancelledDuringItsLoad:
    """It is cancelled at once; a load for which no job waits is cancelled too."""

    def test_its_load_is_cancelled_and_the_worker_goes_on(self, queue: Queue) -> None:
        models = Models(queue)
        loading, stopped = threading.Event(), threading.Event()

        async def load(model: str) -> None:
            if model == "A":
                loading.set()
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    stopped.set()
            models.loaded.add(model)

        [job_id] = models.enqueue("A")
        with running_worker(queue, warm=WarmResources(load=load), concurrency=1) as working:
            wait_for_event(loading)
            queue.cancel(job_id)
            wait_for_event(stopped)
            [other] = models.enqueue("B")
            wait_finished(queue, other)
            assert working.worker.status().loaded == ("B",)

        assert (queue.get(job_id).state, queue.get(job_id).attempt) == ("cancelled", 1)
        assert models.ran == ["B"]

    @COLOURS
    def test_a_load_for_which_others_wait_goes_on(self, queue: Queue, awaited: bool) -> None:
        models = Models(queue, awaited=awaited)
        loading, proceed = threading.Event(), threading.Event()

        def load(model: str) -> None:
            loading.set()
            assert proceed.wait(PATIENCE_SECONDS)
            models.loaded.add(model)

        async def load_later(model: str) -> None:
            loading.set()
            await comes(proceed)
            models.loaded.add(model)

        cancelled, other = models.enqueue("AA")
        with running_worker(queue, warm=WarmResources(load=load_later if awaited else load), concurrency=2):
            wait_for_event(loading)
            wait_until(lambda: queue.counts() == {"running": 2})
            queue.cancel(cancelled)
            wait_until(lambda: queue.get(cancelled).state == "cancelled")
            proceed.set()
            wait_finished(queue, other)

        assert models.ran == ["A"]


class TestALoadThatDoesNotEnd:
    """The timeout of a job also applies while its affinity is loaded."""

    def test_an_awaited_one_is_stopped_and_the_worker_goes_on(self, queue: Queue) -> None:
        loading, stopped, timer = threading.Event(), threading.Event(), MovableTimer()

        async def load(model: str) -> None:
            loading.set()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                stopped.set()

        @queue.task("run", timeout=30, max_attempts=1)
        def run() -> None: ...

        enqueued = queue.enqueue("run", {}, affinity="A", max_attempts=1)
        with running_worker(queue, concurrency=1, warm=WarmResources(load=load), lease=600, timer=timer):
            wait_for_event(loading)
            timer.advance(30)
            job = wait_finished(queue, enqueued.id)
            wait_for_event(stopped)
            plain = queue.enqueue("run", {})
            assert wait_finished(queue, plain.id).state == "done"

        assert job.failure is not None
        assert job.failure.reason == "timeout"

    def test_a_blocking_one_ends_the_worker(self, queue: Queue) -> None:
        proceed = threading.Event()

        @queue.task("run", timeout=0.05)
        def run() -> None: ...

        queue.enqueue("run", {}, affinity="A", max_attempts=1)
        worker = Worker(queue, concurrency=1, warm=WarmResources(load=lambda _model: wait_for_event(proceed)))
        running = in_background(worker.run)
        with pytest.raises(HandlersStuck):
            running.result(PATIENCE_SECONDS)
        proceed.set()


def test_the_registry_tells_what_is_loaded_and_how_often_that_changed(queue: Queue) -> None:
    models = Models(queue)
    models.enqueue("ABC")
    with running_worker(queue, concurrency=1, worker="w1", warm=models.warm()):
        wait_until(lambda: queue.counts() == {"done": 3})
        wait_until(lambda: [(row.loaded, row.switches) for row in queue.admin.workers()] == [(("C",), 2)])


@pytest.mark.slow("a worker writes its row only every few seconds")
def test_the_registry_tells_how_many_switches_the_order_has_saved_and_for_how_long_it_holds(queue: Queue) -> None:
    models = Models(queue)
    models.enqueue("ABABABAB")
    with running_worker(queue, concurrency=1, worker="w1", warm=models.warm(max_hold=600)):
        # In the order in which they were enqueued, each job but the first would need a switch.
        wait_until(lambda: [(row.switches, row.switches_saved) for row in queue.admin.workers()] == [(1, 6)])
        [row] = queue.admin.workers()
        assert row.hold_left is not None
        assert 500 < row.hold_left <= 600


@pytest.mark.parametrize(("capacity", "switches"), [(1, 5_999), (2, 0)])
def test_switches_in_the_order_of_arrival_are_counted_beyond_what_is_sorted(capacity: int, switches: int) -> None:
    order = ArrivalOrder(["A"], capacity)
    # Run by affinity within each thousand, as a worker that prefers what is loaded.
    for start in range(0, 6_000, 1_000):
        for number in sorted(range(start, start + 1_000), key=lambda one: one % 2):
            order.add(number, "BA"[number % 2 == 0])
    assert order.switches() == switches


def test_without_hooks_the_last_affinity_is_favoured(queue: Queue) -> None:
    models = Models(queue)
    models.loaded = {"A", "B"}
    models.enqueue("ABABAB")
    with running_worker(queue, concurrency=1, warm=WarmResources()) as working:
        wait_until(lambda: queue.counts() == {"done": 6})
        assert working.worker.status().switches == 1

    assert models.ran == list("AAABBB")


@pytest.mark.parametrize(
    ("option", "options"),
    [
        ("warm", {"warm": print}),
        ("affinity", {"warm": WarmResources(), "affinity": ["A", "B"]}),
        ("affinities_max", {"affinities_max": 1}),
        ("affinities_held", {"affinities_held": ["A"]}),
    ],
)
def test_invalid_options_are_refused(queue: Queue, option: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        Worker(queue, **options)
    assert caught.value.field == option


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("load", {"load": "app:load"}),
        ("unload", {"unload": 3}),
        ("capacity", {"capacity": 0}),
        ("capacity", {"capacity": 65}),
        ("max_hold", {"max_hold": -1}),
    ],
)
def test_invalid_values_of_warm_resources_are_refused(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        WarmResources(**options)
    assert caught.value.field == field


def test_a_worker_measures_its_loads_and_warns_if_they_take_longer_than_max_hold(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    models, timer = Models(queue), MovableTimer(stands_still=True)

    async def load(model: str) -> None:
        timer.advance(40)
        models.loaded.add(model)

    [job_id] = models.enqueue("A")
    warm = WarmResources(load=load, max_hold=30)
    with running_worker(queue, concurrency=1, lease=600, timer=timer, warm=warm) as working:
        wait_finished(queue, job_id)
        assert working.worker.status().load_seconds == 40

    assert "a switch to A took 40.0 s, longer than max_hold, 30.0 s" in caplog.text
