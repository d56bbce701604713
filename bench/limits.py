"""What limits by key cost, as ratios within one run: `python -m bench.limits [--store URL]`.

Three things are measured: the drain of jobs whose limit is never reached, beside the same drain without limits; a
claim beside many full keys with parked jobs, beside one of a store without them; and how many parents of one job end
per second. On SQLite the figures are processor time of this process, on PostgreSQL elapsed time. Each is the lower
quartile of its rounds.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import quantiles
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.table import Table

import holdfast
from holdfast import Done, NewJob, Queue

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
    clock = time.process_time if url is None else time.perf_counter
    with tempfile.TemporaryDirectory() as folder:
        address = url or str(Path(folder) / "jobs.db")
        options: dict[str, Any] = {"durability": "relaxed"} if url is None else {}
        with holdfast.connect(address, **options) as queue:
            for number, (name, limit) in enumerate(LIMITS.items()):
                queue.limits.set(name.replace(" ", "-"), kinds=[f"limited-{number}"], **limit)
            found: dict[str, list[float]] = {}
            for _ in range(rounds):
                for number, name in enumerate((*LIMITS, PLAIN)):
                    kind = f"limited-{number}"
                    queue.enqueue_many(_jobs(kind, jobs))
                    found.setdefault(name, []).append(_timed(clock, jobs, lambda kind=kind: _drain(queue, kind)))  # type: ignore[misc]
            fan_in = 1e6 / _low([_fan_in(queue, clock, jobs) for _ in range(rounds)])
            ratio = _claims(queue, clock, rounds, keys, parked)
    return LimitCosts({name: _low(values) for name, values in found.items()}, ratio, fan_in)


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


def _claims(queue: Queue, clock: Callable[[], float], rounds: int, keys: int, parked: int) -> float:
    """Return how long a claim takes beside *keys* full keys with *parked* jobs, in claims without them."""
    before = [_claim(queue, clock) for _ in range(20 * rounds)]
    queue.limits.set("full", kinds=["full"], key="given", concurrency=1)
    each = max(2, parked // keys + 1)
    for first in range(0, keys, 100):
        names = [f"full-{key}" for key in range(first, min(first + 100, keys))]
        queue.enqueue_many([NewJob("full", limit_key=name) for _ in range(each) for name in names])
        while queue.claim_many(worker="holder", kinds=["full"], limit=1_000, lease=3_600):
            pass
    after = [_claim(queue, clock) for _ in range(20 * rounds)]
    return _low(after) / _low(before)


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
    table.add_row("fan-in", "", f"{costs.fan_in:,.0f} parents/s", "", "")
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--store", help="the URL of a new PostgreSQL database; default: a SQLite file")
    for name, default in (("rounds", 7), ("jobs", 2_000), ("keys", 10_000), ("parked", 100_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = vars(parser.parse_args())
    show(measure(options.pop("store"), **options), Console())


if __name__ == "__main__":
    main()
