"""`Worker`: runs the tasks of a queue until it is told to stop.

It owns the start and the end: which thread and loop everything lives in, what signals mean, how long handlers are
waited for. What happens in between is the core's.
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
from holdfast.client.middleware import Watch
from holdfast.client.queue import Queue
from holdfast.domain import limits, validation
from holdfast.domain.claims import ClaimOptions, check_claim
from holdfast.domain.errors import InvalidInput, Misconfigured
from holdfast.domain.validation import Duration
from holdfast.storage.cancellation import in_daemon_thread
from holdfast.tasks.policy import Isolation, check_isolation, check_memory_limit
from holdfast.worker import isolation
from holdfast.worker.isolation.dispatcher import IsolationSettings, refuse_unfit
from holdfast.worker.lease_keeper import LeaseKeeper
from holdfast.worker.loop import WorkerLoop
from holdfast.worker.maintenance import WorkerMaintenance
from holdfast.worker.status import WorkerStatus
from holdfast.worker.subscription import Subscription
from holdfast.worker.timers import REAL_TIMER, Timer
from holdfast.worker.warm_resources import Hook, check_terms
from holdfast.worker.watched_attempts import WorkerMetrics

log = logging.getLogger("holdfast.worker")

CONCURRENCY_DEFAULT = 8
GRACE_SECONDS_DEFAULT = 30.0
_NAMES_SHOWN = 8
# How often `running` looks whether a worker that does not start has ended.
_STARTED_SECONDS = 0.05
# A worker ends within five seconds after the grace period, whatever the store and the handlers do. Each step may take
# what is left of them, but for what the steps after it need at least; the rest is for the interpreter to exit.
_ENDING_SECONDS = 3.5
# Of these, how long handlers that were told to stop are waited for.
_STOPPING_SECONDS = 1.0


class Worker:
    """Runs the tasks of *queue*, *concurrency* at once.

    The words of a claim (`lanes`, `kinds`, `tenant`, `capabilities`, `affinity`, `drain`, `exclusive`, `lease`) say
    which jobs it takes; by default those of every task the queue knows, in the lanes these name. *grace* is how many
    seconds running handlers are waited for when the worker is told to stop; what is left is released. *retention* is
    how many seconds finished jobs and events are kept; none keeps them for ever. *metrics* measures it: see
    `holdfast.telemetry`. *timer* is the clock that it reads and waits by, for tests that move time.

    *load* and *unload* are functions of either colour, called with an affinity whose model, or whatever it names, is
    to be loaded before jobs beside it run, or to make room for another; *residents* of them are at hand at once, one
    unless said otherwise. `affinity` then says what is loaded from the start. *residence* is for how many seconds
    jobs beside these are favoured while others wait; without it, as long as there are any.

    With `isolate="process"` every handler runs in a process of its own, not only those whose task says so. For all of
    them: *memory_limit* is how many bytes one may use unless its task says otherwise, *recycle_after* how many
    attempts it runs before another takes its place, *kill_after* how many seconds one that is told to stop may take.

    Raises `HandlersStuck` once more handlers than it has slots run on though they were told to stop.
    """

    def __init__(
        self,
        queue: Queue | AsyncQueue,
        *,
        concurrency: int = CONCURRENCY_DEFAULT,
        grace: Duration = GRACE_SECONDS_DEFAULT,
        retention: Duration | None = None,
        load: Hook | None = None,
        unload: Hook | None = None,
        residents: int | None = None,
        residence: Duration | None = None,
        isolate: Isolation | None = None,
        memory_limit: int | None = None,
        recycle_after: int = limits.RECYCLE_AFTER_DEFAULT,
        kill_after: Duration = limits.KILL_AFTER_MS_DEFAULT / 1000,
        metrics: WorkerMetrics | None = None,
        timer: Timer = REAL_TIMER,
        **words: Unpack[ClaimOptions],
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
        self._residents = check_terms(load, unload, residents, residence, words.get("affinity"))
        for word in ("wait", "lease_token", "residence_left", "affinities_held", "affinities_max"):
            if word in words:
                raise InvalidInput(word, "is the worker's own to say")
        self.name = validation.name(words.get("worker", ids.worker_name()), "worker")
        self.incarnation = words.get("incarnation", uuid.uuid4().hex)
        self._words: ClaimOptions = {**words, "worker": self.name, "incarnation": self.incarnation}
        self._lease_seconds = check_claim(self._words, limit=1, fresh_token="").lease_ms / 1000
        self._refuse_unfit()
        self._metrics = metrics
        self._timer = timer
        self._core: WorkerLoop | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stops: asyncio.Queue[None] | None = None
        self._stop_asked = False
        self._serving = threading.Event()
        self._ends_at: float | None = None
        """When it has to have ended, by its timer; none before the grace period is over."""
        self._cancel: asyncio.CancelledError | None = None
        """What `serve` was cancelled with, to be raised at its end."""

    # --- running ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run jobs in this thread until a signal or `stop` ends it; a second signal ends it at once."""
        asyncio.run(self._serve_alone())

    @contextmanager
    def running(self) -> Iterator[Worker]:
        """Run jobs in a thread of this program for a block: `with Worker(queue).running(): …`.

        At the end of the block the worker stops as by `stop`: it waits for running handlers up to *grace* and
        releases the rest. What made it end earlier is raised then; what keeps it from starting, at once.
        """
        ended: Future[None] = Future()
        threading.Thread(target=_run_into, args=(ended, self.run), name="holdfast-worker", daemon=True).start()
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
                # Pressed again while it waits for handlers.
                self.stop()
                ended.result()
                raise

    async def _serve_alone(self) -> None:
        try:
            await self.serve(signals=threading.current_thread() is threading.main_thread())
        finally:
            # Calls that are still under way would keep the loop from closing.
            await self._store.interrupt_async()

    async def serve(self, *, signals: bool = False) -> None:
        """Run jobs in this event loop until `stop` is called, or with *signals* until SIGTERM or SIGINT.

        A cancel counts as `stop`, and a second one as a second `stop`: `CancelledError` is raised once running
        handlers have ended or their jobs are released.
        """
        if isolation.inside:
            raise Misconfigured(
                "a worker is started by importing this module, and processes of a worker import it;"
                " start it under `if __name__ == '__main__':`, or in another module"
            )
        self._refuse_unfit()
        self._ends_at, self._cancel = None, None
        self._loop = asyncio.get_running_loop()
        if signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.add_signal_handler(number, self.stop)
        subscription = Subscription(self._tasks, self._words)
        keeper_store = self._store.clone()
        keeper = LeaseKeeper(self._operations, keeper_store, self.name, self._lease_seconds, self._timer)
        try:
            self._core = WorkerLoop(
                self._operations,
                self._store,
                self._tasks,
                subscription,
                concurrency=self._concurrency,
                keeper=keeper,
                give_up=self.stop,
                residents=self._residents,
                isolation=self._isolation,
                timer=self._timer,
                watches=self._operations.watches if self._metrics is None else self._measured_by(self._metrics),
            )
            keeper.start()
            log.info("%s", self.summary())
            self._serving.set()
            async with self._kept_up(self._core) as upkeep:
                await self._serve_and_end(self._core, upkeep)
            if self._core.gave_up is not None:
                raise self._core.gave_up
            if self._cancel is not None:
                raise self._cancel
        finally:
            if not keeper.stop(self._left(0.25)):
                keeper_store.interrupt()
                keeper.stop(self._left(0))
            if self._metrics is not None:
                # Its server takes up to half a second to stop.
                await self._end_within(self._left(0), _in_daemon_thread(self._metrics.stop))
            if keeper_store is not self._store:
                # Other writers may keep a file from being closed.
                await self._end_within(self._left(0), _in_daemon_thread(keeper_store.close))
            if signals:
                for number in (signal.SIGTERM, signal.SIGINT):
                    self._loop.remove_signal_handler(number)
            log.info("worker %s has stopped", self.name)

    def _measured_by(self, metrics: WorkerMetrics) -> tuple[Watch, ...]:
        metrics.start(self._concurrency, self.status)
        return (*self._operations.watches, metrics)

    @asynccontextmanager
    async def _kept_up(self, core: WorkerLoop) -> AsyncIterator[WorkerMaintenance]:
        """Do the upkeep beside the block, and take this worker out of the registry at its end."""
        upkeep = WorkerMaintenance(
            self._operations,
            self._store,
            core.words,
            concurrency=self._concurrency,
            running=lambda: core.running,
            loaded=lambda: core.loaded,
            switches=lambda: core.switches,
            retention_seconds=self._retention_seconds,
            timer=self._timer,
        )
        core.said_soon = upkeep.say_soon
        running = asyncio.ensure_future(upkeep.run())
        try:
            yield upkeep
        finally:
            upkeep.end()
            await self._end_within(self._left(1.0), running)
            await self._end_within(self._left(0.5), asyncio.ensure_future(upkeep.leave()))

    def stop(self) -> None:
        """Take no more jobs, wait for those that run, then end; called again, end at once. From any thread."""
        self._stop_asked = True
        if self._loop is not None and self._stops is not None:
            with suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._stops.put_nowait, None)

    async def _serve_and_end(self, core: WorkerLoop, upkeep: WorkerMaintenance) -> None:
        """Serve until told to stop, then let handlers end, then give back what is left."""
        self._stops = asyncio.Queue()
        if self._stop_asked:
            self._stops.put_nowait(None)
        serving = asyncio.ensure_future(core.serve())
        try:
            if not await self._stopped_before(serving, None):
                return
            log.info("worker %s takes no more jobs and waits for those that run", self.name)
            core.stop()
            upkeep.say_stopping()
            core.release_waiting()
            stopped = await self._stopped_before(serving, self._grace_seconds)
            self._ends_at = self._timer.monotonic() + _ENDING_SECONDS
            if stopped is None:
                core.release_running(at_once=False)
                await self._stopped_before(serving, _STOPPING_SECONDS)
            if stopped is not False:
                core.release_running(at_once=True)
                # If the store is out of reach for longer, what is left expires.
                await self._stopped_before(serving, self._left(2.0))
        finally:
            core.abandon()
            serving.cancel()
            await self._end_within(self._left(1.5), serving)

    def _left(self, reserved: float) -> float:
        """Return how many seconds a step of the end may take if *reserved* are kept for those after it."""
        now = self._timer.monotonic()
        if self._ends_at is None:
            self._ends_at = now + _ENDING_SECONDS
        return max(self._ends_at - now - reserved, 0.05)

    async def _end_within(self, seconds: float, running: asyncio.Future[Any]) -> None:
        """Wait for the end of what runs, and cancel it after *seconds*; what it raises is of no use any more."""
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
        """Wait for a stop: true if one came, false if the serving ended before it, none if neither did in time."""
        assert self._stops is not None  # noqa: S101  # made before anything is served
        stop = asyncio.ensure_future(self._stops.get())
        try:
            with suppress(TimeoutError):
                async with self._timer.timeout(seconds):
                    await asyncio.wait((serving, stop), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:
            # A second cancel ends the grace period, as a second signal does.
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
        """Return in one line what this worker takes, and from where."""
        words = Subscription(self._tasks, self._words).words()
        lanes, kinds = _listed(words.get("lanes", ())), _listed(words.get("kinds") or ())
        return (
            f"worker {self.name} (process {os.getpid()}) takes {kinds} from lane{'s' * (',' in lanes)} {lanes}"
            f" of {self._store.description()}, {self._concurrency} at once"
        )

    # --- how it is doing -------------------------------------------------------------------------------------------

    def status(self) -> WorkerStatus:
        """Return what it has done and is doing, for those who watch; from any thread."""
        core = self._core
        if core is None:
            return WorkerStatus(self.name, (), {}, stopping=False)
        return WorkerStatus(
            self.name,
            core.running_jobs(),
            dict(core.counts),
            stopping=self._stop_asked,
            abandoned=core.abandoned,
            loaded=core.loaded,
            loading=core.loading,
            switches=core.switches,
            failures=tuple(core.failures),
        )

    def _refuse_unfit(self) -> None:
        """Raise `Misconfigured` if tasks that are known so far cannot be isolated as they should be."""
        kinds = self._words.get("kinds")
        tasks = [task for task in self._tasks if kinds is None or task.kind in kinds]
        refuse_unfit(self._isolation, tasks)


def _in_daemon_thread(function: Callable[[], None]) -> asyncio.Future[None]:
    return asyncio.ensure_future(in_daemon_thread(function))


def _run_into(ended: Future[None], run: Callable[[], None]) -> None:
    try:
        run()
    except BaseException as error:
        ended.set_exception(error)
    else:
        ended.set_result(None)


def _listed(names: Sequence[str]) -> str:
    """Return names in one line, of many the first ones and how many follow."""
    shown = ", ".join(names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN} more"
