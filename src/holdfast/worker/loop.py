"""The heart of a worker: free slots are filled by claims, ended attempts are settled in the same commit.

One loop does both. It asks for as many jobs as there are free slots, and for a few more only while handlers are so
short that a slot would wait for the next commit; it lets ended attempts gather for a few milliseconds at most.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from holdfast.client.middleware import Watch
from holdfast.client.operations import Operations
from holdfast.domain import limits
from holdfast.domain.claims import Claim, ClaimOptions, Settlement
from holdfast.domain.errors import HandlersStuck, HoldfastError, LeaseLost, OutcomeUnknown, Unavailable
from holdfast.domain.job import Job
from holdfast.domain.outcomes import Released
from holdfast.storage.randomness import RANDOM
from holdfast.storage.store import Store
from holdfast.tasks.task import TaskRegistry
from holdfast.worker.attempt import RunningAttempt, amend_invalid, name_of, refused
from holdfast.worker.executors import ExecutorQueue, TaskExecutor, ThreadExecutor
from holdfast.worker.isolation.dispatcher import IsolationSettings, Places
from holdfast.worker.job_logs import failure_of, log_ended, log_started
from holdfast.worker.lane_listener import LaneListener
from holdfast.worker.lease_keeper import LeaseKeeper
from holdfast.worker.retry import RetryState
from holdfast.worker.session_loop import SessionTurns
from holdfast.worker.session_turn import Turn, part_turns
from holdfast.worker.status import FailedAttempt, RunningJob, running_jobs
from holdfast.worker.stuck_handlers import StuckHandlers
from holdfast.worker.subscription import Subscription, affinities_of
from holdfast.worker.timers import Timer
from holdfast.worker.transactions import offer_transaction
from holdfast.worker.warm_resources import WarmResources, WarmResourceSettings
from holdfast.worker.watched_attempts import watch_attempts

log = logging.getLogger("holdfast.worker")

_LINGER_SECONDS = 0.002
# While handlers take less than this, so much more work is taken than there are slots.
_HORIZON_SECONDS = 0.02
_PREFETCH_MAX = 500
# What has waited for a slot for so long is given back, because another worker may be idle.
_PATIENCE_SECONDS = 1.0
# Without a signal, how often a worker looks for work by itself.
_LOOK_SECONDS = 1.0
_AVERAGE_WEIGHT = 0.05
# How many failures a worker's status shows.
_FAILURES_KEPT = 5
# How often the store is asked at least while the worker stops.
_STOPPING_RETRY_SECONDS = 0.1


class WorkerLoop:
    """Claims, hands out, settles. Lives in one event loop; slots and the keeper tell it of ends from threads."""

    def __init__(
        self,
        operations: Operations,
        store: Store,
        tasks: TaskRegistry,
        subscription: Subscription,
        *,
        concurrency: int,
        keeper: LeaseKeeper,
        give_up: Callable[[], None],
        isolation: IsolationSettings,
        timer: Timer,
        residents: WarmResourceSettings | None = None,
        watches: Sequence[Watch] = (),
    ) -> None:
        self.gave_up: HandlersStuck | None = None
        """Why this worker cannot go on, if it cannot."""
        self._give_up = give_up
        self.counts: Counter[str] = Counter()
        """How attempts ended here, by outcome."""
        self.failures: deque[FailedAttempt] = deque(maxlen=_FAILURES_KEPT)
        """The attempts that failed last, the newest first."""
        self._operations = operations
        self._store = store
        self._tasks = tasks
        self._subscription = subscription
        self._concurrency = concurrency
        self._keeper = keeper
        self._timer = timer
        self._watches = tuple(watches)
        keeper.decided = self.attempt_decided
        keeper.recovered = self.store_recovered
        self._retrying = RetryState("claims and settlements", timer)
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadExecutor(self.handler_ended)
        self._coroutines = TaskExecutor(self.handler_ended, asyncio.current_task(), timer)
        self._places = self._made_places(isolation)
        self._line = ExecutorQueue(concurrency, self._places.slots_of)
        self._threads.line = self._coroutines.line = self._places.processes.line = self._line
        self._stuck = StuckHandlers(self._line, concurrency, timer)
        self.residents = None if residents is None else self._made_residents(residents)
        """What is loaded, if this worker loads anything."""
        self.said_soon: Callable[[], None] = lambda: None
        """Told when something of this worker has changed that others see in the registry."""
        self._busy = 0
        """Handlers that run or wait for their slot."""
        self._held: dict[tuple[int, int], RunningAttempt] = {}
        """Claimed and not yet settled."""
        self._ahead = UnacknowledgedAttempts()
        self._freed: deque[RunningAttempt] = deque()
        self._decided: deque[RunningAttempt] = deque()
        self._told = False
        self._wake = asyncio.Event()
        self._listener = LaneListener(store.notifier, self._wake)
        self._turns = self._made_turns()
        self._stopping = False
        self._abandoned = False
        self._try_again = asyncio.Event()
        """Ends a wait for the store: it answers others again, or the worker stops."""
        self._dry_until = 0.0
        """Until when there is no use in asking for work, unless a signal comes."""
        self._run_seconds = 1.0
        """How long handlers take, as a moving average."""

    def _made_places(self, isolation: IsolationSettings) -> Places:
        words = self._subscription.words
        return Places(
            isolation,
            lambda: [self._tasks.get(kind) for kind in words().get("kinds") or ()],
            told=self.handler_ended,
            enter=self._enter,
            blocking=self._threads,
            awaited=self._coroutines,
            store=self._store,
            words=words(),
        )

    def _made_residents(self, terms: WarmResourceSettings) -> WarmResources:
        return WarmResources(
            terms,
            ready=self._line.put,
            say=partial(self._keeper.say_phase, self._store),
            changed=self._residents_changed,
            timer=self._timer,
        )

    def _made_turns(self) -> SessionTurns:
        return SessionTurns(
            self._operations,
            self._store,
            self._tasks,
            self._subscription,
            concurrency=self._concurrency,
            lease_seconds=self._keeper.lease_seconds,
            timer=self._timer,
            wake=self._wake,
            rest=self._rest,
            hand_out=self._take_in,
            ended=self._turn_ended,
        )

    # --- what others tell ------------------------------------------------------------------------------------------

    def handler_ended(self, attempt: RunningAttempt) -> None:
        """Note that a slot is free again, and what its handler came to; from any thread."""
        self._freed.append(attempt)
        self._tell()

    def attempt_decided(self, attempt: RunningAttempt) -> None:
        """Note that an attempt was decided while its handler still runs; from any thread."""
        self._decided.append(attempt)
        self._tell()

    def stop(self) -> None:
        """Claim nothing more, and end once nothing is held."""
        self._stopping = True
        self._try_again.set()
        self._wake.set()

    def store_recovered(self) -> None:
        """Ask the store again at once, because it answers others; from any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._try_again.set)

    def abandon(self) -> None:
        """Let the next cancel end `serve`, whatever is held then."""
        self._abandoned = True

    def _tell(self) -> None:
        # Only the first of many ends pays for waking the loop.
        if not self._told:
            self._told = True
            with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                self._loop.call_soon_threadsafe(self._wake.set)

    # --- the loop --------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Run jobs until told to stop and nothing is held any more.

        A cancel counts as being told to stop, unless this was abandoned: what is held is settled or released first.
        """
        try:
            await self._places.start()
            while not self._stopping or self._held:
                try:
                    await self._step()
                except asyncio.CancelledError:
                    if self._abandoned:
                        raise
                    self.stop()
                    # The step that was cancelled may have had them in hand; a settlement may be sent again.
                    self._decided.extend(attempt for attempt in self._held.values() if attempt.decided)
        finally:
            self._places.close()
            self._listener.close()
            self._turns.close()
            self._threads.close()
            if self.residents is not None:
                await self.residents.close()
            await self._coroutines.close()

    async def _step(self) -> None:
        self._give_back_stuck()
        ended, turns = self._take_ended()
        self._take_slots()
        room = self._room()
        asks = room > 0 and self._timer.monotonic() >= self._dry_until and self._subscription.jobs() is not None
        for_turns = self._turns.share(room, jobs_wait=asks)
        if turns or self._turns.to_give_back:
            await self._turns.settle(turns)
        if ended or asks:
            await self._exchange(ended, room - for_turns)
        if for_turns:
            await self._turns.claim(for_turns, lambda: self._stopping)
        if not (ended or turns or asks or for_turns):
            await self._pause()

    def _take_slots(self) -> None:
        """Give the slots of handlers that do not stop to others, and end in good order if they become too many."""
        for attempt in self._stuck.take_slots():
            self._free(attempt)
        stuck = self._stuck.too_many()
        if self.residents is not None:
            stuck = self.residents.give_up_overdue() or stuck
        if stuck is not None and self.gave_up is None:
            self.gave_up = stuck
            log.critical("%s", stuck)
            self._give_up()

    def _free(self, attempt: RunningAttempt) -> None:
        """Note that an attempt is in no slot any more."""
        self._busy -= 1
        self._turns.freed(attempt)
        self._places.ended(attempt)
        if self.residents is not None:
            self.residents.let_go(attempt)

    def _residents_changed(self) -> None:
        self.said_soon()
        self._wake.set()

    def words(self) -> ClaimOptions:
        """Return the options of a claim."""
        words = self._subscription.words()
        if self.residents is not None:
            words = {**words, **self.residents.words()}
        return words

    async def _pause(self) -> None:
        """Wait for an end, a signal or the next look; then let further ends gather."""
        until = self._timer.monotonic() + _LOOK_SECONDS
        if self._room():
            dry_until = math.inf if self._subscription.jobs() is None else self._dry_until
            until = min(dry_until, self._turns.dry_until, until)
        await self._timer.wait_async(self._wake, until - self._timer.monotonic())
        self._wake.clear()
        if self._listener.take():
            self._dry_until = 0.0
        self._turns.hear()
        if (self._freed or self._decided) and self._busy > len(self._freed):
            await asyncio.sleep(_LINGER_SECONDS)

    def _room(self) -> int:
        """Return how many more jobs this worker should have in its hands."""
        if self._stopping or self._places.closed:
            return 0
        more = 0
        if self._run_seconds < _HORIZON_SECONDS:
            more = min(int(self._concurrency * _HORIZON_SECONDS / max(self._run_seconds, 1e-5)), _PREFETCH_MAX)
        # A call may settle and claim so many; what is beyond waits for the next.
        return max(0, min(self._concurrency + more - self._busy, limits.CLAIM_MAX))

    def _take_ended(self) -> tuple[list[RunningAttempt], list[Turn]]:
        """Return what is to be settled, a call's worth of it, and let go of what is not ours any more."""
        self._told = False
        while self._freed:
            attempt = self._freed.popleft()
            if not self._stuck.came_back(attempt):
                self._free(attempt)
                self._note_run(attempt)
            self._turns.came_to_its_end(attempt)
            self._decided.append(attempt)
        ended: dict[tuple[int, int], RunningAttempt] = {}
        while self._decided and len(ended) < limits.SETTLE_MANY_MAX:
            attempt = self._decided.popleft()
            if attempt.key not in self._held:
                # Settled or let go before its handler came to its end.
                continue
            self._stuck.watch(attempt)
            if attempt.outcome is None:
                self._let_go([attempt], "done" if attempt.settled else "lost")
            else:
                ended[attempt.key] = attempt
        return part_turns(ended.values())

    def _note_run(self, attempt: RunningAttempt) -> None:
        if (took := attempt.run_seconds) is not None:
            self._run_seconds += (took - self._run_seconds) * _AVERAGE_WEIGHT

    def _give_back_stuck(self) -> None:
        """Give back what was taken ahead and waits behind handlers that turned out to be long."""
        if self._busy <= self._concurrency:
            return
        waiting = next((attempt for attempt in self._held.values() if attempt.waits_for_slot), None)
        if waiting is not None and self._timer.monotonic() - waiting.taken_at > _PATIENCE_SECONDS:
            self._run_seconds = 1.0
            self.release_waiting(loading=False)

    # --- one commit ------------------------------------------------------------------------------------------------

    async def _exchange(self, ended: list[RunningAttempt], room: int) -> None:
        """Settle what ended and claim what there is room for, in one commit, however often the store fails."""
        token = secrets.token_hex(16)
        asked_at = self._timer.monotonic()
        unknown = False
        while ended or (room and (unknown or not self._stopping)):
            if not self._stopping:
                self._try_again.clear()
            try:
                # A claim that may have been granted is asked for again, to be given back and not left to expire.
                asked = room if unknown or not self._stopping else 0
                settlements, claims = await self._send(ended, asked, token)
            except Unavailable as error:
                await self._rest(self._retrying.failed(error))
                ended = self._still_ours(ended)
                unknown = unknown or isinstance(error, OutcomeUnknown)
                if not unknown or self._timer.monotonic() > asked_at + self._keeper.lease_seconds:
                    unknown, asked_at, token = False, self._timer.monotonic(), secrets.token_hex(16)
            except Exception as error:
                if not amend_invalid(ended):
                    raise
                log.error("an outcome was refused: %s", error)
            else:
                self._retrying.succeeded()
                self._note_settled(ended, settlements)
                self._hand_out(claims, asked_at)
                if len(claims) < room:
                    self._dry_until = self._timer.monotonic() + _LOOK_SECONDS * RANDOM.uniform(0.5, 1.0)
                return

    async def _rest(self, seconds: float) -> None:
        """Wait before the store is asked again; it ends early if the store answers others or the worker stops."""
        if self._stopping:
            await self._timer.sleep(min(seconds, _STOPPING_RETRY_SECONDS))
        else:
            await self._timer.wait_async(self._try_again, seconds)

    async def _send(self, ended: list[RunningAttempt], room: int, token: str) -> tuple[list[Settlement], list[Claim]]:
        pairs = [(attempt.claim, attempt.outcome or Released()) for attempt in ended]
        if not room:
            return await self._operations.async_on(self._store).settle_many(pairs), []
        kinds = (self._subscription.jobs() or {}).get("kinds")
        words: ClaimOptions = {**self.words(), "kinds": kinds, "lease_token": token}
        self._listener.listen(words.get("lanes", ()))
        words["acknowledged"] = self._free_slots()
        words["cut_off"], asked_at = self._keeper.cut_off_at is not None, self._timer.monotonic()
        started = self._ahead.started()
        settled, claims = await self._operations.async_on(self._store).settle_and_claim(
            pairs, limit=room, started=[attempt.claim for attempt in started], **words
        )
        self._ahead.let_go(started)
        self._keeper.told_cut_off(asked_at)
        return settled, claims

    def _free_slots(self) -> int:
        """Return how many of the jobs claimed next start at once; those that first load something do not."""
        return 0 if self.residents is not None else max(0, min(self._concurrency - self._busy, limits.CLAIM_MAX))

    def _still_ours(self, ended: Sequence[RunningAttempt]) -> list[RunningAttempt]:
        """Return those that may still be settled; a settlement is tried until its lease has ended."""
        now = self._timer.monotonic()
        gone = [attempt for attempt in ended if attempt.lease_ends_at <= now]
        if gone:
            self._keeper.cut_off_at = now
        self._let_go(gone, "lost")
        return [attempt for attempt in ended if attempt.lease_ends_at > now]

    def _note_settled(self, ended: Sequence[RunningAttempt], settlements: Sequence[Settlement]) -> None:
        settled = []
        for attempt, settlement in zip(ended, settlements, strict=True):
            if settlement.error is None:
                self._count(attempt, name_of(attempt.outcome), settlement.job)
                settled.append(attempt)
            elif isinstance(settlement.error, LeaseLost):
                log.warning("the result of job %s was refused: %s", attempt.claim.job.id, settlement.error)
                self._count(attempt, "lost")
                settled.append(attempt)
            else:
                self._amend(attempt, settlement.error)
        self._let_go(settled)

    def _count(self, attempt: RunningAttempt, outcome: str, job: Job | None = None) -> None:
        failure = failure_of(attempt, job)
        if failure is not None:
            self.failures.appendleft(failure)
        self.counts["retried" if failure is not None and failure.retried else outcome] += 1
        log_ended(attempt, outcome, failure)
        for watch in self._watches:
            watch.ended(attempt.claim, outcome, job, attempt.run_seconds)

    def _amend(self, attempt: RunningAttempt, refusal: HoldfastError) -> None:
        log.error("the outcome of job %s was refused: %s", attempt.claim.job.id, refusal)
        attempt.amend(refused(refusal))
        self._decided.append(attempt)

    def _let_go(self, attempts: Sequence[RunningAttempt], counted: str | None = None) -> None:
        self._keeper.let_go(attempts)
        self._ahead.let_go(attempts)
        for attempt in attempts:
            if self._held.pop(attempt.key, None) is not None and counted is not None:
                self._count(attempt, counted)

    def _turn_ended(self, turn: RunningAttempt, outcome: str, first: Job | None) -> None:
        self._count(turn, outcome, first)
        self._let_go([turn])

    def _hand_out(self, claims: Sequence[Claim], asked_at: float) -> None:
        self._take_in(
            [RunningAttempt(claim, self._tasks.get(claim.job.kind), asked_at, self._timer) for claim in claims]
        )

    def _take_in(self, attempts: Sequence[RunningAttempt]) -> None:
        """Hold what was claimed, and let it run as soon as there is a slot."""
        for attempt in attempts:
            if attempt.task.takes_context:
                offer_transaction(attempt, self._operations, self._store)
        if self._watches:
            watch_attempts(self._watches, attempts)
        self._held.update((attempt.key, attempt) for attempt in attempts)
        self._ahead.take_in(attempts)
        self._keeper.hold(attempts)
        if self._stopping:
            # Claimed by a call that was under way when the worker was told to stop.
            self.release_waiting()
            return
        log_started(attempts)
        self._busy += len(attempts)
        self._enter(self._places.admit(attempts))

    def _enter(self, attempts: Sequence[RunningAttempt]) -> None:
        """Let attempts run as soon as what they need is loaded and their turn comes."""
        self._line.put(attempts if self.residents is None else self.residents.admit(attempts))

    # --- going down ------------------------------------------------------------------------------------------------

    def release_waiting(self, *, loading: bool = True) -> None:
        """Give back what no slot has started yet, with *loading* also what waits for something to be loaded."""
        for attempt in list(self._held.values()):
            if (loading or attempt.loading_since is None) and attempt.give_back():
                self.attempt_decided(attempt)

    @property
    def loaded(self) -> tuple[str, ...]:
        """The affinities at hand."""
        if self.residents is not None:
            return self.residents.loaded
        return affinities_of(self._subscription.words())

    @property
    def loading(self) -> tuple[str, ...]:
        """Those on their way in."""
        return () if self.residents is None else self.residents.loading

    @property
    def switches(self) -> int:
        """How often one affinity had to make room for another."""
        return 0 if self.residents is None else self.residents.switches

    @property
    def abandoned(self) -> int:
        """How many handlers run on without a slot, though they were told to stop."""
        return len(self._stuck)

    @property
    def running(self) -> int:
        """How many jobs are in this worker's hands."""
        return len(self._held)

    def running_jobs(self) -> tuple[RunningJob, ...]:
        """Return what is in this worker's hands, the longest first; from any thread."""
        return running_jobs(self._keeper.held(), self._timer.monotonic())

    def release_running(self, *, at_once: bool) -> None:
        """Tell handlers to stop; with *at_once* give their jobs back without waiting for them."""
        for attempt in list(self._held.values()):
            attempt.stop("shutdown")
            if at_once and attempt.decide(Released()):
                self.attempt_decided(attempt)


class UnacknowledgedAttempts:
    """The attempts in a worker's hands whose claims are not acknowledged yet."""

    def __init__(self) -> None:
        self._attempts: dict[tuple[int, int], RunningAttempt] = {}

    def take_in(self, attempts: Iterable[RunningAttempt]) -> None:
        """Keep those of *attempts* that were not acknowledged by the claim itself."""
        self._attempts.update((attempt.key, attempt) for attempt in attempts if attempt.claim.job.unacknowledged)

    def started(self) -> list[RunningAttempt]:
        """Return those that run, as many as one call can acknowledge; one that has ended is settled instead."""
        running = [one for one in self._attempts.values() if one.started_at is not None and not one.decided]
        return running[: limits.SETTLE_MANY_MAX]

    def let_go(self, attempts: Iterable[RunningAttempt]) -> None:
        """Forget attempts that were acknowledged or have ended."""
        for attempt in attempts:
            self._attempts.pop(attempt.key, None)
