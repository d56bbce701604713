"""oban: `python -m bench.postgres.drivers.oban URL`; its package needs Python 3.12."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

from bench.candidates import handle
from bench.postgres.drivers.protocol import OnJob, Peer, serve

LIMIT = 100


class ObanPeer(Peer):
    """psycopg under uvloop, one queue with 100 jobs at a time."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool: Any = None
        self._client: Any = None
        self._server: Any = None
        self._worker: Any = None
        self._on_job: OnJob = handle

    async def open(self) -> None:
        """Open the pool and install the tables."""
        logging.getLogger("oban").setLevel(logging.ERROR)
        oban = import_module("oban")
        self._pool = await oban.Oban.create_pool(self._url, min_size=2, max_size=10)
        peer = self

        class Mail:
            """Passes the body on."""

            async def process(self, job: Any) -> None:
                peer._on_job(job.args)

        self._worker = oban.worker(queue="mail")(Mail)
        async with self._pool.connection() as connection:
            [there] = await (await connection.execute("select to_regclass('oban_jobs') is not null")).fetchone()
        if not there:
            await import_module("oban.schema").install(self._pool)
        self._client = oban.Oban(pool=self._pool, name="client")

    async def enqueue(self, body: dict[str, Any]) -> None:
        """Enqueue one job."""
        await self._client.enqueue(self._worker.new(body))

    async def enqueue_bulk(self, bodies: list[dict[str, Any]]) -> None:
        """Enqueue many jobs in one call."""
        await self._client.enqueue_many([self._worker.new(body) for body in bodies])

    async def start(self, on_job: OnJob) -> None:
        """Start an instance with the queue."""
        self._on_job = on_job
        self._server = import_module("oban").Oban(pool=self._pool, queues={"mail": LIMIT})
        await self._server.start()

    async def stop(self) -> None:
        """Stop the instance."""
        await self._server.stop()

    async def unsettled(self) -> bool:
        """Look for a job that is not completed."""
        query = "select exists (select from oban_jobs where state in ('available', 'scheduled', 'executing'))"
        async with self._pool.connection() as connection:
            [left] = await (await connection.execute(query)).fetchone()
        return bool(left)

    async def close(self) -> None:
        """Close the pool."""
        await self._pool.close()


if __name__ == "__main__":
    import_module("uvloop").install()
    serve(ObanPeer)
