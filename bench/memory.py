"""The memory of one process that enqueues and drains many jobs: `python -m bench.memory FILE COUNT`."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bench.candidates import BATCH, BULK
from bench.holdfast_candidates import HoldfastSession

_ROOT = Path(__file__).resolve().parents[1]


class Memory(NamedTuple):
    """The peak resident size after the imports and at the end, and the duration."""

    jobs: int
    start_bytes: int
    peak_bytes: int
    enqueue_seconds: float
    drain_seconds: float


def run_memory(place: Path, count: int) -> Memory:
    """Measure in a separate process, because a peak never decreases."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        command = [sys.executable, "-m", "bench.memory", folder, str(count)]
        answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=_ROOT)  # noqa: S603
    return Memory(**json.loads(answer.stdout))


def _peak_bytes() -> int:
    # `getrusage` includes memory of the parent from before the exec.
    status = Path("/proc/self/status")
    if status.exists():
        [line] = [line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Enqueue, drain and print the result."""
    count = int(sys.argv[2])
    start_bytes = _peak_bytes()
    session = HoldfastSession("relaxed", Path(sys.argv[1]))
    started = time.perf_counter()
    for first in range(0, count, BULK):
        session.enqueue_bulk(first, min(BULK, count - first))
    filled = time.perf_counter()
    if session.drain(BATCH) != count:
        raise RuntimeError("not all jobs were drained")
    measured = Memory(count, start_bytes, _peak_bytes(), filled - started, time.perf_counter() - filled)
    session.close()
    print(json.dumps(measured._asdict()))  # noqa: T201


if __name__ == "__main__":
    main()
