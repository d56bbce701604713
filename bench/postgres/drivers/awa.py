"""awa-pg: `python -m bench.postgres.drivers.awa URL`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from bench.postgres.drivers.protocol import OnJob, Peer, serve

SLOTS = 500
CLAIM_BATCH = 500


@dataclass
class Mail:
    """One job's arguments; awa requires a class."""

    body: dict[str, Any] = field(default_factory=dict)


class Awa(Peer):
    """Its Rust engine with 500 slots, claims of up to 500; bulk by COPY."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: Any = None
        self._worker: Any = None
        self._holds = False

    async def open(self) -> None:
        """Connect, migrate and select the recommended storage."""
        self._client = import_module("awa").AsyncClient(self._url)
        await self._client.migrate()
        if json.loads(await self._client.storage_status())["active_engine"] != "queue_storage":
            await self._client.install_queue_storage()

    async def enqueue(self, body: dict[str, Any]) -> None:
        """Insert one job."""
        await self._client.insert(Mail(body), queue="mail")

    async def enqueue_bulk(self, bodies: list[dict[str, Any]]) -> None:
        """Insert many jobs by COPY."""
        await self._client.enqueue_many_copy([Mail(body) for body in bodies], queue="mail")

    async def start(self, on_job: OnJob) -> None:
        """Start a separate client with one queue."""
        self._worker = import_module("awa").AsyncClient(self._url, max_connections=20)

        async def handle(job: Any) -> None:
            on_job(job.args.body)

        self._worker.task(Mail, queue="mail")(handle)
        self._holds = True
        await self._worker.start([{"name": "mail", "max_workers": SLOTS, "claim_batch_size": CLAIM_BATCH}])

    async def stop(self) -> None:
        """Stop the worker."""
        await self._worker.shutdown()
        self._holds = False
        await self._worker.close()

    async def unsettled(self) -> bool:
        """Wait for the worker to stop, which writes its results; querying its counts would take seconds."""
        return self._holds

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


if __name__ == "__main__":
    serve(Awa)
