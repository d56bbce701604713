"""Jobs at a fixed rate for minutes, with and without a transaction left open: `python -m bench.postgres.load`.

One process enqueues, another claims and settles as the jobs arrive. Measured are the time from enqueue to claim,
and how tables, write-ahead log and the memory of the claiming process grow. An open transaction keeps the server from
removing what finished jobs leave behind, so that a claim that reads it would slow down from minute to minute. The two
loads that are compared run at the same time, each on a server of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import psycopg
from rich.console import Console
from rich.table import Table

import holdfast
from bench import charts
from bench.candidates import CandidateFailedError
from bench.postgres.server import Arena

_ROOT = Path(__file__).resolve().parents[2]
_TICK_SECONDS = 0.01
_BATCH = 500
_SAMPLES = 10
_GROWING = ("job", "ready_job", "open_job", "lease", "ended", "event")
_PINNED_FACTOR_MAX = 3.0


class Load(NamedTuple):
    """What is measured: how many jobs per second, for how long, of how many tenants."""

    rate: int
    seconds: float
    tenants: int
    pinned: bool


class Sample(NamedTuple):
    """The sizes after so many jobs."""

    jobs: int
    table_bytes: dict[str, int]
    wal_bytes: int
    memory_bytes: int


class LoadFigures(NamedTuple):
    """The results: times from enqueue to claim in the second half of the run, and samples over all of it."""

    load: Load
    jobs: int
    p50_ms: float
    p99_ms: float
    behind: int
    """How many jobs were not settled when the last was enqueued."""
    samples: list[Sample]

    def growth(self) -> dict[str, float]:
        """Return how much each size grows per million jobs, in megabytes."""
        first, last = self.samples[len(self.samples) // 2 - 1], self.samples[-1]
        jobs = max(1, last.jobs - first.jobs)
        grown = {name: last.table_bytes[name] - first.table_bytes[name] for name in _GROWING}
        grown |= {"log": last.wal_bytes - first.wal_bytes, "memory": last.memory_bytes - first.memory_bytes}
        return {name: size / jobs for name, size in grown.items()}


def measure(arena: Arena, load: Load) -> LoadFigures:
    """Run one load on a new database."""
    with arena.fresh() as url, ExitStack() as ends:
        queue = ends.enter_context(holdfast.connect(url))
        queue.migrate()
        claiming = ends.enter_context(_claiming(url, load.seconds / 2))
        if load.pinned:
            ends.enter_context(_pinning(url))
        samples: list[Sample] = []
        begun, sent = time.monotonic(), 0
        while (now := time.monotonic() - begun) < load.seconds:
            due = min(int(now * load.rate), int(load.seconds * load.rate)) - sent
            stamp = time.monotonic_ns()
            numbers = range(sent, sent + min(due, 1_000))
            jobs = [{"kind": "mail", "payload": stamp, "tenant": f"tenant-{one % load.tenants}"} for one in numbers]
            if jobs:
                queue.enqueue_many(jobs)
            sent += len(jobs)
            if now >= (len(samples) + 1) * load.seconds / (_SAMPLES + 1):
                samples.append(_sample(url, sent, claiming.pid))
            time.sleep(max(0.0, _TICK_SECONDS - (time.monotonic() - begun - now)))
        samples.append(_sample(url, sent, claiming.pid))
        behind = _unsettled(url)
        waits = _report(claiming)
    return LoadFigures(load, sent, _percentile(waits, 0.5), _percentile(waits, 0.99), behind, samples)


def _percentile(waits: dict[int, int], part: float) -> float:
    """Return the wait in milliseconds below which the fraction *part* of all waits lies."""
    left = part * sum(waits.values())
    for tenths in sorted(waits):
        left -= waits[tenths]
        if left <= 0:
            return tenths / 10
    return 0.0


@contextmanager
def _claiming(url: str, after_seconds: float) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.postgres.load", "--claim", url, "--after", str(after_seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT) as process:  # noqa: S603
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018
        process.stdout.readline()
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def _report(process: subprocess.Popen[str]) -> dict[int, int]:
    """Let the process settle what is left; return how many jobs waited how long, in tenths of milliseconds."""
    assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018
    process.stdin.close()
    return {int(tenths): count for tenths, count in json.loads(process.stdout.readline()).items()}


def claim_all(url: str, after_seconds: float) -> None:
    """Claim and settle until the input is closed and no job is left; print how long jobs waited, from a time on."""
    stopping = threading.Event()

    def read() -> None:
        sys.stdin.read()
        stopping.set()

    waits: Counter[int] = Counter()
    done: list[tuple[holdfast.Claim, holdfast.Done]] = []
    with holdfast.connect(url) as queue:
        queue.claim()
        print("ready", flush=True)  # noqa: T201  # the parent waits for this line
        counts_from = time.monotonic() + after_seconds
        threading.Thread(target=read, daemon=True).start()
        while True:
            claims = queue.settle_and_claim(done, limit=_BATCH, wait=0.5).claims
            now = time.monotonic_ns()
            if time.monotonic() > counts_from:
                waits.update((now - claim.job.payload) // 100_000 for claim in claims)
            done = [(claim, holdfast.Done()) for claim in claims]
            if not claims and stopping.is_set():
                break
    print(json.dumps(waits), flush=True)  # noqa: T201  # the parent reads this


@contextmanager
def _pinning(url: str) -> Iterator[None]:
    with psycopg.connect(url) as connection:
        connection.execute(b"set transaction isolation level repeatable read")
        connection.execute(b"select 1 from holdfast.job limit 1")
        yield


def _sample(url: str, jobs: int, process: int) -> Sample:
    with psycopg.connect(url, autocommit=True) as connection:
        sizes = connection.execute(
            "select relname, pg_total_relation_size(oid) from pg_class where relkind = 'r' and relname = any (%s)"
            " and relnamespace = 'holdfast'::regnamespace",
            [list(_GROWING)],
        ).fetchall()
        [[log]] = connection.execute("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint").fetchall()
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    resident = [int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:")]
    if not resident:
        raise CandidateFailedError("the process that claims has ended; see its output above")
    return Sample(jobs, dict(sizes), log, resident[0])


def _unsettled(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        [[left]] = connection.execute("select count(*) from holdfast.job where finished_at_ms is null").fetchall()
    return int(left)


def show(figures: Sequence[LoadFigures], console: Console) -> None:
    """Print the results."""
    table = Table("tenants", "open transaction", "jobs", "p50 ms", "p99 ms", "left", "MB per million jobs")
    for one in figures:
        growth = ", ".join(f"{name} {megabytes:.0f}" for name, megabytes in one.growth().items())
        times = (f"{one.p50_ms:.1f}", f"{one.p99_ms:.1f}")
        pinned = "yes" if one.load.pinned else "no"
        table.add_row(str(one.load.tenants), pinned, f"{one.jobs:,}", *times, f"{one.behind:,}", growth)
    console.print(table)
    for free, held in zip(figures[::2], figures[1::2], strict=False):
        factor = held.p99_ms / max(free.p99_ms, 0.01)
        met = "met" if factor <= _PINNED_FACTOR_MAX else "missed"
        console.print(f"{free.load.tenants} tenants: p99 {factor:.1f}x under an open transaction (target 3x, {met})")


def plot(figures: Sequence[LoadFigures]) -> str:
    """Return the sizes over the jobs of each run as SVG."""
    sizes: dict[str, Callable[[Sample], float]] = {
        "tables, MB": lambda sample: sum(sample.table_bytes.values()) / 1e6,
        "write-ahead log, MB": lambda sample: sample.wal_bytes / 1e6,
        "memory of the claiming process, MB": lambda sample: sample.memory_bytes / 1e6,
    }
    panels: dict[str, list[charts.Line]] = {name: [] for name in sizes}
    for one in figures:
        label = f"{one.load.tenants} tenants" + ", open transaction" * one.load.pinned
        for name, size in sizes.items():
            start = size(one.samples[0]) if name.startswith("write") else 0.0
            points = [(float(sample.jobs), size(sample) - start) for sample in one.samples]
            panels[name].append(charts.Line(label, points))
    return charts.draw_lines(f"{figures[0].load.rate:,} jobs a second", panels)


def main(arguments: list[str] | None = None) -> list[LoadFigures]:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.postgres.load", description="Measure a steady load.")
    parser.add_argument("--rate", type=int, default=5_000, help="jobs per second (default 5,000)")
    parser.add_argument("--minutes", type=float, default=20.0, help="length of each run (default 20)")
    parser.add_argument("--tenants", type=int, action="append", help="how many tenants; repeatable (default 1, 100)")
    parser.add_argument("--json", type=Path, help="file for the results as JSON")
    parser.add_argument("--plot", type=Path, help="file for a plot of the sizes as SVG")
    parser.add_argument("--claim", help=argparse.SUPPRESS)
    parser.add_argument("--after", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.claim:
        claim_all(options.claim, options.after)
        return []
    figures: list[LoadFigures] = []
    with Arena() as free, Arena() as held, ThreadPoolExecutor() as pool:
        for tenants in options.tenants or [1, 100]:
            loads = [Load(options.rate, options.minutes * 60, tenants, pinned) for pinned in (False, True)]
            figures += pool.map(measure, (free, held), loads)
            show(figures, Console())
    if options.plot is not None:
        options.plot.write_text(plot(figures), encoding="utf-8")
    if options.json is not None:
        options.json.write_text(json.dumps([one._asdict() for one in figures], indent=1), encoding="utf-8")
    return figures


if __name__ == "__main__":
    main()
