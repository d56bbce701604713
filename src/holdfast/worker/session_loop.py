"""Serving sessions beside jobs: turns are claimed into the same slots, and each is settled as a whole.

While both wait, free slots go to jobs and to sessions in turn, so that neither holds up the other for long.
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
from holdfast.domain.session_claims import AnySessionOptions
from holdfast.domain.session_leases import SessionClaim
from holdfast.storage.notifications import sessions_topic
from holdfast.storage.randomness import RANDOM
from holdfast.storage.store import Store
from holdfast.tasks.task import TaskRegistry
from holdfast.worker.attempt import RunningAttempt, amend_invalid, name_of, refused
from holdfast.worker.lane_listener import LaneListener
from holdfast.worker.retry import RetryState
from holdfast.worker.session_turn import Turn, offer_checkpoints
from holdfast.worker.subscription import Subscription
from holdfast.worker.timers import Timer

log = logging.getLogger("holdfast.worker")

# Without a signal, how often a worker looks for sessions by itself.
LOOK_SECONDS = 1.0


class SessionTurns:
    """Claims and settles the turns of one worker; lives in the core's loop."""

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
        rest: Callable[[float], Awaitable[None]],
        hand_out: Callable[[Sequence[RunningAttempt]], None],
        ended: Callable[[RunningAttempt, str, Job | None], None],
    ) -> None:
        self._operations = operations
        self._store = store
        self._tasks = tasks
        self._subscription = subscription
        self._concurrency = concurrency
        self._lease_seconds = lease_seconds
        self._timer = timer
        self._rest = rest
        self._retrying_claims = RetryState("claims of sessions", timer)
        self._retrying_settlements = RetryState("settlements of sessions", timer)
        self._hand_out = hand_out
        self._ended = ended
        self._listener = LaneListener(store.notifier, wake, sessions_topic)
        self._running = 0
        """SessionTurns that run or wait for their slot."""
        self._lost: list[Turn] = []
        """Those that were lost and whose handler has come to its end since."""
        self._odd_is_ours = False
        self._dry_until = 0.0

    @property
    def dry_until(self) -> float:
        """Until when there is no use in asking, unless a signal comes; for ever where no task answers sessions."""
        return math.inf if self._subscription.sessions() is None else self._dry_until

    def close(self) -> None:
        """Hear of nothing any more."""
        self._listener.close()

    def hear(self) -> None:
        """Ask again if a signal came since this was last called."""
        if self._listener.take():
            self._dry_until = 0.0

    # --- slots -----------------------------------------------------------------------------------------------------

    def share(self, room: int, *, jobs_wait: bool) -> int:
        """Return how many of the free slots sessions get: all that jobs do not need, else each second one."""
        if room <= 0 or self._timer.monotonic() < self.dry_until or self._words() is None:
            return 0
        ours = room
        if jobs_wait:
            ours = room // 2 + (room % 2 and self._odd_is_ours)
            self._odd_is_ours ^= bool(room % 2)
        # A turn that waits for a slot holds up its session: none is taken ahead.
        return max(0, min(ours, self._concurrency - self._running))

    def freed(self, attempt: RunningAttempt) -> None:
        """Note that the handler of an attempt has ended, or lost its slot."""
        if isinstance(attempt, Turn):
            self._running -= 1

    def came_to_its_end(self, attempt: RunningAttempt) -> None:
        """Note that a handler runs no more: of a turn that was lost in part, the rest can be given back."""
        if isinstance(attempt, Turn) and attempt.decided and attempt.outcome is None and not attempt.settled:
            self._lost.append(attempt)

    # --- claiming --------------------------------------------------------------------------------------------------

    def _words(self) -> AnySessionOptions | None:
        words = self._subscription.sessions()
        if words is not None:
            self._listener.listen(words.get("lanes", ()))
        return words

    async def claim(self, room: int, stopping: Callable[[], bool]) -> None:
        """Take up to *room* turns of whichever sessions are ready, and hand them out.

        Each is a commit of its own. One is asked for first, then two at once and so on, so that little is in vain.
        """
        at_once = 1
        while room > 0:
            at_once = min(at_once, room)
            asked_at = self._timer.monotonic()
            claims = await asyncio.gather(*(self._claim_one(asked_at, stopping) for _ in range(at_once)))
            found = [claim for claim in claims if claim is not None]
            self._begin(found, asked_at)
            if not found:
                self._dry_until = self._timer.monotonic() + LOOK_SECONDS * RANDOM.uniform(0.5, 1.0)
            if len(found) < at_once:
                # Claims that were made at once may have been in each other's way: the next step asks again.
                return
            room -= at_once
            at_once *= 2

    def _begin(self, claims: Sequence[SessionClaim], asked_at: float) -> None:
        turns = [Turn(claim, self._tasks, asked_at, self._timer) for claim in claims]
        words = self._words() or {}
        for turn in turns:
            offer_checkpoints(turn, self._operations, self._store, words.get("capabilities", ()))
        self._running += len(turns)
        self._hand_out(turns)

    async def _claim_one(self, asked_at: float, stopping: Callable[[], bool]) -> SessionClaim | None:
        """Claim a turn, or return None if none is ready or the store does not answer.

        A claim that may have been granted is sent again, to be run or given back and not left to expire.
        """
        told, nonce, unknown = self._words(), secrets.token_hex(16), False
        while told is not None and (unknown or not stopping()):
            words: AnySessionOptions = {**told, "nonce": nonce}
            try:
                claim = await self._operations.async_on(self._store).claim_any_session(**words)
            except Unavailable as error:
                seconds = self._retrying_claims.failed(error)
                unknown = unknown or isinstance(error, OutcomeUnknown)
                if not unknown or self._timer.monotonic() > asked_at + self._lease_seconds:
                    return None
                await self._rest(seconds)
            else:
                self._retrying_claims.succeeded()
                return claim
        return None

    # --- settling --------------------------------------------------------------------------------------------------

    @property
    def to_give_back(self) -> bool:
        """Whether there is something left of turns that were lost."""
        return bool(self._lost)

    async def settle(self, turns: Sequence[Turn]) -> None:
        """Settle turns that ended, each as a whole, and give back what is left of those that were lost."""
        lost, self._lost = self._lost, []
        await asyncio.gather(*map(self._settle, turns), *map(self._give_back, lost))

    async def _settle(self, turn: Turn) -> None:
        while turn.lease_ends_at > self._timer.monotonic():
            outcome = turn.outcome or Released()
            try:
                [first, *_] = await turn.settling(self._operations.async_on(self._store), outcome)
            except LeaseLost as error:
                log.warning("the result of a turn of session %s was refused: %s", turn.whole.session, error)
                await self._give_back(turn)
                break
            except Unavailable as error:
                await self._rest(self._retrying_settlements.failed(error))
            except HoldfastError as error:
                log.error("the outcome of a turn of session %s was refused: %s", turn.whole.session, error)
                turn.amend(refused(error))
            except Exception as error:
                if not amend_invalid([turn]):
                    raise
                log.error("the outcome of a turn of session %s was refused: %s", turn.whole.session, error)
            else:
                self._retrying_settlements.succeeded()
                self._ended(turn, name_of(outcome), first)
                return
        self._ended(turn, "lost", None)

    async def _give_back(self, turn: Turn) -> None:
        """Release entries that are still held though the turn is lost, as when one of them was taken away."""
        claims = list(turn.claims)
        for first in range(0, len(claims), limits.SETTLE_MANY_MAX):
            pairs = [(claim, Released()) for claim in claims[first : first + limits.SETTLE_MANY_MAX]]
            try:
                await self._operations.async_on(self._store).settle_many(pairs)
            except HoldfastError as error:
                log.warning("what is left of a turn of session %s expires: %s", turn.whole.session, error)
