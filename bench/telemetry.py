"""What telemetry costs: the same drain unwatched, measured, and traced, and an enqueue of one job.

`python -m bench.telemetry` prints the processor's time, which others on the machine change less than the clock's.
Spans are made and dropped, so that no exporter is measured.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON
from rich.console import Console

import holdfast
from bench.holdfast_candidates import HoldfastSession
from bench.worker import drain_seconds
from holdfast import telemetry
from holdfast.worker.watched_attempts import WorkerMetrics

JOBS = 10_000
SINGLE = 500
_FILLED_AT_ONCE = 5_000


def _unwatched(_queue: holdfast.Queue) -> WorkerMetrics | None:
    return None


def _measured(queue: holdfast.Queue) -> WorkerMetrics | None:
    return telemetry.metrics(queue)


def _sampled_out(queue: holdfast.Queue) -> WorkerMetrics | None:
    telemetry.trace(queue, tracer_provider=TracerProvider(sampler=ALWAYS_OFF))
    return None


def _traced(queue: holdfast.Queue) -> WorkerMetrics | None:
    telemetry.trace(queue, tracer_provider=TracerProvider(sampler=ALWAYS_ON))
    return None


WAYS: dict[str, Callable[[holdfast.Queue], WorkerMetrics | None]] = {
    "unwatched": _unwatched,
    "measured": _measured,
    "sampled out": _sampled_out,
    "traced": _traced,
}


def run_telemetry(place: Path, *, rounds: int, jobs: int = JOBS) -> dict[str, tuple[float, float]]:
    """Return the processor's seconds for a job drained and for one enqueued, by way, of the least disturbed round."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, watch in WAYS.items():
            with tempfile.TemporaryDirectory(dir=place) as folder:
                found[name].append(_measure(watch, Path(folder), jobs))
    return {
        name: (min(drained for drained, _ in both), min(single for _, single in both)) for name, both in found.items()
    }


def _measure(watch: Callable[[holdfast.Queue], WorkerMetrics | None], folder: Path, jobs: int) -> tuple[float, float]:
    session = HoldfastSession("relaxed", folder)
    try:
        metrics = watch(session.queue)
        begun = time.process_time()
        for _ in range(SINGLE):
            session.queue.enqueue("mail", {}, lane="single")
        single = (time.process_time() - begun) / SINGLE
        for first in range(0, jobs, _FILLED_AT_ONCE):
            session.enqueue_bulk(first, min(_FILLED_AT_ONCE, jobs - first))
        begun = time.process_time()
        drain_seconds(session.queue, "blocking", jobs, metrics)
        return (time.process_time() - begun) / jobs, single
    finally:
        session.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.telemetry", description="Measure what telemetry costs.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=JOBS)
    asked = parser.parse_args()
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        found = run_telemetry(Path(folder), rounds=asked.rounds, jobs=asked.jobs)
    for place, what in enumerate(("drained", "enqueued")):
        plain = found["unwatched"][place]
        for name, both in found.items():
            more = both[place] - plain
            console.print(f"{what:>9}, {name:>11}: {both[place] * 1e6:6.1f} µs a job, {more * 1e6:+6.1f}")


if __name__ == "__main__":
    main()
