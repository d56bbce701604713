"""A worker runs each handler within the middleware of its queue, and reports each attempt that has ended."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Generator
from contextvars import ContextVar
from typing import Any

import pytest

import holdfast
from holdfast import Context, Defer, Fail, Middleware, Queue, SessionContext, telemetry, testing
from holdfast.client.queue_state import state_of
from holdfast.types import EndedAttempt
from tests.chaos.processes import PATIENCE_SECONDS
from tests.chaos.threads import wait_until
from tests.support.assertions import failure_of
from tests.support.stores import Harness
from tests.worker.workers import running_worker, wait_finished

CURRENT: ContextVar[str | None] = ContextVar("current", default=None)


class Around(Middleware):
    """Sets a context variable while a handler runs, and records what happens."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.seen: list[Any] = []
        self.ends: list[EndedAttempt] = []

    def run(self, context: Context) -> Generator[None, Any, None]:
        token = CURRENT.set(f"{self.name}{context.job.id}")
        self.seen.append("begin")
        try:
            result = yield
            self.seen.append(result)
        except BaseException as error:
            self.seen.append(error)
            raise
        finally:
            CURRENT.reset(token)

    def ended(self, attempt: EndedAttempt) -> None:
        self.ends.append(attempt)


@pytest.fixture
def around(queue: Queue) -> Around:
    made = Around()
    state_of(queue).middleware = (made,)
    return made


