"""pgqueuer: `python -m bench.postgres.drivers.pgqueuer URL`."""

from __future__ import annotations

import asyncio
import json
import logging
from importlib import import_module
from typing import Any

from bench.postgres.drivers.protocol import OnJob, Peer, serve

BATCH = 500
_KIND = "mail"


class PgQueuer(Peer):
    """An asyncpg pool under uvloop; claims and completions in batches of 500."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._queries: Any = None
        self._pool: Any = None
        self._manager: Any = None
        self._running: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the pool and install the tables."""
        logging.getLogger("pgqueuer").setLevel(logging.ERROR)
        self._pool = await import_module("asyncpg").create_pool(self._url, min_size=2, max_size=8)
        self._queries = import_module("pgqueuer.queries").Queries.from_asyncpg_pool(self._pool)
        if not await self._queries.schema_is_installed():
            await self._queries.install()

    async def enqueue(self, body: dict[str, Any]) -> None:
        """Enqueue one job."""
        await self._queries.enqueue(_KIND, json.dumps(body).encode())

    async def enqueue_bulk(self, bodies: list[dict[str, Any]]) -> None:
        """Enqueue many jobs in one call."""
        many = len(bodies)
        await self._queries.enqueue([_KIND] * many, [json.dumps(body).encode() for body in bodies], [0] * many)

    async def start(self, on_job: OnJob) -> None:
        """Run a queue manager."""
        self._manager = import_module("pgqueuer.qm").QueueManager(self._queries)

        async def handle(job: Any) -> None:
            on_job(json.loads(job.payload))

        self._manager.entrypoint(_KIND)(handle)
        self._running = asyncio.create_task(self._manager.run(batch_size=BATCH))

    async def stop(self) -> None:
        """Stop the manager, which writes its buffer."""
        assert self._running is not None  # noqa: S101  # it was started
        self._manager.shutdown.set()
        await self._running

    async def unsettled(self) -> bool:
        """Look for a row: finished jobs are moved to the log."""
        return bool(await self._pool.fetchval("select exists (select from pgqueuer)"))

    async def close(self) -> None:
        """Close the pool."""
        await self._pool.close()


if __name__ == "__main__":
    import_module("uvloop").install()
    serve(PgQueuer)
