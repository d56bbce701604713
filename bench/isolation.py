"""The cost of isolation: `python -m bench.isolation`.

One worker on one file runs no-op handlers in threads and in isolated processes, one job at a time and alternating.
The cost is the difference of the medians. Also measured: isolated jobs per second, the time until a dead process is
replaced, and the time of a start.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple, Unpack

from rich.console import Console

import holdfast
from holdfast import Tasks, Worker

JOBS = 1_000
SLOTS = 8
TARGET_MS = 2.0
_FILL_BATCH = 5_000
_PATIENCE_SECONDS = 60.0

tasks = Tasks()


@tasks.task("bench.plain")
def plain() -> None:
    """Do nothing in a thread of the worker."""


@tasks.task("bench.isolated", isolate="process")
def isolated() -> None:
    """Do nothing in an isolated process."""


@tasks.task("bench.dies", isolate="process", max_attempts=1)
def dies() -> None:
    """Exit the process."""
    os._exit(1)


class IsolationFigures(NamedTuple):
    """The results."""

    plain_ms: float
    """Median time from enqueue to done in a thread, one job at a time."""
    isolated_ms: float
    """The same in an existing isolated process."""
    plain_rate: float
    """Jobs per second in eight slots."""
    isolated_rate: float
    again_ms: float
    """Median time from enqueue to done right after the process died, including the fork of another."""
    start_ms: float
    """From the start of a worker to its first isolated job done: the fork server starts, imports and forks."""

    @property
    def cost_ms(self) -> float:
        """The time that isolation adds to a job, at the median."""
        return self.isolated_ms - self.plain_ms


def run_isolation(place: Path, *, rounds: int, jobs: int = JOBS) -> IsolationFigures:
    """Measure all figures."""
    found: dict[str, list[float]] = {name: [] for name in IsolationFigures._fields}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=place) as folder:
            for name, value in _measure(Path(folder), jobs)._asdict().items():
                found[name].append(value)
    return IsolationFigures(**{name: median(values) for name, values in found.items()})


def _measure(folder: Path, jobs: int) -> IsolationFigures:
    with holdfast.connect(str(folder / "holdfast.db")) as queue:
        queue.include(tasks, again=True)
        queue.migrate()
        started = time.monotonic()
        with _worker(queue, 1):
            start = _one(queue, "bench.isolated") and time.monotonic() - started
            plain_ms, isolated_ms = _in_turn(queue, jobs)
            again = [_after_death(queue) for _ in range(max(3, jobs // 50))]
        rates = _rate(queue, "bench.plain", jobs), _rate(queue, "bench.isolated", jobs)
    return IsolationFigures(plain_ms, isolated_ms, *rates, median(again) * 1000, start * 1000)


@contextmanager
def _worker(queue: holdfast.Queue, slots: int, **options: Unpack[holdfast.types.ClaimOptions]) -> Iterator[Worker]:
    worker = Worker(queue, concurrency=slots, **options)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join()


def _one(queue: holdfast.Queue, kind: str) -> float:
    """Return the time from enqueue to the end of one job."""
    started = time.perf_counter()
    job = queue.enqueue(kind, {}, max_attempts=1)
    queue.wait(job.id, timeout=_PATIENCE_SECONDS)
    return time.perf_counter() - started


def _in_turn(queue: holdfast.Queue, jobs: int) -> tuple[float, float]:
    seconds: dict[str, list[float]] = {"bench.plain": [], "bench.isolated": []}
    for _ in range(jobs):
        for kind, taken in seconds.items():
            taken.append(_one(queue, kind))
    return median(seconds["bench.plain"]) * 1000, median(seconds["bench.isolated"]) * 1000


def _after_death(queue: holdfast.Queue) -> float:
    _one(queue, "bench.dies")
    return _one(queue, "bench.isolated")


def _rate(queue: holdfast.Queue, kind: str, jobs: int) -> float:
    with _worker(queue, SLOTS, kinds=[kind]) as worker:
        # Start the process of every slot before measuring.
        _drain(queue, worker, kind, SLOTS * 10)
        return jobs * 5 / _drain(queue, worker, kind, jobs * 5)


def _drain(queue: holdfast.Queue, worker: Worker, kind: str, jobs: int) -> float:
    """Return the time in which the worker runs *jobs* jobs."""
    before = worker.status().ended.get("done", 0)
    job = holdfast.NewJob(kind, {})
    for first in range(0, jobs, _FILL_BATCH):
        queue.enqueue_many([job] * min(_FILL_BATCH, jobs - first))
    started = time.monotonic()
    while worker.status().ended.get("done", 0) < before + jobs:
        time.sleep(0.0005)
    return time.monotonic() - started


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.isolation", description="Measure the cost of isolation.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--folder", type=Path, help="directory for the measured files")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=options.folder) as folder:
        found = run_isolation(Path(folder), rounds=options.rounds, jobs=options.jobs)
    _show(found, Console(highlight=False))


def _show(found: IsolationFigures, console: Console) -> None:
    verdict = "met" if found.cost_ms < TARGET_MS else "missed"
    console.print(f" one job: {found.plain_ms:.2f} ms in a thread, {found.isolated_ms:.2f} ms isolated")
    console.print(f"    cost: {found.cost_ms:.2f} ms at the median; under {TARGET_MS:g} ms is {verdict}")
    console.print(f"    many: {found.plain_rate:,.0f}/s in threads, {found.isolated_rate:,.0f}/s isolated")
    console.print(f"   again: {found.again_ms:.1f} ms after a process has died")
    console.print(f"   start: {found.start_ms:.0f} ms until a new worker has run its first")


if __name__ == "__main__":
    main()
