"""Fill a store with millions of rows: a template through the public API, copies of it by SQL.

Only the bench uses SQL outside of storage. It reads the columns from the table, so changes of the schema do not break
it.
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
"""Ready rows in one template: the smallest measured size."""
RARE = 50
"""The number of rare jobs at every size: a job can be released only a hundred times in a row."""
FAR_SECONDS = 30 * 24 * 3600.0

# Copies get new ids and are spread over the tenants, except "big" and "crowd".
_NEXT_TENANT = f"'tenant-' || ((substr(tenant, 8) + :copy * {TENANTS_IN_TEMPLATE}) % {TENANTS})"
_TENANT = f"case when tenant like 'tenant-%' then {_NEXT_TENANT} else tenant end"
_CHANGED = {
    "id": "printf('%s-%08x', substr(id, 1, 27), :copy * 1000 + (seq - :first))",
    "tenant": _TENANT,
    "fair_key": f"case when fair_key = '' then '' else {_TENANT} end",
}


def unserved() -> list[dict[str, Any]]:
    """Return the first tenth of the template: jobs of a kind that no filter selects."""
    return [{"kind": "unserved", "tenant": f"tenant-{number}"} for number in range(100)]


def served() -> list[dict[str, Any]]:
    """Return the rest of the template, from which the filters select."""
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
    """Create a store with finished and future jobs and no ready ones."""
    with holdfast.connect(str(path), durability="relaxed") as queue:
        ended, later = enqueue_base(queue, finished=finished, future=future)
    _multiply(path, len(ended), finished, ended)
    _multiply(path, len(later), future, later)


def enqueue_base(queue: holdfast.Queue, *, finished: int, future: int) -> tuple[list[int], list[int]]:
    """Enqueue the templates of finished and of future jobs, and return their numbers."""
    queue.migrate()
    queue.lanes.set("strict", order="strict")
    ended = queue.enqueue_many([{"kind": KINDS[n % 20], "payload": {"n": n}} for n in range(min(finished, TEMPLATE))])
    while claims := queue.claim_many(limit=1_000):
        queue.settle_many([(claim, holdfast.Done()) for claim in claims])
    later = queue.enqueue_many(
        [{"kind": KINDS[n % 20], "delay": FAR_SECONDS + n} for n in range(min(future, TEMPLATE))]
    )
    return [one.job.number for one in ended], [one.job.number for one in later]


def enqueue_rare(queue: holdfast.Queue) -> None:
    """Enqueue the rare jobs."""
    queue.enqueue_many([{"kind": "rare"} for _ in range(RARE)])
    queue.enqueue_many([{"kind": KINDS[n % 20], "tenant": "small"} for n in range(RARE)])


def add_ready(base: Path, path: Path, count: int) -> None:
    """Create a store from a copy of *base* with *count* ready jobs; no filter selects the first tenth."""
    shutil.copy(base, path)
    with holdfast.connect(str(path), durability="relaxed") as queue:
        first = [one.job.number for one in queue.enqueue_many(unserved())]
    _multiply(path, len(first), count // 10, first)
    with holdfast.connect(str(path), durability="relaxed") as queue:
        rest = [one.job.number for one in queue.enqueue_many(served())]
    _multiply(path, len(rest), count - count // 10, rest)
    with holdfast.connect(str(path), durability="relaxed") as queue:
        enqueue_rare(queue)


def _multiply(path: Path, template: int, total: int, numbers: Iterable[int]) -> None:
    """Copy the template's rows until there are *total*."""
    if total <= template:
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
    for copy in range(1, total // template):
        connection.execute(copying, {"copy": copy, "first": chosen[0], "last": chosen[-1]})
    connection.execute("commit")
    connection.execute("pragma wal_checkpoint(truncate)").fetchall()
    connection.close()
