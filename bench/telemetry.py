"""The cost of telemetry: the same drain without telemetry, with metrics and with traces, and an enqueue of one job.

`python -m bench.telemetry` prints processor time, which depends less on other processes than wall time. Spans are
dropped, so no exporter is measured.
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
from holdfast.worker.status import WorkerMetrics

JOBS = 10_000
SINGLE = 500
_FILL_BATCH = 5_000


def _without_telemetry(_queue: holdfast.Queue) -> WorkerMetrics | None:
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
    "unwatched": _without_telemetry,
    "measured": _measured,
    "sampled out": _sampled_out,
    "traced": _traced,
}


def run_telemetry(place: Path, *, rounds: int, jobs: int = JOBS) -> dict[str, tuple[float, float]]:
    """Return the processor seconds per drained and per enqueued job of the fastest round, by configuration."""
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
        started = time.process_time()
        for _ in range(SINGLE):
            session.queue.enqueue("mail", {}, lane="single")
        single = (time.process_time() - started) / SINGLE
        for first in range(0, jobs, _FILL_BATCH):
            session.enqueue_bulk(first, min(_FILL_BATCH, jobs - first))
        started = time.process_time()
        drain_seconds(session.queue, "blocking", jobs, metrics)
        return (time.process_time() - started) / jobs, single
    finally:
        session.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.telemetry", description="Measure the cost of telemetry.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=JOBS)
    options = parser.parse_args()
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        found = run_telemetry(Path(folder), rounds=options.rounds, jobs=options.jobs)
    for index, what in enumerate(("drained", "enqueued")):
        plain = found["unwatched"][index]
        for name, both in found.items():
            more = both[index] - plain
            console.print(f"{what:>9}, {name:>11}: {both[index] * 1e6:6.1f} µs a job, {more * 1e6:+6.1f}")


if __name__ == "__main__":
    main()
