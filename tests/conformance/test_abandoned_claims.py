"""Claims whose caller was cancelled or interrupted: no lease remains and no attempt is used.

Every store must pass this file unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import sys
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from types import FrameType
from typing import Any

import pytest

from holdfast import Done, Job, NewJob
from tests.support.faults import Faults
from tests.support.stores import Harness

PATIENCE_SECONDS = 60


class Strike(Faults):
    """An observer of the store that acts once, at a given statement."""

    def __init__(self, harness: Harness) -> None:
        super().__init__()
        self.at: str | None = None
        self.act: Callable[[], object] = lambda: None
        harness.faults = self

    def calm(self) -> None:
        self.at = None

    def __call__(self, name: str) -> None:
        if name == self.at:
            self.at = None
            self.act()


def interrupt() -> None:
    raise KeyboardInterrupt


def claim(queue: Any) -> Any:
    return queue.claim(worker="w")


def claim_many(queue: Any, lease_token: str = "t") -> Any:
    return queue.claim_many(limit=3, worker="w", lease_token=lease_token)


def settle_and_claim(queue: Any) -> Any:
    return queue.settle_and_claim([], limit=3, worker="w")


def claim_session(queue: Any) -> Any:
    return queue.sessions.claim("s", worker="w")


def claim_any_session(queue: Any) -> Any:
    return queue.sessions.claim_next(worker="w", lease_token="n")


def open_session(queue: Any) -> Any:
    return queue.sessions.open("s", worker="w")


CALLS = [claim, claim_many, settle_and_claim, claim_session, claim_any_session, open_session]
JOBS = [*(NewJob("work", max_attempts=1) for _ in range(3)), NewJob("say", session="s", max_attempts=1)]


def assert_untouched(jobs: Iterable[Job]) -> None:
    """Check that no job is running, has used an attempt or is suspect."""
    for job in jobs:
        assert (job.state, job.attempt, job.suspect, job.releases, job.failure) == ("ready", 0, 0, 0, None)


class TestInterrupted:
    """The thread is interrupted before its commit, or between the commit and the return."""

    @pytest.mark.parametrize("call", CALLS)
    @pytest.mark.parametrize("at", ["begin", "commit", "committed"])
    def test_an_interrupted_call_leaves_no_lease(self, harness: Harness, call: Any, at: str) -> None:
        strike = Strike(harness)
        queue = harness.open()
        queue.enqueue_many(JOBS)
        strike.at, strike.act = at, interrupt
        with pytest.raises(KeyboardInterrupt):
            call(queue)
        assert_untouched(queue.jobs().jobs)
        assert len(queue.claim_many()) == 3
        assert queue.sessions.open("s", worker="other").worker == "other"

    def test_a_released_job_records_the_claim_in_its_history(self, harness: Harness) -> None:
        strike = Strike(harness)
        queue = harness.open()
        enqueued = queue.enqueue("work", events="all")
        strike.at, strike.act = "committed", interrupt
        with pytest.raises(KeyboardInterrupt):
            queue.claim()
        assert [attempt.outcome for attempt in queue.attempts(enqueued.id)] == ["released"]
        assert [event.name for event in queue.events()] == ["enqueued", "claimed", "released"]
        assert queue.get(enqueued.id).epoch == 1

    def test_a_job_keeps_its_position_in_the_order(self, harness: Harness) -> None:
        strike = Strike(harness)
        queue = harness.open()
        first = queue.enqueue("work")
        harness.clock.advance(5)
        queue.enqueue("work")
        strike.at, strike.act = "committed", interrupt
        with pytest.raises(KeyboardInterrupt):
            queue.claim()
        assert queue.get(first.id).due_at == first.job.due_at

    def test_claims_of_an_earlier_call_stay_with_that_caller(self, harness: Harness) -> None:
        strike = Strike(harness)
        queue = harness.open()
        queue.enqueue("work")
        [held] = queue.claim_many(worker="w", lease_token="t")
        lease = queue.sessions.open("s", worker="w", lease_token="l")
        for again in (
            lambda: queue.claim_many(worker="w", lease_token="t"),
            lambda: queue.sessions.open("s", worker="w", lease_token="l"),
        ):
            strike.at, strike.act = "committed", interrupt
            with pytest.raises(KeyboardInterrupt):
                again()
        assert queue.settle(held, Done()).state == "done"
        assert queue.sessions.renew(lease).generation == lease.generation


class Interrupter:
    """Raises `KeyboardInterrupt` before the nth line that the call runs in the store."""

    def __init__(self, line: int) -> None:
        self.left = line
        self.at = ""

    def __enter__(self) -> Interrupter:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(("holdfast.storage.", "holdfast.operations.")) or self.left <= 0:
            return None
        if frame.f_code.co_name == "__exit__" and name.endswith(".runners"):
            return None  # the call has returned
        if name.endswith(".postgres.pool"):
            return None  # no signal is handled where a `with` block ends, which is a line too
        if event == "line":
            self.left -= 1
            if not self.left:
                self.at = f"{name}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self._trace


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # coroutines
@pytest.mark.slow("a call is interrupted at each of its lines")
@pytest.mark.parametrize("call", [claim, lambda queue: queue.sessions.claim_next(worker="w")])
def test_a_call_that_is_interrupted_at_any_line_leaves_no_lease(harness: Harness, call: Any) -> None:
    queue, other = harness.open(), harness.open()
    queue.enqueue_many(JOBS)
    for line in count(1):
        with contextlib.suppress(KeyboardInterrupt), Interrupter(line) as interrupter:
            claimed = call(queue)
        if interrupter.left > 0:
            break
        running = [job.kind for job in other.jobs(state="running").jobs]
        assert not running, f"interrupted at {interrupter.at}"
    assert line > 50
    assert claimed
    # Connections of calls that were interrupted as they got them are collected with their queue, not in another test.
    harness.reopen()
    del queue, other, claimed
    gc.collect()


class TestCancelled:
    """The task is cancelled while its transaction runs, waits for the writer, or has just returned."""

    @pytest.mark.parametrize("call", CALLS)
    @pytest.mark.parametrize("at", ["begin", "commit", "committed"])
    def test_a_cancelled_call_leaves_no_lease(self, harness: Harness, call: Any, at: str) -> None:
        strike = Strike(harness)

        async def main() -> None:
            async with harness.open_async() as queue:
                await queue.enqueue_many(JOBS)
                task = asyncio.ensure_future(call(queue))
                loop = asyncio.get_running_loop()
                strike.at, strike.act = at, partial(loop.call_soon_threadsafe, task.cancel)
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait_for(task, PATIENCE_SECONDS)
                if not task.cancelled():
                    return  # the call returned before the cancellation was delivered
                assert_untouched((await queue.jobs()).jobs)
                assert len(await queue.claim_many()) == 3
                assert (await queue.sessions.open("s", worker="other")).worker == "other"

        asyncio.run(main())

    def test_a_cancelled_call_that_then_fails_leaves_no_error_for_the_event_loop_to_log(
        self, harness: Harness
    ) -> None:
        strike = Strike(harness)
        logged: list[dict[str, Any]] = []
        failed: list[bool] = []

        def fail() -> None:
            failed.append(True)
            raise RuntimeError("the commit failed")

        async def main() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, about: logged.append(about))
            async with harness.open_async() as queue:
                await queue.enqueue_many(JOBS)
                task = asyncio.ensure_future(queue.enqueue_many([NewJob("work"), NewJob("work")]))

                def cancel() -> None:
                    loop.call_soon_threadsafe(task.cancel)
                    strike.at, strike.act = "commit", fail

                strike.at, strike.act = "begin", cancel
                with contextlib.suppress(asyncio.CancelledError, RuntimeError):
                    await asyncio.wait_for(task, PATIENCE_SECONDS)
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while not failed:  # noqa: ASYNC110  # in another thread
                        await asyncio.sleep(0.001)
                assert (await queue.counts())["ready"] == len(JOBS)  # after the rollback
                gc.collect()

        asyncio.run(main())
        assert logged == []

    def test_a_call_that_waits_for_the_writer_is_withdrawn(self, harness: Harness) -> None:
        async def main() -> None:
            async with harness.open_async() as queue:
                await queue.enqueue_many(JOBS)
                async with queue.transaction() as transaction:
                    await transaction.enqueue("work", lane="other")
                    task = asyncio.ensure_future(queue.claim(wait=30))
                    await asyncio.sleep(0)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await asyncio.wait_for(task, PATIENCE_SECONDS)
                assert_untouched((await queue.jobs()).jobs)
                assert len(await queue.claim_many()) == 3

        asyncio.run(main())

    def test_a_cancellation_at_any_time_leaves_no_lease(self, harness: Harness) -> None:
        chance = random.Random(14)

        async def main() -> None:
            async with harness.open_async() as queue:
                await queue.enqueue_many([NewJob("work", max_attempts=1) for _ in range(40)])
                await queue.enqueue_many([NewJob("say", session=f"s{n}", max_attempts=1) for n in range(5)])
                received: set[str] = set()

                async def live(token: str) -> None:
                    # A separate token: a call with another's token receives, and releases, the other's claims.
                    calls: list[Callable[[Any], Any]] = [
                        claim,
                        partial(claim_many, lease_token=token),
                        settle_and_claim,
                    ]
                    with contextlib.suppress(TimeoutError, asyncio.CancelledError):
                        answer = await asyncio.wait_for(chance.choice(calls)(queue), chance.random() * 0.008)
                        received.update(one.job.id for one in claims_of(answer))

                for turn in range(10):
                    tasks = [asyncio.ensure_future(live(f"{turn}-{n}")) for n in range(6)]
                    await asyncio.sleep(chance.random() * 0.004)
                    tasks[0].cancel()
                    await asyncio.wait(tasks, timeout=PATIENCE_SECONDS)
                # A cancelled caller waits for its undo for at most a second.
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while running_ids(jobs := (await queue.jobs(limit=1000)).jobs) != received:  # noqa: ASYNC110  # of the store
                        await asyncio.sleep(0.01)
                assert_untouched([job for job in jobs if job.id not in received])

        asyncio.run(main())


def running_ids(jobs: Iterable[Job]) -> set[str]:
    return {job.id for job in jobs if job.state == "running"}


def claims_of(answer: Any) -> list[Any]:
    """Return the claims in the result of any call for plain jobs."""
    if answer is None:
        return []
    return answer if isinstance(answer, list) else answer.claims if hasattr(answer, "claims") else [answer]
