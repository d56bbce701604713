"""How long sixteen processes wait to write one SQLite file: a part of the bench, also as `python -m bench.writers`.

Each process enqueues one job after the other. For comparison, each of as many processes takes a lock on one file by
`flock`, writes and syncs as many bytes as a commit does, and releases it: the order in which the kernel grants that
lock is all that they have in common. Others store the same job under that lock by its statements alone: they hold it
for as long as an enqueue has to. The figures are times of whole calls. All run in several rounds, one after the
other: the longest waits depend on what else the machine does, so that only those of one round can be compared.
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
from bench.candidates import as_text, payload
from bench.statement_cost import prepared

PROCESSES = 16
ROUNDS = 7
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


def _statements(folder: Path) -> Callable[[], object]:
    statements = prepared(str(folder / "jobs.db"), "full")
    text = as_text(1)
    return lambda: statements.put(text)


CALLS = {"holdfast": _enqueue, "flock": _flock, "statements under flock": _statements}


def _write(
    name: str, folder: Path, seconds: float, ready: Barrier, found: multiprocessing.SimpleQueue[list[float]]
) -> None:
    """Call once, and again for some seconds, once all processes are ready; put the time of each into *found*."""
    call = CALLS[name](folder)
    times: list[float] = []
    ready.wait()
    until = time.monotonic() + seconds
    while not times or time.monotonic() < until:
        started = time.monotonic()
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
    """The calls of all rounds, and how long they took: medians of the rounds, and the range of the longest waits."""

    calls: int
    median_ms: float
    p99_ms: float
    p999_ms: float
    p999_least_ms: float
    p999_most_ms: float
    ratio: float
    """The median, over the rounds, of p99.9 divided by that of `flock` in the same round."""
    ratio_least: float
    ratio_most: float

    def row(self) -> tuple[str, ...]:
        """Return the figures as text."""
        waits = f"{self.p999_ms:.1f} ({self.p999_least_ms:.1f} to {self.p999_most_ms:.1f})"
        beside = f"{self.ratio:.2f} ({self.ratio_least:.2f} to {self.ratio_most:.2f})"
        return str(self.calls), f"{self.median_ms:.1f}", f"{self.p99_ms:.1f}", waits, beside


HEAD = ("calls", "number", "median ms", "p99 ms", "p99.9 ms (range of rounds)", "p99.9 beside flock (range)")


def run_writers(processes: int, seconds: float, rounds: int) -> dict[str, WriterTimes]:
    """Measure all calls in each round, each of them first in turn, so that they share what else the machine does."""
    names = list(CALLS)
    found: dict[str, list[list[float]]] = {name: [] for name in names}
    for index in range(rounds):
        for name in names if index % 2 else reversed(names):
            found[name].append(measure(name, processes, seconds))
    return {name: _times(times, found["flock"]) for name, times in found.items()}


def _times(rounds: list[list[float]], beside: list[list[float]]) -> WriterTimes:
    """Return the figures of all rounds of a call, and of `flock` in the same rounds."""
    longest = [quantile(times, 0.999) * 1000 for times in rounds]
    ratios = [mine / (quantile(other, 0.999) * 1000) for mine, other in zip(longest, beside, strict=True)]
    return WriterTimes(
        sum(map(len, rounds)),
        median(quantile(times, 0.5) * 1000 for times in rounds),
        median(quantile(times, 0.99) * 1000 for times in rounds),
        median(longest),
        min(longest),
        max(longest),
        median(ratios),
        min(ratios),
        max(ratios),
    )


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
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    show(run_writers(options.processes, options.seconds, options.rounds), Console())


if __name__ == "__main__":
    main()
