"""The worker's main loop: claims jobs for free slots and settles ended attempts in the same commit.

The loop claims as many jobs as there are free slots. It claims more only if handlers are so short that slots would
wait for the next commit. It collects ended attempts for a few milliseconds at most.
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

from holdfast.client.middleware import AttemptObserver
from holdfast.client.operations import Operations
from holdfast.domain import limits
from holdfast.domain.claims import Claim, ClaimOptions, Settlement
from holdfast.domain.errors import HandlersStuck, HoldfastError, LeaseLost, OutcomeUnknown, Unavailable
from holdfast.domain.job import Job, row_of
from holdfast.domain.outcomes import Released
from holdfast.storage.randomness import RANDOM
from holdfast.storage.store import Store
from holdfast.tasks.task import TaskRegistry
from holdfast.worker.attempt import RunningAttempt, amend_invalid, failure_from_refusal, outcome_name
from holdfast.worker.executors import ExecutorQueue, TaskExecutor, ThreadExecutor
from holdfast.worker.isolation.dispatcher import Dispatcher, IsolationSettings
from holdfast.worker.job_logs import failure_of, log_ended, log_started
from holdfast.worker.lane_listener import LaneListener
from holdfast.worker.lease_keeper import LeaseKeeper
from holdfast.worker.observed_attempts import observe_attempts
from holdfast.worker.retry import RetryState
from holdfast.worker.session_loop import SessionTurns
from holdfast.worker.session_turn import Turn, separate_turns
from holdfast.worker.status import FailedAttempt, RunningJob, running_jobs
from holdfast.worker.stuck_handlers import StuckHandlers
from holdfast.worker.subscription import Subscription, affinities_of
from holdfast.worker.timers import Timer
from holdfast.worker.transactions import offer_transaction
from holdfast.worker.warm_resources import AffinityLoader, WarmResources

log = logging.getLogger("holdfast.worker")

_LINGER_SECONDS = 0.002
# If handlers take less time than this on average, the worker claims enough jobs ahead to cover this time.
_HORIZON_SECONDS = 0.02
_PREFETCH_MAX = 500
# Jobs that have waited longer for a slot are released, because another worker may be idle.
_WAIT_SECONDS_MAX = 1.0
# How often a worker polls for jobs if no notification comes.
_POLL_SECONDS = 1.0
_AVERAGE_WEIGHT = 0.05
# How many failures a worker's status shows.
_FAILURES_KEPT = 5
# The longest wait between retries during shutdown.
_STOPPING_RETRY_SECONDS = 0.1


class WorkerLoop:
    """Claims jobs, starts attempts and settles them.

    It runs in one event loop. Executors and the lease keeper report ended attempts to it from other threads.
    """

    def __init__(
        self,
        operations: Operations,
        store: Store,
        tasks: TaskRegistry,
        subscription: Subscription,
        *,
        concurrency: int,
        keeper: LeaseKeeper,
        request_stop: Callable[[], None],
        isolation: IsolationSettings,
        timer: Timer,
        warm: WarmResources | None = None,
        observers: Sequence[AttemptObserver] = (),
    ) -> None:
        self.fatal_error: HandlersStuck | None = None
        """The error that makes this worker stop, if any."""
        self._request_stop = request_stop
        self.counts: Counter[str] = Counter()
        """Ended attempts, by outcome."""
        self.failures: deque[FailedAttempt] = deque(maxlen=_FAILURES_KEPT)
        """The latest failed attempts, newest first."""
        self._operations = operations
        self._store = store
        self._tasks = tasks
        self._subscription = subscription
        self._concurrency = concurrency
        self._keeper = keeper
        self._timer = timer
        self._observers = tuple(observers)
        keeper.decided = self.attempt_decided
        keeper.recovered = self.store_recovered
        self._retrying = RetryState("claims and settlements", timer)
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadExecutor(self.handler_ended)
        self._coroutines = TaskExecutor(self.handler_ended, asyncio.current_task(), timer)
        self._dispatcher = self._create_dispatcher(isolation)
        self._executor_queue = ExecutorQueue(concurrency, self._dispatcher.executor_for)
        for executor in (self._threads, self._coroutines, self._dispatcher.processes):
            executor.executor_queue = self._executor_queue
        self._stuck = StuckHandlers(self._executor_queue, concurrency, timer)
        self._affinities = None if warm is None else self._create_affinity_loader(warm)
        """The loaded affinities; None if this worker loads nothing."""
        self.on_state_change: Callable[[], None] = lambda: None
        """Called if this worker's row in the registry needs an update."""
        self._busy = 0
        """The number of attempts that run or wait for a slot."""
        self._held: dict[tuple[int, int], RunningAttempt] = {}
        """Attempts that are claimed and not yet settled."""
        self._unacknowledged = UnacknowledgedAttempts()
        self._freed: deque[RunningAttempt] = deque()
        self._decided: deque[RunningAttempt] = deque()
        self._wake_pending = False
        self._wake = asyncio.Event()
        self._listener = LaneListener(store.notifier, self._wake)
        self._turns = self._create_session_turns()
        self.draining = self._stopping = self._abandoned = False
        self._retry_now = asyncio.Event()
        """Ends a wait before a retry: the store answered another call, or the worker stops."""
        self._next_claim_at = 0.0
        """When to claim next if no notification comes before."""
        self._run_seconds = 1.0
        """The moving average of how long handlers run."""

    def _create_dispatcher(self, isolation: IsolationSettings) -> Dispatcher:
        options = self._subscription.options
        return Dispatcher(
            isolation,
            lambda: [self._tasks.get(kind) for kind in options().get("kinds") or ()],
            on_ended=self.handler_ended,
            submit=self._submit,
            sync_executor=self._threads,
            async_executor=self._coroutines,
            store=self._store,
            options=options(),
        )

    def _create_affinity_loader(self, warm: WarmResources) -> AffinityLoader:
        return AffinityLoader(
            warm,
            affinities_of(self._subscription.options()),
            ready=self._executor_queue.put,
            write_phase=partial(self._keeper.write_phase, self._store),
            on_changed=self._affinities_changed,
            timer=self._timer,
        )

    def _create_session_turns(self) -> SessionTurns:
        return SessionTurns(
            self._operations,
            self._store,
            self._tasks,
            self._subscription,
            concurrency=self._concurrency,
            lease_seconds=self._keeper.lease_seconds,
            timer=self._timer,
            wake=self._wake,
            wait_before_retry=self._wait_before_retry,
            start_attempts=self._start_attempts,
            on_ended=self._turn_ended,
        )

    # --- callbacks -------------------------------------------------------------------------------------------------

    def handler_ended(self, attempt: RunningAttempt) -> None:
        """Record that a handler has ended and its slot is free. Safe to call from any thread."""
        self._freed.append(attempt)
        self._wake_loop()

    def attempt_decided(self, attempt: RunningAttempt) -> None:
        """Record that an attempt was decided while its handler still runs. Safe to call from any thread."""
        self._decided.append(attempt)
        self._wake_loop()

    def stop(self) -> None:
        """Claim no more jobs, and return from `serve` when no attempt is held."""
        self._stopping = True
        self._retry_now.set()
        self._wake.set()

    def drain(self) -> None:
        """Claim no more jobs; `serve` continues until `stop` is called."""
        self.draining = True

    @property
    def _claims_jobs(self) -> bool:
        return not self._stopping and not self.draining

    def store_recovered(self) -> None:
        """Retry failed store calls at once, because another call succeeded. Safe to call from any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._retry_now.set)

    def abandon(self) -> None:
        """Make the next cancellation end `serve` even if attempts are held."""
        self._abandoned = True

    def _wake_loop(self) -> None:
        # Waking the event loop is costly: do it once for all attempts that end before the loop runs.
        if not self._wake_pending:
            self._wake_pending = True
            with suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._wake.set)

    # --- the loop --------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Run jobs until `stop` is called and no attempt is held.

        A cancellation acts like `stop`, unless `abandon` was called: held attempts are settled or released first.
        """
        try:
            await self._dispatcher.start()
            while not self._stopping or self._held:
                try:
                    await self._iterate()
                except asyncio.CancelledError:
                    if self._abandoned:
                        raise
                    self.stop()
                    # The cancelled iteration may have taken them from the queue; sending a settlement twice is safe.
                    self._decided.extend(attempt for attempt in self._held.values() if attempt.decided)
        finally:
            self._dispatcher.close()
            self._listener.close()
            self._turns.close()
            self._threads.close()
            if self._affinities is not None:
                await self._affinities.close()
            await self._coroutines.close()

    async def _iterate(self) -> None:
        self._release_delayed()
        ended, turns = self._take_ended()
        self._reclaim_slots()
        room = self._room()
        claim_jobs = (
            room > 0 and self._timer.monotonic() >= self._next_claim_at and self._subscription.jobs() is not None
        )
        turn_slots = self._turns.share(room, jobs_wait=claim_jobs)
        if turns or self._turns.has_entries_to_release:
            await self._turns.settle(turns)
        if ended or claim_jobs:
            await self._settle_and_claim(ended, room - turn_slots)
        if turn_slots:
            await self._turns.claim(turn_slots, lambda: not self._claims_jobs)
        if not (ended or turns or claim_jobs or turn_slots):
            await self._pause()

    def _reclaim_slots(self) -> None:
        """Free the slots of handlers that do not stop, and shut down if there are too many of them."""
        for attempt in self._stuck.reclaim_slots():
            self._free(attempt)
        stuck = self._stuck.error_if_too_many()
        if self._affinities is not None:
            stuck = self._affinities.cancel_overdue() or stuck
        if stuck is not None and self.fatal_error is None:
            self.fatal_error = stuck
            log.critical("%s", stuck)
            self._request_stop()

    def _free(self, attempt: RunningAttempt) -> None:
        """Record that an attempt has left its slot."""
        self._busy -= 1
        self._turns.slot_freed(attempt)
        self._dispatcher.slot_freed(attempt)
        if self._affinities is not None:
            self._affinities.release(attempt)

    def _affinities_changed(self) -> None:
        self.on_state_change()
        self._wake.set()

    def claim_options(self) -> ClaimOptions:
        """Return the options of a claim."""
        options = self._subscription.options()
        if self._affinities is not None:
            options = {**options, **self._affinities.claim_options()}
        return options

    async def _pause(self) -> None:
        """Wait for an ended attempt, a notification or the next poll; then collect further ended attempts."""
        until = self._timer.monotonic() + _POLL_SECONDS
        if self._room():
            next_claim_at = math.inf if self._subscription.jobs() is None else self._next_claim_at
            until = min(next_claim_at, self._turns.next_claim_at, until)
        await self._timer.wait_async(self._wake, until - self._timer.monotonic())
        self._wake.clear()
        if self._listener.take_notified():
            self._next_claim_at = 0.0
        self._turns.check_notified()
        if (self._freed or self._decided) and self._busy > len(self._freed):
            await asyncio.sleep(_LINGER_SECONDS)

    def _room(self) -> int:
        """Return how many more jobs this worker should claim."""
        if not self._claims_jobs or self._dispatcher.paused:
            return 0
        extra = 0
        if self._run_seconds < _HORIZON_SECONDS:
            extra = min(int(self._concurrency * _HORIZON_SECONDS / max(self._run_seconds, 1e-5)), _PREFETCH_MAX)
        # One call claims a limited number of jobs; the next call claims more.
        return max(0, min(self._concurrency + extra - self._busy, limits.CLAIM_MAX))

    def _take_ended(self) -> tuple[list[RunningAttempt], list[Turn]]:
        """Return the attempts to settle in the next call, and drop those that need no settlement."""
        self._wake_pending = False
        while self._freed:
            attempt = self._freed.popleft()
            if not self._stuck.handler_ended(attempt):
                self._free(attempt)
                self._note_run(attempt)
            self._turns.handler_ended(attempt)
            self._decided.append(attempt)
        ended: dict[tuple[int, int], RunningAttempt] = {}
        while self._decided and len(ended) < limits.SETTLE_MANY_MAX:
            attempt = self._decided.popleft()
            if attempt.key not in self._held:
                # The attempt was settled or lost before its handler ended.
                continue
            self._stuck.watch(attempt)
            if attempt.outcome is None:
                self._let_go([attempt], "done" if attempt.settled else "lost")
            else:
                ended[attempt.key] = attempt
        return separate_turns(ended.values())

    def _note_run(self, attempt: RunningAttempt) -> None:
        if (seconds := attempt.run_seconds) is not None:
            self._run_seconds += (seconds - self._run_seconds) * _AVERAGE_WEIGHT

    def _release_delayed(self) -> None:
        """Release jobs that were claimed ahead and wait behind handlers that run longer than expected."""
        if self._busy <= self._concurrency:
            return
        waiting = next((attempt for attempt in self._held.values() if attempt.waits_for_slot), None)
        if waiting is not None and self._timer.monotonic() - waiting.claimed_at > _WAIT_SECONDS_MAX:
            self._run_seconds = 1.0
            self.release_waiting(loading=False)

    # --- one commit ------------------------------------------------------------------------------------------------

    async def _settle_and_claim(self, ended: list[RunningAttempt], room: int) -> None:
        """Settle *ended* and claim up to *room* jobs in one commit; retry until the store answers."""
        token = secrets.token_hex(16)
        sent_at = self._timer.monotonic()
        unknown = False
        while ended or (room and (unknown or self._claims_jobs)):
            if not self._stopping:
                self._retry_now.clear()
            try:
                # A claim that may have been committed is sent again, so that its jobs are released and do not have
                # to expire.
                limit = room if unknown or self._claims_jobs else 0
                settlements, claims = await self._send(ended, limit, token)
            except Unavailable as error:
                await self._wait_before_retry(self._retrying.failed(error))
                ended = self._still_held(ended)
                unknown = unknown or isinstance(error, OutcomeUnknown)
                if not unknown or self._timer.monotonic() > sent_at + self._keeper.lease_seconds:
                    unknown, sent_at, token = False, self._timer.monotonic(), secrets.token_hex(16)
            except Exception as error:
                if not amend_invalid(ended):
                    raise
                log.error("an outcome was refused: %s", error)
            else:
                self._retrying.succeeded()
                self._note_settled(ended, settlements)
                self._start_claims(claims, sent_at)
                if len(claims) < room:
                    self._next_claim_at = self._timer.monotonic() + _POLL_SECONDS * RANDOM.uniform(0.5, 1.0)
                return

    async def _wait_before_retry(self, seconds: float) -> None:
        """Wait before a retry; return early if the store answers another call or the worker stops."""
        if self._stopping:
            await self._timer.sleep(min(seconds, _STOPPING_RETRY_SECONDS))
        else:
            await self._timer.wait_async(self._retry_now, seconds)

    async def _send(self, ended: list[RunningAttempt], room: int, token: str) -> tuple[list[Settlement], list[Claim]]:
        pairs = [(attempt.claim, attempt.outcome or Released()) for attempt in ended]
        if not room:
            return await self._operations.async_on(self._store).settle_many(pairs), []
        kinds = (self._subscription.jobs() or {}).get("kinds")
        options: ClaimOptions = {**self.claim_options(), "kinds": kinds, "lease_token": token}
        self._listener.listen(options.get("lanes", ()))
        options["acknowledged"] = self._free_slots()
        options["cut_off"], sent_at = self._keeper.cut_off_at is not None, self._timer.monotonic()
        started = self._unacknowledged.started()
        both = await self._operations.async_on(self._store).settle_and_claim(
            pairs, limit=room, started=[attempt.claim for attempt in started], **options
        )
        self._unacknowledged.let_go(started)
        self._keeper.note_cut_off_sent(sent_at)
        return both.settlements, both.claims

    def _free_slots(self) -> int:
        """Return how many of the jobs claimed next can start at once; 0 if affinities may have to be loaded first."""
        return 0 if self._affinities is not None else max(0, min(self._concurrency - self._busy, limits.CLAIM_MAX))

    def _still_held(self, ended: Sequence[RunningAttempt]) -> list[RunningAttempt]:
        """Return the attempts whose lease has not expired; drop the others."""
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
                self._count(attempt, outcome_name(attempt.outcome), settlement.job)
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
        for observer in self._observers:
            observer.ended(attempt.claim, outcome, job, attempt.run_seconds)

    def _amend(self, attempt: RunningAttempt, refusal: HoldfastError) -> None:
        log.error("the outcome of job %s was refused: %s", attempt.claim.job.id, refusal)
        attempt.amend(failure_from_refusal(refusal))
        self._decided.append(attempt)

    def _let_go(self, attempts: Sequence[RunningAttempt], counted: str | None = None) -> None:
        self._keeper.remove(attempts)
        self._unacknowledged.let_go(attempts)
        for attempt in attempts:
            if self._held.pop(attempt.key, None) is not None and counted is not None:
                self._count(attempt, counted)

    def _turn_ended(self, turn: RunningAttempt, outcome: str, first: Job | None) -> None:
        self._count(turn, outcome, first)
        self._let_go([turn])

    def _start_claims(self, claims: Sequence[Claim], sent_at: float) -> None:
        self._start_attempts(
            [RunningAttempt(claim, self._tasks.get(claim.job.kind), sent_at, self._timer) for claim in claims]
        )

    def _start_attempts(self, attempts: Sequence[RunningAttempt]) -> None:
        """Hold the leases of *attempts* and run them when slots become free."""
        for attempt in attempts:
            if attempt.task.takes_context:
                offer_transaction(attempt, self._operations, self._store)
        if self._observers:
            observe_attempts(self._observers, attempts)
        self._held.update((attempt.key, attempt) for attempt in attempts)
        self._unacknowledged.add(attempts)
        self._keeper.add(attempts)
        if self._stopping:
            # These were claimed by a call that was in progress when the worker was stopped.
            self.release_waiting()
            return
        log_started(attempts)
        self._busy += len(attempts)
        self._submit(self._dispatcher.admit(attempts))

    def _submit(self, attempts: Sequence[RunningAttempt]) -> None:
        """Queue attempts for slots; those whose affinity is not loaded wait for it first."""
        self._executor_queue.put(attempts if self._affinities is None else self._affinities.admit(attempts))

    # --- shutdown --------------------------------------------------------------------------------------------------

    def release_waiting(self, *, loading: bool = True) -> None:
        """Release attempts that have not started; with *loading*, also those that wait for an affinity to load."""
        for attempt in list(self._held.values()):
            if (loading or attempt.loading_since is None) and attempt.release_if_waiting():
                self.attempt_decided(attempt)

    @property
    def loaded(self) -> tuple[str, ...]:
        """The loaded affinities."""
        if self._affinities is not None:
            return self._affinities.loaded
        return affinities_of(self._subscription.options())

    @property
    def loading(self) -> tuple[str, ...]:
        """The affinities that are being loaded."""
        return () if self._affinities is None else self._affinities.loading

    @property
    def switches(self) -> int:
        """How often an affinity was unloaded to make room for another."""
        return 0 if self._affinities is None else self._affinities.switches

    @property
    def load_seconds(self) -> float:
        """How long loads and unloads took in total."""
        return 0.0 if self._affinities is None else self._affinities.load_seconds

    @property
    def abandoned(self) -> int:
        """The number of handlers that keep running without a slot after the request to stop."""
        return len(self._stuck)

    @property
    def running(self) -> int:
        """The number of attempts that this worker holds."""
        return len(self._held)

    def running_jobs(self) -> tuple[RunningJob, ...]:
        """Return the jobs that this worker holds, longest running first. Safe to call from any thread."""
        return running_jobs(self._keeper.held(), self._timer.monotonic())

    def release_running(self, *, at_once: bool) -> None:
        """Request all handlers to stop; with *at_once*, release their jobs without waiting for them."""
        for attempt in list(self._held.values()):
            attempt.stop("shutdown")
            if at_once and attempt.decide(Released()):
                self.attempt_decided(attempt)


class UnacknowledgedAttempts:
    """The held attempts whose claims are not acknowledged yet."""

    def __init__(self) -> None:
        self._attempts: dict[tuple[int, int], RunningAttempt] = {}

    def add(self, attempts: Iterable[RunningAttempt]) -> None:
        """Add those of *attempts* that the claim itself did not acknowledge."""
        self._attempts.update(
            (attempt.key, attempt) for attempt in attempts if row_of(attempt.claim.job).unacknowledged
        )

    def started(self) -> list[RunningAttempt]:
        """Return running attempts, as many as one call can acknowledge; settlement acknowledges ended ones."""
        running = [
            attempt for attempt in self._attempts.values() if attempt.started_at is not None and not attempt.decided
        ]
        return running[: limits.SETTLE_MANY_MAX]

    def let_go(self, attempts: Iterable[RunningAttempt]) -> None:
        """Remove attempts that were acknowledged or have ended."""
        for attempt in attempts:
            self._attempts.pop(attempt.key, None)
