"""Periodic maintenance that every worker runs, at random intervals: its registry row, retention, warnings.

Promotion of due jobs, expired leases and deadlines are not handled here: every claim handles them.
"""

import asyncio
import logging
import os
import socket
import weakref
from contextlib import suppress

from holdfast.client.async_api.worker_calls import AsyncWorkerCalls
from holdfast.domain import errors, results
from holdfast.storage import notifications, randomness
from holdfast.storage.store import Store
from holdfast.version import __version__
from holdfast.worker import loop, retry
from holdfast.worker.events import DrainRequested, EventQueue, StopRequested
from holdfast.worker.settings import WorkerSettings

log = logging.getLogger("holdfast.worker")

HEARTBEAT_SECONDS = 10.0
_CHECK_SECONDS = 60.0
_DECLARATION_SECONDS = 900.0
# How long after its start a worker first checks for problems: workers that start with it have registered by then.
_FIRST_CHECK_SECONDS = 5.0

# The problems that were logged, each with the worker that did. The workers of a process that have a store in common,
# as those of the gateway, find the same ones.
_logged: weakref.WeakKeyDictionary[Store, dict[tuple[str, str], object]] = weakref.WeakKeyDictionary()


class WorkerMaintenance:
    """Runs beside the worker loop until it is stopped."""

    def __init__(self, settings: WorkerSettings, worker_loop: loop.WorkerLoop, events: EventQueue) -> None:
        self._timer = settings.timer
        self._loop = asyncio.get_running_loop()
        self._requested: results.WorkerRequest | None = None
        self._retrying = retry.RetryState("maintenance calls", settings.timer)
        self._stopping = False
        self._queue = settings.queue
        self._store, self._tasks = settings.store, settings.tasks
        self._calls = AsyncWorkerCalls(settings.store)
        self._concurrency = settings.concurrency
        self._retention_seconds = settings.retention_seconds
        self._worker_loop = worker_loop
        self._events = events
        self._logged = _logged.setdefault(settings.store, {})
        self._finder = object()
        self._found: set[tuple[str, str]] = set()
        self._lanes_checked = False
        self._published: set[str] = set()
        self._codec = settings.queue_state.codec
        self._next_declaration_at = self._timer.monotonic()
        # Random times keep workers that start together from running maintenance at the same time.
        self._next_prune_at = self._timer.monotonic() + _CHECK_SECONDS * randomness.RANDOM.random()
        first_check_seconds = min(_FIRST_CHECK_SECONDS, _CHECK_SECONDS)
        self._next_check_at = self._timer.monotonic() + first_check_seconds * randomness.RANDOM.uniform(0.5, 1.0)

    async def run(self) -> None:
        """Run maintenance until `stop`; failed calls are retried in the next round."""
        topic = notifications.worker_request_topic(self._worker_loop.claim_options()["worker"])
        self._store.notifier.add(topic, self)
        try:
            await self._run()
        finally:
            self._store.notifier.remove(topic, self)

    async def _run(self) -> None:
        while not self._stopping:
            try:
                await self.write_row()
                await self._publish_kinds()
                if self._timer.monotonic() >= self._next_declaration_at:
                    await self._declare_schedules()
                if not self._lanes_checked:
                    await self._check_lanes()
                if self._timer.monotonic() >= self._next_prune_at:
                    await self._prune()
                if self._timer.monotonic() >= self._next_check_at:
                    await self._check_problems()
                self._retrying.succeeded()
            except errors.HoldfastError as error:
                self._retrying.failed(error)
            seconds_to_check = max(self._next_check_at - self._timer.monotonic(), 0.1)
            await self._pause(min(HEARTBEAT_SECONDS * randomness.RANDOM.uniform(0.8, 1.0), seconds_to_check))

    def stop(self) -> None:
        """Make `run` return after its current store call: a row written later would never be deleted."""
        self._stopping = True
        self._worker_loop.row_changed.set()

    async def _pause(self, seconds: float) -> None:
        await self._timer.wait_async(self._worker_loop.row_changed, seconds)
        self._worker_loop.row_changed.clear()

    def wake(self) -> None:
        """Read soon what was requested of this worker. Safe to call from any thread."""
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._worker_loop.row_changed.set)

    async def write_row(self) -> None:
        """Write this worker's row in the registry, and pass on a new request to drain or stop."""
        claim_options = self._worker_loop.claim_options()
        affinities = self._worker_loop.affinities
        info = results.WorkerInfo(
            worker=claim_options["worker"],
            incarnation=claim_options["incarnation"],
            host=socket.gethostname(),
            process=os.getpid(),
            version=__version__,
            state=self._worker_loop.state,
            concurrency=self._concurrency,
            running=len(self._worker_loop.held),
            lanes=tuple(claim_options.get("lanes", ())),
            kinds=tuple(claim_options.get("kinds") or ()),
            capabilities=tuple(claim_options.get("capabilities", ())),
            loaded=self._worker_loop.loaded,
            switches=self._worker_loop.switches,
            switches_saved=0 if affinities is None else affinities.switches_saved,
            hold_left=None if affinities is None else affinities.hold_left,
        )
        requested = await self._calls.beat(info)
        if requested is not None and requested != self._requested:
            self._requested = requested
            log.info("worker %s was requested to %s", info.worker, requested)
            self._events.put(DrainRequested() if requested == "drain" else StopRequested(once=True))

    async def delete_row(self) -> None:
        """Delete this worker's row from the registry."""
        claim_options = self._worker_loop.claim_options()
        await self._calls.leave(claim_options["worker"], claim_options["incarnation"])

    async def _publish_kinds(self) -> None:
        """Publish the tasks that this worker serves, each once: another version may publish the same kind later."""
        claim_options = self._worker_loop.claim_options()
        kinds = [kind for kind in claim_options.get("kinds") or () if kind not in self._published]
        if kinds:
            publications = {kind: self._tasks.get(kind).publication() for kind in kinds}
            await self._calls.publish_kinds(publications, claim_options["worker"])
            self._published.update(kinds)

    async def _declare_schedules(self) -> None:
        """Set the schedules that the tasks of this worker's queue declare; warn of names that belong to others."""
        self._next_declaration_at = self._timer.monotonic() + _DECLARATION_SECONDS * randomness.RANDOM.uniform(0.8, 1)
        declared = list(self._tasks.schedules.values())
        if not declared:
            return
        for name, owner in await self._calls.declare_schedules(declared, self._codec):
            taken = f"declared by module {owner}" if owner else "set by a call"
            log.warning("schedule %s is not declared by this worker: it was %s; remove that one first", name, taken)

    async def _check_lanes(self) -> None:
        """Warn of lanes that may be misspelt: no task names them and no job was ever in them."""
        claim_options = self._worker_loop.claim_options()
        used = {lane.name for lane in await self._queue.lanes.list()}
        known = used | set(self._tasks.lanes(claim_options.get("kinds") or ()))
        self._lanes_checked = True
        for lane in claim_options.get("lanes", ()):
            if lane not in known:
                others = ", ".join(sorted(known)) or "none"
                log.warning(
                    "lane %s does not exist: no task names it and no job was ever in it; known: %s", lane, others
                )

    async def _prune(self) -> None:
        self._next_prune_at = self._timer.monotonic() + _CHECK_SECONDS * randomness.RANDOM.uniform(0.5, 1.5)
        while await self._calls.delete_expired():
            pass
        if self._retention_seconds is not None:
            pruned = await self._queue.admin.prune(older_than=self._retention_seconds)
            if pruned.jobs or pruned.events:
                message = "deleted %d finished jobs and %d events past their retention"
                log.info(message, pruned.jobs, pruned.events)

    async def _check_problems(self) -> None:
        """Log stuck, suspect and unserved jobs, each trouble once in this process until it is resolved."""
        self._next_check_at = self._timer.monotonic() + _CHECK_SECONDS * randomness.RANDOM.uniform(0.5, 1.5)
        findings = await self._calls.problems()
        problems = [finding for finding in findings if finding.status != "ok"]
        found = {(finding.name, finding.subject): finding for finding in problems}
        for key, finding in found.items():
            # The first worker to find it logs it; a worker of another thread may do so at the same time.
            if self._logged.setdefault(key, self._finder) is self._finder and key not in self._found:
                log.warning("%s: %s%s", finding.name, finding.detail, finding.remedy and f"; {finding.remedy}")
        for key in self._found - found.keys():
            self._logged.pop(key, None)
        self._found = set(found)
