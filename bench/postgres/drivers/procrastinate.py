"""procrastinate: `python -m bench.postgres.drivers.procrastinate URL`."""

from __future__ import annotations

import asyncio
import logging
from importlib import import_module
from typing import Any

from bench.candidates import handle
from bench.postgres.drivers.protocol import OnJob, Peer, serve

CONCURRENCY = 30


class Procrastinate(Peer):
    """psycopg with its C implementation, an async worker with 30 jobs at a time."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._app: Any = None
        self._task: Any = None
        self._on_job: OnJob = handle
        self._running: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the app and apply its schema."""
        logging.getLogger("procrastinate").setLevel(logging.ERROR)
        procrastinate = import_module("procrastinate")
        connector = procrastinate.PsycopgConnector(conninfo=self._url, min_size=4, max_size=CONCURRENCY)
        self._app = procrastinate.App(connector=connector)

        async def hand_on(body: dict[str, Any]) -> None:
            self._on_job(body)

        self._task = self._app.task(name="mail", queue="mail")(hand_on)
        await self._app.open_async()
        query = "select to_regclass('procrastinate_jobs') is not null as there"
        if not (await connector.execute_query_one_async(query))["there"]:
            await self._app.schema_manager.apply_schema_async()

    async def enqueue(self, body: dict[str, Any]) -> None:
        """Defer one job."""
        await self._task.defer_async(body=body)

    async def enqueue_bulk(self, bodies: list[dict[str, Any]]) -> None:
        """Defer many jobs in one call."""
        await self._task.batch_defer_async(*({"body": body} for body in bodies))

    async def start(self, on_job: OnJob) -> None:
        """Run a worker that deletes finished jobs, which writes the least."""
        self._on_job = on_job
        worker = self._app.run_worker_async(
            queues=["mail"], concurrency=CONCURRENCY, delete_jobs="successful", install_signal_handlers=False
        )
        self._running = asyncio.create_task(worker)

    async def stop(self) -> None:
        """Cancel the worker, which waits for running jobs."""
        assert self._running is not None  # noqa: S101  # it was started
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)

    async def unsettled(self) -> bool:
        """Look for a row: finished jobs are deleted."""
        query = "select exists (select from procrastinate_jobs where status in ('todo', 'doing')) as left"
        return bool((await self._app.connector.execute_query_one_async(query))["left"])

    async def close(self) -> None:
        """Close the app."""
        await self._app.close_async()


if __name__ == "__main__":
    serve(Procrastinate)
