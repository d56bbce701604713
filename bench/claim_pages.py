"""Claims of jobs that are far apart, beside an update of their rows alone: `python -m bench.claim_pages`.

A claim of 100 jobs of 100 tenants changes 100 rows. In a small file they are on a few pages, in a large one on a page
each. The minimal program updates the same rows by their numbers, in one statement and one commit, and does nothing
else: what it takes longer in a large file, a claim has to take longer as well.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table

import holdfast
from bench import call_cost, seed

JOBS: Final = 100


class Sample(NamedTuple):
    """The milliseconds of a call, and the pages that it has written to the log."""

    milliseconds: float
    pages: float


class _Store:
    """One store, with a second connection for the minimal program."""

    def __init__(self, path: Path, ends: ExitStack) -> None:
        self._path = path
        self._queue = ends.enter_context(holdfast.connect(str(path), durability="relaxed"))
        self._bare = ends.enter_context(closing(sqlite3.connect(path, isolation_level=None)))
        self._bare.execute("pragma synchronous = normal")

    def claim_then_update(self) -> tuple[Sample, Sample]:
        """Measure a claim, and an update of the same rows and their index entries after the jobs are released."""
        claims: list[holdfast.Claim] = []
        claim = self._sample(lambda: claims.extend(self._queue.claim_many(limit=JOBS, lanes=["fair"])))
        self._queue.settle_many([(claim, holdfast.Released()) for claim in claims])
        numbers = json.dumps([claim.job.number for claim in claims])
        return claim, self._sample(lambda: self._update(numbers))

    def _update(self, numbers: str) -> None:
        self._bare.execute("begin immediate")
        self._bare.execute(
            "update holdfast_job set state = state where seq in (select value from json_each(?))", (numbers,)
        )
        self._bare.execute("commit")

    def _sample(self, call: Callable[[], object]) -> Sample:
        taken: list[float] = []

        def work() -> None:
            started = time.perf_counter()
            call()
            taken.append(time.perf_counter() - started)

        pages = call_cost.written_pages(self._path, work)
        return Sample(taken[0] * 1e3, pages)


def measure(place: Path, *, sizes: Sequence[int], beside: int, claims: int) -> dict[str, dict[int, Sample]]:
    """Return medians by size of claims and of the minimal program, with *beside* finished and future jobs."""
    with tempfile.TemporaryDirectory(dir=place) as folder, ExitStack() as ends:
        base = Path(folder) / "base.db"
        seed.make_base(base, finished=beside, future=beside)
        stores = {}
        for size in sizes:
            path = Path(folder) / f"ready-{size}.db"
            seed.add_ready(base, path, size)
            stores[size] = _Store(path, ends)
        taken: dict[int, list[tuple[Sample, Sample]]] = {size: [] for size in sizes}
        for _ in range(claims):
            # The sizes take turns, so that noise affects all of them.
            for size, store in stores.items():
                taken[size].append(store.claim_then_update())
    return {
        name: {size: _median([pair[index] for pair in pairs]) for size, pairs in taken.items()}
        for index, name in enumerate(("a claim", "its rows alone"))
    }


def _median(samples: Sequence[Sample]) -> Sample:
    return Sample(median(one.milliseconds for one in samples), median(one.pages for one in samples))


def show(found: dict[str, dict[int, Sample]], console: Console) -> None:
    """Print the results."""
    table = Table("100 jobs of 100 tenants", "ready jobs", "ms", "ratio", "pages")
    for name, by_size in found.items():
        first = by_size[min(by_size)].milliseconds
        for size, (milliseconds, pages) in by_size.items():
            table.add_row(name, f"{size:,}", f"{milliseconds:.2f}", f"{milliseconds / first:.2f}", f"{pages:.0f}")
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> dict[str, dict[int, Sample]]:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.claim_pages", description="Measure claims of far jobs.")
    parser.add_argument(
        "--size", type=int, action="append", help="ready jobs; repeatable (default: up to 10,000,000)"
    )
    parser.add_argument(
        "--beside", type=int, default=1_000_000, help="finished, and future, jobs (default 1,000,000)"
    )
    parser.add_argument("--claims", type=int, default=25, help="claims for each size (default 25)")
    parser.add_argument("--folder", type=Path, default=Path(), help="where the files are made (default: here)")
    options = parser.parse_args(arguments)
    sizes = sorted(options.size or (1_000, 1_000_000, 10_000_000))
    found = measure(options.folder, sizes=sizes, beside=options.beside, claims=options.claims)
    show(found, Console())
    return found


if __name__ == "__main__":
    main()
