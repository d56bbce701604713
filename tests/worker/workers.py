"""A worker at work beside a test: in a thread of its own, stopped and waited for at the end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from holdfast import Job, Now, OutcomeUnknown, Queue, StoreUnreachable
from holdfast.client.connect import queue_on
from holdfast.worker.worker import Worker
from tests.chaos.processes import PATIENCE_SECONDS
from tests.chaos.threads import in_background, wait_until
from tests.support.clock import ManualClock
from tests.support.faults import Faults
from tests.support.stores import Harness
from tests.worker.timers import MovableTimer

LEASE_SECONDS = 0.3
"""Short, so that many fit into a test."""
KEPT_LEASE_SECONDS = 1.5
"""For leases that must be kept: long enough for a busy machine to beat three times."""


def without_tasks(queue: Queue) -> Queue:
    """Return another queue on the same store that declares no tasks, and so takes any payload."""
    return queue_on(queue.store)


class RunningClock(ManualClock):
    """A store's clock that goes on by itself, and can be moved beside that."""

    def __init__(self) -> None:
        super().__init__()
        self._started = time.monotonic()

    def now(self) -> Now:
        passed_ms = round((time.monotonic() - self._started) * 1000)
        return Now(self._now.wall_ms + passed_ms, self._now.lease_ms + passed_ms)


class Time:
    """The time of a store and of its workers, which a test moves together; that of the store stands still else."""

    def __init__(self, harness: Harness, *, stands_still: bool = False) -> None:
        self.timer = MovableTimer(stands_still=stands_still)
        self._harness = harness

    def advance(self, seconds: float) -> None:
        """Let *seconds* pass, for leases, timeouts and grace periods alike."""
        self._harness.clock.advance(seconds)
        self.timer.advance(seconds)

    def pass_leases(self, queue: Queue, job_id: str, lease: float, count: int) -> None:
        """Let the time of *count* leases pass, of which each renewal extends the one of the job."""
        # The store shows a renewal before the worker has read the answer, so that the worker may know of the one
        # before it only. Two steps must therefore fit into one lease; and one step has to bring the next renewal.
        for _ in range(3 * count):
            before = queue.get(job_id).lease_until_ms
            self.advance(lease * 0.4)
            wait_until(lambda before=before: queue.get(job_id).lease_until_ms != before)  # type: ignore[misc]


class Outage(Faults):
    """A store out of reach for a block: whoever begins a transaction then is told so."""

    def __init__(self, harness: Harness) -> None:
        """Take the place of the harness's own faults; made before the store is opened."""
        super().__init__()
        harness.faults = self
        self._away = False
        self._unknown = 0
        self._struck = 0

    def __call__(self, name: str) -> None:
        if name == "begin" and self._away:
            self._struck += 1
            raise StoreUnreachable("nobody answers")
        if name == "committed" and self._unknown:
            self._unknown -= 1
            raise OutcomeUnknown("the answer was lost")
        super().__call__(name)

    def lose_answers(self, count: int) -> None:
        """Let the next commits succeed, and whoever asked for them not know."""
        self._unknown = count

    @property
    def answers_lost(self) -> bool:
        """Whether all answers that were to be lost are."""
        return self._unknown == 0

    def struck(self, times: int) -> None:
        """Wait until it has struck so often."""
        wait_until(lambda: self._struck >= times)

    def __enter__(self) -> Outage:
        self._struck = 0
        self._away = True
        return self

    def __exit__(self, *_: object) -> None:
        self._away = False


class AtWork(NamedTuple):
    """A worker that runs, and its end to be."""

    worker: Worker
    ended: Future[Any]

    def end(self) -> None:
        """Wait until the worker has ended by itself, in peace."""
        self.ended.result(PATIENCE_SECONDS)


@contextmanager
def at_work(queue: Queue, **words: Any) -> Iterator[AtWork]:
    """Let a worker run the tasks of *queue* for the block; what runs at its end is not waited for."""
    worker = Worker(queue, **words)
    working = AtWork(worker, in_background(worker.run))
    try:
        yield working
    finally:
        worker.stop()
        with suppress(BaseException):
            # Often it has the time to end in good order; where it has not, it is told a second time.
            working.ended.result(0.05)
        worker.stop()
        working.end()


def live(harness: Harness) -> Queue:
    """Return a client of a store whose clock goes on, for tests in which leases expire by themselves."""
    harness.clock = RunningClock()
    return harness.open()


def ended(queue: Queue, job_id: str) -> Job:
    """Return the job once it has finished."""
    return queue.wait(job_id, timeout=PATIENCE_SECONDS)


def arrived(event: threading.Event) -> None:
    """Wait for an event that must come."""
    assert event.wait(PATIENCE_SECONDS), "what was waited for did not come"


async def comes(event: threading.Event) -> None:
    """Await an event that another thread sets."""
    while not event.is_set():  # noqa: ASYNC110  # an asyncio.Event cannot be set from there
        await asyncio.sleep(0.005)


def in_state(queue: Queue, job_id: str, state: str) -> Job:
    """Return the job once it is in *state*."""
    wait_until(lambda: queue.get(job_id).state == state)
    return queue.get(job_id)
