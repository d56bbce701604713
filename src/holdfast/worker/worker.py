"""`Worker`: runs the tasks of a queue until it is stopped.

This module covers start and shutdown: threads, the event loop, signals and the grace period. The loop in between is
`WorkerLoop`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Unpack

from holdfast.client import ids
from holdfast.client.async_queue import AsyncQueue
from holdfast.client.middleware import AttemptObserver
from holdfast.client.queue import Queue
from holdfast.domain import limits, validation
from holdfast.domain.claims import ClaimOptions, check_claim
from holdfast.domain.errors import InvalidInput, Misconfigured
from holdfast.domain.results import WorkerRequest
from holdfast.domain.validation import Duration
from holdfast.storage.cancellation import in_daemon_thread
from holdfast.tasks.policy import Isolation, check_isolation, check_memory_limit
from holdfast.worker import isolation
from holdfast.worker.isolation.dispatcher import IsolationSettings, check_isolatable
from holdfast.worker.lease_keeper import LeaseKeeper
from holdfast.worker.loop import WorkerLoop
from holdfast.worker.maintenance import WorkerMaintenance
from holdfast.worker.observed_attempts import WorkerMetrics
from holdfast.worker.status import WorkerStatus
from holdfast.worker.subscription import Subscription, affinities_of
from holdfast.worker.timers import REAL_TIMER, Timer
from holdfast.worker.warm_resources import WarmResources, check_warm

log = logging.getLogger("holdfast.worker")

CONCURRENCY_DEFAULT = 8
GRACE_SECONDS_DEFAULT = 30.0
_NAMES_SHOWN = 8
# How often `running` checks whether a worker that has not started yet has exited.
_STARTED_SECONDS = 0.05
# A worker exits within five seconds after the grace period, even if the store or a handler hangs. Each shutdown step
# may use the remaining time except for a reserve for the later steps; the interpreter's exit gets the rest.
_ENDING_SECONDS = 3.5
# The part of these seconds in which handlers may still react to the request to stop.
_STOPPING_SECONDS = 1.0


class Worker:
    """Runs the tasks of *queue*, at most *concurrency* at once.

    The options of a claim (`lanes`, `kinds`, `tenant`, `capabilities`, `affinity`, `drain`, `exclusive`, `lease`)
    select the jobs; by default the worker claims jobs of every task of the queue, in the lanes of these tasks.
    *grace* is the number of seconds to wait for running handlers on shutdown; jobs that still run then are released.
    *retention* is the number of seconds to keep finished jobs and events; with None, they are never deleted.
    *metrics* receives measurements: see `holdfast.telemetry`. *timer* provides the time and the waits, for tests that
    control time.

    *warm* describes how the worker loads the affinities of its jobs; `affinity` then names those that are loaded at
    the start.

    With `isolate="process"` every handler runs in its own process, not only those of tasks that set `isolate`. For
    all isolated handlers, *memory_limit* is the limit in bytes unless the task sets its own, *recycle_after* the
    number of attempts after which a process is replaced, and *kill_after* the number of seconds a handler may take to
    stop.

    Raises `HandlersStuck` if more handlers than there are slots keep running after the request to stop.
    """

    def __init__(
        self,
        queue: Queue | AsyncQueue,
        *,
        concurrency: int = CONCURRENCY_DEFAULT,
        grace: Duration = GRACE_SECONDS_DEFAULT,
        retention: Duration | None = None,
        warm: WarmResources | None = None,
        isolate: Isolation | None = None,
        memory_limit: int | None = None,
        recycle_after: int = limits.RECYCLE_AFTER_DEFAULT,
        kill_after: Duration = limits.KILL_AFTER_MS_DEFAULT / 1000,
        metrics: WorkerMetrics | None = None,
        timer: Timer = REAL_TIMER,
        **options: Unpack[ClaimOptions],
    ) -> None:
        if not isinstance(queue, Queue | AsyncQueue):
            raise InvalidInput(
                "queue",
                f"must be a Queue or an AsyncQueue, not {type(queue).__name__}; "
                'write queue = holdfast.connect("jobs.db"), declare tasks on it, then Worker(queue)',
            )
        self._store = queue.store
        self._operations = queue.operations
        self._tasks = queue.tasks
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
        for name in ("wait", "lease_token", "hold_left", "affinities_held", "affinities_max"):
            if name in options:
                raise InvalidInput(name, "cannot be set; the worker controls it")
        self.name = validation.name(options.get("worker", ids.worker_name()), "worker")
        self.incarnation = options.get("incarnation", uuid.uuid4().hex)
        self._claim_options: ClaimOptions = {**options, "worker": self.name, "incarnation": self.incarnation}
        self._lease_seconds = check_claim(self._claim_options, limit=1, fresh_token="").lease_ms / 1000
        self._check_isolatable()
        self._metrics = metrics
        self._timer = timer
        self._worker_loop: WorkerLoop | None = None
        self._maintenance: WorkerMaintenance | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stops: asyncio.Queue[None] | None = None
        self._stop_requested = self._drain_requested = False
        self._serving = threading.Event()
        self._ends_at: float | None = None
        """When shutdown has to be complete, in time of the timer; None before the end of the grace period."""
        self._cancel: asyncio.CancelledError | None = None
        """The cancellation of `serve`, raised after shutdown."""

    # --- running ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run jobs in this thread until SIGTERM, SIGINT or `stop`; a second signal skips the grace period."""
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
        """Run jobs in this event loop until `stop` is called or, with *signals*, until SIGTERM or SIGINT.

        A cancellation acts like `stop`, and a second one like a second `stop`: `CancelledError` is raised after
        running handlers have ended or their jobs are released.
        """
        if isolation.inside:
            raise Misconfigured(
                "importing this module starts a worker, and the processes of isolated handlers import it too;"
                " start the worker under `if __name__ == '__main__':`, or in another module"
            )
        self._check_isolatable()
        self._ends_at, self._cancel = None, None
        self._loop = asyncio.get_running_loop()
        if signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.add_signal_handler(number, self.stop)
        subscription = Subscription(self._tasks, self._claim_options)
        keeper_store = self._store.clone()
        keeper = LeaseKeeper(self._operations, keeper_store, self.name, self._lease_seconds, self._timer)
        try:
            self._worker_loop = WorkerLoop(
                self._operations,
                self._store,
                self._tasks,
                subscription,
                concurrency=self._concurrency,
                keeper=keeper,
                request_stop=self.stop,
                warm=self._warm,
                isolation=self._isolation,
                timer=self._timer,
                observers=self._operations.observers if self._metrics is None else self._start_metrics(self._metrics),
            )
            keeper.start()
            log.info("%s", self.summary())
            self._serving.set()
            async with self._running_maintenance(self._worker_loop) as maintenance:
                await self._serve_and_end(self._worker_loop, maintenance)
            if self._worker_loop.fatal_error is not None:
                raise self._worker_loop.fatal_error
            if self._cancel is not None:
                raise self._cancel
        finally:
            if not keeper.stop(self._seconds_left(0.25)):
                keeper_store.interrupt()
                keeper.stop(self._seconds_left(0))
            if self._metrics is not None:
                # The HTTP server of the metrics takes up to half a second to stop.
                await self._end_within(self._seconds_left(0), _in_daemon_thread(self._metrics.stop))
            if keeper_store is not self._store:
                # Closing a file may block while other processes write.
                await self._end_within(self._seconds_left(0), _in_daemon_thread(keeper_store.close))
            if signals:
                for number in (signal.SIGTERM, signal.SIGINT):
                    self._loop.remove_signal_handler(number)
            log.info("worker %s has stopped", self.name)

    def _start_metrics(self, metrics: WorkerMetrics) -> tuple[AttemptObserver, ...]:
        metrics.start(self._concurrency, self.status)
        return (*self._operations.observers, metrics)

    @asynccontextmanager
    async def _running_maintenance(self, worker_loop: WorkerLoop) -> AsyncIterator[WorkerMaintenance]:
        """Run maintenance during the block; at its end, delete this worker's row from the registry."""
        maintenance = WorkerMaintenance(
            self._operations,
            self._store,
            worker_loop.claim_options,
            concurrency=self._concurrency,
            running=lambda: worker_loop.running,
            loaded=lambda: worker_loop.loaded,
            switches=lambda: worker_loop.switches,
            retention_seconds=self._retention_seconds,
            on_request=self._handle_request,
            timer=self._timer,
        )
        self._maintenance = maintenance
        if self._drain_requested:
            self._drain_now()
        worker_loop.on_state_change = maintenance.report_soon
        running = asyncio.ensure_future(maintenance.run())
        try:
            yield maintenance
        finally:
            self._maintenance = None
            maintenance.stop()
            await self._end_within(self._seconds_left(1.0), running)
            await self._end_within(self._seconds_left(0.5), asyncio.ensure_future(maintenance.delete_row()))

    def drain(self) -> None:
        """Claim no more jobs, finish those that are held, and keep running until `stop`.

        Safe to call from any thread.
        """
        self._drain_requested = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: the worker has stopped
                self._loop.call_soon_threadsafe(self._drain_now)

    def _drain_now(self) -> None:
        if self._worker_loop is not None and self._maintenance is not None and not self._stop_requested:
            log.info("worker %s claims no more jobs and keeps running", self.name)
            self._worker_loop.drain()
            self._maintenance.report_state("draining")

    def _handle_request(self, requested: WorkerRequest) -> None:
        """Do what `drain_worker` or `stop_worker` requested of this worker."""
        log.info("worker %s was requested to %s", self.name, requested)
        match requested:
            case "drain":
                self.drain()
            case "stop" if not self._stop_requested:
                # A second call would skip the grace period.
                self.stop()

    def stop(self) -> None:
        """Claim no more jobs and stop after running handlers have ended; a second call skips the wait.

        Safe to call from any thread.
        """
        self._stop_requested = True
        if self._loop is not None and self._stops is not None:
            with suppress(RuntimeError):  # the loop is closed: the worker has stopped
                self._loop.call_soon_threadsafe(self._stops.put_nowait, None)

    async def _serve_and_end(self, worker_loop: WorkerLoop, maintenance: WorkerMaintenance) -> None:
        """Serve until `stop`, wait for running handlers, then release the remaining jobs."""
        self._stops = asyncio.Queue()
        if self._stop_requested:
            self._stops.put_nowait(None)
        serving = asyncio.ensure_future(worker_loop.serve())
        try:
            if not await self._stopped_before(serving, None):
                return
            log.info("worker %s claims no more jobs and waits for running handlers", self.name)
            worker_loop.stop()
            maintenance.report_state("stopping")
            worker_loop.release_waiting()
            stopped = await self._stopped_before(serving, self._grace_seconds)
            self._ends_at = self._timer.monotonic() + _ENDING_SECONDS
            if stopped is None:
                worker_loop.release_running(at_once=False)
                await self._stopped_before(serving, _STOPPING_SECONDS)
            if stopped is not False:
                worker_loop.release_running(at_once=True)
                # If the store does not answer in this time, the leases of the remaining jobs expire.
                await self._stopped_before(serving, self._seconds_left(2.0))
        finally:
            worker_loop.abandon()
            serving.cancel()
            await self._end_within(self._seconds_left(1.5), serving)

    def _seconds_left(self, reserved: float) -> float:
        """Return how many seconds a shutdown step may take if later steps need *reserved* seconds."""
        now = self._timer.monotonic()
        if self._ends_at is None:
            self._ends_at = now + _ENDING_SECONDS
        return max(self._ends_at - now - reserved, 0.05)

    async def _end_within(self, seconds: float, running: asyncio.Future[Any]) -> None:
        """Wait for *running* and cancel it after *seconds*; ignore its exception."""
        try:
            async with self._timer.timeout(seconds):
                await asyncio.wait((running,))
        except TimeoutError:
            running.cancel()
        except asyncio.CancelledError as error:
            self._cancel = error
            running.cancel()
        if running.done() and not running.cancelled():
            running.exception()

    async def _stopped_before(self, serving: asyncio.Future[None], seconds: float | None) -> bool | None:
        """Wait for a stop request.

        Return True if one came, False if *serving* ended first, None if *seconds* passed before either.
        """
        assert self._stops is not None  # noqa: S101  # created before serving starts
        stop = asyncio.ensure_future(self._stops.get())
        try:
            with suppress(TimeoutError):
                async with self._timer.timeout(seconds):
                    await asyncio.wait((serving, stop), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:
            # A second cancellation ends the grace period, as a second signal does.
            self._cancel = error
            return True
        else:
            if serving.done():
                serving.result()
                return False
            return True if stop.done() else None
        finally:
            stop.cancel()

    def summary(self) -> str:
        """Return one line that names the kinds, lanes and store of this worker."""
        options = Subscription(self._tasks, self._claim_options).options()
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
        return WorkerStatus(
            self.name,
            worker_loop.running_jobs(),
            dict(worker_loop.counts),
            stopping=self._stop_requested,
            draining=worker_loop.draining,
            abandoned=worker_loop.abandoned,
            loaded=worker_loop.loaded,
            loading=worker_loop.loading,
            switches=worker_loop.switches,
            load_seconds=worker_loop.load_seconds,
            failures=tuple(worker_loop.failures),
        )

    def _check_isolatable(self) -> None:
        """Raise `Misconfigured` if a task declared so far needs isolation and cannot be isolated."""
        kinds = self._claim_options.get("kinds")
        tasks = [task for task in self._tasks if kinds is None or task.kind in kinds]
        check_isolatable(self._isolation, tasks)


def _in_daemon_thread(function: Callable[[], None]) -> asyncio.Future[None]:
    return asyncio.ensure_future(in_daemon_thread(function))


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
