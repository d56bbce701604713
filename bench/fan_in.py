"""Fan-out and fan-in: what each child costs when a settlement stores many, and when one job or group waits for them.

`python -m bench.fan_in [URL]` prints the processor time of the calling process for each child; on PostgreSQL that of
the server comes on top. Ends are counted in chunks by the claims of any worker, so that processor time is the bound.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import holdfast
from holdfast import Done, Queue

SIZES = (1_000, 10_000)
_BATCH = 1_000


def measure(queue: Queue, children: int) -> Iterator[tuple[str, float, float]]:
    """Yield the name of each step, its processor seconds and its seconds."""
    lane = f"parts-{children}"
    queue.enqueue("split", lane="split")
    claim = queue.claim(lanes=["split"])
    assert claim is not None  # noqa: S101
    parts = [{"kind": "part", "lane": lane} for _ in range(children - 1)]
    join = {"kind": "join", "lane": "join", "job_id": f"join-{children}", "after": list(range(children - 1))}
    yield "settle with follow-ups", *_timed(lambda: queue.settle(claim, Done(follow_ups=[*parts, join])))
    yield "run the parents", *_timed(lambda: _run(queue, lane, children - 1))
    yield "count their ends", *_timed(lambda: _fold(queue, lambda: queue.get(f"join-{children}").state == "ready"))
    with queue.group(f"group-{children}") as group:
        for _ in range(children):
            group.enqueue("part", lane=f"group-{children}")
    yield "run the members", *_timed(lambda: _run(queue, f"group-{children}", children))
    yield "end the group", *_timed(lambda: _fold(queue, lambda: queue.groups.get(f"group-{children}").finished))


def _timed(call: Callable[[], object]) -> tuple[float, float]:
    processor, wall = time.process_time(), time.perf_counter()
    call()
    return time.process_time() - processor, time.perf_counter() - wall


def _run(queue: Queue, lane: str, jobs: int) -> None:
    while jobs:
        claims = queue.claim_many(lanes=[lane], limit=min(_BATCH, jobs))
        queue.settle_many([(claim, Done()) for claim in claims])
        jobs -= len(claims)


def _fold(queue: Queue, is_done: Callable[[], bool]) -> None:
    while not is_done():
        queue.claim_many(kinds=["none"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.fan_in", description="Measure fan-out and fan-in.")
    parser.add_argument("url", nargs="?", help="an empty store; default: a SQLite file in a temporary folder")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        holdfast.connect(options.url or str(Path(folder) / "jobs.db")) as queue,
    ):
        for children in SIZES:
            for step, processor, wall in measure(queue, children):
                each = f"{processor / children * 1e6:6.1f} us each, {children / wall:8,.0f} per second"
                print(f"{children:6,} children, {step:24} {each}")  # noqa: T201


if __name__ == "__main__":
    main()
