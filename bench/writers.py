"""How long sixteen processes wait to write one SQLite file: a part of the bench, also as `python -m bench.writers`.

Each process enqueues one job after the other. For comparison, each of as many processes takes a lock on one file by
`flock`, writes and syncs as many bytes as a commit does, and releases it: the order in which the kernel grants that
lock is all that they have in common. The figures are times of whole calls.
"""

from __future__ import annotations

import argparse
import fcntl
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

import holdfast
from bench.candidates import payload

PROCESSES = 16
# What the commit of one enqueue appends to the log: four pages with their headers.
_COMMIT_BYTES = 4 * (4096 + 24)


def _enqueue(folder: Path) -> Callable[[], object]:
    queue = holdfast.connect(str(folder / "jobs.db"))
    queue.migrate()
    return lambda: queue.enqueue("mail", payload(1))


def _flock(folder: Path) -> Callable[[], object]:
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    log = os.open(folder / "log", os.O_RDWR | os.O_CREAT)
    page = b"x" * _COMMIT_BYTES

    def write() -> None:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.pwrite(log, page, 0)
        os.fdatasync(log)
        fcntl.flock(lock, fcntl.LOCK_UN)

    return write


CALLS = {"holdfast": _enqueue, "flock": _flock}


def _write(
    name: str, folder: Path, seconds: float, ready: Barrier, found: multiprocessing.SimpleQueue[list[float]]
) -> None:
    """Repeat the call for some seconds, once all processes are ready; put the time that each took into *found*."""
    call, times = CALLS[name](folder), []
    ready.wait()
    until = time.monotonic() + seconds
    while (started := time.monotonic()) < until:
        call()
        times.append(time.monotonic() - started)
    found.put(times)


def measure(name: str, processes: int, seconds: float) -> list[float]:
    """Return how long each call took, in seconds, sorted."""
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(processes)
    found: multiprocessing.SimpleQueue[list[float]] = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        CALLS[name](Path(folder))
        arguments = (name, Path(folder), seconds, ready, found)
        writers = [context.Process(target=_write, args=arguments) for _ in range(processes)]
        for writer in writers:
            writer.start()
        times = [one for _ in writers for one in found.get()]
        for writer in writers:
            writer.join()
    return sorted(times)


def quantile(times: list[float], share: float) -> float:
    """Return the time that *share* of the calls did not exceed."""
    return times[min(int(len(times) * share), len(times) - 1)]


class WriterTimes(NamedTuple):
    """How many calls there were, and how long they took."""

    calls: int
    median_ms: float
    p99_ms: float
    p999_ms: float

    def row(self) -> tuple[str, ...]:
        """Return the figures as text, and how many times the median the longest waits are."""
        times = (f"{self.median_ms:.1f}", f"{self.p99_ms:.1f}", f"{self.p999_ms:.1f}")
        return str(self.calls), *times, f"{self.p999_ms / self.median_ms:.0f}"


HEAD = ("calls", "number", "median ms", "p99 ms", "p99.9 ms", "p99.9 / median")


def run_writers(processes: int, seconds: float) -> dict[str, WriterTimes]:
    """Measure all calls, one after the other."""
    found = {}
    for name in CALLS:
        times = measure(name, processes, seconds)
        shown = (median(times), quantile(times, 0.99), quantile(times, 0.999))
        found[name] = WriterTimes(len(times), *(one * 1000 for one in shown))
    return found


def show(found: dict[str, WriterTimes], console: Console) -> None:
    """Print the waits of each kind of writer."""
    table = Table(*HEAD)
    for name, times in found.items():
        table.add_row(name, *times.row())
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    show(run_writers(options.processes, options.seconds), Console())


if __name__ == "__main__":
    main()
