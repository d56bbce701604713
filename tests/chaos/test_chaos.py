"""Many processes on one store, killed and stopped at random; the history of every call is checked.

The seed of a run is printed when it fails; HOLDFAST_CHAOS_SEED=<seed> repeats its choices, as far as the kernel's
scheduling allows.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.checker import breaches
from tests.chaos.conductor import Conductor
from tests.chaos.history import Operation
from tests.chaos.processes import PATIENCE_SECONDS

pytestmark = pytest.mark.slow("processes are killed and stopped at random for some seconds")

OPERATIONS: frozenset[Operation] = frozenset(
    {"enqueue", "claim", "heartbeat", "progress", "settle", "cancel", "requeue"}
)


def seed_of_run() -> int:
    given = os.environ.get("HOLDFAST_CHAOS_SEED")
    return int(given) if given else random.SystemRandom().randrange(1 << 32)


def covers_everything(conductor: Conductor) -> bool:
    """Return whether every operation occurred, processes were killed and stopped, and stale claims were refused."""
    done = {act.operation for act in conductor.acts() if act.certain}
    struck = conductor.kills > 0 and conductor.stops > 0
    return struck and done >= OPERATIONS and "lease_lost" in conductor.codes()


def run_chaos(url: str, folder: Path, *, seconds: float, count: int) -> None:
    seed = seed_of_run()
    print(f"HOLDFAST_CHAOS_SEED={seed}")
    logs = folder / "logs"
    logs.mkdir()
    conductor = Conductor(url, logs, seed, count)
    try:
        conductor.conduct(seconds)
        # A busy machine makes fewer calls in the time.
        patience = time.monotonic() + PATIENCE_SECONDS
        while not covers_everything(conductor) and time.monotonic() < patience:
            conductor.conduct(1)
        conductor.rest()
    finally:
        conductor.kill_all()
    history = conductor.history()
    done = Counter(act.operation for act in history.acts if act.certain)
    print(dict(done), len(history.events), conductor.kills, conductor.stops, sorted(conductor.codes()))
    assert breaches(history) == []
    assert conductor.engine.damage() == []
    assert covers_everything(conductor)
    conductor.engine.queue.close()


def test_killed_and_stopped_processes_break_no_guarantee(store_url: str, tmp_path: Path) -> None:
    run_chaos(store_url, tmp_path, seconds=4, count=4)


@pytest.mark.long
@pytest.mark.parametrize("count", [3, 8, 16])
def test_killed_and_stopped_processes_break_no_guarantee_for_minutes(
    store_url: str, tmp_path: Path, count: int
) -> None:
    run_chaos(store_url, tmp_path, seconds=90, count=count)
