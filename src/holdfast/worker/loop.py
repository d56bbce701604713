"""The worker's main loop: reads events, and settles ended attempts and claims jobs for free slots in one commit.

The loop claims as many jobs as there are free slots. It claims more only if handlers are so short that slots would
wait for the next commit. It collects ended attempts for a few milliseconds at most.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Literal, assert_never

from holdfast.client.async_api.worker_calls import AsyncWorkerCalls
from holdfast.domain import claims as claim_rules, errors, limits, outcomes, results
from holdfast.domain.claims import Claim, ClaimOptions, Settlement
from holdfast.storage import notifications, randomness, store
from holdfast.worker import (
    claim_ahead,
    events,
    held_attempts,
    job_logs,
    lease_keeper,
    stuck_handlers,
    subscription,
    transactions,
)
from holdfast.worker.attempt import RunningAttempt, amend_invalid, emitted, fail_refused
from holdfast.worker.executors import Executor, ExecutorQueue, TaskExecutor, ThreadExecutor
from holdfast.worker.joint_writes import JointWrite
from holdfast.worker.retry import RetryState, RetryWaits
from holdfast.worker.settings import WorkerSettings
from holdfast.worker.shutdown import Phase, Shutdown
from holdfast.worker.status import WorkerStatus, running_jobs
from holdfast.worker.warm_resources import AffinityLoader

if TYPE_CHECKING:
    from holdfast.worker.isolation.dispatcher import Dispatcher
    from holdfast.worker.session_loop import SessionTurns
    from holdfast.worker.session_turn import Turn

log = logging.getLogger("holdfast.worker")

_LINGER_SECONDS = 0.002
# Jobs that have waited longer for a slot are released, because another worker may be idle.
_WAIT_SECONDS_MAX = 1.0
# How often a worker checks what is due.
_POLL_SECONDS = 1.0


class WorkerLoop:
    """Claims jobs, starts attempts and settles them.

    It runs in one event loop, as the only reader of *event_queue*: what happens in other threads reaches it only as
    events. A call that settles and claims, an *exchange*, runs in a task beside it. If there are many short jobs and
    the store can do two such calls at once, a second one begins before the first has ended.
    """

    def __init__(
        self, settings: WorkerSettings, event_queue: events.EventQueue, keeper: lease_keeper.LeaseKeeper
    ) -> None:
        timer = settings.timer
        self.fatal_error: errors.HandlersStuck | None = None
        """The error that makes this worker stop, if any."""
        self.draining = False
        self.shutdown = Shutdown(settings.grace_seconds, timer)
        self.held = held_attempts.HeldAttempts(keeper, settings.queue_state.middleware)
        self.row_changed = asyncio.Event()
        """Set if this worker's row in the registry needs an update."""
        self._settings = settings
        self._queue = settings.queue
        self._store = settings.store
        self._subscription = settings.subscription
        self._concurrency = settings.concurrency
        self._timer = timer
        self._events = event_queue
        self._keeper = keeper
        self._listener = events.LaneListener(
            settings.store.notifier, notifications.lane_topic, event_queue, events.Notified("jobs")
        )
        self._executor_queue = ExecutorQueue(settings.concurrency, self._executor_for)
        self._threads = ThreadExecutor(self._executor_queue, event_queue)
        self._coroutines = TaskExecutor(self._executor_queue, event_queue, timer)
        self._stuck = stuck_handlers.StuckHandlers(self._executor_queue, settings.concurrency, timer)
        self.affinities = self._create_affinity_loader()
        """The loaded affinities; None if this worker loads nothing."""
        self._dispatcher: Dispatcher | None = None
        """Created when the first attempt has to be isolated."""
        self._turns: SessionTurns | None = None
        """Created when the first session task is declared."""
        self._exchanges: dict[asyncio.Task[None], int] = {}
        """The calls in flight, each with the number of jobs that it may claim."""
        self._exchanges_max = 1 if settings.store.writes_in_order else 2
        self._found_all = False
        """Whether the last claim found as many jobs as requested."""
        self._event_loop: asyncio.AbstractEventLoop | None = None
        """The event loop, while this worker runs in it."""
        self._retrying = RetryState("claims and settlements", timer)
        self._retry_waits = RetryWaits(timer)
        self._busy = 0
        """The number of attempts that run or wait for a slot."""
        self._next_claim_at = 0.0
        """When to claim next if no notification comes before."""
        self._ahead = claim_ahead.ClaimAhead(self._exchanges_max)

    # --- parts that not every worker needs -------------------------------------------------------------------------

    def _create_affinity_loader(self) -> AffinityLoader | None:
        if self._settings.warm is None:
            return None
        return AffinityLoader(
            self._settings.warm,
            subscription.affinities_of(self._subscription.options),
            store=self._store,
            keeper=self._keeper,
            executor_queue=self._executor_queue,
            events=self._events,
            timer=self._timer,
        )

    def _isolation(self) -> Dispatcher:
        """Return the part that runs attempts in their own processes; create it at the first call."""
        if self._dispatcher is None:
            from holdfast.worker.isolation.dispatcher import Dispatcher  # noqa: PLC0415  # few workers isolate

            self._dispatcher = Dispatcher(self._settings, self._executor_queue, self._events, running=self._busy)
        return self._dispatcher

    def _serve_sessions(self) -> None:
        """Create the part that claims and settles turns, if there are session tasks and it does not exist."""
        if self._turns is None and self._subscription.sessions is not None:
            from holdfast.worker.session_loop import SessionTurns  # noqa: PLC0415  # few workers handle sessions

            self._turns = SessionTurns(self._settings, self.held, self._events, self._retry_waits)

    # --- the loop --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run jobs until a stop is requested and no attempt is held, or the shutdown has no time left.

        A cancellation acts like a request to stop: held attempts are settled or released first.
        """
        try:
            self._start_parts()
            self._event_loop = asyncio.get_running_loop()
            while True:
                self._handle_events()
                self._handle_due()
                if self._is_over():
                    break
                while self._start_exchange():
                    pass
                await self._wait()
        finally:
            self._event_loop = None
            for exchange in list(self._exchanges):
                exchange.cancel()
                await self.shutdown.end_within(1.5, exchange)
            await self.shutdown.end_within(1.5, asyncio.ensure_future(self._close()))

    def _start_parts(self) -> None:
        """Create the parts that the tasks declared so far need."""
        self._serve_sessions()
        if any(map(self._settings.isolation.isolates, self._settings.tasks_served())):
            # Nothing is claimed before the fork server has found the tasks.
            self._run_exchange(self._isolation().start(), 0)

    def _is_over(self) -> bool:
        if self.shutdown.phase in {Phase.RUNNING, Phase.OVER}:
            return self.shutdown.phase is Phase.OVER
        waited = self.shutdown.has_waited_for_calls(self.held.log_wait, in_flight=bool(self._exchanges))
        return waited and not self.held

    async def _close(self) -> None:
        if self._dispatcher is not None:
            self._dispatcher.close()
        self._listener.close()
        if self._turns is not None:
            self._turns.close()
        self._threads.close()
        if self.affinities is not None:
            await self.affinities.close()
        await self._coroutines.close()

    async def _wait(self) -> None:
        """Wait for an event, or until something is due; then collect further ended attempts."""
        exchanging = bool(self._exchanges)
        try:
            # An attempt that ends during an exchange is settled by the next one.
            await self._events.wait(self._seconds_until_due(), urgent_only=exchanging)
            self._handle_events()
            if not exchanging and self._busy and self.held.any_to_settle:
                await asyncio.sleep(_LINGER_SECONDS)
        except asyncio.CancelledError as error:
            self.shutdown.cancellation = error
            self._stop()

    def _seconds_until_due(self) -> float:
        now = self._timer.monotonic()
        until = min(now + _POLL_SECONDS, self.shutdown.phase_ends_at)
        if not self._exchanges and self._room():
            if self._subscription.jobs is not None:
                until = min(until, self._next_claim_at)
            if self._turns is not None:
                until = min(until, self._turns.due_at)
        return until - now

    # --- events ----------------------------------------------------------------------------------------------------

    def _handle_events(self) -> None:
        if ended := self._events.take_ended():
            self._handlers_ended(ended)
        for event in self._events.drain():
            match event:
                case events.AttemptDecided(attempt):
                    self._attempt_decided(attempt)
                case events.Notified(of):
                    self._notified(of)
                case events.ExchangeEnded():
                    self._exchange_ended()
                case events.StoreRecovered():
                    self._retry_waits.end()
                case events.AffinitiesChanged():
                    self.row_changed.set()
                case events.TaskNotFound(attempt, problem):
                    self._isolation().task_not_found(attempt, problem)
                case events.DrainRequested():
                    self._drain()
                case events.StopRequested(once):
                    self._stop(once=once)
                case _:
                    assert_never(event)

    def _attempt_decided(self, attempt: RunningAttempt) -> None:
        if self.held.decided(attempt):
            self._stuck.watch(attempt)
            if self.affinities is not None and attempt.stopped == "cancel":
                self.affinities.leave(attempt)

    def _notified(self, of: Literal["jobs", "sessions"]) -> None:
        if of == "jobs":
            self._listener.handled()
            self._next_claim_at = 0.0
        elif self._turns is not None:
            self._turns.notified()

    def _handlers_ended(self, attempts: Sequence[RunningAttempt]) -> None:
        stuck = self._stuck
        freed = [one for one in attempts if not stuck.handler_ended(one)] if len(stuck) else list(attempts)
        self._free(freed)
        self._ahead.ended([seconds for attempt in freed if (seconds := attempt.run_seconds) is not None])
        if self._turns is not None:
            for attempt in attempts:
                self._turns.handler_ended(attempt)
        self.held.handlers_ended(attempts)

    def _free(self, attempts: Sequence[RunningAttempt]) -> None:
        """Record that attempts have left their slots."""
        self._busy -= len(attempts)
        if self._turns is None and self._dispatcher is None and self.affinities is None:
            return
        for attempt in attempts:
            self._slot_freed(attempt)

    def _slot_freed(self, attempt: RunningAttempt) -> None:
        if self._turns is not None:
            self._turns.slot_freed(attempt)
        if self._dispatcher is not None:
            self._dispatcher.slot_freed(attempt)
        if self.affinities is not None:
            self.affinities.release(attempt)

    def _exchange_ended(self) -> None:
        for exchange in [one for one in self._exchanges if one.done()]:
            del self._exchanges[exchange]
            if not exchange.cancelled():
                exchange.result()
            else:
                self._stop(once=True)  # the event loop is being closed
        if self.draining:
            self.row_changed.set()

    # --- what is due -----------------------------------------------------------------------------------------------

    def _handle_due(self) -> None:
        """Do what needs no event: new tasks, delayed jobs, handlers that do not stop, the next phase of shutdown."""
        if self._subscription.refresh():
            self._serve_sessions()
        self._release_delayed()
        self._reclaim_slots()
        if self._dispatcher is not None:
            self._submit(self._dispatcher.next_alone())
        if self.shutdown.phase_ends_at <= self._timer.monotonic():
            self._begin_phase(self.shutdown.advance(requested=False))

    def _release_delayed(self) -> None:
        """Release jobs that were claimed ahead and wait behind handlers that run longer than expected."""
        if self._busy <= self._concurrency:
            return
        waiting = self.held.longest_waiting()
        if waiting is not None and self._timer.monotonic() - waiting.claimed_at > _WAIT_SECONDS_MAX:
            self._ahead.start_over()
            self._release_waiting(loading=False)

    def _release_waiting(self, *, loading: bool = True) -> None:
        """Release attempts that have not started; with *loading*, also those that wait for an affinity to load."""
        for attempt in self.held.attempts():
            if (loading or attempt.loading_since is None) and attempt.release_if_waiting():
                self.held.decided(attempt)

    def _reclaim_slots(self) -> None:
        """Free the slots of handlers that do not stop, and shut down if there are too many of them."""
        self._free(self._stuck.reclaim_slots())
        stuck = self._stuck.error_if_too_many()
        if self.affinities is not None:
            stuck = self.affinities.cancel_overdue() or stuck
        if stuck is not None and self.fatal_error is None:
            self.fatal_error = stuck
            log.critical("%s", stuck)
            self._stop(once=True)

    # --- shutdown --------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        if self._claims_jobs:
            log.info("worker %s claims no more jobs and keeps running", self._settings.name)
            self.draining = True
            self._stop_claiming()

    def _stop(self, *, once: bool = False) -> None:
        if self.shutdown.phase is Phase.RUNNING or not once:
            self._begin_phase(self.shutdown.advance(requested=True))

    def _begin_phase(self, phase: Phase) -> None:
        match phase:
            case Phase.GRACE:
                log.info("worker %s claims no more jobs and waits for running handlers", self._settings.name)
                self._stop_claiming()
                self._retry_waits.stop()
                self._release_waiting()
            case Phase.STOPPING | Phase.RELEASING:
                self._release_running(at_once=phase is Phase.RELEASING)
            case Phase.RUNNING | Phase.OVER:
                pass

    def _stop_claiming(self) -> None:
        if self._turns is not None:
            self._turns.stop_claiming()
        self.row_changed.set()

    def _release_running(self, *, at_once: bool) -> None:
        """Request all handlers to stop; with *at_once*, release their jobs without waiting for them."""
        for attempt in self.held.attempts():
            attempt.stop("shutdown")
            if at_once and attempt.decide(outcomes.Released()):
                self.held.decided(attempt)

    @property
    def _claims_jobs(self) -> bool:
        return self.shutdown.phase is Phase.RUNNING and not self.draining

    # --- the exchange with the store -------------------------------------------------------------------------------

    def _start_exchange(self) -> bool:
        """Settle what has ended and claim for free slots, if there is something to do; return whether there was."""
        room = self._room()
        overlaps = bool(self._exchanges)
        if overlaps and not self._may_overlap(room):
            return False
        ended = self.held.to_settle()
        job_room = room if self._subscription.jobs is not None else 0
        claim_jobs = job_room > 0 and (overlaps or self._timer.monotonic() >= self._next_claim_at)
        turns: list[Turn] = []
        turn_slots, lost_turns = 0, False
        if self._turns is not None:
            ended, turns = self._turns.separate(ended)
            turn_slots = self._turns.share(room, jobs_wait=claim_jobs)
            lost_turns = self._turns.has_entries_to_release
        if not (ended or claim_jobs or turns or turn_slots or lost_turns):
            return False
        job_room = max(0, job_room - turn_slots) if ended or claim_jobs else 0
        self.held.settling(ended)
        self._run_exchange(self._call_store(ended, job_room, turns, turn_slots), job_room)
        return True

    def _may_overlap(self, room: int) -> bool:
        """Whether a further exchange may begin: a batch is wanted, and the last claim found all that it requested."""
        return (
            len(self._exchanges) < self._exchanges_max
            and self._found_all
            and room >= claim_ahead.BATCH_MAX
            and self._turns is None
            and self.affinities is None
            and self._dispatcher is None
        )

    def _run_exchange(self, calls: Coroutine[Any, Any, None], room: int) -> asyncio.Task[None]:
        self._retry_waits.call_begins()
        exchange = asyncio.ensure_future(calls)
        self._exchanges[exchange] = room
        exchange.add_done_callback(lambda _exchange: self._events.put(events.ExchangeEnded()))
        return exchange

    def _room(self) -> int:
        """Return how many more jobs this worker should claim."""
        if not self._claims_jobs or (self._dispatcher is not None and self._dispatcher.paused):
            return 0
        expected = self._busy + sum(self._exchanges.values())
        wanted = self._concurrency + self._ahead.count(self._concurrency) - expected
        # One call claims a limited number of jobs; the next call claims more.
        return max(0, min(wanted, max(self._concurrency, claim_ahead.BATCH_MAX)))

    def claim_with(self, operation: store.Operation[Any]) -> JointWrite | None:
        """Begin a claim in the transaction of *operation*; return None if this worker does not wait for jobs here."""
        is_idle = not self._exchanges and not self.held.any_to_settle and self._room() > 0
        can_join = self._event_loop is asyncio.get_running_loop() and self._store.translate is None
        if not (is_idle and can_join and self._subscription.jobs is not None and self._turns is None):
            return None
        joint = JointWrite(self._store, operation)
        # One job: an idle worker has found no others, and to look for them again would delay this one.
        self._run_exchange(self._settle_and_claim([], 1, joint), 1).add_done_callback(joint.withdraw)
        return joint

    async def _call_store(
        self, ended: list[RunningAttempt], job_room: int, turns: list[Turn], turn_slots: int
    ) -> None:
        if self._turns is not None:
            await self._turns.settle(turns)
        if ended or job_room:
            await self._settle_and_claim(ended, job_room)
        if self._turns is not None and turn_slots:
            async for claimed in self._turns.claim(turn_slots):
                await self._keeper.renew_late(self._store, claimed)
                self._start_attempts(claimed)

    async def _settle_and_claim(
        self, ended: list[RunningAttempt], room: int, joint: JointWrite | None = None
    ) -> None:
        """Settle *ended* and claim up to *room* jobs in one commit, the first with *joint*; retry until answered."""
        unknown, sent_at, token = False, self._timer.monotonic(), secrets.token_hex(16)
        if room and joint is None:
            # A notification that comes from now on is about a job that this claim may not find.
            self._next_claim_at = math.inf
        while ended or (room and (unknown or self._claims_jobs)):
            self._retry_waits.call_begins()
            try:
                # A claim that may have been committed is sent again, so that its jobs do not have to expire.
                limit = room if unknown or self._claims_jobs else 0
                settlements, claims = await self._send(ended, limit, token, joint)
            except errors.Unavailable as error:
                self._found_all = False
                await self._retry_waits.wait(self._retrying.failed(error))
                ended = self.held.drop_expired(ended, self._timer.monotonic())
                unknown = unknown or isinstance(error, errors.OutcomeUnknown)
                if not unknown or self._timer.monotonic() > sent_at + self._keeper.lease_seconds:
                    unknown, sent_at, token = False, self._timer.monotonic(), secrets.token_hex(16)
            except Exception as error:
                if joint is not None:
                    # The operation of the other caller may be at fault: it runs alone, and so does the claim.
                    joint.withdraw()
                    joint = None
                elif not amend_invalid(ended):
                    raise
                else:
                    log.error("an outcome was refused: %s", error)
            else:
                self._retrying.succeeded()
                self.held.settled(ended, settlements)
                await self._start_claims(claims, sent_at)
                if joint is None:
                    self._found_all = len(claims) == room
                    pause = self._poll_seconds * randomness.RANDOM.uniform(0.5, 1.0) if len(claims) < room else 0.0
                    self._next_claim_at = min(self._next_claim_at, self._timer.monotonic() + pause)
                return

    async def _send(
        self, ended: list[RunningAttempt], room: int, token: str, joint: JointWrite | None = None
    ) -> tuple[list[Settlement], list[Claim]]:
        if texts := emitted(ended):
            await AsyncWorkerCalls(self._store).flush_output(texts)
            fail_refused(ended)
        pairs = [(attempt.claim, attempt.outcome or outcomes.Released()) for attempt in ended]
        if not room:
            return await self._queue.settle_many(pairs), []
        kinds = (self._subscription.jobs or {}).get("kinds")
        options: ClaimOptions = {**self.claim_options(), "kinds": kinds, "lease_token": token}
        self._listener.listen(options.get("lanes", ()))
        options["acknowledged"] = self._free_slots()
        options["cut_off"], sent_at = self._keeper.cut_off_at is not None, self._timer.monotonic()
        started = self.held.to_acknowledge()
        queue = self._queue if joint is None else joint.queue(self._settings.queue_state)
        both = await queue.settle_and_claim(
            pairs, limit=room, started=[attempt.claim for attempt in started], **options
        )
        self.held.acknowledged(started)
        self._keeper.note_cut_off_sent(sent_at)
        return both.settlements, both.claims

    @property
    def _poll_seconds(self) -> float:
        """How long to wait for a notification before the next claim."""
        # Jobs of an affinity that is not loaded may be claimed after a time, without a notification.
        return _POLL_SECONDS if self.affinities is not None else self._store.notifier.poll_seconds

    def claim_options(self) -> ClaimOptions:
        """Return the options of a claim."""
        options = self._subscription.options
        if self.affinities is not None:
            options = {**options, **self.affinities.claim_options()}
        return options

    def _free_slots(self) -> int:
        """Return how many of the jobs claimed next can start at once; 0 if affinities may have to be loaded first."""
        if self.affinities is not None or len(self._exchanges) > 1:
            return 0
        return max(0, min(self._concurrency - self._busy, limits.CLAIM_MAX))

    # --- starting attempts -----------------------------------------------------------------------------------------

    async def _start_claims(self, claims: Sequence[Claim], sent_at: float) -> None:
        tasks = self._settings.tasks
        attempts = [RunningAttempt(claim, tasks.get(claim.job.kind), sent_at, self._timer) for claim in claims]
        await self._keeper.renew_late(self._store, attempts)
        self._start_attempts(attempts)

    def _start_attempts(self, attempts: Sequence[RunningAttempt]) -> None:
        """Hold the leases of *attempts* and run them when slots become free."""
        for attempt in attempts:
            if attempt.task.takes_context:
                transactions.offer_transaction(attempt, self._settings.queue_state)
        self.held.add(attempts)
        if self.shutdown.phase is not Phase.RUNNING:
            # These were claimed by a call that was in progress when the worker was stopped.
            self._release_waiting()
            return
        job_logs.log_started(attempts)
        admitted = self._admit(attempts)
        self._busy += len(attempts)
        self._submit(admitted)

    def _admit(self, attempts: Sequence[RunningAttempt]) -> Sequence[RunningAttempt]:
        """Choose which attempts run isolated; return all but suspects that must wait until nothing else runs here."""
        if self._dispatcher is None:
            isolated = any(map(self._settings.isolation.isolates, {attempt.task for attempt in attempts}))
            usual = claim_rules.are_usual(attempt.claim for attempt in attempts)
            if not isolated and (usual or not any(attempt.suspect for attempt in attempts)):
                return attempts
        return self._isolation().admit(attempts)

    def _submit(self, attempts: Sequence[RunningAttempt]) -> None:
        """Queue attempts for slots; those whose affinity is not loaded wait for it first."""
        self._executor_queue.put(attempts if self.affinities is None else self.affinities.admit(attempts))

    def _executor_for(self, attempt: RunningAttempt) -> Executor:
        if attempt.isolated and self._dispatcher is not None:
            return self._dispatcher.processes
        return self._coroutines if attempt.task.is_async else self._threads

    # --- status ----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> results.WorkerState:
        """The state that this worker's row in the registry shows."""
        if self.shutdown.phase is not Phase.RUNNING:
            return "stopping"
        # A claim that is still running may find jobs.
        return "draining" if self.draining and not any(self._exchanges.values()) else "active"

    @property
    def loaded(self) -> tuple[str, ...]:
        """The loaded affinities."""
        return (
            subscription.affinities_of(self._subscription.options)
            if self.affinities is None
            else self.affinities.loaded
        )

    @property
    def switches(self) -> int:
        """How often an affinity was unloaded to make room for another."""
        return 0 if self.affinities is None else self.affinities.switches

    def status(self) -> WorkerStatus:
        """Return the worker's running jobs, counters and recent failures. Safe to call from any thread."""
        affinities = self.affinities
        return WorkerStatus(
            self._settings.name,
            running_jobs(self._keeper.held(), self._timer.monotonic()),
            dict(self.held.counts),
            stopping=self.shutdown.phase is not Phase.RUNNING,
            draining=self.draining,
            abandoned=len(self._stuck),
            loaded=self.loaded,
            loading=() if affinities is None else affinities.loading,
            switches=self.switches,
            load_seconds=0.0 if affinities is None else affinities.load_seconds,
            failures=tuple(self.held.failures),
        )
