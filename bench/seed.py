"""Fills a store with millions of rows: a template through the public face, copies of it by SQL.

Only the bench speaks SQL outside the stores. It takes the columns from the table itself, so that a change of the
schema does not break it.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import holdfast

TENANTS = 10_000
TENANTS_IN_TEMPLATE = 200
KINDS = tuple(f"kind-{number}" for number in range(20))
TEMPLATE = 1_000
"""Ready rows in one template: the smallest size that is measured."""
RARE = 50
"""How many there are of what is rare, at every size: a job can be released a hundred times in a row only."""
FAR_SECONDS = 30 * 24 * 3600.0

# Copies get ids of their own and spread over the tenants; whoever is called "big" or "crowd" stays.
_MOVED = f"'tenant-' || ((substr(tenant, 8) + :copy * {TENANTS_IN_TEMPLATE}) % {TENANTS})"
_TENANT = f"case when tenant like 'tenant-%' then {_MOVED} else tenant end"
_CHANGED = {
    "id": "printf('%s-%08x', substr(id, 1, 27), :copy * 1000 + (seq - :first))",
    "tenant": _TENANT,
    "fair_key": f"case when fair_key = '' then '' else {_TENANT} end",
}


def unserved() -> list[dict[str, Any]]:
    """Return the first tenth of the template: jobs of a kind that nobody asks for."""
    return [{"kind": "unserved", "tenant": f"tenant-{number}"} for number in range(100)]


def served() -> list[dict[str, Any]]:
    """Return the rest of the template: what the filters choose from."""
    return [
        *({"kind": KINDS[n % 20], "tenant": _half_big(n), "priority": 5 * (n % 10 == 0)} for n in range(400)),
        *({"kind": "kind-0", "lane": "placed", "affinity": f"model-{n % 10}"} for n in range(150)),
        *({"kind": "kind-0", "lane": "placed"} for _ in range(50)),
        *({"kind": "kind-0", "lane": "gpu", "requires": ["gpu"], "tenant": f"tenant-{n}"} for n in range(100)),
        *({"kind": "kind-0", "lane": "fair", "tenant": f"tenant-{n}"} for n in range(100)),
        *({"kind": "kind-0", "lane": "strict", "tenant": "crowd"} for _ in range(80)),
        *({"kind": "kind-0", "lane": "strict", "tenant": "late"} for _ in range(20)),
    ]


def _half_big(number: int) -> str:
    return "big" if number % 2 else f"tenant-{number // 2}"


def make_base(path: Path, *, finished: int, future: int) -> None:
    """Make a store with finished and future jobs and none that is ready."""
    with holdfast.connect(str(path), durability="relaxed") as queue:
        ended, later = enqueue_base(queue, finished=finished, future=future)
    _multiply(path, len(ended), finished, ended)
    _multiply(path, len(later), future, later)


def enqueue_base(queue: holdfast.Queue, *, finished: int, future: int) -> tuple[list[int], list[int]]:
    """Store the templates of finished and of future jobs, and return their numbers."""
    queue.migrate()
    queue.set_lane("strict", order="strict")
    ended = queue.enqueue_many([{"kind": KINDS[n % 20], "payload": {"n": n}} for n in range(min(finished, TEMPLATE))])
    while claims := queue.claim_many(limit=1_000):
        queue.settle_many([(claim, holdfast.Done()) for claim in claims])
    later = queue.enqueue_many(
        [{"kind": KINDS[n % 20], "delay": FAR_SECONDS + n} for n in range(min(future, TEMPLATE))]
    )
    return [one.job.seq for one in ended], [one.job.seq for one in later]


def enqueue_rare(queue: holdfast.Queue) -> None:
    """Store what is rare at every size."""
    queue.enqueue_many([{"kind": "rare"} for _ in range(RARE)])
    queue.enqueue_many([{"kind": KINDS[n % 20], "tenant": "small"} for n in range(RARE)])


def add_ready(base: Path, path: Path, count: int) -> None:
    """Make a store from a copy of *base* with *count* ready jobs, the first tenth of which nobody asks for."""
    shutil.copy(base, path)
    with holdfast.connect(str(path), durability="relaxed") as queue:
        first = [one.job.seq for one in queue.enqueue_many(unserved())]
    _multiply(path, len(first), count // 10, first)
    with holdfast.connect(str(path), durability="relaxed") as queue:
        rest = [one.job.seq for one in queue.enqueue_many(served())]
    _multiply(path, len(rest), count - count // 10, rest)
    with holdfast.connect(str(path), durability="relaxed") as queue:
        enqueue_rare(queue)


def _multiply(path: Path, template: int, wanted: int, numbers: Iterable[int]) -> None:
    """Copy the template's rows until there are *wanted*."""
    if wanted <= template:
        return
    chosen = sorted(numbers)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma synchronous = off")
    connection.execute("pragma cache_size = -262144")
    columns = [row[1] for row in connection.execute("pragma table_info(holdfast_job)") if row[1] != "seq"]
    values = ", ".join(_CHANGED.get(column, column) for column in columns)
    copying = (
        f"insert into holdfast_job ({', '.join(columns)}) "  # noqa: S608  # columns of our own table
        f"select {values} from holdfast_job where seq between :first and :last order by seq"
    )
    connection.execute("begin immediate")
    for copy in range(1, wanted // template):
        connection.execute(copying, {"copy": copy, "first": chosen[0], "last": chosen[-1]})
    connection.execute("commit")
    connection.execute("pragma wal_checkpoint(truncate)").fetchall()
    connection.close()
