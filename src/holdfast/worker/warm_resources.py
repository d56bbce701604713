"""Warm resources of a worker, such as models or caches: loads what jobs need, unloads the least recently used.

A job that names an affinity runs only while this affinity is loaded. If it is not loaded, the worker loads it first
and unloads the least recently used one that no attempt uses. `AffinityLoader` runs in the worker loop; sync hooks run
in their own threads.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from holdfast.domain import errors, limits, validation
from holdfast.domain.claims import ClaimOptions
from holdfast.domain.validation import Duration
from holdfast.storage import cancellation
from holdfast.storage.store import Store
from holdfast.worker.attempt import RunningAttempt
from holdfast.worker.events import AffinitiesChanged, EventQueue
from holdfast.worker.executors import ExecutorQueue
from holdfast.worker.lease_keeper import LeaseKeeper
from holdfast.worker.timers import Timer

log = logging.getLogger("holdfast.worker")

Hook: TypeAlias = Callable[[str], object | Awaitable[object]]
"""Loads or unloads an affinity; a sync or async function."""

LOADING, WORKING = "loading", "working"


class LoadFailedError(Exception):
    """The affinity of a job could not be loaded; the job will be retried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmResources:
    """What a worker keeps loaded for its jobs: models, shards, caches, each named by an affinity.

    *load* and *unload* are sync or async functions that take an affinity. The worker calls *load* before it runs jobs
    with an affinity that is not loaded, and *unload* to make room for another. *capacity* is the number of affinities
    that may be loaded at once. *max_hold* is the number of seconds for which the worker prefers jobs of loaded
    affinities while others wait; by default it prefers them as long as there are any.
    """

    load: Hook | None = None
    """Loads an affinity."""
    unload: Hook | None = None
    """Unloads an affinity."""
    capacity: int = 1
    """How many affinities may be loaded at once."""
    max_hold: Duration | None = None
    """Seconds for which jobs of loaded affinities are preferred while others wait."""

    def __post_init__(self) -> None:
        """Raise `InvalidInput` if a value is invalid."""
        for option, hook in (("load", self.load), ("unload", self.unload)):
            if hook is not None and not callable(hook):
                raise errors.InvalidInput(
                    option, f"must be a function that takes an affinity, not {type(hook).__name__}"
                )
        validation.integer(self.capacity, "capacity", 1, limits.AFFINITIES_MAX)
        if self.max_hold is not None:
            validation.duration_ms(self.max_hold, "max_hold")


def check_warm(warm: object, loaded: tuple[str, ...]) -> None:
    """Raise `InvalidInput` if *warm* is not a `WarmResources`, or has no room for the *loaded* affinities."""
    if not isinstance(warm, WarmResources):
        raise errors.InvalidInput(
            "warm",
            f"must be a WarmResources, not {type(warm).__name__}; write Worker(queue, warm=WarmResources(load=load))",
        )
    if len(set(loaded)) > warm.capacity:
        raise errors.InvalidInput(
            "affinity",
            f"names {len(set(loaded))} affinities, and the capacity of the warm resources is {warm.capacity}",
        )


class ArrivalOrder:
    """Counts the switches of a worker that runs the same jobs in the order in which they were enqueued.

    The last thousands of jobs are sorted, and those before them are taken as they came.
    """

    LONG = 4_000

    def __init__(self, loaded: Sequence[str], capacity: int) -> None:
        self._loaded: dict[str, None] = dict.fromkeys(loaded)
        self._capacity = capacity
        self._past = 0
        self._jobs: list[tuple[int, str]] = []

    def add(self, number: int, affinity: str) -> None:
        """Count the job with this number."""
        self._jobs.append((number, affinity))
        if len(self._jobs) >= self.LONG:
            self._jobs.sort()
            half = len(self._jobs) // 2
            self._past += _run_in_order(self._jobs[:half], self._loaded, self._capacity)
            del self._jobs[:half]

    def switches(self) -> int:
        """Return how many switches there would have been so far."""
        return self._past + _run_in_order(sorted(self._jobs), dict(self._loaded), self._capacity)


def _run_in_order(jobs: Sequence[tuple[int, str]], loaded: dict[str, None], capacity: int) -> int:
    """Load what *jobs* need into *loaded*, which is ordered by last use; return how often one made room."""
    switches = 0
    for _, affinity in jobs:
        if affinity not in loaded and len(loaded) >= capacity:
            del loaded[next(iter(loaded))]
            switches += 1
        loaded.pop(affinity, None)
        loaded[affinity] = None
    return switches


