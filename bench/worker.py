"""What a worker adds to the engine: a part of the bench, and `python -m bench.worker` for a look at it alone.

No-op handlers are drained by one worker in one process, blocking and awaited, beside the raw engine on stores of
their own, one after the other in each round. Short awaited handlers are held against three bounds: what the slots
could hold if nothing took any time, what the engine can settle at all, and what engine and event loop leave on one
core. An idle worker is watched.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeAlias

from rich.console import Console

import holdfast
from bench.candidates import BATCH
from bench.holdfast_candidates import HoldfastSession
from holdfast.worker.watched_attempts import WorkerMetrics
from holdfast.worker.worker import Worker

JOBS = 10_000
SLEEP_SECONDS = 0.001
SLEEPERS = 100
_FILLED_AT_ONCE = 5_000


class WorkerFigures(NamedTuple):
    """What was found."""

    raw: float
    """Jobs per second of settles fused with claims, in a plain loop."""
    blocking: float
    awaited: float
    sleeping: float
    """Jobs per second of handlers that sleep a millisecond, in a hundred slots."""
    idle_share: float
    """Of one core, used by a worker without work."""

    sleeping_bare: float
    """The same sleeps in as many tasks of a bare event loop, without a queue."""

    @property
    def slots_bound(self) -> float:
        """How many sleeping handlers the slots could hold per second if neither store nor loop took any time."""
        return SLEEPERS / SLEEP_SECONDS

    @property
    def engine_bound(self) -> float:
        """How many could be settled at all: what the slots could hold, but no more than the raw engine drains."""
        return min(self.slots_bound, self.raw)

    @property
    def core_bound(self) -> float:
        """How many could run if the worker itself took no time: one core does the engine's work and the loop's."""
        return 1 / (1 / self.raw + 1 / self.sleeping_bare)

    def compared(self) -> list[tuple[str, float, str, float]]:
        """Return each rate with what it is held against: handlers, rate, bound, rate of the bound."""
        sleeping = f"sleep {SLEEP_SECONDS * 1000:g} ms, {SLEEPERS} slots"
        return [
            ("sync, no-op", self.blocking, "the raw engine", self.raw),
            ("async, no-op", self.awaited, "the raw engine", self.raw),
            (sleeping, self.sleeping, "capacity of the slots", self.slots_bound),
            (sleeping, self.sleeping, "settle rate of the engine", self.engine_bound),
            (sleeping, self.sleeping, "engine and empty loop on one core", self.core_bound),
        ]


Fresh: TypeAlias = Callable[[], AbstractContextManager[HoldfastSession]]
"""Gives a session on a fresh store."""


def run_worker(fresh: Fresh, *, rounds: int, jobs: int = JOBS, idle_seconds: float = 5.0) -> WorkerFigures:
    """Measure everything, the raw engine and the worker in turn."""
    rates: dict[str, list[float]] = {name: [] for name in ("raw", "blocking", "awaited", "sleeping")}
    bare: list[float] = []
    for _ in range(rounds):
        bare.append(jobs / asyncio.run(_bare_seconds(jobs)))
        for name, found in rates.items():
            with fresh() as session:
                found.append(_measure(name, session, jobs))
    with fresh() as session:
        idle = idle_share(session.queue, idle_seconds)
    medians = {name: median(found) for name, found in rates.items()}
    return WorkerFigures(**medians, idle_share=idle, sleeping_bare=median(bare))


def on_files(place: Path) -> Fresh:
    """Return what gives sessions on fresh SQLite files under *place*."""

    @contextmanager
    def fresh() -> Iterator[HoldfastSession]:
        with tempfile.TemporaryDirectory(dir=place) as folder:
            session = HoldfastSession("full", Path(folder))
            try:
                yield session
            finally:
                session.close()

    return fresh


async def _bare_seconds(jobs: int) -> float:
    left = iter(range(jobs))

    async def slot() -> None:
        for _ in left:
            await asyncio.sleep(SLEEP_SECONDS)

    begun = time.monotonic()
    await asyncio.gather(*(slot() for _ in range(SLEEPERS)))
    return time.monotonic() - begun


def _measure(name: str, session: HoldfastSession, jobs: int) -> float:
    _fill(session, jobs)
    if name == "raw":
        begun = time.monotonic()
        session.drain(BATCH)
        return jobs / (time.monotonic() - begun)
    return jobs / drain_seconds(session.queue, name, jobs)


def _fill(session: HoldfastSession, jobs: int) -> None:
    for first in range(0, jobs, _FILLED_AT_ONCE):
        session.enqueue_bulk(first, min(_FILLED_AT_ONCE, jobs - first))


def drain_seconds(queue: holdfast.Queue, name: str, jobs: int, metrics: WorkerMetrics | None = None) -> float:
    """Return how long a worker takes for all jobs of *queue*, from the start of its first claim."""
    left = [jobs]
    ended = threading.Event()
    counted = threading.Lock()

    def count() -> None:
        with counted:
            left[0] -= 1
        if not left[0]:
            ended.set()

    _declare(queue, name, count)
    worker = Worker(queue, concurrency=SLEEPERS if name == "sleeping" else 8, metrics=metrics)
    thread = threading.Thread(target=worker.run)
    begun = time.monotonic()
    thread.start()
    ended.wait()
    while worker.status().ended.get("done", 0) < jobs:
        time.sleep(0.0005)
    seconds = time.monotonic() - begun
    worker.stop()
    thread.join()
    return seconds


def _declare(queue: holdfast.Queue, name: str, count: Callable[[], None]) -> None:
    def blocking(**_body: object) -> None:
        count()

    async def awaited(**_body: object) -> None:
        count()

    async def sleeping(**_body: object) -> None:
        await asyncio.sleep(SLEEP_SECONDS)
        count()

    queue.task("mail")({"blocking": blocking, "awaited": awaited, "sleeping": sleeping}[name])


def idle_share(queue: holdfast.Queue, seconds: float) -> float:
    """Return the share of one core that a worker without work uses."""
    _declare(queue, "awaited", lambda: None)
    worker = Worker(queue)
    thread = threading.Thread(target=worker.run)
    thread.start()
    while not queue.workers():
        time.sleep(0.01)
    begun, used = time.monotonic(), time.process_time()
    time.sleep(seconds)
    share = (time.process_time() - used) / (time.monotonic() - begun)
    worker.stop()
    thread.join()
    return share


def show_profile(name: str, jobs: int) -> None:
    """Say where the loop's thread spends its time on short handlers."""
    with tempfile.TemporaryDirectory() as folder:
        session = HoldfastSession("full", Path(folder))
        _fill(session, jobs)
        profile = cProfile.Profile()
        _declare(session.queue, name, lambda: None)
        worker = Worker(session.queue)
        threading.Thread(target=_stop_when_done, args=(worker, jobs)).start()
        profile.runcall(worker.run)
        session.close()
    pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(30)


def _stop_when_done(worker: Worker, jobs: int) -> None:
    while worker.status().ended.get("done", 0) < jobs:
        time.sleep(0.005)
    worker.stop()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.worker", description="Measure what a worker adds.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--folder", type=Path, help="where to put the files that are measured")
    parser.add_argument("--profile", choices=["blocking", "awaited"], help="only say where the time goes")
    asked = parser.parse_args()
    if asked.profile:
        show_profile(asked.profile, asked.jobs)
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=asked.folder) as folder:
        found = run_worker(on_files(Path(folder)), rounds=asked.rounds, jobs=asked.jobs)
    _show(found, Console(highlight=False))


def _show(found: WorkerFigures, console: Console) -> None:
    for name, rate, other, bound in found.compared():
        console.print(f"{name:>22}: {rate:9,.0f}/s = {rate / bound:.2f} of {other}, {bound:,.0f}/s")
    console.print(f"{'idle':>22}: {found.idle_share:.2%} of a core")


if __name__ == "__main__":
    main()
