"""Holdfast on PostgreSQL as a candidate, through its public API; also with several worker processes."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import holdfast
from bench.candidates import BATCH, Candidate, CandidateFailedError, Scenario
from bench.holdfast_candidates import HoldfastSession
from bench.postgres.drivers.protocol import WARM_JOBS
from bench.postgres.server import Arena

THREADS = 2
"""Threads that drain: the peers also claim and settle while they handle jobs."""
_ROOT = Path(__file__).resolve().parents[2]
_SCENARIOS: frozenset[Scenario] = frozenset(
    {"single", "threads-8", "threads-32", "bulk", "drain", "workers-4", "workers-8", "pick-up"}
)


class PostgresSession(HoldfastSession):
    """The same calls as on SQLite; warmed up like the peers."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.queue = holdfast.connect(url)
        self.queue.migrate()
        self.enqueue(0)
        self.fill(WARM_JOBS)
        self.drain_by_threads()

    def measure(self, scenario: Scenario, count: int) -> float:
        """Return the seconds for *count* jobs of *scenario*."""
        match scenario:
            case "workers-4":
                return self._drain_by_processes(count, 4)
            case "workers-8":
                return self._drain_by_processes(count, 8)
            case _:
                return super().measure(scenario, count)

    def drain_by_threads(self) -> int:
        """Handle and settle all jobs in threads: while one waits for the server, another handles its jobs."""
        with ThreadPoolExecutor(THREADS) as crew:
            return sum(crew.map(self.drain, [BATCH] * THREADS))

    def _drain(self, count: int, batch: int) -> float:
        """Measure all threads."""
        del batch
        self.fill(count)
        gc.collect()
        started = time.perf_counter()
        handled = self.drain_by_threads()
        seconds = time.perf_counter() - started
        if handled != count:
            raise CandidateFailedError(f"{THREADS} threads handled {handled} of {count} jobs")
        return seconds

    def _drain_by_processes(self, count: int, processes: int) -> float:
        """Measure from the start signal until the last process has settled its last job."""
        self.fill(count)
        command = [sys.executable, "-m", "bench.postgres.holdfast_candidates", self._url]
        with ExitStack() as ends:
            workers = [ends.enter_context(_start(command)) for _ in range(processes)]
            for worker in workers:
                _line(worker)
            started = time.monotonic()
            for worker in workers:
                _start_draining(worker)
            reports = [json.loads(_line(worker)) for worker in workers]
        handled = sum(one["handled"] for one in reports)
        if handled != count:
            raise CandidateFailedError(f"{processes} processes handled {handled} of {count} jobs")
        return float(max(one["last"] for one in reports)) - started


def _start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT)  # noqa: S603


def _start_draining(worker: subprocess.Popen[str]) -> None:
    assert worker.stdin is not None  # noqa: S101  # it has a pipe
    worker.stdin.write("begin\n")
    worker.stdin.close()


def _line(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None  # noqa: S101  # it has a pipe
    line = worker.stdout.readline()
    if not line:
        raise CandidateFailedError("a worker process gave no answer; see its output above")
    return line


def main() -> None:
    """Run one of several workers: wait for the start signal, drain, print the number of jobs and the end time."""
    queue = holdfast.connect(sys.argv[1])
    queue.claim(kinds=["nothing of this kind"])
    gc.collect()
    print("ready", flush=True)  # noqa: T201  # the parent waits for this line
    sys.stdin.readline()
    handled, last, idle = 0, time.monotonic(), 0
    done: list[tuple[holdfast.Claim, holdfast.Done]] = []
    # Other workers may hold all visible jobs, so one empty claim is not the end.
    while idle < 2:
        settled = len(done)
        claims = queue.settle_and_claim(done, limit=BATCH).claims
        last = time.monotonic() if settled else last
        done = [(claim, holdfast.Done()) for claim in claims]
        handled += len(claims)
        idle = 0 if claims else idle + 1
    print(json.dumps({"handled": handled, "last": last}), flush=True)  # noqa: T201  # the parent reads this
    queue.close()


def on_server(arena: Arena) -> Callable[[], AbstractContextManager[HoldfastSession]]:
    """Return a function that opens sessions on new databases of the server."""

    @contextmanager
    def fresh() -> Iterator[HoldfastSession]:
        with arena.fresh() as url:
            session = PostgresSession(url)
            try:
                yield session
            finally:
                session.close()

    return fresh


def candidates() -> list[Candidate]:
    """Return Holdfast, or an empty list if the PostgreSQL driver is not installed."""
    settings = (
        f"connect(url); settle_and_claim in batches of {BATCH} in a plain loop, in {THREADS} threads; psycopg 3"
    )
    return [Candidate("holdfast", "full", settings, _SCENARIOS, PostgresSession)]


if __name__ == "__main__":
    main()
