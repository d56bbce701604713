"""Maintenance by the service: what is due, for workers that wait for notifications, and what has expired."""

import asyncio
import contextlib
import logging
import time
from typing import Final

from holdfast.client.async_api.worker_calls import AsyncWorkerCalls
from holdfast.domain import errors
from holdfast.operations import claim, session_claim
from holdfast.storage import randomness, runners
from holdfast.storage.store import Store

log = logging.getLogger("holdfast.service")

# How often the service looks for what is due, at least and at most.
_LOOK_SECONDS_MIN: Final = 0.02
_LOOK_SECONDS_MAX: Final = 1.0
# How often it also looks for late jobs and expired leases of sessions.
_WHOLE_LOOK_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 5.0
_DELETION_SECONDS: Final = 60.0
# How many transactions delete in a row; each deletes a few megabytes of uploads and some keys.
_DELETIONS_MAX: Final = 20


class ServiceMaintenance:
    """Promotes due jobs and ends expired leases and late jobs, as every claim does, but without a claim.

    A worker over HTTP that is told of new jobs sends no claims while there are none.
    """

    def __init__(self, store: Store) -> None:
        self._runner = runners.AsyncRunner(store)
        self._calls = AsyncWorkerCalls(store)
        # Random times keep servers that start together from deleting at the same time.
        self._next_deletion_at = time.monotonic() + _DELETION_SECONDS * randomness.RANDOM.random()
        self._next_whole_look_at = 0.0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        failing = False
        while True:
            try:
                pause = await self._look()
                failing = False
            except errors.HoldfastError as error:
                if not failing:
                    log.warning("maintenance could not be run: %s", error)
                failing, pause = True, _RETRY_SECONDS
            await asyncio.sleep(pause)

    async def _look(self) -> float:
        """Do what is due; return the seconds until the next look."""
        if time.monotonic() >= self._next_deletion_at:
            self._next_deletion_at = time.monotonic() + _DELETION_SECONDS * randomness.RANDOM.uniform(0.5, 1.5)
            await self.delete_expired()
        if time.monotonic() >= self._next_whole_look_at:
            self._next_whole_look_at = time.monotonic() + _WHOLE_LOOK_SECONDS
            seconds = await self._runner.read(session_claim.seconds_to_maintenance)
            await self._runner.write_due_rollups()
        else:
            # One statement, for due jobs and expired leases, for which a worker may be waiting.
            seconds = await self._runner.read(claim.seconds_to_next_change)
        if seconds <= 0 and await self._runner.write(session_claim.maintain):
            return _LOOK_SECONDS_MIN
        return min(max(seconds, _LOOK_SECONDS_MIN), _LOOK_SECONDS_MAX) if seconds > 0 else _LOOK_SECONDS_MAX

    async def delete_expired(self) -> None:
        """Delete expired uploads, a bounded number of bytes, and dedupe keys whose period has passed."""
        for _ in range(_DELETIONS_MAX):
            if not await self._calls.delete_expired():
                break

    async def close(self) -> None:
        """Stop."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
