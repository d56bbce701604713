"""Session turns in a worker: claimed into the same slots as jobs, each settled as a whole.

If both jobs and sessions wait, free slots are shared evenly between them.
"""

import asyncio
import logging
import math
import secrets
from collections.abc import AsyncIterator, Iterable, Sequence

from holdfast.client.async_api.worker_calls import AsyncWorkerCalls
from holdfast.domain import errors, limits, outcomes, session_claims
from holdfast.storage import notifications, randomness
from holdfast.worker import held_attempts, retry, session_turn
from holdfast.worker.attempt import (
    RunningAttempt,
    amend_invalid,
    emitted,
    fail_refused,
    failure_from_refusal,
    outcome_name,
)
from holdfast.worker.events import EventQueue, LaneListener, Notified
from holdfast.worker.settings import WorkerSettings

log = logging.getLogger("holdfast.worker")


class SessionTurns:
    """Claims and settles the turns of one worker; runs in the worker loop."""

    def __init__(
        self,
        settings: WorkerSettings,
        held: held_attempts.HeldAttempts,
        events: EventQueue,
        retry_waits: retry.RetryWaits,
    ) -> None:
        self._queue = settings.queue
        self._queue_state = settings.queue_state
        self._tasks = settings.tasks
        self._subscription = settings.subscription
        self._concurrency = settings.concurrency
        self._lease_seconds = settings.lease_seconds
        self._timer = settings.timer
        self._held = held
        self._retry_waits = retry_waits
        self._retrying_claims = retry.RetryState("claims of sessions", settings.timer)
        self._retrying_settlements = retry.RetryState("settlements of sessions", settings.timer)
        self._notifier = settings.store.notifier
        self._listener = LaneListener(self._notifier, notifications.sessions_topic, events, Notified("sessions"))
        self._running = 0
        """The number of turns that run or wait for a slot."""
        self._lost_turns: list[session_turn.Turn] = []
        """Lost turns whose handler has ended."""
        self._odd_slot_to_sessions = False
        self._claims = True
        self._next_claim_at = 0.0
        """When to claim next if no notification comes before."""

    @property
    def due_at(self) -> float:
        """When to claim next if no notification comes before; infinity while turns use all slots."""
        return self._next_claim_at if self._running < self._concurrency else math.inf

    def stop_claiming(self) -> None:
        """Send no more claims, except those again that may have been committed."""
        self._claims = False

    def close(self) -> None:
        """Cancel all subscriptions."""
        self._listener.close()

    def notified(self) -> None:
        """Claim at once, because a notification came."""
        self._listener.handled()
        self._next_claim_at = 0.0

    @staticmethod
    def separate(attempts: Iterable[RunningAttempt]) -> tuple[list[RunningAttempt], list[session_turn.Turn]]:
        """Return the attempts of jobs and the turns of sessions as two lists."""
        turns: list[session_turn.Turn] = []
        jobs: list[RunningAttempt] = []
        for attempt in attempts:
            if isinstance(attempt, session_turn.Turn):
                turns.append(attempt)
            else:
                jobs.append(attempt)
        return jobs, turns

    # --- slots -----------------------------------------------------------------------------------------------------

    def share(self, room: int, *, jobs_wait: bool) -> int:
        """Return how many of *room* free slots sessions get: half of them if jobs wait, else all."""
        if room <= 0 or self._timer.monotonic() < self.due_at:
            return 0
        for_sessions = room
        if jobs_wait:
            for_sessions = room // 2 + (room % 2 and self._odd_slot_to_sessions)
            self._odd_slot_to_sessions ^= bool(room % 2)
        # A turn that waits for a slot blocks its session: none is claimed ahead.
        return max(0, min(for_sessions, self._concurrency - self._running))

    def slot_freed(self, attempt: RunningAttempt) -> None:
        """Record that an attempt has left its slot."""
        if isinstance(attempt, session_turn.Turn):
            self._running -= 1

    def handler_ended(self, attempt: RunningAttempt) -> None:
        """Record that a handler has ended: the remaining entries of a partly lost turn can be released."""
        if (
            isinstance(attempt, session_turn.Turn)
            and attempt.decided
            and attempt.outcome is None
            and not attempt.settled
        ):
            self._lost_turns.append(attempt)

    # --- claiming --------------------------------------------------------------------------------------------------

    async def claim(self, room: int) -> AsyncIterator[list[session_turn.Turn]]:
        """Claim up to *room* turns of ready sessions and yield them, to be started.

        Each claim is one commit. One is sent first, then two at once, then four, to send few claims that find
        nothing.
        """
        options = self._subscription.sessions
        if options is None:
            return
        self._listener.listen(options.get("lanes", ()))
        # A notification that comes from now on is about a session that these claims may not find.
        self._next_claim_at = math.inf
        at_once = 1
        turns: list[session_turn.Turn] = []
        while room > 0:
            at_once = min(at_once, room)
            sent_at = self._timer.monotonic()
            claims = await asyncio.gather(*(self._claim_one(options, sent_at) for _ in range(at_once)))
            turns = [self._create_turn(claim, options, sent_at) for claim in claims if claim is not None]
            self._running += len(turns)
            yield turns
            if len(turns) < at_once:
                # Concurrent claims may have blocked each other: if one found a turn, the worker claims again.
                break
            room -= at_once
            at_once *= 2
        pause = 0.0 if turns else self._notifier.poll_seconds * randomness.RANDOM.uniform(0.5, 1.0)
        self._next_claim_at = min(self._next_claim_at, self._timer.monotonic() + pause)

    def _create_turn(
        self, claim: session_claims.SessionClaim, options: session_claims.AnySessionOptions, sent_at: float
    ) -> session_turn.Turn:
        turn = session_turn.Turn(claim, self._tasks, sent_at, self._timer)
        session_turn.offer_checkpoints(turn, self._queue_state, options.get("capabilities", ()))
        return turn

    async def _claim_one(
        self, session_options: session_claims.AnySessionOptions, sent_at: float
    ) -> session_claims.SessionClaim | None:
        """Claim a turn, or return None if none is ready or the store does not answer.

        A claim that may have been committed is sent again, so that its turn is run or released and does not have to
        expire.
        """
        token, unknown = secrets.token_hex(16), False
        while unknown or self._claims:
            options: session_claims.AnySessionOptions = {**session_options, "lease_token": token}
            try:
                claim = await self._queue.sessions.claim_next(**options)
            except errors.Unavailable as error:
                seconds = self._retrying_claims.failed(error)
                unknown = unknown or isinstance(error, errors.OutcomeUnknown)
                if not unknown or self._timer.monotonic() > sent_at + self._lease_seconds:
                    return None
                await self._retry_waits.wait(seconds)
            else:
                self._retrying_claims.succeeded()
                return claim
        return None

    # --- settling --------------------------------------------------------------------------------------------------

    @property
    def has_entries_to_release(self) -> bool:
        """Whether lost turns have entries to release."""
        return bool(self._lost_turns)

    async def settle(self, turns: Sequence[session_turn.Turn]) -> None:
        """Settle ended turns, each as a whole, and release the remaining entries of lost ones."""
        lost, self._lost_turns = self._lost_turns, []
        await asyncio.gather(*map(self._settle, turns), *map(self._release_entries, lost))

    async def _settle(self, turn: session_turn.Turn) -> None:
        while turn.lease_ends_at > self._timer.monotonic():
            try:
                await AsyncWorkerCalls(self._queue_state.store).flush_output(emitted([turn]))
                fail_refused([turn])
                outcome = turn.outcome or outcomes.Released()
                jobs = await turn.settle_async(self._queue, outcome)
            except errors.LeaseLost as error:
                log.warning("the result of a turn of session %s was refused: %s", turn.session_claim.session, error)
                await self._release_entries(turn)
                break
            except errors.Unavailable as error:
                await self._retry_waits.wait(self._retrying_settlements.failed(error))
            except errors.HoldfastError as error:
                log.error("the outcome of a turn of session %s was refused: %s", turn.session_claim.session, error)
                turn.amend(failure_from_refusal(error))
            except Exception as error:
                if not amend_invalid([turn]):
                    raise
                log.error("the outcome of a turn of session %s was refused: %s", turn.session_claim.session, error)
            else:
                self._retrying_settlements.succeeded()
                self._held.ended(turn, outcome_name(outcome), jobs)
                return
        self._held.ended(turn, "lost")

    async def _release_entries(self, turn: session_turn.Turn) -> None:
        """Release entries of a lost turn that are still held, such as when another of them was cancelled."""
        claims = list(turn.claims)
        for first in range(0, len(claims), limits.SETTLE_MANY_MAX):
            pairs = [(claim, outcomes.Released()) for claim in claims[first : first + limits.SETTLE_MANY_MAX]]
            try:
                await self._queue.settle_many(pairs)
            except errors.HoldfastError as error:
                session = turn.session_claim.session
                log.warning("remaining entries of a turn of session %s will expire: %s", session, error)
