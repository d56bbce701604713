"""Maintenance: the passes that every claim runs before it selects jobs, a bounded chunk of each.

No process is in charge of time. A claim promotes scheduled jobs that are due, takes back jobs whose lease has expired
and fails waiting jobs whose deadline has passed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from holdfast.domain import limits, transitions
from holdfast.domain.clock import Now
from holdfast.domain.job import JobRow
from holdfast.domain.routing import RoutingTable
from holdfast.domain.transitions import Transition
from holdfast.operations.apply_transitions import apply_transitions
from holdfast.operations.sessions import lock_free_sessions
from holdfast.storage.contract import PassName, StoreTransaction


class Pass(NamedTuple):
    """One kind of maintenance: the jobs it finds and the transition it applies to each."""

    find: Callable[[StoreTransaction, Now, int], Awaitable[list[JobRow]]]
    decide: Callable[[JobRow, Now], Transition]


# In the order in which they run: a job that is late fails even if it is due as well.
PASSES: Final[Mapping[PassName, Pass]] = {
    "deadlines": Pass(lambda tx, now, limit: tx.late_jobs(now, limit), transitions.miss_deadline),
    "leases": Pass(lambda tx, now, limit: tx.expired_jobs(now, limit), transitions.expire),
    "schedules": Pass(lambda tx, now, limit: tx.due_jobs(now, limit), lambda job, _now: transitions.promote(job)),
}


async def run_maintenance(tx: StoreTransaction, routing: RoutingTable, due: frozenset[PassName], now: Now) -> bool:
    """Run one chunk of each pass that is *due*; return whether any of them changed a job."""
    changed = False
    for name, one in PASSES.items():
        if name in due:
            changed |= await _run_chunk(tx, routing, one, now)
    return changed


async def run_due_maintenance(tx: StoreTransaction, routing: RoutingTable) -> bool:
    """Look for due passes and run one chunk of each; return whether any of them changed a job."""
    _, due, now = await tx.begin_claim(thorough=True)
    return await run_maintenance(tx, routing, due, now)


async def fail_late_jobs(tx: StoreTransaction) -> bool:
    """Fail a chunk of the waiting jobs whose deadline has passed; return whether there were any."""
    return await _run_chunk(tx, await tx.routing(), PASSES["deadlines"], await tx.now())


async def _run_chunk(tx: StoreTransaction, routing: RoutingTable, one: Pass, now: Now) -> bool:
    jobs = await lock_free_sessions(tx, await one.find(tx, now, limits.CHUNK))
    await apply_transitions(tx, routing, [one.decide(job, now) for job in jobs], now)
    return bool(jobs)
