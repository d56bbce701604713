"""`Worker`: runs the tasks of a queue until it is stopped.

This module covers start and shutdown: threads, the event loop, signals and the grace period. The loop in between is
`WorkerLoop`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Final, Unpack

from holdfast.client import ids, queue_state
from holdfast.client.async_api.queue import AsyncQueue
from holdfast.client.sync_api.queue import Queue
from holdfast.domain import errors, limits, validation
from holdfast.domain.claims import ClaimOptions, check_claim
from holdfast.domain.validation import Duration
from holdfast.storage import cancellation, store
from holdfast.tasks.policy import Isolation, check_isolation, check_memory_limit
from holdfast.webhooks import sender as webhook_sender
from holdfast.worker import isolation, joint_writes
from holdfast.worker.events import DrainRequested, EventQueue, StopRequested
from holdfast.worker.lease_keeper import LeaseKeeper
from holdfast.worker.loop import WorkerLoop
from holdfast.worker.maintenance import WorkerMaintenance
from holdfast.worker.settings import IsolationSettings, WorkerSettings
from holdfast.worker.shutdown import Shutdown, stop_signals
from holdfast.worker.status import WorkerMetrics, WorkerStatus
from holdfast.worker.subscription import Subscription, affinities_of
from holdfast.worker.timers import REAL_TIMER, Timer
from holdfast.worker.warm_resources import WarmResources, check_warm

log = logging.getLogger("holdfast.worker")

CONCURRENCY_DEFAULT = 8
GRACE_SECONDS_DEFAULT = 30.0
_NAMES_SHOWN = 8
# How often `running` checks whether a worker that has not started yet has exited.
_STARTED_SECONDS = 0.05

# The options of a claim that a worker sets itself.
_CONTROLLED: Final = ("wait", "lease_token", "hold_left", "affinities_held", "affinities_max")


class Worker:
    """Runs the tasks of *queue* until it is stopped, at most *concurrency* at once, by default 8.

    The options of a claim in `ClaimOptions` select the jobs (*lanes*, *kinds*, *tenant*, *capabilities*, *affinity*,
    *drain*, *exclusive*, *lease*); by default the worker claims jobs of every task of the queue, in the lanes of
    these tasks.
    *grace* is the number of seconds to wait for running handlers on shutdown, by default 30; jobs that still run then
    are released.
    *retention* is the number of seconds to keep finished jobs and events; with None, they are never deleted.
    *metrics* receives measurements: see `telemetry.metrics`. *timer* replaces the real time and the waits, for tests
    that control time.

    *warm* describes how the worker loads the affinities of its jobs; `affinity` then names those that are loaded at
    the start.

    With `isolate="process"` every handler runs in its own process, not only those of tasks that set `isolate`. For
    all isolated handlers, *memory_limit* is the limit in bytes unless the task sets its own, *recycle_after* the
    number of attempts after which a process is replaced, by default 1,000, and *kill_after* the number of seconds a
    handler may take to stop, by default 5.

    `run` raises `HandlersStuck` if more handlers than there are slots keep running after the request to stop.
    """

    def __init__(
        self,
        queue: Queue | AsyncQueue,
        *,
        concurrency: int = 8,
        grace: Duration = 30.0,
        retention: Duration | None = None,
        warm: WarmResources | None = None,
        isolate: Isolation | None = None,
        memory_limit: int | None = None,
        recycle_after: int = 1_000,
        kill_after: Duration = 5.0,
        metrics: WorkerMetrics | None = None,
        timer: Timer | None = None,
        **options: Unpack[ClaimOptions],
    ) -> None:
        if not isinstance(queue, Queue | AsyncQueue):
            raise errors.InvalidInput(
                "queue",
                f"must be a Queue or an AsyncQueue, not {type(queue).__name__}; "
                'write queue = holdfast.connect("jobs.db"), declare tasks on it, then Worker(queue)',
            )
        self._queue_state = queue_state.state_of(queue)
        self._store, self._tasks = self._queue_state.store, self._queue_state.tasks
        self._concurrency = validation.integer(concurrency, "concurrency", 1, limits.CONCURRENCY_MAX)
        self._retention_seconds = None if retention is None else validation.duration_ms(retention, "retention") / 1000
        self._grace_seconds = validation.duration_ms(grace, "grace") / 1000
        self._isolation = IsolationSettings(
            isolate_all=check_isolation(isolate) is not None,
            memory_limit_bytes=check_memory_limit(memory_limit),
            recycle_after=validation.integer(recycle_after, "recycle_after", 1, limits.RECYCLE_AFTER_MAX),
            kill_after_seconds=validation.duration_ms(kill_after, "kill_after") / 1000,
        )
        if warm is not None:
            check_warm(warm, affinities_of(options))
        self._warm = warm
        for name in _CONTROLLED:
            if name in options:
                raise errors.InvalidInput(name, "cannot be set; the worker controls it")
        own: Any = Worker.__init__.__kwdefaults__
        valid = own.keys() | ClaimOptions.__annotations__.keys() - set(_CONTROLLED)
        validation.refuse_unknown(options, valid, "a worker")
        self.name = validation.name(options.get("worker", ids.worker_name()), "worker")
        """The worker's name."""
        self.incarnation = options.get("incarnation", uuid.uuid4().hex)
        """The unique id of this start of the worker."""
        self._claim_options: ClaimOptions = {**options, "worker": self.name, "incarnation": self.incarnation}
        self._lease_seconds = check_claim(self._claim_options, limit=1, fresh_token="").lease_ms / 1000
        self._check_isolatable()
        self._metrics = metrics
        self._timer = REAL_TIMER if timer is None else timer
        self._worker_loop: WorkerLoop | None = None
        self._events: EventQueue | None = None
        self._stop_requested = self._drain_requested = False
        self._request_lock = threading.Lock()
        self._serving = threading.Event()

    @property
    def local_queue(self) -> AsyncQueue:
        """The queue, for callers in the event loop of `serve`: a job that it enqueues starts one commit sooner.

        If the worker waits for jobs, a write is committed together with its next claim.
        """

        async def write(operation: store.Operation[Any]) -> Any:
            joint = None if self._worker_loop is None else self._worker_loop.claim_with(operation)
            return await (self._store.write_async(operation) if joint is None else joint.result())

        return joint_writes.LocalStore(self._store, write).queue(self._queue_state)

    # --- running ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run jobs in this thread until SIGTERM, SIGINT, SIGHUP or `stop`; a second signal skips the grace period."""
        asyncio.run(self._serve_alone())

    @contextmanager
    def running(self) -> Iterator[Worker]:
        """Run jobs in a background thread for the duration of a block: `with Worker(queue).running(): …`.

        At the end of the block the worker stops as with `stop`: it waits for running handlers up to *grace* and
        releases the other jobs. An error that prevents its start is raised at once; an error that ends it early is
        raised at the end of the block.
        """
        ended: Future[None] = Future()
        threading.Thread(
            target=_run_and_set_result, args=(ended, self.run), name="holdfast-worker", daemon=True
        ).start()
        while not self._serving.wait(_STARTED_SECONDS):
            if ended.done():
                ended.result()
                break
        try:
            yield self
        finally:
            self.stop()
            try:
                ended.result()
            except KeyboardInterrupt:
                # A second Ctrl-C during the grace period.
                self.stop()
                ended.result()
                raise

    async def _serve_alone(self) -> None:
        try:
            await self.serve(signals=threading.current_thread() is threading.main_thread())
        finally:
            # Store calls that still run would keep the event loop from closing.
            await self._store.interrupt_async()

    async def serve(self, *, signals: bool = False) -> None:
        """Run jobs in this event loop until `stop` is called or, with *signals*, until SIGTERM, SIGINT or SIGHUP.

        A cancellation acts like `stop`, and a second one like a second `stop`: `CancelledError` is raised after
        running handlers have ended or their jobs are released.
        """
        if isolation.inside:
            raise errors.Misconfigured(
                "importing this module starts a worker, and the processes of isolated handlers import it too;"
                " start the worker under `if __name__ == '__main__':`, or in another module"
            )
        self._check_isolatable()
        settings = self._settings()
        events = self._open_events()
        keeper_store = self._store.clone()
        keeper = LeaseKeeper(settings, keeper_store, events)
        worker_loop = self._worker_loop = WorkerLoop(settings, events, keeper)
        shutdown = worker_loop.shutdown
        with self._handling_signals() if signals else nullcontext():
            try:
                if self._metrics is not None:
                    self._metrics.start(self._concurrency, self.status)
                keeper.start()
                log.info("%s", self.summary())
                self._serving.set()
                maintenance = WorkerMaintenance(settings, worker_loop, events)
                async with _running_maintenance(maintenance, shutdown), webhook_sender.sending(self._store):
                    await worker_loop.run()
            finally:
                if not keeper.stop(shutdown.seconds_left(0.25)):
                    keeper_store.interrupt()
                    keeper.stop(shutdown.seconds_left(0))
                if self._metrics is not None:
                    # The HTTP server of the metrics takes up to half a second to stop.
                    await shutdown.end_within(0, _in_daemon_thread(self._metrics.stop))
                if keeper_store is not self._store:
                    # Closing a file may block while other processes write.
                    await shutdown.end_within(0, _in_daemon_thread(keeper_store.close))
                log.info("worker %s has stopped", self.name)
        if worker_loop.fatal_error is not None:
            raise worker_loop.fatal_error
        if shutdown.cancellation is not None:
            raise shutdown.cancellation

    def _settings(self) -> WorkerSettings:
        """Return what the parts of the worker share."""
        state = self._queue_state
        if self._metrics is not None:
            state = replace(state, middleware=(*state.middleware, self._metrics))
        return WorkerSettings(
            name=self.name,
            queue=AsyncQueue(state),
            queue_state=state,
            subscription=Subscription(self._tasks, self._claim_options),
            concurrency=self._concurrency,
            lease_seconds=self._lease_seconds,
            grace_seconds=self._grace_seconds,
            retention_seconds=self._retention_seconds,
            isolation=self._isolation,
            warm=self._warm,
            timer=self._timer,
        )

    # --- draining and stopping -------------------------------------------------------------------------------------

    def _open_events(self) -> EventQueue:
        """Create the queue of events, with the requests that came before."""
        with self._request_lock:
            events = self._events = EventQueue(self._timer)
            if self._drain_requested:
                events.put(DrainRequested())
            if self._stop_requested:
                events.put(StopRequested())
        return events

    def drain(self) -> None:
        """Claim no more jobs, finish those that are held, and keep running until `stop`.

        Safe to call from any thread.
        """
        with self._request_lock:
            self._drain_requested = True
            if self._events is not None:
                self._events.put(DrainRequested())

    def stop(self) -> None:
        """Claim no more jobs and stop after running handlers have ended; a second call skips the wait.

        Safe to call from any thread.
        """
        with self._request_lock:
            self._stop_requested = True
            if self._events is not None:
                self._events.put(StopRequested())

    @contextmanager
    def _handling_signals(self) -> Iterator[None]:
        """Stop at SIGTERM, SIGINT and SIGHUP during the block."""
        loop, numbers = asyncio.get_running_loop(), stop_signals()
        for number in numbers:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def summary(self) -> str:
        """Return one line that names the kinds, lanes and store of this worker."""
        options = Subscription(self._tasks, self._claim_options).options
        lanes, kinds = _join_names(options.get("lanes", ())), _join_names(options.get("kinds") or ())
        return (
            f"worker {self.name} (process {os.getpid()}) takes {kinds} from lane{'s' * (',' in lanes)} {lanes}"
            f" of {self._store.description()}, {self._concurrency} at once"
        )

    # --- status ----------------------------------------------------------------------------------------------------

    def status(self) -> WorkerStatus:
        """Return the worker's running jobs, counters and recent failures. Safe to call from any thread."""
        worker_loop = self._worker_loop
        if worker_loop is None:
            return WorkerStatus(self.name, (), {}, stopping=False)
        return worker_loop.status()

    def _check_isolatable(self) -> None:
        """Raise `Misconfigured` if a task declared so far needs isolation and cannot be isolated."""
        kinds = self._claim_options.get("kinds")
        tasks = [task for task in self._tasks if kinds is None or task.kind in kinds]
        if self._isolation.memory_limit_bytes is not None or any(map(self._isolation.isolates, tasks)):
            from holdfast.worker.isolation.dispatcher import check_isolatable  # noqa: PLC0415  # few workers isolate

            check_isolatable(self._isolation, tasks)


@asynccontextmanager
async def _running_maintenance(maintenance: WorkerMaintenance, shutdown: Shutdown) -> AsyncIterator[None]:
    """Run maintenance during the block; at its end, delete the worker's row from the registry."""
    running = asyncio.ensure_future(maintenance.run())
    try:
        yield
    finally:
        maintenance.stop()
        await shutdown.end_within(1.0, running)
        await shutdown.end_within(0.5, asyncio.ensure_future(maintenance.delete_row()))


def _in_daemon_thread(function: Callable[[], None]) -> asyncio.Future[None]:
    return asyncio.ensure_future(cancellation.in_daemon_thread(function))


def _run_and_set_result(ended: Future[None], run: Callable[[], None]) -> None:
    try:
        run()
    except BaseException as error:
        ended.set_exception(error)
    else:
        ended.set_result(None)


def _join_names(names: Sequence[str]) -> str:
    """Return *names* in one line: the first few, and the number of the others."""
    shown = ", ".join(names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN} more"
