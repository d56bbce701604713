"""An in-memory queue behind the line protocol: `python -m tests.bench.memory_peer BEHAVIOUR`.

`works` behaves correctly; `dies` exits at the first job; `repeats` delivers every job twice; `echoes` sends two more
jobs after the one that reports readiness.
"""

from __future__ import annotations

import os
import time
from typing import Any

from bench.candidates import handle
from bench.postgres.drivers.protocol import OnJob, Peer, serve


class MemoryPeer(Peer):
    def __init__(self, behaviour: str) -> None:
        self._manner = behaviour
        self._waiting: list[dict[str, Any]] = []
        self._on_job: OnJob | None = None
        self._settled = True

    async def open(self) -> None:
        pass

    async def enqueue(self, body: dict[str, Any]) -> None:
        if self._manner == "dies":
            os._exit(3)
        self._waiting.append(body)
        if self._manner == "echoes" and body["sent"] == 0:
            self._waiting += [{"sent": time.monotonic_ns()}, {"sent": time.monotonic_ns()}]
        self._deliver()

    async def enqueue_bulk(self, bodies: list[dict[str, Any]]) -> None:
        for body in bodies:
            await self.enqueue(body)

    async def start(self, on_job: OnJob) -> None:
        self._on_job = on_job
        self._settled = False
        self._deliver()

    async def stop(self) -> None:
        self._on_job = None
        self._settled = True

    async def unsettled(self) -> bool:
        return not self._settled

    async def close(self) -> None:
        pass

    def _deliver(self) -> None:
        while self._on_job and self._waiting:
            body = self._waiting.pop(0)
            self._on_job(body)
            if self._manner == "repeats":
                self._on_job(body)
            handle(body)


if __name__ == "__main__":
    serve(MemoryPeer)
