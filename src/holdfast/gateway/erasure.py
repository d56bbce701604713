"""Erasing the content of finished jobs before the jobs themselves are deleted: requests and answers."""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Mapping
from typing import Final

from holdfast.client.async_api.queue import AsyncQueue
from holdfast.domain import errors
from holdfast.domain.job import Job

log = logging.getLogger("holdfast.gateway")

EVERY_TENANT: Final = "*"
"""Stands for the tenants that are not named."""
_AGAIN_SECONDS: Final = 30.0


class Eraser:
    """Deletes the artifacts of finished jobs when their time has come; runs in the event loop of the gateway."""

    def __init__(self, queue: AsyncQueue, retention: Mapping[str, float]) -> None:
        self._queue = queue
        self._retention = retention
        self._due: list[tuple[float, str]] = []
        """When to erase which job, by the monotonic clock; a heap."""
        self._changed = asyncio.Event()

    def seconds_for(self, tenant: str) -> float | None:
        """Return for how long the content of a tenant's finished jobs is kept; None as long as the jobs."""
        return self._retention.get(tenant, self._retention.get(EVERY_TENANT))

    def add(self, job_id: str, seconds: float) -> None:
        """Erase the content of a finished job after some time."""
        heapq.heappush(self._due, (time.monotonic() + seconds, job_id))
        self._changed.set()

    def add_finished(self, job: Job, *, stored: bool) -> None:
        """Erase the content of a job that an earlier process left; *stored* is whether it may be kept at all."""
        seconds = self.seconds_for(job.tenant) if stored else 0.0
        if seconds is not None and job.finished_at is not None:
            self.add(job.id, max(0.0, seconds - (time.time() - job.finished_at.timestamp())))

    async def run(self) -> None:
        """Erase until cancelled."""
        while True:
            self._changed.clear()
            pause = self._due[0][0] - time.monotonic() if self._due else None
            if pause is not None and pause <= 0:
                await self._erase(heapq.heappop(self._due)[1])
                continue
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _erase(self, job_id: str) -> None:
        try:
            await self._queue.delete_artifacts(job_id)
        except (errors.JobNotFound, errors.Conflict):
            # Deleted with the job, or started again by an operator: its next end is noted.
            return
        except errors.HoldfastError as error:
            log.warning("the content of job %s could not be erased yet: %s", job_id, error)
            self.add(job_id, _AGAIN_SECONDS)
