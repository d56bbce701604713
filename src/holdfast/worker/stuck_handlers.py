"""Handlers that do not stop: those that ran on after their attempt was decided, and how many of them are borne.

No thread can be stopped from outside, and a task may swallow its cancel. Such a handler loses its slot after a while,
so that it counts against the others no longer; what it returns is dropped. As many are borne as there are slots.
"""

from __future__ import annotations

import logging
from collections import deque

from holdfast.domain.errors import HandlersStuck
from holdfast.worker.attempt import RunningAttempt
from holdfast.worker.executors import ExecutorQueue
from holdfast.worker.timers import Timer

log = logging.getLogger("holdfast.worker")

# How long a handler that was told to stop keeps its slot.
HEEDING_SECONDS = 5.0


class StuckHandlers:
    """Watches handlers that were told to stop; lives in the core's loop."""

    def __init__(self, line: ExecutorQueue, bound: int, timer: Timer) -> None:
        self._timer = timer
        self._line = line
        self._bound = bound
        self._told: deque[tuple[float, RunningAttempt]] = deque()
        self._abandoned: dict[tuple[int, int], RunningAttempt] = {}

    def __len__(self) -> int:
        """How many run on without a slot."""
        return len(self._abandoned)

    def watch(self, attempt: RunningAttempt) -> None:
        """Note that an attempt was decided while its handler runs."""
        # An isolated one is killed by whoever runs it.
        if attempt.started_at is not None and not attempt.slot_freed and not attempt.isolated:
            self._told.append((self._timer.monotonic() + HEEDING_SECONDS, attempt))

    def take_slots(self) -> list[RunningAttempt]:
        """Take the slots of those that had their time, and return them."""
        taken = []
        while self._told and (self._told[0][0] <= self._timer.monotonic() or self._told[0][1].slot_freed):
            attempt = self._told.popleft()[1]
            if self._line.abandon(attempt):
                taken.append(attempt)
                self._abandoned[attempt.key] = attempt
                log.error(
                    "job %s of kind %s runs on though it was told to stop (%s): abandoned, %d of at most %d",
                    *(attempt.claim.job.id, attempt.claim.job.kind, attempt.stopped),
                    *(len(self._abandoned), self._bound),
                )
        return taken

    def too_many(self) -> HandlersStuck | None:
        """Return the error to end with, if no more can be borne."""
        if len(self._abandoned) <= self._bound:
            return None
        kinds = sorted({attempt.claim.job.kind for attempt in self._abandoned.values()})
        return HandlersStuck(len(self._abandoned), kinds)

    def came_back(self, attempt: RunningAttempt) -> bool:
        """Note that a handler has ended; tell whether it had been abandoned."""
        if self._abandoned.pop(attempt.key, None) is None:
            return False
        log.warning("job %s, which was abandoned, has come to its end", attempt.claim.job.id)
        return True
