"""Waiting for jobs: one task answers all requests that wait, with one query per wake-up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable
from typing import Final

from holdfast.domain import errors
from holdfast.domain.job import Job
from holdfast.operations import access as access_operations, maintenance
from holdfast.storage import notifications, runners

log = logging.getLogger("holdfast.service")

_QUERY_SECONDS_MIN: Final = 0.02
# How often all jobs are asked for, in case a notification was lost.
_POLL_SECONDS: Final = 1.0


class _Listener:
    """Collects the notifications of one job."""

    def __init__(self, waiter: JobWaiter, loop: asyncio.AbstractEventLoop, job_id: str) -> None:
        self._waiter = waiter
        self._loop = loop
        self._job_id = job_id
        self.futures: set[asyncio.Future[Job]] = set()

    def wake(self) -> None:
        """Ask for the job soon. Called from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._waiter.ask, self._job_id)


class JobWaiter:
    """Waits for any number of jobs with one query at a time."""

    def __init__(self, runner: runners.AsyncRunner, notifier: notifications.Notifier) -> None:
        self._runner = runner
        self._notifier = notifier
        self._listeners: dict[str, _Listener] = {}
        self._asked: set[str] = set()
        self._signal = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def ask(self, job_id: str) -> None:
        """Ask for a job with the next query."""
        if job_id in self._listeners:
            self._asked.add(job_id)
            self._signal.set()

    async def wait(self, job_id: str, seconds: float) -> Job | None:
        """Return the job once it has finished, or None after *seconds*."""
        loop = asyncio.get_running_loop()
        listener = self._listeners.get(job_id)
        if listener is None:
            listener = self._listeners[job_id] = _Listener(self, loop, job_id)
            self._notifier.add(notifications.job_topic(job_id), listener)
        future: asyncio.Future[Job] = loop.create_future()
        listener.futures.add(future)
        # The job may have finished before the subscription.
        self.ask(job_id)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            return await asyncio.wait_for(future, seconds)
        except TimeoutError:
            return None
        finally:
            listener.futures.discard(future)
            if not listener.futures and self._listeners.get(job_id) is listener:
                del self._listeners[job_id]
                self._asked.discard(job_id)
                self._notifier.remove(notifications.job_topic(job_id), listener)

    async def _run(self) -> None:
        polled_at = time.monotonic()
        while self._listeners:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._signal.wait(), max(polled_at + _POLL_SECONDS - time.monotonic(), 0.001))
            self._signal.clear()
            if polls := time.monotonic() - polled_at >= _POLL_SECONDS:
                polled_at = time.monotonic()
            ids = list(self._listeners) if polls else list(self._asked)
            self._asked.clear()
            asked_at = time.monotonic()
            try:
                self.answer(await self._finished(ids))
            except errors.HoldfastError as error:
                log.warning("jobs that requests wait for could not be read: %s", error)
            await asyncio.sleep(max(asked_at + _QUERY_SECONDS_MIN - time.monotonic(), 0))

    async def _finished(self, ids: list[str]) -> list[Job]:
        if not ids:
            return []
        jobs, late = await self._runner.read(access_operations.finished_jobs, ids)
        if late:
            # No worker has failed the late jobs since their deadline passed, so the service does.
            await self._runner.write(maintenance.fail_late_jobs)
            jobs, _ = await self._runner.read(access_operations.finished_jobs, ids)
        return jobs

    def answer(self, jobs: Iterable[Job]) -> None:
        """Answer the requests that wait for *jobs*, which have finished: what this process did needs no query."""
        for job in jobs:
            listener = self._listeners.get(job.id)
            self._asked.discard(job.id)
            for future in listener.futures if listener is not None else ():
                if not future.done():
                    future.set_result(job)

    async def close(self) -> None:
        """Stop; requests that still wait time out."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