class TestHandlers:
    def test_sync_and_async_handlers_run_within_it(self, queue: Queue, around: Around) -> None:
        @queue.task("sync")
        def sync() -> str | None:
            return CURRENT.get()

        @queue.task("async")
        async def awaited() -> str | None:
            await asyncio.sleep(0)
            return CURRENT.get()

        made = [sync.enqueue(), awaited.enqueue()]
        with running_worker(queue, concurrency=1):
            assert [wait_finished(queue, one.id).result for one in made] == [one.id for one in made]

        assert sorted(around.seen) == sorted(["begin", made[0].id, "begin", made[1].id])
        assert CURRENT.get() is None

    def test_a_turn_runs_within_it(self, queue: Queue, around: Around) -> None:
        turns: list[Any] = []

        class Turns(Middleware):
            def run(self, context: Context) -> Generator[None, Any, None]:
                assert isinstance(context, SessionContext)
                turns.append((context.session, len(context.entries)))
                yield

        state_of(queue).middleware = (around, Turns())

        @queue.session_task("chat", join=True)
        def chat(context: SessionContext[int], messages: list[int]) -> int:
            return sum(messages)

        made = [queue.enqueue("chat", n, session="s", join=True) for n in (1, 2)]
        with running_worker(queue):
            assert [wait_finished(queue, one.id).result for one in made] == [3, 3]
            wait_until(lambda: bool(around.ends))

        assert turns == [("s", 2)]
        [end] = around.ends
        assert [claim.job.id for claim in end.claims] == [job.id for job in end.jobs] == [one.id for one in made]
        assert (end.outcome, end.isolated) == ("done", False)
        assert end.seconds is not None

    @pytest.mark.parametrize("is_async", [True, False])
    def test_it_sees_the_error_and_cannot_suppress_it(self, queue: Queue, *, is_async: bool) -> None:
        seen: list[BaseException] = []

        class Suppressing(Middleware):
            def run(self, context: Context) -> Generator[None, Any, None]:
                try:
                    yield
                except BaseException as error:
                    seen.append(error)

        state_of(queue).middleware = (Suppressing(), Suppressing())
        _declare(queue, ValueError("no"), is_async=is_async)

        [attempt] = testing.drain(queue, raises=False).ran

        assert [str(error) for error in seen] == ["no", "no"]
        assert failure_of(attempt.job).reason == "value_error"

    @pytest.mark.parametrize("is_async", [True, False])
    @pytest.mark.parametrize("raised", [ValueError("no"), StopIteration(), StopAsyncIteration(), KeyboardInterrupt()])
    def test_an_error_passes_through_unchanged(
        self, queue: Queue, around: Around, raised: BaseException, *, is_async: bool
    ) -> None:
        if isinstance(raised, StopIteration) and is_async:
            return  # a coroutine cannot raise it
        _declare(queue, raised, is_async=is_async)

        [attempt] = testing.drain(queue, raises=False).ran

        assert around.seen == ["begin", raised]
        assert attempt.error is raised

    @pytest.mark.parametrize("is_async", [True, False])
    def test_it_may_choose_another_outcome(self, queue: Queue, *, is_async: bool) -> None:
        class Deferring(Middleware):
            def run(self, context: Context) -> Generator[None, Any, None]:
                try:
                    yield
                except ValueError as error:
                    raise Defer(after=60) from error

        state_of(queue).middleware = (Deferring(),)
        _declare(queue, ValueError("busy"), is_async=is_async)

        assert [attempt.outcome for attempt in testing.drain(queue).ran] == ["deferred"]

    @pytest.mark.parametrize("is_async", [True, False])
    @pytest.mark.parametrize("before", [True, False])
    def test_its_own_error_is_the_attempts_error(self, queue: Queue, *, before: bool, is_async: bool) -> None:
        ran: list[int] = []

        class Failing(Middleware):
            def run(self, context: Context) -> Generator[None, Any, None]:
                if before:
                    raise Fail("no session", reason="no_session")
                yield
                raise Fail("not committed", reason="not_committed")

        state_of(queue).middleware = (Failing(),)
        _declare(queue, None, ran=ran, is_async=is_async)

        [attempt] = testing.drain(queue, raises=False).ran

        assert failure_of(attempt.job).reason == ("no_session" if before else "not_committed")
        assert ran == ([] if before else [1])

    @pytest.mark.parametrize("is_async", [True, False])
    def test_a_method_that_yields_twice_or_never_fails_the_attempt(self, queue: Queue, *, is_async: bool) -> None:
        class Often(Middleware):
            times = 2

            def run(self, context: Context) -> Generator[None, Any, None]:
                for _ in range(self.times):
                    yield

        often = Often()
        state_of(queue).middleware = (often,)
        _declare(queue, None, is_async=is_async)
        for often.times in (2, 0):
            queue.enqueue("task", {})

            for attempt in testing.drain(queue, raises=False).ran:
                assert "exactly once" in failure_of(attempt.job).message

    def test_an_async_generator_encloses_async_handlers(self, queue: Queue) -> None:
        seen: list[Any] = []

        class Both(Middleware):
            def run(self, context: Context) -> Generator[None, Any, None]:
                seen.append("sync")
                yield

            async def run_async(self, context: Context) -> AsyncGenerator[None, Any]:
                await asyncio.sleep(0)
                try:
                    seen.append((yield))
                except ValueError as error:
                    await asyncio.sleep(0)
                    raise Fail("told", reason="told") from error

        state_of(queue).middleware = (Both(), Around())

        @queue.task("async")
        async def awaited(wrong: bool) -> int:
            if wrong:
                raise ValueError
            return 7

        @queue.task("sync")
        def sync() -> None: ...

        awaited.enqueue(False)
        awaited.enqueue(True)
        sync.enqueue()
        drained = testing.drain(queue, raises=False)

        assert seen == [7, "sync"]
        assert [attempt.outcome for attempt in drained.ran] == ["done", "failed", "done"]
        assert failure_of(drained.ran[1].job).reason == "told"

    @pytest.mark.parametrize("times", [0, 2])
    def test_an_async_generator_yields_once(self, queue: Queue, times: int) -> None:
        class Often(Middleware):
            async def run_async(self, context: Context) -> AsyncGenerator[None, Any]:
                for _ in range(times):
                    yield

        state_of(queue).middleware = (Often(),)
        _declare(queue, None, is_async=True)

        [attempt] = testing.drain(queue, raises=False).ran
        assert "exactly once" in failure_of(attempt.job).message


