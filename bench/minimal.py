"""Minimal clients of the contract on SQLite: what is left if Holdfast did nothing that its users do not see.

They send the statements of Holdfast in batches (`statement_cost`), and do for each job what any client has to do:
keep a fence, decode the payload, call a function with it, encode what that returns, and make an object that tells how
the settlement ended. They leave out what makes a queue safe to use: validation, other routes and tenants, outcomes
other than success, jobs that end in another order or with different results, heartbeats, timeouts, cancellation,
other callers, middleware, logs and counts. The workers begin the next batch while one runs, and settle a batch when
all of it has ended, so that one slow job would hold back the others.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from bench.statement_cost import TOKEN, Row, Statements


class _Fence(NamedTuple):
    seq: int
    job_id: str
    epoch: int
    token: str


class _Settled:
    __slots__ = ("error", "fence")

    def __init__(self, fence: _Fence) -> None:
        self.fence = fence
        self.error: str | None = None


def drain(statements: Statements, batch: int, handler: Callable[[Any], Any]) -> list[_Settled]:
    """Run *handler* for all ready jobs, which return the same; return the settlements of the last batch."""
    settled: list[_Settled] = []
    rows = statements.exchange([], batch)
    while rows:
        fences = [_Fence(row[1], row[2], row[7] + 1, TOKEN) for row in rows]
        results = [json.dumps(handler(json.loads(row[5]))) for row in rows]
        rows = statements.exchange(rows, batch, results[0])
        settled = [_Settled(fence) for fence in fences]
    return settled


class _Batch:
    """Jobs that were claimed together."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.ended: list[str] = []
        """The results so far."""


def run_threads(statements: Statements, batch: int, handler: Callable[..., Any], threads: int) -> None:
    """Run *handler* for all ready jobs in threads that take them from one deque."""
    waiting: deque[tuple[_Batch, Row] | None] = deque()
    some, ended = threading.Semaphore(0), threading.Event()

    def work() -> None:
        while True:
            try:
                taken = waiting.popleft()
            except IndexError:
                some.acquire()
                continue
            if taken is None:
                return
            of, row = taken
            of.ended.append(json.dumps(handler(**json.loads(row[5]))))
            if len(of.ended) == len(of.rows):
                ended.set()

    def put(new: _Batch) -> None:
        waiting.extend((new, row) for row in new.rows)
        some.release(threads)

    slots = [threading.Thread(target=work) for _ in range(threads)]
    for slot in slots:
        slot.start()
    last, now = _Batch([]), _Batch(statements.exchange([], batch))
    put(now)
    while now.rows:
        ahead = _Batch(statements.exchange(last.rows, batch, "null"))
        put(ahead)
        while len(now.ended) < len(now.rows):
            ended.wait()
            ended.clear()
        last, now = now, ahead
    statements.exchange(last.rows, 0, "null")
    waiting.extend([None] * threads)
    some.release(threads)
    for slot in slots:
        slot.join()


async def run_tasks(statements: Statements, batch: int, handler: Callable[..., Awaitable[Any]], tasks: int) -> None:
    """Do the same in asyncio tasks; the statements run beside them, in a thread."""
    waiting: deque[tuple[_Batch, Row]] = deque()
    some = asyncio.Condition()

    async def work() -> None:
        while True:
            while not waiting:
                async with some:
                    await some.wait()
            of, row = waiting.popleft()
            of.ended.append(json.dumps(await handler(**json.loads(row[5]))))
            if len(of.ended) == len(of.rows):
                async with some:
                    some.notify_all()

    async def exchanged(done: Sequence[Row], count: int) -> _Batch:
        new = _Batch(await asyncio.to_thread(statements.exchange, done, count, "null"))
        waiting.extend((new, row) for row in new.rows)
        async with some:
            some.notify_all()
        return new

    slots = [asyncio.ensure_future(work()) for _ in range(tasks)]
    last, now = _Batch([]), await exchanged([], batch)
    while now.rows:
        ahead = await exchanged(last.rows, batch)
        async with some:
            await some.wait_for(lambda now=now: len(now.ended) == len(now.rows))  # type: ignore[misc]
        last, now = now, ahead
    await exchanged(last.rows, 0)
    for slot in slots:
        slot.cancel()
