"""What limits by key cost, as ratios within one run: `python -m bench.limits [--store URL]`.

Three things are measured: the drain of jobs whose limit is never reached, beside the same drain without limits; a
claim beside many full keys with parked jobs, beside one of a store without them; and how many parents of one job end
per second of processor time. All figures are processor time, on PostgreSQL that of this process and of the server,
which must be on this machine. Each is the lower quartile of its rounds. The parked jobs are copies made by SQL, so
that there can be a million of them.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import quantiles
from typing import Any, Final, NamedTuple

import psycopg
from rich.console import Console
from rich.table import Table

import holdfast
from holdfast import Done, NewJob, Queue
from holdfast.domain.job import STATE_NUMBERS

BATCH: Final = 100
TENANTS: Final = 100
NEVER: Final = 10_000
"""A number at once that is never reached."""
LIMITS: Final[Mapping[str, Mapping[str, Any]]] = {
    "one key": {"concurrency": NEVER},
    f"a key for each of {TENANTS} tenants": {"key": "tenant", "concurrency": NEVER},
    "a key given to each job": {"key": "given", "concurrency": NEVER},
    "one key, rate": {"rate": 1_000_000, "per": 1},
    f"a rate for each of {TENANTS} tenants": {"key": "tenant", "rate": 1_000_000, "per": 1},
}
PLAIN: Final = "no limit"
RATIO_MIN: Final = 0.85
CLAIM_MAX: Final = 1.5


class LimitCosts(NamedTuple):
    """The results."""

    microseconds: dict[str, float]
    """Per job, by the limit."""
    claim_ratio: float
    """A claim beside full keys, in claims of an empty store."""
    fan_in: float
    """Ends of parents per second, until the child is ready."""

    def ratio(self, name: str) -> float:
        """Return the throughput with a limit, as a share of that without."""
        return self.microseconds[PLAIN] / self.microseconds[name]


def measure(url: str | None, *, rounds: int, jobs: int, keys: int, parked: int) -> LimitCosts:
    """Measure on the store at *url*, which must be new; None means a SQLite file."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        clock = time.process_time if url is None else stack.enter_context(_client_and_server(url))
        address = url or str(Path(folder) / "jobs.db")
        options: dict[str, Any] = {"durability": "relaxed"} if url is None else {}
        with holdfast.connect(address, **options) as queue:
            for number, (name, limit) in enumerate(LIMITS.items()):
                queue.limits.set(name.replace(" ", "-"), kinds=[f"limited-{number}"], **limit)
            found: dict[str, list[float]] = {}
            for round_number in range(rounds + 1):
                for number, name in enumerate((*LIMITS, PLAIN)):
                    kind = f"limited-{number}"
                    queue.enqueue_many(_jobs(kind, jobs))
                    microseconds = _timed(clock, jobs, lambda kind=kind: _drain(queue, kind))  # type: ignore[misc]
                    if round_number:
                        # The first round plans statements and extends files.
                        found.setdefault(name, []).append(microseconds)
            fan_in = 1e6 / _low([_fan_in(queue, clock, jobs) for _ in range(rounds)])
            ratio = _claims(queue, clock, rounds, keys, lambda: _copy_parked(url, address, max(parked // keys, 1)))
    return LimitCosts({name: _low(values) for name, values in found.items()}, ratio, fan_in)


@contextlib.contextmanager
def _client_and_server(url: str) -> Iterator[Callable[[], float]]:
    """Return a clock of the processor time of this process and of the server's for the database at *url*."""
    with psycopg.connect(url, autocommit=True) as connection:

        def now() -> float:
            rows = connection.execute(
                "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
            )
            server_ns = 0
            for (process,) in rows.fetchall():
                with contextlib.suppress(FileNotFoundError):
                    server_ns += int(Path(f"/proc/{process}/schedstat").read_text(encoding="utf-8").split()[0])
            return time.process_time() + server_ns / 1e9

        yield now


def _low(values: list[float]) -> float:
    return quantiles(values, n=4)[0] if len(values) > 1 else values[0]


def _jobs(kind: str, count: int) -> list[NewJob]:
    return [NewJob(kind, {"n": n}, tenant=f"tenant-{n % TENANTS}", limit_key=f"key-{n % 10}") for n in range(count)]


def _drain(queue: Queue, kind: str) -> None:
    claims = queue.claim_many(worker="w", kinds=[kind], limit=BATCH)
    while claims:
        outcomes = [(claim, Done()) for claim in claims]
        claims = queue.settle_and_claim(outcomes, worker="w", kinds=[kind], limit=BATCH).claims


def _fan_in(queue: Queue, clock: Callable[[], float], count: int) -> float:
    """Return the microseconds per parent until a job that waits for all of them is done."""
    parents = queue.enqueue_many([NewJob("parent") for _ in range(min(count, 1_000))])
    queue.enqueue("child", after=[one.id for one in parents])

    def run() -> None:
        _drain(queue, "parent")
        while not (claims := queue.claim_many(worker="w", kinds=["child"])):
            pass
        queue.settle(claims[0], Done())

    return _timed(clock, len(parents), run)


def _claims(
    queue: Queue, clock: Callable[[], float], rounds: int, keys: int, copy_parked: Callable[[], None]
) -> float:
    """Return how long a claim takes beside *keys* full keys at which jobs are parked, in claims without them."""
    # A claim of several kinds is another statement than of one.
    queue.enqueue("full")
    _drain(queue, "full")
    before = [_claim(queue, clock) for _ in range(20 * rounds)]
    queue.limits.set("full", kinds=["full"], key="given", concurrency=1)
    for first in range(0, keys, 100):
        names = [f"full-{key}" for key in range(first, min(first + 100, keys))]
        queue.enqueue_many([NewJob("full", limit_key=name) for _ in range(2) for name in names])
        while queue.claim_many(worker="holder", kinds=["full"], limit=1_000, lease=3_600):
            pass
    copy_parked()
    after = [_claim(queue, clock) for _ in range(20 * rounds)]
    return _low(after) / _low(before)


def _copy_parked(url: str | None, address: str, each: int) -> None:
    """Make *each* parked jobs of each one."""
    if each == 1:
        return
    if url is None:
        with contextlib.closing(sqlite3.connect(address)) as connection:
            columns = [row[1] for row in connection.execute("pragma table_info(holdfast_job)")]
            connection.execute(_copying("holdfast_job", columns, str(STATE_NUMBERS["parked"]), each))
            connection.commit()
        return
    with psycopg.connect(url, autocommit=True) as server:
        for table in ("job", "open_job"):
            found = server.execute(
                "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0", [f"holdfast.{table}"]
            )
            columns = [name for (name,) in found.fetchall()]
            server.execute(_copying(f"holdfast.{table}", columns, "'parked'", each).encode())
        server.execute("analyze")
        server.execute("select setval('holdfast.job_seq', 3000000000)")


def _copying(table: str, columns: list[str], parked: str, each: int) -> str:
    changed = {"seq": f"j.seq * {each} + 1000000000 + n", "id": "j.id || '-' || n"}
    values = ", ".join(changed.get(name, f"j.{name}") for name in columns)
    return (
        f"with recursive copy (n) as (select 1 union all select n + 1 from copy where n < {each - 1})"  # noqa: S608
        f" insert into {table} ({', '.join(columns)}) select {values} from {table} j, copy"
        f" where j.state = {parked} and j.seq < 1000000000"
    )


def _claim(queue: Queue, clock: Callable[[], float]) -> float:
    kind = "limited-0"
    queue.enqueue_many(_jobs(kind, 1))
    taken: list[Any] = []
    microseconds = _timed(clock, 1, lambda: taken.extend(queue.claim_many(worker="w", limit=BATCH)))
    queue.settle_many([(claim, Done()) for claim in taken])
    return microseconds


def _timed(clock: Callable[[], float], count: int, work: Callable[[], object]) -> float:
    """Return the microseconds that *work* takes for each of *count* jobs."""
    gc.collect()
    gc.disable()
    try:
        started = clock()
        work()
        return (clock() - started) / count * 1e6
    finally:
        gc.enable()


def show(costs: LimitCosts, console: Console) -> None:
    """Print each figure beside its target."""
    table = Table("measured", "µs", "ratio", "target", "met")
    table.add_row(PLAIN, f"{costs.microseconds[PLAIN]:.1f}", "", "", "")
    for name in LIMITS:
        ratio = costs.ratio(name)
        met = "yes" if ratio >= RATIO_MIN else "no"
        row = (f"limit never reached: {name}", f"{costs.microseconds[name]:.1f}", f"{ratio:.2f}")
        table.add_row(*row, f"at least {RATIO_MIN}", met)
    met = "yes" if costs.claim_ratio <= CLAIM_MAX else "no"
    table.add_row("claim beside full keys", "", f"{costs.claim_ratio:.2f}", f"at most {CLAIM_MAX}", met)
    table.add_row("fan-in", "", f"{costs.fan_in:,.0f} parents per second", "", "")
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--store", help="the URL of a new PostgreSQL database; default: a SQLite file")
    for name, default in (("rounds", 7), ("jobs", 2_000), ("keys", 10_000), ("parked", 1_000_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = vars(parser.parse_args())
    show(measure(options.pop("store"), **options), Console())


if __name__ == "__main__":
    main()
