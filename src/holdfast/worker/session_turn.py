"""One running turn of a session: an attempt that holds several entries under one claim.

Slots, leases and timeouts treat it like any other attempt, represented by its first entry; all entries are renewed,
settled and released together. Checkpoints add entries while its handler runs.
"""

import asyncio
import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

from holdfast.client.async_api.queue import AsyncQueue, AsyncTransaction
from holdfast.client.queue_state import QueueState
from holdfast.client.sync_api.queue import Queue, Transaction
from holdfast.domain import errors, failures, job, session_claims
from holdfast.domain.claims import Claim
from holdfast.domain.outcomes import Done, Failed, Outcome, Released
from holdfast.tasks import control_flow, definition, handler_state, session_context, session_tasks
from holdfast.tasks.arguments import PayloadInvalid
from holdfast.worker import attempt, retry, timers

log = logging.getLogger("holdfast.worker")


class Turn(attempt.RunningAttempt):
    """One run of a session's entries, from the claim to its settlement."""

    def __init__(
        self,
        claim: session_claims.SessionClaim,
        tasks: definition.TaskTable,
        sent_at: float,
        timer: timers.Timer = timers.REAL_TIMER,
    ) -> None:
        task = session_task(tasks, claim.entries[0].kind)
        super().__init__(claim.claims[0], task, sent_at, timer)
        self.handler_state = self.turn_state = handler_state.TurnState(claim)
        self.handler_state.tasks = tasks
        self._tasks = tasks
        self._invalid_entries: dict[int, PayloadInvalid] = {}

    def _make_context(self) -> session_context.BaseSessionContext:
        return session_context.session_context_of(self.turn_state, is_async=self.task.is_async)

    @property
    def session_claim(self) -> session_claims.SessionClaim:
        """The claim with all entries added so far."""
        return self.turn_state.turn

    @property
    def claims(self) -> Sequence[Claim]:
        """One claim for each entry."""
        return self.session_claim.claims

    @property
    def suspect(self) -> bool:
        """Whether an entry may kill the process it runs in."""
        return any(map(job.is_suspect, self.session_claim.entries))

    @property
    def limit(self) -> int:
        """The maximum number of entries."""
        return cast(session_tasks.SessionTaskDefinition, self.task).limit

    def add_entries(self, more: session_claims.SessionClaim) -> bool:
        """Add the entries of *more* if the turn is undecided; return whether they were added."""
        with self._lock:
            if not self._decided:
                self.turn_state.add_entries(more)
            return not self._decided

    # --- messages --------------------------------------------------------------------------------------------------

    def arguments(self) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return the arguments of the handler: its context and the messages that can be decoded."""
        messages = self.decode(self.session_claim.entries)
        if len(self._invalid_entries) == len(self.session_claim.entries):
            raise next(iter(self._invalid_entries.values()))
        task = cast(session_tasks.SessionTaskDefinition, self.task)
        return ((self.context, messages) if task.messages.takes_messages else (self.context,)), {}

    def decode(self, entries: Sequence[job.Job]) -> list[Any]:
        """Return the messages of *entries* in order, each decoded by the task of its kind.

        An entry that cannot be decoded fails permanently when the turn is settled; the other entries are unaffected.
        """
        messages: list[Any] = []
        for entry in entries:
            try:
                messages += session_task(self._tasks, entry.kind).messages.decode(entry)
            except PayloadInvalid as error:
                about = (entry.id, self.session_claim.session, error)
                log.error("entry %s of session %s fails permanently, because it cannot be decoded: %s", *about)
                self._invalid_entries[entry.number] = error
        return messages

    # --- settlement ------------------------------------------------------------------------------------------------

    def settle(self, queue: Queue | Transaction, outcome: Outcome) -> list[job.Job]:
        """Settle the whole claim, one outcome for each entry; return the entries."""
        return queue.sessions.settle(self.session_claim, self._outcomes(outcome))

    async def settle_async(self, queue: AsyncQueue | AsyncTransaction, outcome: Outcome) -> list[job.Job]:
        """Settle the whole claim, one outcome for each entry; return the entries."""
        return await queue.sessions.settle(self.session_claim, self._outcomes(outcome))

    def _outcomes(self, outcome: Outcome) -> list[Outcome]:
        """Return the outcome of each entry; only the first gets the follow-ups and artifacts of the turn."""
        outcomes: list[Outcome] = []
        first_outcome = outcome
        for entry in self.session_claim.entries:
            unreadable = self._invalid_entries.get(entry.number)
            if unreadable is not None:
                outcomes.append(Failed(str(unreadable), reason=failures.PAYLOAD_INVALID, permanent=True))
                continue
            outcomes.append(first_outcome)
            first_outcome = Done(outcome.result) if isinstance(outcome, Done) else outcome
        return outcomes


def session_task(tasks: definition.TaskTable, kind: str) -> session_tasks.SessionTaskDefinition:
    """Return the session task of *kind*."""
    task = tasks.get(kind)
    if not isinstance(task, session_tasks.SessionTaskDefinition):
        raise errors.Misconfigured(f"kind {kind!r} is a plain task; declare it with session_task to handle sessions")
    return task


# --- checkpoints ---------------------------------------------------------------------------------------------------


def offer_checkpoints(turn: Turn, state: QueueState, capabilities: Sequence[str]) -> None:
    """Allow the handler of *turn* to add entries at checkpoints."""
    turn.turn_state.checkpoints = Checkpoints(turn, state, capabilities)


class Checkpoints:
    """Adds entries to one turn at checkpoints, one call at a time, sync and async."""

    def __init__(self, turn: Turn, state: QueueState, capabilities: Sequence[str]) -> None:
        self._turn = turn
        self._state = state
        self._capabilities = capabilities
        self._lock = threading.Lock()
        self._lock_async = asyncio.Lock()
        self._retrying = retry.RetryState(
            f"checkpoints of session {turn.session_claim.session}", turn.timer, retry.LEASE_RETRIES
        )

    def claim(self) -> list[Any]:
        """Claim waiting entries for the turn; return their messages."""
        sessions = Queue(self._state).sessions
        with self._lock:
            while (options := self._claim_options()) is not None:
                try:
                    more = sessions.checkpoint(self._turn.session_claim, **options)
                except errors.LeaseLost:
                    raise self._lost() from None
                except errors.Unavailable as error:
                    self._turn.handler_state.wait_stopped(self._retry_or_raise(error))
                    continue
                if more is not None and not self._turn.add_entries(more):
                    with suppress(errors.HoldfastError):
                        sessions.settle(more, Released())
                    raise self._lost()
                return self._messages(more)
            return []

    async def claim_async(self) -> list[Any]:
        """Claim waiting entries for the turn; return their messages."""
        sessions = AsyncQueue(self._state).sessions
        async with self._lock_async:
            while (options := self._claim_options()) is not None:
                try:
                    more = await sessions.checkpoint(self._turn.session_claim, **options)
                except errors.LeaseLost:
                    raise self._lost() from None
                except errors.Unavailable as error:
                    await self._turn.timer.sleep(self._retry_or_raise(error))
                    continue
                if more is not None and not self._turn.add_entries(more):
                    with suppress(errors.HoldfastError):
                        await sessions.settle(more, Released())
                    raise self._lost()
                return self._messages(more)
            return []

    def _claim_options(self) -> session_claims.CheckpointOptions | None:
        """Return the options of the claim; None if the turn is full, or is a command, which takes no more entries."""
        turn, held = self._turn, self._turn.session_claim
        if turn.transaction is not None:
            raise errors.Misconfigured(
                "a checkpoint must come before the turn's transaction is opened, not within it"
            )
        if turn.decided:
            raise self._lost()
        self._raise_if_stopped()
        left = turn.limit - len(held.entries)
        if left <= 0 or held.entry_type == "command":
            return None
        return {
            "only": "message",
            "kinds": list(dict.fromkeys(entry.kind for entry in held.entries)),
            "limit": left,
            "capabilities": self._capabilities,
        }

    def _retry_or_raise(self, error: errors.Unavailable) -> float:
        """Return how many seconds to wait before a retry, or raise `Cancelled` if the lease may have expired."""
        if self._turn.timer.monotonic() > self._turn.lease_ends_at:
            raise self._lost() from error
        return self._retrying.failed(error)

    def _messages(self, more: session_claims.SessionClaim | None) -> list[Any]:
        self._retrying.succeeded()
        self._raise_if_stopped()
        return [] if more is None else self._turn.decode(more.entries)

    def _raise_if_stopped(self) -> None:
        if self._turn.stopped is not None:
            raise control_flow.Cancelled(self._turn.stopped)

    def _lost(self) -> control_flow.Cancelled:
        """Mark the turn as lost; return the exception to raise in its handler."""
        self._turn.lose_lease()
        return control_flow.Cancelled(self._turn.stopped or "lost")
