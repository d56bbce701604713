"""What a peer in another process is measured through: one request for each line, one answer for each request.

Runs inside the peer's environment, so that it imports nothing but the standard library and the bench's own words.
"""

from __future__ import annotations

import asyncio
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
        """Connect, and make the schema if it is not there."""

    @abstractmethod
    async def enqueue(self, body: dict[str, Any]) -> None:
        """Store one job; when this returns it is committed."""

    @abstractmethod
    async def enqueue_bulk(self, bodies: list[dict[str, Any]]) -> None:
        """Store many jobs, in the quickest way this peer has."""

    @abstractmethod
    async def start(self, on_job: OnJob) -> None:
        """Start the worker, which hands every job's decoded body to *on_job*."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop the worker, writing what it still holds back."""

    @abstractmethod
    async def unsettled(self) -> bool:
        """Say whether the database still holds a job that is not settled."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of the database."""


def serve(make: Callable[[str], Peer]) -> None:
    """Answer requests about the database named on the command line until there are no more."""
    asyncio.run(_serve(make(sys.argv[1])))


async def _serve(peer: Peer) -> None:
    await peer.open()
    roads: dict[str, Callable[[Peer, int], Awaitable[dict[str, Any]]]] = {
        "warm": _warm,
        "single": _single,
        "bulk": _bulk,
        "drain": _drain,
        "receive": _receive,
        "send": _send,
    }
    while line := await asyncio.to_thread(sys.stdin.readline):
        request = json.loads(line)
        try:
            _tell(await roads[request["road"]](peer, request["count"]))
        except Exception as error:
            # Its reason belongs into the tables; the trace, which goes to the terminal, does not.
            _tell({"failed": f"{type(error).__name__}: {error}"})
            raise
    await peer.close()


def _tell(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)  # noqa: T201  # the parent waits for this line


async def _warm(peer: Peer, count: int) -> dict[str, Any]:
    """Send a few jobs all the way, so that plans, pools and imports are there."""
    await peer.enqueue(payload(0))
    return await _drain(peer, count, before=1)


async def _single(peer: Peer, count: int) -> dict[str, Any]:
    begun = time.perf_counter()
    for number in range(count):
        await peer.enqueue(payload(number))
    return {"seconds": time.perf_counter() - begun}


async def _bulk(peer: Peer, count: int) -> dict[str, Any]:
    begun = time.perf_counter()
    await _fill(peer, count)
    return {"seconds": time.perf_counter() - begun}


async def _fill(peer: Peer, count: int) -> None:
    for first in range(0, count, BULK):
        await peer.enqueue_bulk([payload(number) for number in range(first, min(first + BULK, count))])


async def _drain(peer: Peer, count: int, *, before: int = 0) -> dict[str, Any]:
    """Time from the first job's start to the last one's settlement: starting a worker is nobody's rate."""
    await _fill(peer, count)
    handled, begun = 0, 0.0
    finished = asyncio.Event()

    def on_job(body: dict[str, Any]) -> None:
        nonlocal handled, begun
        del body
        if not handled:
            begun = time.perf_counter()
        handled += 1
        if handled == count + before:
            finished.set()

    await peer.start(on_job)
    await finished.wait()
    # A worker that writes its ends in batches writes the last one when it stops, rather than when its timer says so.
    stopping = asyncio.create_task(peer.stop())
    while await peer.unsettled():  # noqa: ASYNC110  # only the database knows
        await asyncio.sleep(_POLL_SECONDS)
    took = time.perf_counter() - begun
    await stopping
    if handled != count + before:
        raise RuntimeError(f"handled {handled} of {count} jobs")
    return {"seconds": took}


async def _receive(peer: Peer, count: int) -> dict[str, Any]:
    """Take *count* jobs, each with the moment it was sent; the monotonic clock is shared by a machine's processes."""
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
    # The first job is its own: once it came, the worker listens and is warm.
    await peer.enqueue({"sent": 0})
    await ready.wait()
    _tell({"ready": True})
    await finished.wait()
    await peer.stop()
    return {"taken": taken}


async def _send(peer: Peer, count: int) -> dict[str, Any]:
    for _ in range(count):
        await peer.enqueue({"sent": time.monotonic_ns()})
    return {"seconds": 0.0}
