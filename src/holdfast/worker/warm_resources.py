"""What a worker has loaded: which models, warm shards or caches are at hand, which has to go for another to come.

A job that names an affinity runs only while that is resident. What is not is loaded first, in the place of what was
used longest ago and is not in use. WarmResources live in the core's loop; hooks that block run in threads of their
own.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from holdfast.domain import limits, validation
from holdfast.domain.claims import ClaimOptions
from holdfast.domain.errors import HandlersStuck, InvalidInput
from holdfast.domain.validation import Duration
from holdfast.worker.attempt import RunningAttempt
from holdfast.worker.timers import Timer

log = logging.getLogger("holdfast.worker")

Hook: TypeAlias = Callable[[str], object | Awaitable[object]]
"""Loads or unloads what an affinity names; a function of either colour."""

LOADING, WORKING = "loading", "working"


class LoadFailedError(Exception):
    """What a job needs could not be loaded; it will be tried again."""


class WarmResourceSettings(NamedTuple):
    """What a worker was told of residents."""

    load: Hook | None
    unload: Hook | None
    capacity: int
    residence_seconds: float | None
    loaded: tuple[str, ...]
    """What is there from the start."""


def check_terms(
    load: Hook | None,
    unload: Hook | None,
    residents: int | None,
    residence: Duration | None,
    affinity: str | Sequence[str] | None,
) -> WarmResourceSettings | None:
    """Return the terms, or None where nothing is ever loaded; raise `InvalidInput` naming the word that is wrong."""
    for word, hook in (("load", load), ("unload", unload)):
        if hook is not None and not callable(hook):
            raise InvalidInput(word, f"must be a function, not {type(hook).__name__}")
    if load is None and unload is None and residents is None and residence is None:
        return None
    capacity = validation.integer(1 if residents is None else residents, "residents", 1, limits.AFFINITIES_MAX)
    loaded = (affinity,) if isinstance(affinity, str) else tuple(affinity or ())
    if len(set(loaded)) > capacity:
        raise InvalidInput("affinity", f"names {len(set(loaded))} of them; the worker has room for {capacity}")
    seconds = None if residence is None else validation.duration_ms(residence, "residence") / 1000
    return WarmResourceSettings(load, unload, capacity, seconds, tuple(dict.fromkeys(loaded)))


class _Load:
    """One thing on its way in, and who waits for it."""

    def __init__(self, affinity: str) -> None:
        self.affinity = affinity
        self.attempts: list[RunningAttempt] = []
        self.task: asyncio.Task[None] | None = None

    @property
    def ends_at(self) -> float:
        """When the time of the last who waits is up, by the monotonic clock."""
        return max(attempt.timeout_at or 0.0 for attempt in self.attempts)


class WarmResources:
    """Knows what is loaded and in use, loads what attempts need, and counts the switches."""

    def __init__(
        self,
        terms: WarmResourceSettings,
        *,
        ready: Callable[[Sequence[RunningAttempt]], None],
        say: Callable[[Sequence[RunningAttempt], str], Awaitable[None]],
        changed: Callable[[], None],
        timer: Timer,
    ) -> None:
        self.switches = 0
        """How often something was unloaded to make room for something else."""
        self._terms = terms
        self._ready = ready
        self._say = say
        self._changed = changed
        self._timer = timer
        self._loaded: dict[str, None] = dict.fromkeys(terms.loaded)
        """In the order of use, the longest ago first."""
        self._used: Counter[str] = Counter()
        """How many attempts in this worker's hands need each."""
        self._loads: dict[str, _Load] = {}
        self._one_by_one = asyncio.Lock()
        self._since = self._timer.monotonic()

    @property
    def loaded(self) -> tuple[str, ...]:
        """What is at hand, what was used longest ago first."""
        return tuple(self._loaded)

    @property
    def loading(self) -> tuple[str, ...]:
        """What is on its way in."""
        return tuple(self._loads)

    # --- what to claim ---------------------------------------------------------------------------------------------

    def words(self) -> ClaimOptions:
        """Return what a claim has to know: what to favour, for how long, and how much may come."""
        words: ClaimOptions = {
            "affinity": sorted({*self._loaded, *self._loads}),
            "affinities_held": sorted(+self._used),
            "affinities_max": self._terms.capacity,
        }
        if self._terms.residence_seconds is not None and not self._loads and self._stayed >= 0:
            words["residence_left"] = 0
        return words

    @property
    def _stayed(self) -> float:
        """For how many seconds beyond the bound nothing new has come."""
        return self._timer.monotonic() - self._since - (self._terms.residence_seconds or 0)

    # --- who needs what --------------------------------------------------------------------------------------------

    def admit(self, attempts: Sequence[RunningAttempt]) -> list[RunningAttempt]:
        """Return those that can run now; the others are handed on as soon as what they need is loaded."""
        can_run = []
        for attempt in attempts:
            affinity = attempt.claim.job.affinity
            if affinity is not None:
                self._used[affinity] += 1
                if affinity not in self._loaded:
                    self._wait_for(affinity, attempt)
                    continue
                self._loaded[affinity] = self._loaded.pop(affinity)
            can_run.append(attempt)
        return can_run

    def let_go(self, attempt: RunningAttempt) -> None:
        """Note that an attempt needs nothing any more."""
        affinity = attempt.claim.job.affinity
        if affinity is not None:
            self._used[affinity] -= 1

    def _wait_for(self, affinity: str, attempt: RunningAttempt) -> None:
        attempt.loading_since = self._timer.monotonic()
        attempt.context.note_progress(LOADING)
        load = self._loads.get(affinity)
        if load is None:
            load = self._loads[affinity] = _Load(affinity)
            load.task = asyncio.ensure_future(self._bring(load))
            self._changed()
        load.attempts.append(attempt)

    # --- loading ---------------------------------------------------------------------------------------------------

    async def _bring(self, load: _Load) -> None:
        try:
            async with self._one_by_one:
                await self._say(load.attempts, LOADING)
                await self._make_room()
                if self._terms.load is not None:
                    log.info("loads %s", load.affinity)
                    await _call(self._terms.load, load.affinity)
        except Exception as error:
            log.error("could not load %s: %s", load.affinity, error, exc_info=error)
            self._failed(load, LoadFailedError(f"could not load {load.affinity!r}: {_shown(error)}"))
        else:
            self._loaded[load.affinity] = None
            self._since = self._timer.monotonic()
            await self._say(load.attempts, WORKING)
            self._hand_on(load)

    async def _make_room(self) -> None:
        """Unload what was used longest ago and is not in use, until one more fits."""
        while len(self._loaded) >= self._terms.capacity:
            idle = next((name for name in self._loaded if self._used[name] <= 0), None)
            if idle is None:
                raise LoadFailedError("everything that is loaded is in use")
            del self._loaded[idle]
            self.switches += 1
            if self._terms.unload is not None:
                log.info("unloads %s", idle)
                try:
                    await _call(self._terms.unload, idle)
                except Exception as error:  # it is gone, or nobody can say what is left of it
                    log.error("could not unload %s: %s", idle, error, exc_info=error)

    def _failed(self, load: _Load, error: LoadFailedError) -> None:
        for attempt in load.attempts:
            attempt.fail_loading(error)
        self._hand_on(load)

    def _hand_on(self, load: _Load) -> None:
        """Let those who waited go on: to a slot, which passes over what is decided already."""
        if self._loads.get(load.affinity) is load:
            del self._loads[load.affinity]
            for attempt in load.attempts:
                attempt.context.note_progress(WORKING)
                attempt.loading_since = None
                attempt.taken_at = self._timer.monotonic()
            self._ready(load.attempts)
            self._changed()

    # --- loads that do not end -------------------------------------------------------------------------------------

    def give_up_overdue(self) -> HandlersStuck | None:
        """Give up loads that took the time of all who wait; return the error to end with if one cannot be stopped."""
        stuck = None
        for load in list(self._loads.values()):
            if load.task is None or load.ends_at > self._timer.monotonic():
                continue
            load.task.cancel()
            for attempt in load.attempts:
                # Without what it needs it must not run, whoever notices first that its time is up.
                attempt.time_out()
            log.error("gave up loading %s: the time of all jobs that wait for it is up", load.affinity)
            if not inspect.iscoroutinefunction(self._terms.load):
                stuck = HandlersStuck(1, sorted({attempt.claim.job.kind for attempt in load.attempts}))
            self._hand_on(load)
        return stuck

    async def close(self) -> None:
        """Stop what is being loaded, as far as it can be stopped; what is loaded stays."""
        tasks = [load.task for load in self._loads.values() if load.task is not None]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def _call(hook: Hook, affinity: str) -> None:
    """Call a hook of either colour without blocking the loop."""
    if inspect.iscoroutinefunction(hook):
        await hook(affinity)
        return
    answer = await _in_thread(hook, affinity)
    if inspect.isawaitable(answer):
        await answer


async def _in_thread(hook: Hook, affinity: str) -> Any:
    """Call a hook that blocks. Its thread is left to itself if the worker ends first."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(answer: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(answer)
        else:
            future.set_exception(error)

    def run() -> None:
        answer = None
        failure: Exception | None = None
        try:
            answer = hook(affinity)
        except StopIteration as error:  # which no future can carry
            failure = RuntimeError(repr(error))
        except BaseException as error:  # an exit of this thread is a failure too
            failure = error if isinstance(error, Exception) else RuntimeError(repr(error))
        with suppress(RuntimeError):  # the loop is closed, and the worker with it
            loop.call_soon_threadsafe(settle, answer, failure)

    threading.Thread(target=run, name="holdfast-load", daemon=True).start()
    return await future


def _shown(error: Exception) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # an error that cannot be shown is still one that happened
        return type(error).__name__
