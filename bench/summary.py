"""The summary at the top of docs/performance.md: absolute figures, each with its meaning for a user."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

Row = tuple[str, str, str]


def summary_rows(stored: Mapping[str, Any]) -> Iterator[Row]:
    """Yield measurement, result and meaning, from the stored results of one engine.

    A part that was not measured has no row.
    """
    yield from _rate(stored, "single", "`enqueue` from one thread", "each call returns when its job is on disk")
    yield from _rate(stored, "threads-8", "`enqueue` from 8 threads", "concurrent calls share syncs of the disk")
    yield from _rate(stored, "bulk", "`enqueue_many`, 1,000 jobs per call", "one commit per call")
    yield from _worker(stored)
    yield from _rate(stored, "workers-4", "4 processes that claim and settle in batches", "on one server")
    yield from _pickup(stored)
    yield from _claim(stored)
    yield from _memory(stored)


def two_digits(value: float) -> str:
    """Return *value* with two significant digits: more would suggest a precision that the figure does not have."""
    return f"{float(f'{value:.2g}'):,.0f}" if value >= 10 else f"{value:.2g}"


def _rate(stored: Mapping[str, Any], scenario: str, what: str, meaning: str) -> Iterator[Row]:
    for cell in stored["scenarios"]:
        if (cell["scenario"], cell["candidate"], cell["durability"]) == (scenario, "holdfast", "full"):
            yield what, f"{two_digits(median(cell['jobs_per_second']))} jobs/s", meaning


def _worker(stored: Mapping[str, Any]) -> Iterator[Row]:
    if (found := stored["worker"]) is None:
        return
    rates = found["jobs_per_second"]
    for name, functions in (("blocking", "`def`"), ("awaited", "`async def`")):
        overhead = two_digits(1e6 / rates[name])
        what = f"one worker process, {functions} handlers that do nothing"
        yield what, f"{two_digits(rates[name])} jobs/s", f"a job costs about {overhead} µs in addition to its handler"
    idle = f"{found['idle_share_of_a_core']:.1%} of a core"
    yield "one worker without jobs", idle, "the worker waits for notifications and polls rarely"


def _pickup(stored: Mapping[str, Any]) -> Iterator[Row]:
    for one in stored["pickup"]:
        if (one["candidate"], one["durability"]) == ("holdfast", "full"):
            figure = f"median {two_digits(one['p50_ms'])} ms, p99 {two_digits(one['p99_ms'])} ms"
            yield "from `enqueue` to the handler in another process", figure, "the delay that a waiting user sees"


def _claim(stored: Mapping[str, Any]) -> Iterator[Row]:
    for cost in stored["claim_cost"][:1]:
        sizes = sorted(int(size) for size in cost["microseconds"])
        least, most = (two_digits(cost["microseconds"][str(size)]) for size in (sizes[0], sizes[-1]))
        what = f"one claim among {sizes[-1]:,} ready jobs"
        yield what, f"{most} µs", f"among {sizes[0]:,} it takes {least} µs; measured without syncs"


def _memory(stored: Mapping[str, Any]) -> Iterator[Row]:
    if (found := stored["memory"]) is not None:
        what = f"memory of a process that enqueues and drains {found['jobs']:,} jobs"
        yield what, f"{two_digits(found['peak_bytes'] / 2**20)} MiB", "jobs are not held in memory"
