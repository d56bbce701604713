"""One attempt in this worker's hands: what it runs, how long it may, and what becomes of it.

An attempt is touched by three: the slot that runs its handler, the keeper of leases, and the core that settles it.
What they tell each other goes through here, under one lock.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Literal, TypeAlias

from holdfast.client.context import Context
from holdfast.client.outcomes import outcome_of
from holdfast.client.tasks import AnyTask
from holdfast.domain.claim import Claim
from holdfast.domain.outcome import Failed, Outcome, Released

Reason: TypeAlias = Literal["cancel", "shutdown", "timeout", "lost"]
"""Why a handler is told to stop: somebody asked, the worker goes down, its time is up, its lease is gone."""


class Attempt:
    """One job under one claim, from the claim to its settlement."""

    def __init__(self, claim: Claim, task: AnyTask, context: Context) -> None:
        self.claim = claim
        self.task = task
        self.context = context
        self.started_at: float | None = None
        """When a slot took it, by the monotonic clock."""
        self.lease_ends_at = time.monotonic() + claim.lease_ms / 1000
        """Until when this worker may believe that it holds the job, by the monotonic clock."""
        self.cancel_handler: Callable[[], None] | None = None
        """Cancels an awaited handler from any thread; a blocking one can only be asked."""
        self.stopped: Reason | None = None
        """Why its handler was told to stop, if it was."""
        self._lock = threading.Lock()
        self._decided = False
        self._outcome: Outcome | None = None

    @property
    def key(self) -> tuple[int, int]:
        """What tells it from every other attempt."""
        return self.claim.job.seq, self.claim.epoch

    @property
    def timeout_at(self) -> float | None:
        """When its time is up, by the monotonic clock; none until it is started."""
        return None if self.started_at is None else self.started_at + self.task.policy.timeout_seconds

    @property
    def outcome(self) -> Outcome | None:
        """What to settle it with; none while that is open, and for good if it is not ours to settle any more."""
        return self._outcome

    def arguments(self) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return what the handler is called with."""
        args, kwargs = self.task.arguments.call(self.claim.job.payload)
        return ((self.context, *args), kwargs) if self.task.takes_context else (args, kwargs)

    # --- how it ends: whoever comes first decides ----------------------------------------------------------------

    def conclude(self, ended: object) -> bool:
        """Let what the handler returned or raised decide; tell whether that was still open."""
        if isinstance(ended, asyncio.CancelledError):
            # It was told to stop and did. The store makes a cancellation of it where somebody asked for one.
            return self.decide(Released())
        return self.decide(outcome_of(ended, self.task.policy, self.context))

    def decide(self, outcome: Outcome | None) -> bool:
        """Settle with *outcome*, or with none let the job go; tell whether that was still open.

        The handler may run on if it does not heed: what it returns is dropped.
        """
        with self._lock:
            if self._decided:
                return False
            self._decided = True
            self._outcome = outcome
            return True

    def amend(self, outcome: Outcome) -> None:
        """Settle with another outcome, because the store refused the first."""
        self._outcome = outcome

    def time_out(self) -> bool:
        """Fail the attempt because its time is up, and stop its handler; tell whether that was still open."""
        seconds = self.task.policy.timeout_seconds
        decided = self.decide(Failed(f"still running after its timeout of {seconds:g} s", reason="timeout"))
        self.stop("timeout")
        return decided

    def lose(self) -> bool:
        """Let go of a job whose lease is gone, and stop its handler; tell whether that was still open."""
        decided = self.decide(None)
        self.stop("lost")
        return decided

    def stop(self, reason: Reason) -> None:
        """Tell the handler to stop: an awaited one is cancelled, a blocking one sees it in its context."""
        self.stopped = reason
        self.context.ask_to_stop()
        if self.cancel_handler is not None:
            self.cancel_handler()
