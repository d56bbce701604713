"""The protocol of a peer in another process: one request per line, one answer per request.

This module runs in the peer's environment, so it imports only the standard library and modules of the bench.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

from bench.candidates import BULK, payload

WARM_JOBS = 20
_POLL_SECONDS = 0.001
OnJob = Callable[[dict[str, Any]], None]


class Peer(ABC):
    """One queue with its best documented settings on one database."""

    @abstractmethod
    async def open(self) -> None:
        """Connect, and create the schema if it does not exist."""

    @abstractmethod
    async def enqueue(self, body: dict[str, Any]) -> None:
        """Enqueue one job and commit."""

    @abstractmethod
    async def enqueue_bulk(self, bodies: list[dict[str, Any]]) -> None:
        """Enqueue many jobs in the peer's fastest way."""

    @abstractmethod
    async def start(self, on_job: OnJob) -> None:
        """Start the worker, which calls *on_job* with every job's decoded body."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop the worker, which writes its buffered results."""

    @abstractmethod
    async def unsettled(self) -> bool:
        """Return whether the database contains a job that is not settled."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections."""


def serve(make: Callable[[str], Peer]) -> None:
    """Answer requests about the database named on the command line until standard input ends."""
    asyncio.run(_serve(make(sys.argv[1])))


async def _serve(peer: Peer) -> None:
    await peer.open()
    scenarios: dict[str, Callable[[Peer, int], Awaitable[dict[str, Any]]]] = {
        "warm": _warm,
        "single": _single,
        "bulk": _bulk,
        "drain": _drain,
        "receive": _receive,
        "send": _send,
    }
    while line := await asyncio.to_thread(sys.stdin.readline):
        request = json.loads(line)
        gc.collect()  # as for the candidates in the process of the bench
        try:
            _write(await scenarios[request["scenario"]](peer, request["count"]))
        except Exception as error:
            # The tables show the reason; the traceback goes to the terminal.
            _write({"failed": f"{type(error).__name__}: {error}"})
            raise
    await peer.close()


def _write(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)  # noqa: T201  # the parent waits for this line


async def _warm(peer: Peer, count: int) -> dict[str, Any]:
    """Process a few jobs to prepare plans, pools and imports."""
    await peer.enqueue(payload(0))
    return await _drain(peer, count, before=1)


async def _single(peer: Peer, count: int) -> dict[str, Any]:
    started = time.perf_counter()
    for number in range(count):
        await peer.enqueue(payload(number))
    return {"seconds": time.perf_counter() - started}


async def _bulk(peer: Peer, count: int) -> dict[str, Any]:
    started = time.perf_counter()
    await _fill(peer, count)
    return {"seconds": time.perf_counter() - started}


async def _fill(peer: Peer, count: int) -> None:
    for first in range(0, count, BULK):
        await peer.enqueue_bulk([payload(number) for number in range(first, min(first + BULK, count))])


async def _drain(peer: Peer, count: int, *, before: int = 0) -> dict[str, Any]:
    """Measure from the start of the first job to the settlement of the last, without the start of the worker."""
    await _fill(peer, count)
    handled, started = 0, 0.0
    finished = asyncio.Event()

    def on_job(body: dict[str, Any]) -> None:
        nonlocal handled, started
        del body
        if not handled:
            started = time.perf_counter()
        handled += 1
        if handled == count + before:
            finished.set()

    await peer.start(on_job)
    await finished.wait()
    # Stopping flushes the last batch of a worker that settles in batches, without waiting for its timer.
    stopping = asyncio.create_task(peer.stop())
    while await peer.unsettled():  # noqa: ASYNC110  # only the database knows
        await asyncio.sleep(_POLL_SECONDS)
    took = time.perf_counter() - started
    await stopping
    if handled != count + before:
        raise RuntimeError(f"handled {handled} of {count} jobs")
    return {"seconds": took}


async def _receive(peer: Peer, count: int) -> dict[str, Any]:
    """Receive *count* jobs, each with a monotonic timestamp; processes of one machine share the clock."""
    taken: list[float] = []
    ready, finished = asyncio.Event(), asyncio.Event()

    def on_job(body: dict[str, Any]) -> None:
        if not body["sent"]:
            ready.set()
            return
        taken.append((time.monotonic_ns() - body["sent"]) / 1e9)
        if len(taken) == count:
            finished.set()

    await peer.start(on_job)
    # The worker sends itself a first job; when it arrives, the worker is listening and warm.
    await peer.enqueue({"sent": 0})
    await ready.wait()
    _write({"ready": True})
    await finished.wait()
    await peer.stop()
    return {"taken": taken}


async def _send(peer: Peer, count: int) -> dict[str, Any]:
    for _ in range(count):
        await peer.enqueue({"sent": time.monotonic_ns()})
    return {"seconds": 0.0}
