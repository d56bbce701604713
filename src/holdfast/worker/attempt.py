"""One running attempt: its handler, its time limits and its outcome.

Three threads use an attempt: the executor that runs its handler, the lease keeper, and the worker loop that settles
it. A lock in the attempt decides which of them sets the outcome.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from holdfast.client.middleware import EndedAs, EndedAttempt, Middleware, around_handler, overriding, report_ended
from holdfast.domain import errors, failures, job, outcomes
from holdfast.domain.claims import Claim, Note, fence_of
from holdfast.tasks import control_flow, definition, output_buffer
from holdfast.tasks.context import Context, context_of
from holdfast.tasks.handler_state import HandlerState, StopReason
from holdfast.tasks.outcomes import DONE, outcome_of
from holdfast.worker import timers

if TYPE_CHECKING:
    from holdfast.client.async_api.queue import AsyncQueue, AsyncTransaction
    from holdfast.client.sync_api.queue import Queue, Transaction
    from holdfast.domain.session_claims import SessionClaim


class OpenTransaction(Protocol):
    """A transaction that a handler has opened and that the settlement of its attempt joins."""

    @property
    def is_open(self) -> bool:
        """Whether it has not been rolled back; it writes the output of its attempt then."""
        ...

    def finish(self, outcome: outcomes.Outcome) -> outcomes.Outcome | None:
        """Settle in the transaction and commit, or roll back; return the outcome still to settle, if any."""
        ...

    async def finish_async(self, outcome: outcomes.Outcome) -> outcomes.Outcome | None:
        """Do the same for an async handler."""
        ...


class RunningAttempt:
    """One claim of one job, from the claim to its settlement."""

    # Defaults are attributes of the class, because a worker creates an attempt for every job.
    function: Callable[..., Any]
    """The function to call: the task's function, perhaps wrapped by middleware."""
    started_at: float | None = None
    """When its slot started it, by the monotonic clock; None while it waits."""
    loading_since: float | None = None
    """When it began to wait for its affinity to load, by the monotonic clock; None if it does not wait."""
    ended_at: float | None = None
    """When its handler ended, by the monotonic clock."""
    cancel_handler: Callable[[], None] | None = None
    """Cancels an async handler from any thread; a sync handler sees the request in its context."""
    transaction: OpenTransaction | None = None
    """The transaction that its handler has opened, if any."""
    flush_output: Callable[[], None] | None = None
    """Writes the text that its handler has emitted, blocking."""
    slot_freed = False
    """Whether it has given up its slot, because its handler ended or was abandoned."""
    isolated = False
    """Whether its handler runs in its own process."""
    settled = False
    """Whether its handler's transaction has settled it; also set while that transaction commits."""
    _state: HandlerState | None = None
    _on_output: Callable[[], None] | None = None
    _context: Context | None = None
    _decided = False
    outcome: outcomes.Outcome | None = None
    """The outcome to settle; None while undecided, or if nothing is left to settle. Its methods set it."""

    def __init__(
        self, claim: Claim, task: definition.TaskDefinition, sent_at: float, timer: timers.Timer = timers.REAL_TIMER
    ) -> None:
        self.claim = claim
        self.task = task
        self.timer = timer
        self.function = task.function
        self.claimed_at = timer.monotonic()
        """When this worker received the claim, by the monotonic clock."""
        self.lease_ends_at = sent_at + claim.lease_ms / 1000
        """When the lease expires at the earliest, by the monotonic clock.

        Counted from before the request was sent, because the worker does not know when the store granted the lease.
        """
        self._lock = threading.Lock()

    @property
    def key(self) -> tuple[int, int]:
        """The job's number and epoch, by which another process identifies the attempt."""
        fence = fence_of(self.claim)
        return fence.seq, fence.epoch

    # --- what the handler and the worker share ---------------------------------------------------------------------

    @property
    def handler_state(self) -> HandlerState:
        """What its handler has reported and collected, and whether the handler should stop; made when needed."""
        if self._state is None:
            with self._lock:
                if self._state is None:
                    self._state = self._make_state()
        return self._state

    @handler_state.setter
    def handler_state(self, state: HandlerState) -> None:
        self._state = state

    def _make_state(self) -> HandlerState:
        state = HandlerState(self.claim)
        state.tasks = self.task.queue_reference.tasks
        state.on_output = self._on_output
        if self._decided:
            state.end()
        return state

    def report_output(self, on_output: Callable[[], None]) -> None:
        """Call *on_output* when the first text of its handler waits to be written."""
        self._on_output = on_output
        if self._state is not None:
            self._state.on_output = on_output

    @property
    def latest_progress(self) -> Note:
        """The latest progress that its handler has reported."""
        return _NO_PROGRESS if self._state is None else self._state.latest_progress

    def take_progress(self) -> Note | None:
        """Return the progress that is not written yet, if any; the caller writes it."""
        return None if self._state is None else self._state.take_progress()

    @property
    def context(self) -> Context:
        """The context for its handler and for middleware, made when one of them needs it."""
        if self._context is None:
            self._context = self._make_context()
        return self._context

    def _make_context(self) -> Context:
        return context_of(self.handler_state)

    @property
    def claims(self) -> Sequence[Claim]:
        """The claims it holds: one job, or all entries of a turn."""
        return (self.claim,)

    @property
    def output(self) -> output_buffer.OutputBuffer | None:
        """The text that its handler has emitted; None if it has emitted none."""
        return None if self._state is None else self._state.output

    @property
    def session_claim(self) -> SessionClaim | None:
        """The claim of a session's entries, if it is a turn."""
        return None

    @property
    def suspect(self) -> bool:
        """Whether the job's earlier attempts suggest that it may kill the process it runs in."""
        return self.task.policy.isolate != "never" and job.is_suspect(self.claim.job)

    @property
    def timeout_at(self) -> float | None:
        """When it times out, by the monotonic clock; None while it waits for a slot. Loading has its own timeout."""
        started_at = self.loading_since if self.started_at is None else self.started_at
        return None if started_at is None else started_at + self.task.policy.timeout_seconds

    @property
    def waits_for_slot(self) -> bool:
        """Whether it can start as soon as a slot is free."""
        return self.started_at is None and self.loading_since is None

    @property
    def run_seconds(self) -> float | None:
        """How long its handler ran; None if the handler has not ended or never started."""
        if self.started_at is None or self.ended_at is None:
            return None
        return self.ended_at - self.started_at

    @property
    def stopped(self) -> StopReason | None:
        """Why its handler was requested to stop, if it was."""
        return None if self._state is None else self._state.stop_reason

    @property
    def decided(self) -> bool:
        """Whether its outcome is final; the handler may still run."""
        return self._decided

    def wrap_handler(self, middleware: Sequence[Middleware]) -> None:
        """Run its handler within *middleware*."""
        if middleware:
            self.function = around_handler(middleware, self.context, self.function, is_async=self.task.is_async)

    def report_ended(self, middleware: Sequence[Middleware], outcome: EndedAs, jobs: Sequence[job.Job]) -> None:
        """Report its end to *middleware*."""
        listening = overriding(middleware, "ended")
        if listening:
            report_ended(listening, EndedAttempt(self.claims, outcome, jobs, self.run_seconds, self.isolated))

    def arguments(self) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return the positional and keyword arguments of the handler."""
        args, kwargs = self.task.arguments.call(self.claim.job.payload)
        return ((self.context, *args), kwargs) if self.task.takes_context else (args, kwargs)

    def settle(self, queue: Queue | Transaction, outcome: outcomes.Outcome) -> list[job.Job]:
        """Settle its claims with *outcome*; return the job, or all entries of a turn."""
        return [queue.settle(self.claim, outcome)]

    async def settle_async(self, queue: AsyncQueue | AsyncTransaction, outcome: outcomes.Outcome) -> list[job.Job]:
        """Settle its claims with *outcome*; return the job, or all entries of a turn."""
        return [await queue.settle(self.claim, outcome)]

    # --- start --------------------------------------------------------------------------------------------------

    def start(self) -> bool:
        """Record the start in a slot and return whether to run the handler; release it if a stop was requested."""
        with self._lock:
            self.started_at = self.timer.monotonic()
            if not self._decided and self.stopped is not None:
                self._decided, self.outcome = True, outcomes.Released()
            return not self._decided

    def release_if_waiting(self) -> bool:
        """Release it if no slot has started it; return whether it was released."""
        with self._lock:
            if self._decided or self.started_at is not None:
                return False
            self._decided, self.outcome = True, outcomes.Released()
            return True

    # --- outcome: the first decision wins --------------------------------------------------------------------

    def conclude(self, result: object) -> None:
        """Decide the attempt from the value that a sync handler returned or raised, if undecided. Never raises."""
        outcome: outcomes.Outcome | None = self._outcome_of(result)
        if self.transaction is not None and outcome is not None:
            try:
                outcome = self.transaction.finish(outcome)
            except BaseException as error:  # SystemExit too: the slot must continue
                outcome = self._outcome_of(error)
        self.decide(outcome)

    async def conclude_async(self, result: object) -> None:
        """Decide the attempt from the value that an async handler returned or raised, if undecided. Never raises."""
        outcome: outcomes.Outcome | None = self._outcome_of(result)
        if self.transaction is not None and outcome is not None:
            try:
                outcome = await self.transaction.finish_async(outcome)
            except BaseException as error:  # SystemExit and CancelledError too: the slot must continue
                outcome = self._outcome_of(error)
        self.decide(outcome)

    def _outcome_of(self, result: object) -> outcomes.Outcome:
        if result is None and self._state is None:
            return DONE
        return outcome_of(result, self.task.policy, self.handler_state)

    def decide(self, outcome: outcomes.Outcome | None) -> bool:
        """Set the outcome, or None to drop the attempt; return whether it was undecided.

        A handler that keeps running cannot change the outcome: its return value is ignored.
        """
        with self._lock:
            if self._decided:
                return False
            self._decided = True
            self.outcome = outcome
        if self._state is not None:
            self._state.end()
        return True

    def fail_loading(self, error: Exception) -> bool:
        """Fail the attempt because its affinity could not be loaded; return whether it was undecided."""
        backoff = self.task.policy.backoff if job.row_of(self.claim.job).backoff_json is None else None
        return self.decide(outcomes.Failed(str(error), reason=failures.LOAD_FAILED, backoff=backoff))

    def amend(self, outcome: outcomes.Outcome) -> None:
        """Replace the outcome, because the store refused the first one."""
        self.outcome = outcome

    def time_out(self) -> bool:
        """Fail the attempt with a timeout and stop its handler; return whether it was undecided."""
        self.handler_state.request_stop("timeout")
        return self._decide_and_cancel(self._outcome_of(control_flow.Cancelled("timeout")))

    def lose_lease(self) -> bool:
        """Drop the attempt because its lease is lost, and stop its handler; return whether it was undecided."""
        self.handler_state.request_stop("lost")
        return self._decide_and_cancel(None)

    def stop(self, reason: StopReason) -> None:
        """Request the handler to stop: cancel an async handler once; a sync handler sees it in its context."""
        if self.handler_state.request_stop(reason):
            self._cancel()

    def _decide_and_cancel(self, outcome: outcomes.Outcome | None) -> bool:
        decided = self.decide(outcome)
        if decided:
            self._cancel()
        return decided

    def _cancel(self) -> None:
        cancel = self.cancel_handler
        if cancel is not None:
            cancel()


_NO_PROGRESS: Final = Note()


def failure_from_refusal(refusal: errors.HoldfastError) -> outcomes.Failed:
    """Return the failure of an attempt whose outcome was refused, such as for a follow-up to a draining lane."""
    # A codec may fail for a while, such as without a key service.
    permanent = not isinstance(refusal, errors.CodecFailed)
    return outcomes.Failed(f"its outcome was refused: {refusal}", reason=refusal.code, permanent=permanent)


def amend_invalid(attempts: Sequence[RunningAttempt]) -> bool:
    """Fail attempts permanently whose outcome cannot be stored; return whether there were any."""
    found = False
    for attempt in attempts:
        try:
            outcomes.check_outcome(
                attempt.outcome or outcomes.Released(), tenant=attempt.claim.job.tenant, fresh_id=str
            )
        except Exception as error:  # encoding the handler's value may raise anything
            found = True
            attempt.amend(outcomes.Failed(str(error), reason=failures.RESULT_INVALID, permanent=True))
    return found


def outcome_name(outcome: outcomes.Outcome | None) -> EndedAs:
    """Return the name under which *outcome* is counted."""
    return "lost" if outcome is None else cast(EndedAs, type(outcome).__name__.lower())


def emitted(attempts: Iterable[RunningAttempt]) -> list[tuple[Claim, output_buffer.OutputBuffer]]:
    """Return the buffers of attempts that have emitted text. It belongs to the first entry of a turn."""
    return [(attempt.claim, attempt.output) for attempt in attempts if attempt.output is not None]


def fail_refused(attempts: Sequence[RunningAttempt]) -> None:
    """Fail attempts whose text the store has refused: a part of their output is lost, so they are not done."""
    for attempt in attempts:
        refusal = None if attempt.output is None else attempt.output.refused
        if refusal is not None and isinstance(attempt.outcome, outcomes.Done):
            attempt.amend(failure_from_refusal(refusal))
