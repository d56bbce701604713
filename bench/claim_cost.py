"""The cost of a claim as the store grows: the same claims on stores of several sizes, alternating.

The store uses relaxed durability to exclude syncs; each claim is released outside the timing.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import holdfast
from bench import seed
from bench.seed import KINDS

Log = Callable[[str], None]


class Filter(NamedTuple):
    """One set of claim options."""

    name: str
    options: dict[str, Any]
    limit: int = 1
    finds: bool = True


FILTERS = [
    Filter("one kind", {"kinds": ["kind-3"]}),
    Filter("rare kind", {"kinds": ["rare"]}),
    Filter("20 kinds, first tenth of all rows not served", {"kinds": KINDS}),
    Filter("any kind of a lane", {}),
    Filter("20 kinds, drained as listed", {"kinds": KINDS, "drain": "listed"}),
    Filter("three lanes", {"lanes": ["default", "placed", "fair"]}),
    Filter("the tenant with half the rows", {"tenant": "big"}),
    Filter("a small tenant of 10,000", {"tenant": "small"}),
    Filter("capabilities", {"lanes": ["gpu"], "capabilities": ["gpu", "disk"]}),
    Filter("capabilities missing, 10,000 tenants: nothing", {"lanes": ["gpu"]}, finds=False),
    Filter("affinity matches", {"lanes": ["placed"], "affinity": "model-7"}),
    Filter("affinity without jobs", {"lanes": ["placed"], "affinity": "model-none"}),
    Filter("affinity past its hold", {"lanes": ["placed"], "affinity": "model-7", "hold_left": 0}),
    Filter("fair lane, 10,000 tenants", {"lanes": ["fair"]}),
    Filter("fair lane, no such tenant: nothing", {"lanes": ["fair"], "tenant": "unknown"}, finds=False),
    Filter("strict lane", {"lanes": ["strict"]}),
    Filter("strict lane, a tenant far behind", {"lanes": ["strict"], "tenant": "late"}),
    Filter(
        "kinds, tenant, capabilities and affinity",
        {"kinds": KINDS, "tenant": "small", "capabilities": ["gpu"], "affinity": "model-7"},
    ),
    Filter("20 kinds, 100 at once", {"kinds": KINDS}, limit=100),
    Filter("fair lane, 100 at once", {"lanes": ["fair"]}, limit=100),
]


class Cost(NamedTuple):
    """The median seconds of one claim, by size of the store."""

    filter: str
    seconds: dict[int, float]


def run_claim_cost(
    place: Path, *, sizes: Sequence[int], beside: int, rounds: int, claims: int, log: Log
) -> list[Cost]:
    """Measure every filter on every size, with *beside* finished and *beside* future jobs in each store."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        base = Path(folder) / "base.db"
        log(f"claim cost: {beside:,} finished and {beside:,} future jobs")
        seed.make_base(base, finished=beside, future=beside)
        stores = {}
        for size in sizes:
            log(f"claim cost: {size:,} ready jobs")
            stores[size] = Path(folder) / f"ready-{size}.db"
            seed.add_ready(base, stores[size], size)
        queues = {size: holdfast.connect(str(path), durability="relaxed") for size, path in stores.items()}
        try:
            return measure_claims(queues, rounds, claims, log)
        finally:
            for queue in queues.values():
                queue.close()


def measure_claims(queues: dict[int, holdfast.Queue], rounds: int, claims: int, log: Log) -> list[Cost]:
    """Measure every filter on each of the queues, given by size."""
    taken: dict[tuple[str, int], list[float]] = {(one.name, size): [] for one in FILTERS for size in queues}
    for number in range(rounds):
        log(f"claim cost: round {number + 1} of {rounds}")
        for one in FILTERS:
            # Alternate the sizes after each claim, so noise affects all of them.
            for _ in range(claims if one.limit == 1 else max(2, claims // 12)):
                for size, queue in queues.items():
                    taken[one.name, size].append(_claim(queue, one))
    return [Cost(one.name, {size: median(taken[one.name, size]) for size in queues}) for one in FILTERS]


def _claim(queue: holdfast.Queue, one: Filter) -> float:
    started = time.perf_counter()
    claims = queue.claim_many(limit=one.limit, **one.options)
    seconds = time.perf_counter() - started
    if one.finds != bool(claims):
        raise RuntimeError(f"{one.name}: {len(claims)} claimed")
    queue.settle_many([(claim, holdfast.Released()) for claim in claims])
    return seconds
