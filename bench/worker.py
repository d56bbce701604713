"""The overhead of a worker over the engine: a part of the bench, also as `python -m bench.worker`.

One worker process drains sync and async no-op handlers. The engine alone drains the same number of jobs in the same
round, in a plain loop that reads each payload and calls an empty function. The garbage collector is set as in
`holdfast worker`. Short async handlers are compared with three bounds: the slots without any overhead, the engine's
rate, and engine plus event loop on one core. The processor time of an idle worker is measured too.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
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
from bench import minimal
from bench.candidates import BATCH, payload
from bench.holdfast_candidates import HoldfastSession
from bench.statement_cost import prepared
from holdfast.worker.garbage import rare_collections
from holdfast.worker.status import WorkerMetrics
from holdfast.worker.worker import Worker

JOBS = 40_000
"""So many that the start of a worker, with its first small claims, does not count."""
SLEEP_SECONDS = 0.001
SLEEPERS = 100
SLEEPING = f"sleep {SLEEP_SECONDS * 1000:g} ms, {SLEEPERS} slots"
_FILL_BATCH = 5_000


class WorkerFigures(NamedTuple):
    """The results."""

    raw: float
    """Jobs per second of `settle_and_claim` in a plain loop."""
    blocking: float
    awaited: float
    sleeping: float
    """Jobs per second of handlers that sleep a millisecond, in a hundred slots."""
    idle_share: float
    """The share of one core that an idle worker uses."""

    sleeping_bare: float
    """The same sleeps in the same number of asyncio tasks, without a queue."""
    minimal_blocking: float = 0.0
    """Jobs per second of a minimal worker with threads, see `bench.minimal`; 0 if there is none for the engine."""
    minimal_awaited: float = 0.0
    """Jobs per second of one with asyncio tasks."""

    @property
    def slots_bound(self) -> float:
        """Sleeping handlers per second if neither store nor event loop took any time."""
        return SLEEPERS / SLEEP_SECONDS

    @property
    def engine_bound(self) -> float:
        """The bound of the slots, but at most the rate of the engine."""
        return min(self.slots_bound, self.raw)

    @property
    def core_bound(self) -> float:
        """The rate if the worker took no time: one core runs the engine and the event loop."""
        return 1 / (1 / self.raw + 1 / self.sleeping_bare)

    def limits(self) -> list[tuple[str, float, str, float]]:
        """Return, in the same form, the rates beside those of minimal workers."""
        if not self.minimal_blocking:
            return []
        return [
            ("sync, no-op", self.blocking, "a minimal worker", self.minimal_blocking),
            ("async, no-op", self.awaited, "a minimal worker", self.minimal_awaited),
        ]

    def compared(self) -> list[tuple[str, float, str, float]]:
        """Return each rate with its bound: handlers, rate, name of the bound, rate of the bound."""
        return [
            ("sync, no-op", self.blocking, "the raw engine", self.raw),
            ("async, no-op", self.awaited, "the raw engine", self.raw),
            (SLEEPING, self.sleeping, "capacity of the slots", self.slots_bound),
            (SLEEPING, self.sleeping, "settle rate of the engine", self.engine_bound),
            (SLEEPING, self.sleeping, "engine and empty loop on one core", self.core_bound),
        ]


Fresh: TypeAlias = Callable[[], AbstractContextManager[HoldfastSession]]
"""Returns a session on a new store."""


def run_worker(
    fresh: Fresh, *, rounds: int, jobs: int = JOBS, idle_seconds: float = 5.0, minimal_in: Path | None = None
) -> WorkerFigures:
    """Measure all figures, the engine and the worker alternating; minimal workers use files in *minimal_in*."""
    rates: dict[str, list[float]] = {name: [] for name in ("raw", "blocking", "awaited", "sleeping")}
    bare: list[float] = []
    for _ in range(rounds):
        bare.append(jobs / asyncio.run(_bare_seconds(jobs)))
        for name in ("raw", "blocking", "awaited", "sleeping"):
            found = rates[name]
            with fresh() as session, rare_collections():
                found.append(_measure(name, session, jobs))
        if minimal_in is not None:
            for name in ("blocking", "awaited"):
                rates.setdefault(f"minimal_{name}", []).append(_minimal_rate(minimal_in, name, jobs))
    with fresh() as session:
        idle = idle_share(session.queue, idle_seconds)
    medians = {name: median(found) for name, found in rates.items()}
    return WorkerFigures(**medians, idle_share=idle, sleeping_bare=median(bare))


def on_files(place: Path) -> Fresh:
    """Return a function that opens sessions on new SQLite files under *place*."""

    @contextmanager
    def fresh() -> Iterator[HoldfastSession]:
        with tempfile.TemporaryDirectory(dir=place) as folder:
            session = HoldfastSession("full", Path(folder))
            try:
                yield session
            finally:
                session.close()

    return fresh


def _minimal_rate(place: Path, name: str, jobs: int) -> float:
    """Return the jobs per second of a minimal worker whose handler does nothing."""
    with tempfile.TemporaryDirectory(dir=place) as folder, rare_collections():
        statements = prepared(str(Path(folder) / "jobs.db"), "full")
        body = json.dumps(payload(0))
        for first in range(0, jobs, _FILL_BATCH):
            statements.enqueue_many(min(_FILL_BATCH, jobs - first), body)
        started = time.monotonic()
        if name == "blocking":
            minimal.run_threads(statements, BATCH, _nothing, 8)
        else:
            asyncio.run(minimal.run_tasks(statements, BATCH, _nothing_async, 8))
        seconds = time.monotonic() - started
        statements.close()
    return jobs / seconds


def _nothing(**_body: object) -> None:
    pass


async def _nothing_async(**_body: object) -> None:
    pass


async def _bare_seconds(jobs: int) -> float:
    left = iter(range(jobs))

    async def slot() -> None:
        for _ in left:
            await asyncio.sleep(SLEEP_SECONDS)

    started = time.monotonic()
    await asyncio.gather(*(slot() for _ in range(SLEEPERS)))
    return time.monotonic() - started


def _measure(name: str, session: HoldfastSession, jobs: int) -> float:
    _fill(session, jobs)
    if name == "raw":
        started = time.monotonic()
        session.drain(BATCH)
        return jobs / (time.monotonic() - started)
    return jobs / drain_seconds(session.queue, name, jobs)


def _fill(session: HoldfastSession, jobs: int) -> None:
    for first in range(0, jobs, _FILL_BATCH):
        session.enqueue_bulk(first, min(_FILL_BATCH, jobs - first))


def drain_seconds(queue: holdfast.Queue, name: str, jobs: int, metrics: WorkerMetrics | None = None) -> float:
    """Return the time in which a worker drains *queue*, from its first claim."""
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
    started = time.monotonic()
    thread.start()
    ended.wait()
    while worker.status().ended.get("done", 0) < jobs:
        time.sleep(0.0005)
    seconds = time.monotonic() - started
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
    """Return the share of one core that an idle worker uses."""
    _declare(queue, "awaited", lambda: None)
    worker = Worker(queue)
    thread = threading.Thread(target=worker.run)
    thread.start()
    while not queue.admin.workers():
        time.sleep(0.01)
    started, used = time.monotonic(), time.process_time()
    time.sleep(seconds)
    share = (time.process_time() - used) / (time.monotonic() - started)
    worker.stop()
    thread.join()
    return share


def show_profile(name: str, jobs: int) -> None:
    """Print a profile of the event loop's thread with short handlers."""
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
    parser.add_argument("--folder", type=Path, help="directory for the measured files")
    parser.add_argument("--profile", choices=["blocking", "awaited"], help="only log where the time goes")
    options = parser.parse_args()
    if options.profile:
        show_profile(options.profile, options.jobs)
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=options.folder) as folder:
        place = Path(folder)
        found = run_worker(on_files(place), rounds=options.rounds, jobs=options.jobs, minimal_in=place)
    _show(found, Console(highlight=False))


def _show(found: WorkerFigures, console: Console) -> None:
    for name, rate, other, bound in [*found.compared(), *found.limits()]:
        console.print(f"{name:>22}: {rate:9,.0f}/s = {rate / bound:.2f} of {other}, {bound:,.0f}/s")
    console.print(f"{'idle':>22}: {found.idle_share:.2%} of a core")


if __name__ == "__main__":
    main()
