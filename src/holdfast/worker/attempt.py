"""One attempt in this worker's hands: what it runs, how long it may, and what becomes of it.

An attempt is touched by three: the slot that runs its handler, the keeper of leases, and the core that settles it.
What they tell each other goes through here, under one lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.domain import failures
from holdfast.domain.claims import Claim
from holdfast.domain.errors import HoldfastError
from holdfast.domain.job import is_suspect
from holdfast.domain.outcomes import Failed, Outcome, Released, check_outcome
from holdfast.tasks.context import Context, StopReason
from holdfast.tasks.control_flow import Cancelled
from holdfast.tasks.outcomes import outcome_of
from holdfast.tasks.task import AnyTask
from holdfast.worker.timers import REAL_TIMER, Timer

if TYPE_CHECKING:
    from holdfast.client.operations import Operations


class OpenTransaction(Protocol):
    """A transaction that a handler has opened and that its settlement is to join."""

    def finish(self, outcome: Outcome) -> Outcome | None:
        """Settle in it and commit, or undo it; return what is still to be settled, if anything."""
        ...

    async def finish_async(self, outcome: Outcome) -> Outcome | None:
        """Do the same for a handler that is awaited."""
        ...


class RunningAttempt:
    """One job under one claim, from the claim to its settlement."""

    __slots__ = (
        "_decided",
        "_lock",
        "_outcome",
        "cancel_handler",
        "claim",
        "context",
        "ended_at",
        "function",
        "isolated",
        "key",
        "lease_ends_at",
        "loading_since",
        "settled",
        "slot_freed",
        "started_at",
        "taken_at",
        "task",
        "timer",
        "transaction",
    )

    def __init__(self, claim: Claim, task: AnyTask, asked_at: float, timer: Timer = REAL_TIMER) -> None:
        self.claim = claim
        self.task = task
        self.timer = timer
        self.function: Callable[..., Any] = task.function
        """What is called: the task's function, or that in the blocks of those who watch."""
        self.context = Context(claim)
        self.context._tasks = task.registry
        self.key = (claim.job.seq, claim.job.epoch)
        """What tells it from every other attempt."""
        self.started_at: float | None = None
        """When a slot took it, by the monotonic clock; none while it waits for one."""
        self.loading_since: float | None = None
        """Since when it waits for what it needs to be loaded, by the monotonic clock; none if it does not."""
        self.taken_at = self.timer.monotonic()
        """When this worker heard that it has the job, by the monotonic clock."""
        self.lease_ends_at = asked_at + claim.lease_ms / 1000
        """Until when this worker may believe that it holds the job, by the monotonic clock.

        Counted from before it asked, because it cannot know when in between the store answered.
        """
        self.ended_at: float | None = None
        """When its handler came to its end, by the monotonic clock."""
        self.cancel_handler: Callable[[], None] | None = None
        """Cancels an awaited handler from any thread; a blocking one can only be asked."""
        self.transaction: OpenTransaction | None = None
        """What its handler has opened, if it has."""
        self.slot_freed = False
        """Whether its slot is another's by now: its handler has ended, or was abandoned."""
        self.isolated = False
        """Whether its handler runs in a process of its own."""
        self.settled = False
        """Whether it was settled by its own transaction."""
        self._lock = threading.Lock()
        self._decided = False
        self._outcome: Outcome | None = None

    @property
    def claims(self) -> Sequence[Claim]:
        """What is held under it: its one job, or all entries of a turn."""
        return (self.claim,)

    @property
    def suspect(self) -> bool:
        """Whether it may kill the process it runs in, as far as its past tells."""
        return is_suspect(self.claim.job)

    @property
    def timeout_at(self) -> float | None:
        """When its time is up, by the monotonic clock; none while it waits for a slot. Loading counts by itself."""
        begun = self.loading_since if self.started_at is None else self.started_at
        return None if begun is None else begun + self.task.policy.timeout_seconds

    @property
    def waits_for_slot(self) -> bool:
        """Whether nothing but a free slot is missing for it to begin."""
        return self.started_at is None and self.loading_since is None

    @property
    def run_seconds(self) -> float | None:
        """How long its handler ran; none if it has not come to its end, or never began."""
        if self.started_at is None or self.ended_at is None:
            return None
        return self.ended_at - self.started_at

    @property
    def stopped(self) -> StopReason | None:
        """Why its handler was told to stop, if it was."""
        return self.context.stop_reason

    @property
    def decided(self) -> bool:
        """Whether it is settled what becomes of it, whatever its handler still does."""
        return self._decided

    @property
    def outcome(self) -> Outcome | None:
        """What to settle it with; none while that is open, and for good if there is nothing to settle any more."""
        return self._outcome

    def arguments(self) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return what the handler is called with."""
        args, kwargs = self.task.arguments.call(self.claim.job.payload)
        return ((self.context, *args), kwargs) if self.task.takes_context else (args, kwargs)

    def settling(self, operations: Operations, outcome: Outcome) -> Coroutine[Any, Any, Any]:
        """Settle it with *outcome*, all that is held under it."""
        return operations.settle(self.claim, outcome)

    # --- whether it begins -----------------------------------------------------------------------------------------

    def start(self) -> bool:
        """Note that a slot has it; tell whether its handler is to run. One told to stop before is given back."""
        with self._lock:
            self.started_at = self.timer.monotonic()
            if not self._decided and self.stopped is not None:
                self._decided, self._outcome = True, Released()
            return not self._decided

    def give_back(self) -> bool:
        """Release it if no slot has started it; tell whether that was so."""
        with self._lock:
            if self._decided or self.started_at is not None:
                return False
            self._decided, self._outcome = True, Released()
            return True

    # --- how it ends: whoever comes first decides ------------------------------------------------------------------

    def conclude(self, ended: object) -> None:
        """Let what a sync handler returned or raised decide, unless that is done. It raises nothing."""
        outcome: Outcome | None = outcome_of(ended, self.task.policy, self.context)
        if self.transaction is not None and outcome is not None:
            try:
                outcome = self.transaction.finish(outcome)
            except BaseException as error:  # an exit too: the slot must go on
                outcome = outcome_of(error, self.task.policy, self.context)
        self.decide(outcome)

    async def conclude_async(self, ended: object) -> None:
        """Let what an async handler returned or raised decide, unless that is done. It raises nothing."""
        outcome: Outcome | None = outcome_of(ended, self.task.policy, self.context)
        if self.transaction is not None and outcome is not None:
            try:
                outcome = await self.transaction.finish_async(outcome)
            except BaseException as error:  # an exit or a cancel too: the slot must go on
                outcome = outcome_of(error, self.task.policy, self.context)
        self.decide(outcome)

    def decide(self, outcome: Outcome | None) -> bool:
        """Settle with *outcome*, or with none let the job go; tell whether that was still open.

        The handler may run on if it does not heed: what it returns is dropped.
        """
        with self._lock:
            if self._decided:
                return False
            self._decided = True
            self._outcome = outcome
        self.context.end()
        return True

    def fail_loading(self, error: Exception) -> bool:
        """Fail for now because what it needs could not be loaded; tell whether that was still open."""
        backoff = self.task.policy.backoff if self.claim.job.backoff_json is None else None
        return self.decide(Failed(str(error), reason=failures.LOAD_FAILED, backoff=backoff))

    def amend(self, outcome: Outcome) -> None:
        """Settle with another outcome, because the store refused the first."""
        self._outcome = outcome

    def time_out(self) -> bool:
        """Fail the attempt because its time is up, and stop its handler; tell whether that was still open."""
        self.context.ask_to_stop("timeout")
        return self._decide_and_cancel(outcome_of(Cancelled("timeout"), self.task.policy, self.context))

    def lose(self) -> bool:
        """Let go of a job whose lease is gone, and stop its handler; tell whether that was still open."""
        self.context.ask_to_stop("lost")
        return self._decide_and_cancel(None)

    def stop(self, reason: StopReason) -> None:
        """Tell the handler to stop: an awaited one is cancelled, once, a blocking one sees it in its context."""
        if self.context.ask_to_stop(reason):
            self._cancel()

    def _decide_and_cancel(self, outcome: Outcome | None) -> bool:
        decided = self.decide(outcome)
        if decided:
            self._cancel()
        return decided

    def _cancel(self) -> None:
        cancel = self.cancel_handler
        if cancel is not None:
            cancel()


def refused(refusal: HoldfastError) -> Failed:
    """Return what an attempt ends with whose outcome was refused, such as for a follow-up to a draining lane."""
    return Failed(f"its outcome was refused: {refusal}", reason=refusal.code, permanent=True)


def amend_invalid(attempts: Sequence[RunningAttempt]) -> bool:
    """Let attempts whose outcome cannot be stored fail for good; return whether there were any."""
    found = False
    for attempt in attempts:
        try:
            check_outcome(attempt.outcome or Released(), tenant=attempt.claim.job.tenant, fresh_id=str)
        except Exception as error:  # whatever a value of the handler raises while it is encoded
            found = True
            attempt.amend(Failed(str(error), reason=failures.RESULT_INVALID, permanent=True))
    return found


def name_of(outcome: Outcome | None) -> str:
    """Return what an attempt that ended with *outcome* is counted as."""
    return "lost" if outcome is None else type(outcome).__name__.lower()
