"""Handlers that keep running after their attempt was decided.

A thread cannot be stopped from outside, and a task may suppress its cancellation. Such a handler loses its slot after
some seconds, and its return value is ignored. The worker tolerates as many of them as it has slots.
"""

import logging
from collections import deque

from holdfast.domain import errors
from holdfast.worker import executors, timers
from holdfast.worker.attempt import RunningAttempt

log = logging.getLogger("holdfast.worker")

# How long a handler keeps its slot after the request to stop.
STOP_SECONDS = 5.0


class StuckHandlers:
    """Watches handlers that were requested to stop; runs in the worker loop."""

    def __init__(self, executor_queue: executors.ExecutorQueue, limit: int, timer: timers.Timer) -> None:
        self._timer = timer
        self._executor_queue = executor_queue
        self._limit = limit
        self._stopping: deque[tuple[float, RunningAttempt]] = deque()
        self._abandoned: set[RunningAttempt] = set()

    def __len__(self) -> int:
        """Return the number of handlers that run without a slot."""
        return len(self._abandoned)

    def watch(self, attempt: RunningAttempt) -> None:
        """Watch the handler of an attempt that was decided while the handler runs."""
        # The executor kills the process of an isolated handler.
        if attempt.started_at is not None and not attempt.slot_freed and not attempt.isolated:
            self._stopping.append((self._timer.monotonic() + STOP_SECONDS, attempt))

    def reclaim_slots(self) -> list[RunningAttempt]:
        """Free the slots of handlers that did not stop in time; return their attempts."""
        reclaimed = []
        while self._stopping and (self._stopping[0][0] <= self._timer.monotonic() or self._stopping[0][1].slot_freed):
            attempt = self._stopping.popleft()[1]
            if self._executor_queue.abandon(attempt):
                reclaimed.append(attempt)
                self._abandoned.add(attempt)
                log.error(
                    "job %s of kind %s did not stop when requested (%s): abandoned, %d of at most %d",
                    *(attempt.claim.job.id, attempt.claim.job.kind, attempt.stopped),
                    *(len(self._abandoned), self._limit),
                )
        return reclaimed

    def error_if_too_many(self) -> errors.HandlersStuck | None:
        """Return the error to stop the worker with if more handlers are abandoned than allowed."""
        if len(self._abandoned) <= self._limit:
            return None
        kinds = sorted({attempt.claim.job.kind for attempt in self._abandoned})
        return errors.HandlersStuck(len(self._abandoned), kinds)

    def handler_ended(self, attempt: RunningAttempt) -> bool:
        """Record that a handler has ended; return whether it had been abandoned."""
        if attempt not in self._abandoned:
            return False
        self._abandoned.remove(attempt)
        log.warning("the abandoned handler of job %s has ended", attempt.claim.job.id)
        return True
