"""Session turns in a worker: claimed into the same slots as jobs, each settled as a whole.

If both jobs and sessions wait, free slots are shared evenly between them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Awaitable, Callable, Sequence

from holdfast.client.operations import Operations
from holdfast.domain import limits
from holdfast.domain.errors import HoldfastError, LeaseLost, OutcomeUnknown, Unavailable
from holdfast.domain.job import Job
from holdfast.domain.outcomes import Released
from holdfast.domain.session_claims import AnySessionOptions, SessionClaim
from holdfast.storage.notifications import sessions_topic
from holdfast.storage.randomness import RANDOM
from holdfast.storage.store import Store
from holdfast.tasks.task import TaskRegistry
from holdfast.worker.attempt import RunningAttempt, amend_invalid, failure_from_refusal, outcome_name
from holdfast.worker.lane_listener import LaneListener
from holdfast.worker.retry import RetryState
from holdfast.worker.session_turn import Turn, offer_checkpoints
from holdfast.worker.subscription import Subscription
from holdfast.worker.timers import Timer

log = logging.getLogger("holdfast.worker")

# How often a worker polls for sessions if no notification comes.
POLL_SECONDS = 1.0


class SessionTurns:
    """Claims and settles the turns of one worker; runs in the worker loop."""

    def __init__(
        self,
        operations: Operations,
        store: Store,
        tasks: TaskRegistry,
        subscription: Subscription,
        *,
        concurrency: int,
        lease_seconds: float,
        timer: Timer,
        wake: asyncio.Event,
        wait_before_retry: Callable[[float], Awaitable[None]],
        start_attempts: Callable[[Sequence[RunningAttempt]], None],
        on_ended: Callable[[RunningAttempt, str, Job | None], None],
    ) -> None:
        self._operations = operations
        self._store = store
        self._tasks = tasks
        self._subscription = subscription
        self._concurrency = concurrency
        self._lease_seconds = lease_seconds
        self._timer = timer
        self._wait_before_retry = wait_before_retry
        self._retrying_claims = RetryState("claims of sessions", timer)
        self._retrying_settlements = RetryState("settlements of sessions", timer)
        self._start_attempts = start_attempts
        self._on_ended = on_ended
        self._listener = LaneListener(store.notifier, wake, sessions_topic)
        self._running = 0
        """The number of turns that run or wait for a slot."""
        self._lost_turns: list[Turn] = []
        """Lost turns whose handler has ended."""
        self._odd_slot_to_sessions = False
        self._next_claim_at = 0.0

    @property
    def next_claim_at(self) -> float:
        """When to claim next if no notification comes before; infinity if no task handles sessions."""
        return math.inf if self._subscription.sessions() is None else self._next_claim_at

    def close(self) -> None:
        """Cancel all subscriptions."""
        self._listener.close()

    def check_notified(self) -> None:
        """Claim at once if a notification came since the last call."""
        if self._listener.take_notified():
            self._next_claim_at = 0.0

    # --- slots -----------------------------------------------------------------------------------------------------

    def share(self, room: int, *, jobs_wait: bool) -> int:
        """Return how many of *room* free slots sessions get: half of them if jobs wait, else all."""
        if room <= 0 or self._timer.monotonic() < self.next_claim_at or self._session_options() is None:
            return 0
        for_sessions = room
        if jobs_wait:
            for_sessions = room // 2 + (room % 2 and self._odd_slot_to_sessions)
            self._odd_slot_to_sessions ^= bool(room % 2)
        # A turn that waits for a slot blocks its session: none is claimed ahead.
        return max(0, min(for_sessions, self._concurrency - self._running))

    def slot_freed(self, attempt: RunningAttempt) -> None:
        """Record that an attempt has left its slot."""
        if isinstance(attempt, Turn):
            self._running -= 1

    def handler_ended(self, attempt: RunningAttempt) -> None:
        """Record that a handler has ended: the remaining entries of a partly lost turn can be released."""
        if isinstance(attempt, Turn) and attempt.decided and attempt.outcome is None and not attempt.settled:
            self._lost_turns.append(attempt)

    # --- claiming --------------------------------------------------------------------------------------------------

    def _session_options(self) -> AnySessionOptions | None:
        options = self._subscription.sessions()
        if options is not None:
            self._listener.listen(options.get("lanes", ()))
        return options

    async def claim(self, room: int, stopping: Callable[[], bool]) -> None:
        """Claim up to *room* turns of ready sessions and start them.

        Each claim is one commit. One is sent first, then two at once, then four, to send few claims that find
        nothing.
        """
        at_once = 1
        while room > 0:
            at_once = min(at_once, room)
            sent_at = self._timer.monotonic()
            claims = await asyncio.gather(*(self._claim_one(sent_at, stopping) for _ in range(at_once)))
            found = [claim for claim in claims if claim is not None]
            self._start_turns(found, sent_at)
            if not found:
                self._next_claim_at = self._timer.monotonic() + POLL_SECONDS * RANDOM.uniform(0.5, 1.0)
            if len(found) < at_once:
                # Concurrent claims may have blocked each other: the next iteration claims again.
                return
            room -= at_once
            at_once *= 2

    def _start_turns(self, claims: Sequence[SessionClaim], sent_at: float) -> None:
        turns = [Turn(claim, self._tasks, sent_at, self._timer) for claim in claims]
        options = self._session_options() or {}
        for turn in turns:
            offer_checkpoints(turn, self._operations, self._store, options.get("capabilities", ()))
        self._running += len(turns)
        self._start_attempts(turns)

    async def _claim_one(self, sent_at: float, stopping: Callable[[], bool]) -> SessionClaim | None:
        """Claim a turn, or return None if none is ready or the store does not answer.

        A claim that may have been committed is sent again, so that its turn is run or released and does not have to
        expire.
        """
        session_options, token, unknown = self._session_options(), secrets.token_hex(16), False
        while session_options is not None and (unknown or not stopping()):
            options: AnySessionOptions = {**session_options, "lease_token": token}
            try:
                claim = await self._operations.async_on(self._store).claim_any_session(**options)
            except Unavailable as error:
                seconds = self._retrying_claims.failed(error)
                unknown = unknown or isinstance(error, OutcomeUnknown)
                if not unknown or self._timer.monotonic() > sent_at + self._lease_seconds:
                    return None
                await self._wait_before_retry(seconds)
            else:
                self._retrying_claims.succeeded()
                return claim
        return None

    # --- settling --------------------------------------------------------------------------------------------------

    @property
    def has_entries_to_release(self) -> bool:
        """Whether lost turns have entries to release."""
        return bool(self._lost_turns)

    async def settle(self, turns: Sequence[Turn]) -> None:
        """Settle ended turns, each as a whole, and release the remaining entries of lost ones."""
        lost, self._lost_turns = self._lost_turns, []
        await asyncio.gather(*map(self._settle, turns), *map(self._release_entries, lost))

    async def _settle(self, turn: Turn) -> None:
        while turn.lease_ends_at > self._timer.monotonic():
            outcome = turn.outcome or Released()
            try:
                [first, *_] = await turn.settle(self._operations.async_on(self._store), outcome)
            except LeaseLost as error:
                log.warning("the result of a turn of session %s was refused: %s", turn.session_claim.session, error)
                await self._release_entries(turn)
                break
            except Unavailable as error:
                await self._wait_before_retry(self._retrying_settlements.failed(error))
            except HoldfastError as error:
                log.error("the outcome of a turn of session %s was refused: %s", turn.session_claim.session, error)
                turn.amend(failure_from_refusal(error))
            except Exception as error:
                if not amend_invalid([turn]):
                    raise
                log.error("the outcome of a turn of session %s was refused: %s", turn.session_claim.session, error)
            else:
                self._retrying_settlements.succeeded()
                self._on_ended(turn, outcome_name(outcome), first)
                return
        self._on_ended(turn, "lost", None)

    async def _release_entries(self, turn: Turn) -> None:
        """Release entries of a lost turn that are still held, such as when another of them was cancelled."""
        claims = list(turn.claims)
        for first in range(0, len(claims), limits.SETTLE_MANY_MAX):
            pairs = [(claim, Released()) for claim in claims[first : first + limits.SETTLE_MANY_MAX]]
            try:
                await self._operations.async_on(self._store).settle_many(pairs)
            except HoldfastError as error:
                session = turn.session_claim.session
                log.warning("remaining entries of a turn of session %s will expire: %s", session, error)
