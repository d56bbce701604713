"""WorkerMaintenance: what every worker does for the store beside its jobs, a little at a time and spread by chance.

Promotion, taking back and deadlines belong to every claim and need no upkeep; what is left is the registry of
workers, retention, and telling of jobs that somebody should look at.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable

from holdfast.client.operations import Operations
from holdfast.domain.claims import ClaimOptions
from holdfast.domain.errors import HoldfastError
from holdfast.domain.results import WorkerInfo, WorkerState
from holdfast.storage.randomness import RANDOM
from holdfast.storage.store import Store
from holdfast.version import __version__
from holdfast.worker.retry import RetryState
from holdfast.worker.timers import Timer

log = logging.getLogger("holdfast.worker")

BEAT_SECONDS = 10.0
_LOOK_SECONDS = 60.0
# How long after its start a worker first looks for troubles: others that start with it are in the registry by then.
_FIRST_LOOK_SECONDS = 5.0


class WorkerMaintenance:
    """Runs beside the core until told to end."""

    def __init__(
        self,
        operations: Operations,
        store: Store,
        words: Callable[[], ClaimOptions],
        *,
        concurrency: int,
        running: Callable[[], int],
        loaded: Callable[[], tuple[str, ...]] = tuple,
        switches: Callable[[], int] = lambda: 0,
        retention_seconds: float | None,
        timer: Timer,
    ) -> None:
        self._timer = timer
        self._retrying = RetryState("upkeep calls", timer)
        self._ending = False
        self._state: WorkerState = "active"
        self._changed = asyncio.Event()
        self._operations = operations
        self._store = store
        self._words = words
        self._concurrency = concurrency
        self._running = running
        self._loaded = loaded
        self._switches = switches
        self._retention_seconds = retention_seconds
        self._told: set[tuple[str, str]] = set()
        self._lanes_checked = False
        # Workers that start together must not all come round together.
        self._next_prune_at = self._timer.monotonic() + _LOOK_SECONDS * RANDOM.random()
        first_look_seconds = min(_FIRST_LOOK_SECONDS, _LOOK_SECONDS)
        self._next_look_at = self._timer.monotonic() + first_look_seconds * RANDOM.uniform(0.5, 1.0)

    async def run(self) -> None:
        """Keep things up until told to end; what fails is tried again next time."""
        while not self._ending:
            try:
                await self.beat()
                if not self._lanes_checked:
                    await self._check_lanes()
                if self._timer.monotonic() >= self._next_prune_at:
                    await self._prune()
                if self._timer.monotonic() >= self._next_look_at:
                    await self._look()
                self._retrying.succeeded()
            except HoldfastError as error:
                self._retrying.failed(error)
            seconds_to_look = max(self._next_look_at - self._timer.monotonic(), 0.1)
            await self._pause(min(BEAT_SECONDS * RANDOM.uniform(0.8, 1.0), seconds_to_look))

    def end(self) -> None:
        """Let `run` return once its call to the store has ended: a row written after that would stay."""
        self._ending = True
        self._changed.set()

    async def _pause(self, seconds: float) -> None:
        await self._timer.wait_async(self._changed, seconds)
        self._changed.clear()

    def say_stopping(self) -> None:
        """Write soon that this worker takes no more jobs."""
        self._state = "stopping"
        self.say_soon()

    def say_soon(self) -> None:
        """Write soon what has changed."""
        self._changed.set()

    async def beat(self) -> None:
        """Write this worker's row."""
        words = self._words()
        said = WorkerInfo(
            worker=words["worker"],
            incarnation=words["incarnation"],
            host=socket.gethostname(),
            process=os.getpid(),
            version=__version__,
            state=self._state,
            concurrency=self._concurrency,
            running=self._running(),
            lanes=tuple(words.get("lanes", ())),
            kinds=tuple(words.get("kinds") or ()),
            capabilities=tuple(words.get("capabilities", ())),
            loaded=self._loaded(),
            switches=self._switches(),
        )
        await self._operations.async_on(self._store).worker_beat(said)

    async def leave(self) -> None:
        """Delete this worker's row."""
        words = self._words()
        await self._operations.async_on(self._store).worker_leave(words["worker"], words["incarnation"])

    async def _check_lanes(self) -> None:
        """Warn of lanes that are misspelt, as far as can be told: no task names them, and no job was ever there."""
        words = self._words()
        used = {lane.name for lane in await self._operations.async_on(self._store).lanes()}
        known = used | set(self._operations.tasks.lanes(words.get("kinds") or ()))
        self._lanes_checked = True
        for lane in words.get("lanes", ()):
            if lane not in known:
                others = ", ".join(sorted(known)) or "none"
                log.warning(
                    "lane %s exists nowhere: no task names it and no job was ever in it; known: %s", lane, others
                )

    async def _prune(self) -> None:
        self._next_prune_at = self._timer.monotonic() + _LOOK_SECONDS * RANDOM.uniform(0.5, 1.5)
        if self._retention_seconds is not None:
            pruned = await self._operations.async_on(self._store).prune(older_than=self._retention_seconds)
            if any(pruned):
                log.info("deleted %d finished jobs and %d events past their retention", *pruned)

    async def _look(self) -> None:
        """Log stuck, suspect and unserved jobs, each trouble once until it has gone, however many they become."""
        self._next_look_at = self._timer.monotonic() + _LOOK_SECONDS * RANDOM.uniform(0.5, 1.5)
        findings = await self._operations.async_on(self._store).troubles()
        troubles = [finding for finding in findings if finding.status != "ok"]
        for finding in troubles:
            if (finding.name, finding.subject) not in self._told:
                log.warning("%s: %s%s", finding.name, finding.detail, finding.remedy and f"; {finding.remedy}")
        self._told = {(finding.name, finding.subject) for finding in troubles}
