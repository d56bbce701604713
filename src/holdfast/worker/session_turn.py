"""One turn of a session in this worker's hands: an attempt at several entries under one claim.

To slots, leases and timeouts it is an attempt like any other, led by its first entry; what is renewed, settled and
given back is the whole. What is taken in at checkpoints becomes part of it while its handler runs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, cast

from holdfast.client.operations import Operations
from holdfast.domain import failures
from holdfast.domain.claims import Claim
from holdfast.domain.errors import HoldfastError, LeaseLost, Misconfigured, Unavailable
from holdfast.domain.job import Job, is_suspect
from holdfast.domain.outcomes import Done, Failed, Outcome, Released
from holdfast.domain.session_claims import SessionClaimOptions
from holdfast.domain.session_leases import SessionClaim
from holdfast.storage.store import Store
from holdfast.storage.transaction import run_sync
from holdfast.tasks.arguments import PayloadInvalid
from holdfast.tasks.control_flow import Cancelled
from holdfast.tasks.session_tasks import AnySessionTask, BaseSessionTask, context_of
from holdfast.tasks.task import TaskRegistry
from holdfast.worker.attempt import RunningAttempt
from holdfast.worker.retry import RetryState
from holdfast.worker.timers import REAL_TIMER, Timer

log = logging.getLogger("holdfast.worker")

# How long a checkpoint that the store did not answer waits at most before it asks again.
_RETRY_SECONDS: Final = 0.2


class Turn(RunningAttempt):
    """One run of a session's entries, from the claim to its settlement."""

    __slots__ = ("_tasks", "_unreadable", "session_context")

    def __init__(self, claim: SessionClaim, tasks: TaskRegistry, asked_at: float, timer: Timer = REAL_TIMER) -> None:
        task = session_task(tasks, claim.entries[0].kind)
        super().__init__(claim.claims[0], task, asked_at, timer)
        self.session_context = context_of(task)(claim)
        self.context = self.session_context
        self.context._tasks = tasks
        self._tasks = tasks
        self._unreadable: dict[int, PayloadInvalid] = {}

    @property
    def whole(self) -> SessionClaim:
        """The claim as it stands now."""
        return self.session_context.turn

    @property
    def claims(self) -> Sequence[Claim]:
        """Every entry as a claim of its own."""
        return self.whole.claims

    @property
    def suspect(self) -> bool:
        """Whether one of the entries may kill the process it runs in."""
        return any(map(is_suspect, self.whole.entries))

    @property
    def limit(self) -> int:
        """How many entries it may have."""
        return cast(AnySessionTask, self.task).limit

    def take_in(self, more: SessionClaim) -> bool:
        """Make *more* a part of it; tell whether that was still open. What is decided is settled as it stood."""
        with self._lock:
            if not self._decided:
                self.session_context.take_in(more)
            return not self._decided

    # --- messages --------------------------------------------------------------------------------------------------

    def arguments(self) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return what the handler is called with: its context, and the messages that can be read."""
        messages = self.read(self.whole.entries)
        if len(self._unreadable) == len(self.whole.entries):
            raise next(iter(self._unreadable.values()))
        task = cast(AnySessionTask, self.task)
        return ((self.context, messages) if task.messages.given else (self.context,)), {}

    def read(self, entries: Sequence[Job]) -> list[Any]:
        """Return the messages of *entries* in order, each read as its own kind's task says.

        An entry that cannot be read fails for good when the turn is settled, and takes no other with it.
        """
        messages: list[Any] = []
        for entry in entries:
            try:
                messages += session_task(self._tasks, entry.kind).messages.read(entry)
            except PayloadInvalid as error:
                about = (entry.id, self.whole.session, error)
                log.error("entry %s of session %s fails for good, because it cannot be read: %s", *about)
                self._unreadable[entry.seq] = error
        return messages

    # --- the end ---------------------------------------------------------------------------------------------------

    def settling(self, operations: Operations, outcome: Outcome) -> Coroutine[Any, Any, Any]:
        """Settle the whole claim, one outcome for each entry."""
        return operations.settle(self.whole, self._outcomes(outcome))

    def _outcomes(self, outcome: Outcome) -> list[Outcome]:
        """Return the outcome of each entry; what comes with that of the turn, such as follow-ups, comes once."""
        outcomes: list[Outcome] = []
        following = outcome
        for entry in self.whole.entries:
            unreadable = self._unreadable.get(entry.seq)
            if unreadable is not None:
                outcomes.append(Failed(str(unreadable), reason=failures.PAYLOAD_INVALID, permanent=True))
                continue
            outcomes.append(following)
            following = Done(outcome.result) if isinstance(outcome, Done) else outcome
        return outcomes


def part_turns(attempts: Iterable[RunningAttempt]) -> tuple[list[RunningAttempt], list[Turn]]:
    """Return attempts at one job and those at a session's turn apart."""
    turns: list[Turn] = []
    jobs: list[RunningAttempt] = []
    for attempt in attempts:
        if isinstance(attempt, Turn):
            turns.append(attempt)
        else:
            jobs.append(attempt)
    return jobs, turns


