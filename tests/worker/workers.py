"""A worker in a background thread of a test, which stops it and waits for it at the end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from holdfast import Job, OutcomeUnknown, Queue
from holdfast.client.connect import queue_on
from holdfast.client.queue_state import state_of
from holdfast.errors import StoreUnreachable
from holdfast.types import Now
from holdfast.worker.worker import Worker
from tests.chaos.processes import PATIENCE_SECONDS
from tests.chaos.threads import in_background, wait_until
from tests.support.clock import ManualClock
from tests.support.faults import Faults
from tests.support.stores import Harness
from tests.worker.timers import MovableTimer

LEASE_SECONDS = 600.0
"""Far longer than a test, however busy the machine is; its timer is advanced if a lease has to be renewed."""
REAL_LEASE_SECONDS = 6.0
"""For workers in other processes, which renew or lose leases by the real clock: a stall of some seconds ends none."""


def without_tasks(queue: Queue) -> Queue:
    """Return another queue on the same store that declares no tasks and so accepts any payload."""
    return queue_on(state_of(queue).store)


class RunningClock(ManualClock):
    """A store clock that runs in real time and can be advanced in addition."""

    def __init__(self) -> None:
        super().__init__()
        self._started = time.monotonic()

    def now(self) -> Now:
        passed_ms = round((time.monotonic() - self._started) * 1000)
        return Now(self._now.wall_ms + passed_ms, self._now.lease_ms + passed_ms)


class Time:
    """The time of a store and of its workers, which a test advances together; the store's clock is manual."""

    def __init__(self, harness: Harness, *, stands_still: bool = False) -> None:
        self.timer = MovableTimer(stands_still=stands_still)
        self._harness = harness

    def advance(self, seconds: float) -> None:
        """Advance the time by *seconds*, for leases, timeouts and grace periods."""
        self._harness.clock.advance(seconds)
        self.timer.advance(seconds)

    def pass_leases(self, queue: Queue, job_id: str, lease: float, count: int) -> None:
        """Advance the time by *count* leases and wait for the renewals that keep the job's lease."""
        # The store shows a renewal before the worker has read its answer, so the worker may only know the previous
        # one. Two steps must therefore fit into one lease, and one step has to trigger the next renewal.
        for _ in range(3 * count):
            before = queue.get(job_id).lease_until
            self.advance(lease * 0.4)
            wait_until(lambda before=before: queue.get(job_id).lease_until != before)  # type: ignore[misc]


class Outage(Faults):
    """A store that is unavailable for a block: every transaction that begins then raises."""

    def __init__(self, harness: Harness) -> None:
        """Replace the harness's faults; created before the store is opened."""
        super().__init__()
        harness.faults = self
        self._unavailable = False
        self._unknown = 0
        self._faults = 0

    def __call__(self, name: str) -> None:
        if name == "begin" and self._unavailable:
            self._faults += 1
            raise StoreUnreachable("nobody answers")
        if name == "committed" and self._unknown:
            self._unknown -= 1
            raise OutcomeUnknown("the answer was lost")
        super().__call__(name)

    def lose_answers(self, count: int) -> None:
        """Let the next commits succeed and lose their answers."""
        self._unknown = count

    @property
    def answers_lost(self) -> bool:
        """Whether all answers to lose have been lost."""
        return self._unknown == 0

    def wait_struck(self, times: int) -> None:
        """Wait until the fault has occurred that often."""
        wait_until(lambda: self._faults >= times)

    def __enter__(self) -> Outage:
        self._faults = 0
        self._unavailable = True
        return self

    def __exit__(self, *_: object) -> None:
        self._unavailable = False


class RunningWorker(NamedTuple):
    """A running worker and the future of its end."""

    worker: Worker
    future: Future[Any]

    def end(self) -> None:
        """Wait until the worker has ended by itself without an error."""
        self.future.result(PATIENCE_SECONDS)


@contextmanager
def running_worker(queue: Queue, **options: Any) -> Iterator[RunningWorker]:
    """Run a worker on *queue* during the block; do not wait for handlers that run at its end."""
    worker = Worker(queue, **options)
    working = RunningWorker(worker, in_background(worker.run))
    try:
        yield working
    finally:
        worker.stop()
        with suppress(BaseException):
            # Usually it has time to stop cleanly; if not, it is stopped a second time.
            working.future.result(0.05)
        worker.stop()
        working.end()


def live(harness: Harness) -> Queue:
    """Return a client of a store with a running clock, for tests in which leases expire."""
    harness.clock = RunningClock()
    return harness.open()


def wait_finished(queue: Queue, job_id: str) -> Job:
    """Wait until the job has finished and return it."""
    return queue.wait(job_id, timeout=PATIENCE_SECONDS)


def wait_for_event(event: threading.Event) -> None:
    """Wait for an event; fail if it does not come."""
    assert event.wait(PATIENCE_SECONDS), "what was waited for did not come"


async def comes(event: threading.Event) -> None:
    """Await an event that another thread sets."""
    while not event.is_set():  # noqa: ASYNC110  # another thread cannot set an asyncio.Event
        await asyncio.sleep(0.005)


def in_state(queue: Queue, job_id: str, state: str) -> Job:
    """Wait until the job is in *state* and return it."""
    wait_until(lambda: queue.get(job_id).state == state)
    return queue.get(job_id)
