"""The cost of a claim on PostgreSQL as the store grows, and while a transaction pins a snapshot.

Commits do not wait for the disk, which excludes syncs; each claim is released outside the timing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import psycopg

import holdfast
from bench.candidates import BATCH, BULK, payload
from bench.claim_cost import Cost, Log, measure_claims
from bench.postgres import seed
from bench.postgres.server import Arena
from bench.seed import KINDS

_LEFT_FOR_CLAIMS = 5_000
"""Ready jobs behind the drained ones, which both measurements claim."""


class Pinned(NamedTuple):
    """The median seconds of one claim before a snapshot was pinned, and after *jobs* were drained under it."""

    jobs: int
    before: float
    after: float


def run_claim_cost(
    arena: Arena, *, sizes: Sequence[int], beside: int, rounds: int, claims: int, log: Log
) -> list[Cost]:
    """Measure every filter on every size, with *beside* finished and *beside* future jobs in each store."""
    base = arena.make()
    databases = [base]
    try:
        log(f"claim cost: {beside:,} finished and {beside:,} future jobs")
        seed.fill_base(arena.url(base), finished=beside, future=beside)
        stores = {}
        for size in sizes:
            log(f"claim cost: {size:,} ready jobs")
            databases.append(arena.make(base))
            stores[size] = databases[-1]
            seed.fill_ready(arena.url(databases[-1]), size)
            _without_sync(arena, databases[-1])
        arena.execute("checkpoint")
        queues = {size: holdfast.connect(arena.url(name)) for size, name in stores.items()}
        try:
            return measure_claims(queues, rounds, claims, log)
        finally:
            for queue in queues.values():
                queue.close()
    finally:
        for name in databases:
            arena.drop(name)


def run_pinned(arena: Arena, *, jobs: int, claims: int) -> Pinned:
    """Claim, drain *jobs* while another transaction keeps its snapshot, and claim again."""
    name = arena.make()
    _without_sync(arena, name)
    try:
        with holdfast.connect(arena.url(name)) as queue:
            queue.migrate()
            _enqueue(queue, jobs + max(_LEFT_FOR_CLAIMS, 2 * claims))
            arena.execute("vacuum analyze", name)
            before = _claim_seconds(queue, claims)
            with psycopg.connect(arena.url(name)) as pinning:
                pinning.execute(b"set transaction isolation level repeatable read")
                pinning.execute(b"select 1 from holdfast.job limit 1")
                _drain(queue, jobs)
                after = _claim_seconds(queue, claims)
        return Pinned(jobs, before, after)
    finally:
        arena.drop(name)


def _without_sync(arena: Arena, name: str) -> None:
    arena.execute(f"alter database {name} set synchronous_commit = off")


def _enqueue(queue: holdfast.Queue, count: int) -> None:
    for first in range(0, count, BULK):
        numbers = range(first, min(first + BULK, count))
        queue.enqueue_many([{"kind": KINDS[number % 20], "payload": payload(number)} for number in numbers])


def _drain(queue: holdfast.Queue, jobs: int) -> None:
    done: list[tuple[holdfast.Claim, holdfast.Done]] = []
    for _ in range(0, jobs, BATCH):
        claims = queue.settle_and_claim(done, kinds=KINDS, limit=BATCH).claims
        done = [(claim, holdfast.Done()) for claim in claims]
    queue.settle_many(done)


def _claim_seconds(queue: holdfast.Queue, claims: int) -> float:
    taken = []
    for _ in range(claims):
        started = time.perf_counter()
        claimed = queue.claim_many(kinds=KINDS, limit=1)
        taken.append(time.perf_counter() - started)
        if not claimed:
            raise RuntimeError("there was nothing to claim")
        queue.settle_many([(claim, holdfast.Released()) for claim in claimed])
    return median(taken)