def session_task(tasks: TaskRegistry, kind: str) -> AnySessionTask:
    """Return the session task of *kind*."""
    task = tasks.get(kind)
    if not isinstance(task, BaseSessionTask):
        raise Misconfigured(f"kind {kind!r} is a plain task; declare it with session_task to answer sessions")
    return task


# --- checkpoints ---------------------------------------------------------------------------------------------------


def offer_checkpoints(turn: Turn, operations: Operations, store: Store, capabilities: Sequence[str]) -> None:
    """Let the handler of *turn* take in more while it runs."""
    turn.session_context._takes_more = Checkpoints(turn, operations, store, capabilities)


class Checkpoints:
    """Takes in more of the session for one turn, one call at a time, in both colours."""

    def __init__(self, turn: Turn, operations: Operations, store: Store, capabilities: Sequence[str]) -> None:
        self._turn = turn
        self._session = turn.whole.session
        self._operations = operations
        self._store = store
        self._capabilities = capabilities
        self._lock = threading.Lock()
        self._lock_async = asyncio.Lock()
        self._retrying = RetryState(f"checkpoints of session {self._session}", turn.timer, last=_RETRY_SECONDS)

    def take(self) -> list[Any]:
        """Return the messages that joined just now."""
        with self._lock:
            while (words := self._words()) is not None:
                try:
                    more = run_sync(self._operations.sync_on(self._store).claim_session(self._session, **words))
                except LeaseLost:
                    raise self._lost() from None
                except Unavailable as error:
                    self._turn.context.wait_cancelled(self._bear(error))
                    continue
                if more is not None and not self._turn.take_in(more):
                    with suppress(HoldfastError):
                        run_sync(self._operations.sync_on(self._store).settle(more, Released()))
                    raise self._lost()
                return self._messages(more)
            return []

    async def take_async(self) -> list[Any]:
        """Return the messages that joined just now."""
        async with self._lock_async:
            while (words := self._words()) is not None:
                try:
                    more = await self._operations.async_on(self._store).claim_session(self._session, **words)
                except LeaseLost:
                    raise self._lost() from None
                except Unavailable as error:
                    await self._turn.timer.sleep(self._bear(error))
                    continue
                if more is not None and not self._turn.take_in(more):
                    with suppress(HoldfastError):
                        await self._operations.async_on(self._store).settle(more, Released())
                    raise self._lost()
                return self._messages(more)
            return []

    def _words(self) -> SessionClaimOptions | None:
        """Return the words of the claim; none if there is no room for more, or if it is a command, never joined."""
        turn, held = self._turn, self._turn.whole
        if turn.transaction is not None:
            raise Misconfigured("a checkpoint must come before the turn's transaction is opened, not within it")
        if turn.decided:
            raise self._lost()
        turn.context.raise_if_cancelled()
        left = turn.limit - len(held.entries)
        if left <= 0 or held.work_class == "command":
            return None
        return {
            "tenant": held.tenant,
            "work": "turn",
            "boundary": "checkpoint",
            "holding": held,
            "kinds": list(dict.fromkeys(entry.kind for entry in held.entries)),
            "limit": left,
            "capabilities": self._capabilities,
            "worker": turn.context.worker,
            "incarnation": held.entries[0].incarnation or "",
            "lease": held.lease_ms / 1000,
        }

    def _bear(self, error: Unavailable) -> float:
        """Return how many seconds to wait before the checkpoint is tried again, if the turn may still be held."""
        if self._turn.timer.monotonic() > self._turn.lease_ends_at:
            raise self._lost() from error
        return self._retrying.failed(error)

    def _messages(self, more: SessionClaim | None) -> list[Any]:
        self._retrying.succeeded()
        self._turn.context.raise_if_cancelled()
        return [] if more is None else self._turn.read(more.entries)

    def _lost(self) -> Cancelled:
        """Return what to raise where there is no turn any more that could take in anything."""
        self._turn.lose()
        return Cancelled(self._turn.stopped or "lost")
