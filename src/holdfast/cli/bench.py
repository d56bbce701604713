"""`holdfast bench`: how fast this store is on this machine, drawn as bars."""

import contextlib
import itertools
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import click

import holdfast
from holdfast import Done, Queue
from holdfast.cli import errors, options, stats, tables
from holdfast.cli.terminal import MEMORY, Terminal, sqlite_path

_BATCH = 100
_WORKER_JOBS = 500


class Rate(NamedTuple):
    """One measured step."""

    step: str
    jobs: int
    seconds: float

    @property
    def per_second(self) -> float:
        """How many jobs per second."""
        return self.jobs / self.seconds


@click.command(
    cls=options.Command,
    epilog="""
    It uses a temporary queue beside the one of --url: a file in the same folder,
    or a schema of the same database, which it deletes. Other work on the machine
    makes the numbers smaller.

    Examples:
      holdfast bench --seconds 0.2
      holdfast bench --seconds 0.2 --json
    """,
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.05, 60),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How long each step takes.",
)
@options.pass_terminal
def bench(terminal: Terminal, seconds: float) -> None:
    """Measure how many jobs per second this store takes."""
    rates: list[Rate] = []
    with _temporary_queue(terminal) as queue:
        for step, run in _STEPS.items():
            with terminal.busy(step):
                rates.append(_measured(step, run, queue, seconds))
        with terminal.busy("worker"):
            rates.append(_worker(queue))
    if terminal.json:
        terminal.emit(
            {"steps": [{"step": one.step, "jobs": one.jobs, "per_second": round(one.per_second)} for one in rates]}
        )
    else:
        _draw(terminal, rates)


@contextlib.contextmanager
def _temporary_queue(terminal: Terminal) -> Iterator[Queue]:
    if terminal.url.startswith(("http://", "https://")):
        raise errors.CommandError("bench measures a store, not a server", hint="give --url the store of the server")
    path = sqlite_path(terminal.url)
    if terminal.url == MEMORY or path is not None:
        beside = Path() if path is None else path.parent
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=beside) as folder:
            queue = holdfast.connect(str(Path(folder) / "bench.db"))
            try:
                yield queue
            finally:
                queue.close()
        return
    schema = f"holdfast_bench_{secrets.token_hex(4)}"
    queue = holdfast.connect(terminal.url, schema=schema)
    try:
        yield queue
    finally:
        with queue.transaction() as transaction:
            transaction.execute(f"drop schema {schema} cascade")
        queue.close()


def _measured(step: str, run: Callable[[Queue], int], queue: Queue, seconds: float) -> Rate:
    queue.enqueue("bench")
    queue.settle_many([(claim, Done()) for claim in queue.claim_many(limit=1)])
    jobs, started = 0, time.perf_counter()
    while (passed := time.perf_counter() - started) < seconds:
        done = run(queue)
        if not done:
            break
        jobs += done
    return Rate(step, max(jobs, 1), max(passed, 1e-6))


def _enqueue(queue: Queue) -> int:
    queue.enqueue("bench", {"to": "ada@example.org"})
    return 1


def _enqueue_many(queue: Queue) -> int:
    return len(queue.enqueue_many([{"kind": "bench", "payload": {"to": "ada@example.org"}} for _ in range(_BATCH)]))


def _claim_and_settle(queue: Queue) -> int:
    claim = queue.claim()
    if claim is None:
        return 0
    queue.settle(claim, Done())
    return 1


def _claim_and_settle_many(queue: Queue) -> int:
    claims = queue.claim_many(limit=_BATCH)
    queue.settle_many([(claim, Done()) for claim in claims])
    return len(claims)


_STEPS = {
    "enqueue": _enqueue,
    "enqueue, 100 at once": _enqueue_many,
    "claim and settle": _claim_and_settle,
    "claim and settle, 100 at once": _claim_and_settle_many,
}


def _worker(queue: Queue) -> Rate:
    """Run a worker until it has done some jobs."""
    done = itertools.count(1)

    @queue.task("bench.worker")
    def work() -> None:
        if next(done) == _WORKER_JOBS:
            worker.stop()

    queue.enqueue_many([{"kind": "bench.worker"} for _ in range(_WORKER_JOBS)])
    worker = holdfast.Worker(queue, kinds=["bench.worker"])
    started = time.perf_counter()
    worker.run()
    return Rate("worker, 8 at once", _WORKER_JOBS, time.perf_counter() - started)


def _draw(terminal: Terminal, rates: list[Rate]) -> None:
    largest = max(round(one.per_second) for one in rates)
    solid = not terminal.out.encoding.startswith("utf")
    columns = [
        tables.Column("STEP", [one.step for one in rates]),
        tables.Column("JOBS/S", [f"{one.per_second:,.0f}" for one in rates], justify="right"),
        tables.Column(
            "", [stats.bar(round(one.per_second), largest, ascii_only=solid) for one in rates], 1, style="cyan"
        ),
    ]
    terminal.show(tables.table(columns, terminal.out.width))