class _Load:
    """One affinity that is being loaded, and the attempts that wait for it."""

    def __init__(self, affinity: str) -> None:
        self.affinity = affinity
        self.attempts: list[RunningAttempt] = []
        self.task: asyncio.Task[None] | None = None

    @property
    def ends_at(self) -> float:
        """When the last waiting attempt times out, by the monotonic clock."""
        return max(attempt.timeout_at or 0.0 for attempt in self.attempts)


class AffinityLoader:
    """Tracks loaded affinities and their use, loads those that attempts need, and counts switches.

    The affinities in *loaded* are loaded at the start.
    """

    def __init__(
        self,
        warm: WarmResources,
        loaded: Sequence[str],
        *,
        store: Store,
        keeper: LeaseKeeper,
        executor_queue: ExecutorQueue,
        events: EventQueue,
        timer: Timer,
    ) -> None:
        self.switches = 0
        """How often an affinity was unloaded to make room for another."""
        self.load_seconds = 0.0
        """How long loads and unloads took in total."""
        self._warm = warm
        self._max_hold_seconds = (
            None if warm.max_hold is None else validation.duration_ms(warm.max_hold, "max_hold") / 1000
        )
        self._store = store
        self._keeper = keeper
        self._executor_queue = executor_queue
        self._events = events
        self._timer = timer
        self._loaded: dict[str, None] = dict.fromkeys(loaded)
        """Ordered by last use, least recent first."""
        self._in_order = ArrivalOrder(loaded, warm.capacity)
        self._used: Counter[str] = Counter()
        """The number of held attempts that need each affinity."""
        self._loads: dict[str, _Load] = {}
        self._load_lock = asyncio.Lock()
        self._held_since = self._timer.monotonic()
        self._warned_of_max_hold = False

    @property
    def loaded(self) -> tuple[str, ...]:
        """The loaded affinities, least recently used first."""
        return tuple(self._loaded)

    @property
    def switches_saved(self) -> int:
        """How many more switches there would have been in the order in which the jobs were enqueued."""
        return max(0, self._in_order.switches() - self.switches)

    @property
    def hold_left(self) -> float | None:
        """For how many seconds jobs of loaded affinities are preferred; None without a bound."""
        if self._max_hold_seconds is None or not self._loaded:
            return None
        return max(0.0, self._held_since + self._max_hold_seconds - self._timer.monotonic())

    @property
    def loading(self) -> tuple[str, ...]:
        """The affinities that are being loaded."""
        return tuple(self._loads)

    # --- claims ----------------------------------------------------------------------------------------------------

    def claim_options(self) -> ClaimOptions:
        """Return the claim options for affinities: which to prefer, for how long, and how many may be new."""
        claim_options: ClaimOptions = {
            "affinity": sorted({*self._loaded, *self._loads}),
            "affinities_held": sorted(+self._used),
            "affinities_max": self._warm.capacity,
        }
        hold = self._max_hold_seconds
        if hold is not None and not self._loads and self._timer.monotonic() >= self._held_since + hold:
            claim_options["hold_left"] = 0
        return claim_options

    # --- attempts --------------------------------------------------------------------------------------------------

    def admit(self, attempts: Sequence[RunningAttempt]) -> list[RunningAttempt]:
        """Return the attempts that can run now; the others start when their affinity is loaded."""
        can_run = []
        for attempt in attempts:
            affinity = attempt.claim.job.affinity
            if affinity is not None:
                self._used[affinity] += 1
                self._in_order.add(attempt.claim.job.number, affinity)
                if affinity not in self._loaded:
                    self._wait_for(affinity, attempt)
                    continue
                self._loaded[affinity] = self._loaded.pop(affinity)
            can_run.append(attempt)
        return can_run

    def release(self, attempt: RunningAttempt) -> None:
        """Record that an attempt no longer needs its affinity."""
        affinity = attempt.claim.job.affinity
        if affinity is not None:
            self._used[affinity] -= 1

    def _wait_for(self, affinity: str, attempt: RunningAttempt) -> None:
        attempt.loading_since = self._timer.monotonic()
        attempt.handler_state.note_progress(LOADING)
        load = self._loads.get(affinity)
        if load is None:
            load = self._loads[affinity] = _Load(affinity)
            load.task = asyncio.ensure_future(self._load_and_start(load))
            self._events.put(AffinitiesChanged())
        load.attempts.append(attempt)

    # --- loading ---------------------------------------------------------------------------------------------------

    async def _load_and_start(self, load: _Load) -> None:
        try:
            async with self._load_lock:
                await self._keeper.write_phase(self._store, load.attempts, LOADING)
                started = self._timer.monotonic()
                try:
                    await self._make_room()
                    if self._warm.load is not None:
                        log.info("loading %s", load.affinity)
                        await _call(self._warm.load, load.affinity)
                finally:
                    self._note_load_seconds(load.affinity, self._timer.monotonic() - started)
        except Exception as error:
            log.error("could not load %s: %s", load.affinity, error, exc_info=error)
            self._fail_load(load, LoadFailedError(f"could not load {load.affinity!r}: {_error_text(error)}"))
        else:
            self._loaded[load.affinity] = None
            self._held_since = self._timer.monotonic()
            await self._keeper.write_phase(self._store, load.attempts, WORKING)
            self._start_waiting(load)

    def _note_load_seconds(self, affinity: str, seconds: float) -> None:
        self.load_seconds += seconds
        log.info("a switch to %s took %.1f s", affinity, seconds)
        hold = self._max_hold_seconds
        if hold is not None and seconds > hold and not self._warned_of_max_hold:
            self._warned_of_max_hold = True
            log.warning(
                "a switch to %s took %.1f s, longer than max_hold, %.1f s: if jobs of several affinities wait, this"
                " worker spends more time loading than working; choose a longer max_hold",
                *(affinity, seconds, hold),
            )

    async def _make_room(self) -> None:
        """Unload the least recently used affinities that are not in use, until one more fits."""
        while len(self._loaded) >= self._warm.capacity:
            idle = next((name for name in self._loaded if self._used[name] <= 0), None)
            if idle is None:
                raise LoadFailedError("all loaded affinities are in use")
            del self._loaded[idle]
            self.switches += 1
            if self._warm.unload is not None:
                log.info("unloading %s", idle)
                try:
                    await _call(self._warm.unload, idle)
                except Exception as error:  # its state is unknown: treat it as unloaded
                    log.error("could not unload %s: %s", idle, error, exc_info=error)

    def _fail_load(self, load: _Load, error: LoadFailedError) -> None:
        for attempt in load.attempts:
            attempt.fail_loading(error)
        self._start_waiting(load)

    def _start_waiting(self, load: _Load) -> None:
        """Queue the waiting attempts for slots; slots skip attempts that are already decided."""
        if self._loads.get(load.affinity) is load:
            del self._loads[load.affinity]
            for attempt in load.attempts:
                attempt.handler_state.note_progress(WORKING)
                attempt.loading_since = None
                attempt.claimed_at = self._timer.monotonic()
            self._executor_queue.put(load.attempts)
            self._events.put(AffinitiesChanged())

    # --- loads that end early --------------------------------------------------------------------------------------

    def leave(self, attempt: RunningAttempt) -> None:
        """Let a cancelled attempt leave the load that it waits for; cancel a load for which no attempt waits.

        A sync hook cannot be cancelled: the attempt leaves when it has ended.
        """
        load = self._loads.get(attempt.claim.job.affinity or "")
        if load is None or attempt not in load.attempts or not inspect.iscoroutinefunction(self._warm.load):
            return
        load.attempts.remove(attempt)
        attempt.loading_since = None
        # A slot skips it, because it is decided.
        self._executor_queue.put([attempt])
        if not load.attempts and load.task is not None:
            log.info("cancelled loading %s: all jobs that wait for it are cancelled", load.affinity)
            load.task.cancel()
            self._start_waiting(load)

    def cancel_overdue(self) -> errors.HandlersStuck | None:
        """Cancel loads whose waiting attempts have all timed out.

        Return the error to stop the worker with if the hook is sync and cannot be cancelled.
        """
        stuck = None
        for load in list(self._loads.values()):
            if load.task is None or load.ends_at > self._timer.monotonic():
                continue
            load.task.cancel()
            for attempt in load.attempts:
                # It must not run without its affinity, even if the lease keeper has not noticed the timeout yet.
                attempt.time_out()
            log.error("cancelled loading %s: all jobs that wait for it have timed out", load.affinity)
            if not inspect.iscoroutinefunction(self._warm.load):
                stuck = errors.HandlersStuck(1, sorted({attempt.claim.job.kind for attempt in load.attempts}))
            self._start_waiting(load)
        return stuck

    async def close(self) -> None:
        """Cancel loads in progress; loaded affinities stay loaded."""
        tasks = [load.task for load in self._loads.values() if load.task is not None]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def _call(hook: Hook, affinity: str) -> None:
    """Call a sync or async hook without blocking the event loop."""
    if inspect.iscoroutinefunction(hook):
        await hook(affinity)
        return
    # A daemon thread does not keep a stopping worker alive.
    result = await cancellation.in_daemon_thread(partial(_call_sync, hook, affinity))
    if inspect.isawaitable(result):
        await result


def _call_sync(hook: Hook, affinity: str) -> object:
    try:
        return hook(affinity)
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise
        # A future cannot hold StopIteration, and SystemExit is a failure of the load, not the end of the worker.
        raise RuntimeError(repr(error)) from error


def _error_text(error: Exception) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # __str__ itself may fail
        return type(error).__name__