def _declare(queue: Queue, raised: BaseException | None, *, ran: list[int] | None = None, is_async: bool) -> None:
    """Declare a task that raises *raised*, and enqueue it."""

    def handle() -> None:
        if ran is not None:
            ran.append(1)
        if raised is not None:
            raise raised

    async def handle_async() -> None:
        handle()

    queue.task("task", max_attempts=1)(handle_async if is_async else handle)
    queue.enqueue("task", {})


class TestEnds:
    def test_each_attempt_is_reported_once_with_the_settled_job(self, queue: Queue, around: Around) -> None:
        errors = iter([Defer(after=0), ValueError(), None])

        @queue.task("task", backoff=holdfast.Backoff(base=0))
        def task() -> int:
            error = next(errors)
            if error is not None:
                raise error
            return 7

        made = task.enqueue()
        with running_worker(queue):
            wait_finished(queue, made.id)
            wait_until(lambda: len(around.ends) == 3)

        assert [end.outcome for end in around.ends] == ["deferred", "failed", "done"]
        assert [end.jobs[0].result for end in around.ends] == [None, None, 7]
        assert {end.claim.job.id for end in around.ends} == {made.id}

    def test_a_lost_lease_is_reported(self, durable_harness: Harness) -> None:
        queue, around = durable_harness.open(), Around()
        state_of(queue).middleware = (around,)
        taken = threading.Event()

        @queue.task("task")
        def task(context: Context) -> None:
            taken.set()
            context.wait_cancelled(30)

        made = task.enqueue()
        with running_worker(queue):
            assert taken.wait(PATIENCE_SECONDS)
            queue.cancel(made.id, force=True)
            wait_until(lambda: bool(around.ends))

        [end] = around.ends
        assert (end.outcome, end.jobs) == ("lost", ())

    def test_an_error_of_it_is_logged_and_the_worker_goes_on(
        self, queue: Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Failing(Middleware):
            def claim(self, call: object) -> Generator[None, Any, None]:
                yield
                raise ValueError("claim")

            def settle(self, outcomes: object) -> Generator[None, Any, None]:
                raise ValueError("settle")
                yield

            def ended(self, attempt: EndedAttempt) -> None:
                raise ValueError("ended")

        around = Around()
        state_of(queue).middleware = (Failing(), around)
        queue.task("task")(lambda: None)
        with caplog.at_level(logging.ERROR, "holdfast.middleware"), running_worker(queue):
            for _ in range(2):
                wait_finished(queue, queue.enqueue("task", {}).id)
            wait_until(lambda: len(around.ends) == 2)

        raised = {str(record.exc_info[1]) for record in caplog.records if record.exc_info}
        assert raised == {"claim", "settle", "ended"}

    def test_a_refused_follow_up_fails_the_job_and_no_other(self, queue: Queue) -> None:
        class Refusing(Middleware):
            def enqueue(self, jobs: Any) -> Generator[None, Any, None]:
                if jobs[0].claim is not None:
                    raise ValueError("no follow-ups")
                yield

        state_of(queue).middleware = (Refusing(),)

        @queue.task("task")
        def task(context: Context, more: bool) -> None:
            if more:
                context.follow_up("task", {"more": False})

        made = [task.enqueue(more) for more in (True, False)]
        with running_worker(queue):
            jobs = [wait_finished(queue, one.id) for one in made]

        assert [job.state for job in jobs] == ["failed", "done"]
        assert "refused by middleware" in failure_of(jobs[0]).message


def test_the_metrics_of_one_worker_do_not_measure_the_other(queue: Queue) -> None:
    queue.task("task")(lambda: None)
    metrics = telemetry.metrics(queue)
    with running_worker(queue, metrics=metrics):
        pass
    with running_worker(queue):
        wait_finished(queue, queue.enqueue("task", {}).id)

    labels = {"lane": "default", "kind": "task", "outcome": "done"}
    assert metrics.registry.get_sample_value("holdfast_attempts_total", labels) is None
    assert state_of(queue).middleware == ()
