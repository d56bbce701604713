"""What a worker adds to the engine: `python -m bench.worker`.

No-op handlers are drained by one worker in one process, blocking and awaited, beside the raw engine on files of their
own, one after the other in each round. Short awaited handlers are held against two bounds; an idle worker is watched.
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
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console

import holdfast
from bench.candidates import BATCH
from bench.ours import HoldfastSession
from holdfast.runtime.watched import WorkerMetrics
from holdfast.runtime.worker import Worker

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
    def core_bound(self) -> float:
        """How many could run if the worker itself took no time: one core does the engine's work and the loop's."""
        return 1 / (1 / self.raw + 1 / self.sleeping_bare)


def run_worker(place: Path, *, rounds: int, jobs: int = JOBS, idle_seconds: float = 5.0) -> WorkerFigures:
    """Measure everything, the raw engine and the worker in turn."""
    rates: dict[str, list[float]] = {name: [] for name in ("raw", "blocking", "awaited", "sleeping")}
    bare: list[float] = []
    for _ in range(rounds):
        bare.append(jobs / asyncio.run(_bare_seconds(jobs)))
        for name, found in rates.items():
            with tempfile.TemporaryDirectory(dir=place) as folder:
                found.append(_measure(name, Path(folder), jobs))
    with tempfile.TemporaryDirectory(dir=place) as folder:
        idle = idle_share(Path(folder), idle_seconds)
    medians = {name: median(found) for name, found in rates.items()}
    return WorkerFigures(**medians, idle_share=idle, sleeping_bare=median(bare))


async def _bare_seconds(jobs: int) -> float:
    left = iter(range(jobs))

    async def slot() -> None:
        for _ in left:
            await asyncio.sleep(SLEEP_SECONDS)

    begun = time.monotonic()
    await asyncio.gather(*(slot() for _ in range(SLEEPERS)))
    return time.monotonic() - begun


def _measure(name: str, folder: Path, jobs: int) -> float:
    session = HoldfastSession("full", folder)
    try:
        for first in range(0, jobs, _FILLED_AT_ONCE):
            session.enqueue_bulk(first, min(_FILLED_AT_ONCE, jobs - first))
        if name == "raw":
            begun = time.monotonic()
            session.drain(BATCH)
            return jobs / (time.monotonic() - begun)
        return jobs / drain_seconds(session.queue, name, jobs)
    finally:
        session.close()


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


def idle_share(folder: Path, seconds: float) -> float:
    """Return the share of one core that a worker without work uses."""
    with holdfast.connect(str(folder / "holdfast.db")) as queue:
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
        for first in range(0, jobs, _FILLED_AT_ONCE):
            session.enqueue_bulk(first, min(_FILLED_AT_ONCE, jobs - first))
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
        found = run_worker(Path(folder), rounds=asked.rounds, jobs=asked.jobs)
    _show(found, Console(highlight=False))


def _show(found: WorkerFigures, console: Console) -> None:
    compared = [
        ("blocking", found.blocking, "the raw engine", found.raw),
        ("awaited", found.awaited, "the raw engine", found.raw),
        ("sleeping", found.sleeping, "what the slots could hold", found.slots_bound),
        ("sleeping", found.sleeping, "engine and bare loop on one core", found.core_bound),
    ]
    for name, rate, other, bound in compared:
        console.print(f"{name:>9}: {rate:9,.0f}/s = {rate / bound:.2f} of {other}, {bound:,.0f}/s")
    console.print(f"     idle: {found.idle_share:.2%} of a core")


if __name__ == "__main__":
    main()
