"""Many processes on one store, killed and stopped at random; the history of every call is proved sound.

The seed of each run is printed when it fails; HOLDFAST_CHAOS_SEED=<seed> makes the same choices again, as far as the
kernel's own scheduling lets them be the same.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.checker import breaches
from tests.chaos.conductor import Conductor


def seed_of_run() -> int:
    given = os.environ.get("HOLDFAST_CHAOS_SEED")
    return int(given) if given else random.SystemRandom().randrange(1 << 32)


def run_chaos(url: str, folder: Path, *, seconds: float, count: int) -> None:
    seed = seed_of_run()
    print(f"HOLDFAST_CHAOS_SEED={seed}")
    logs = folder / "logs"
    logs.mkdir()
    conductor = Conductor(url, logs, seed, count)
    try:
        conductor.conduct(seconds)
        conductor.rest()
    finally:
        conductor.kill_all()
    history = conductor.history()
    done = Counter(act.deed for act in history.acts if act.certain)
    print(dict(done), len(history.events), conductor.kills, conductor.stops, sorted(conductor.codes()))
    assert breaches(history) == []
    assert conductor.engine.damage() == []
    assert conductor.kills
    assert conductor.stops
    # Else the run proved nothing: each deed was done, and zombies came back and were refused.
    assert (
        min(done[deed] for deed in ("enqueue", "claim", "heartbeat", "progress", "settle", "cancel", "requeue")) > 0
    )
    assert "lease_lost" in conductor.codes()
    conductor.engine.queue.close()


def test_killed_and_stopped_processes_break_no_promise(store_url: str, tmp_path: Path) -> None:
    run_chaos(store_url, tmp_path, seconds=8, count=4)


@pytest.mark.long
@pytest.mark.parametrize("count", [3, 8, 16])
def test_killed_and_stopped_processes_break_no_promise_for_minutes(
    store_url: str, tmp_path: Path, count: int
) -> None:
    run_chaos(store_url, tmp_path, seconds=90, count=count)
