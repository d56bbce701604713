"""Maintenance: the passes that every claim runs before it selects jobs, a bounded chunk of each.

No process is in charge of time. A claim promotes scheduled jobs that are due, takes back jobs whose lease has
expired, fails waiting jobs whose deadline has passed, and folds wake rows: it fires schedules and
releases jobs whose parents have ended.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from holdfast.domain import clock, limits, transitions
from holdfast.domain.job import JobRow
from holdfast.domain.routing import RoutingTable
from holdfast.operations import (
    admin,
    artifacts,
    fold_dependencies,
    gates,
    groups,
    rollups,
    schedules,
    sessions,
    target_ages,
)
from holdfast.operations.apply_transitions import apply_transitions
from holdfast.storage.contract import PassName, StoreTransaction
from holdfast.storage.flow_contract import Wake

_AGAIN_MS: Final = 100
"""When wake rows that could not be decided are folded again."""
_NOTED_MS: Final = 30_000
"""How often the wall clock time is noted, to detect that it was set back."""
_STEP_MS: Final = 1_000
"""A clock that was set back by less delays nothing for long."""


class Pass(NamedTuple):
    """One kind of maintenance: the jobs it finds and the transition it applies to each."""

    find: Callable[[StoreTransaction, clock.Now, int], Awaitable[list[JobRow]]]
    decide: Callable[[JobRow, clock.Now], transitions.Transition]


# In the order in which they run: a job that is late fails even if it is due as well.
PASSES: Final[Mapping[PassName, Pass]] = {
    "deadlines": Pass(lambda tx, now, limit: tx.late_jobs(now, limit), transitions.miss_deadline),
    "leases": Pass(lambda tx, now, limit: tx.expired_jobs(now, limit), transitions.expire),
    "schedules": Pass(lambda tx, now, limit: tx.due_jobs(now, limit), lambda job, _now: transitions.promote(job)),
}


async def run_maintenance(
    tx: StoreTransaction, routing: RoutingTable, due: frozenset[PassName], now: clock.Now
) -> bool:
    """Run one chunk of each pass that is *due*; return whether any of them changed a job."""
    changed = False
    for name, one in PASSES.items():
        if name in due:
            changed |= await _run_chunk(tx, routing, one, now)
    if "wakes" in due:
        changed |= await fold_wakes(tx, routing, now)
    return changed


async def run_due_maintenance(tx: StoreTransaction, routing: RoutingTable) -> bool:
    """Look for due passes and run one chunk of each; return whether any of them changed a job."""
    _, due, now = await tx.begin_claim(thorough=True)
    return await run_maintenance(tx, routing, due, now)


async def fail_late_jobs(tx: StoreTransaction) -> bool:
    """Fail a chunk of the waiting jobs whose deadline has passed; return whether there were any."""
    return await _run_chunk(tx, await tx.routing(), PASSES["deadlines"], await tx.now())


async def fold_due_wakes(tx: StoreTransaction) -> bool:
    """Fold a chunk of the wake rows that are due; return whether anything was decided."""
    return await fold_wakes(tx, await tx.routing(), await tx.now())


async def delete_expired(tx: StoreTransaction) -> bool:
    """Delete some expired uploads, dedupe keys whose period has passed and holders; return whether there were any.

    Also merge a chunk of old rollups, and look again at what waits if the clock was set back.
    """
    uploads, now = await artifacts.delete_expired_uploads(tx), await tx.now()
    keys, holders = await tx.delete_kept_keys(now, limits.CHUNK), await tx.delete_unused_holders(now)
    idle, merged = await gates.maintain(tx, now), await rollups.merge(tx, now)
    set_back = await follow_clock(tx, now)
    return uploads or merged or set_back or bool(keys or holders or idle)


async def follow_clock(tx: StoreTransaction, now: clock.Now) -> bool:
    """Let claims look again at what waits for a time that the store has chosen, if the wall clock was set back.

    Return whether it was. Due times, deadlines, ticks and keys that handlers have closed follow the clock as set.
    """
    behind_ms = await tx.noted_time() - now.wall_ms
    if -_NOTED_MS < behind_ms <= _STEP_MS:
        return False
    await tx.note_time(now)
    if behind_ms <= _STEP_MS:
        return False
    for limit in (await tx.routing()).limits.values():
        if limit.rate is not None and limit.weight is not None:
            # Jobs may have used more than a burst: only here is it known that the clock has moved.
            most_us = now.wall_ms * 1000 + limit.burst_us
            await tx.shift_gates(limit.number, most_us, behind_ms * 1000)
    await tx.look_at_later_wakes(now)
    return True


async def _run_chunk(tx: StoreTransaction, routing: RoutingTable, one: Pass, now: clock.Now) -> bool:
    jobs = await sessions.lock_free_sessions(tx, await one.find(tx, now, limits.CHUNK))
    await apply_transitions(tx, routing, [one.decide(job, now) for job in jobs], now)
    return bool(jobs)


async def fold_wakes(tx: StoreTransaction, routing: RoutingTable, now: clock.Now) -> bool:
    """Fold a chunk of the wake rows that are due; return whether anything was decided."""
    found = await tx.due_wakes(now, limits.CHUNK)
    by_target: dict[str, list[Wake]] = {}
    for wake in found:
        by_target.setdefault(wake.target, []).append(wake)
    undecided = await schedules.fire(tx, by_target.get("schedule", ()), now)
    if children := by_target.get("child"):
        undecided += await _delete(tx, children, await fold_dependencies.fold_children(tx, routing, children, now))
    if parents := by_target.get("parent"):
        undecided += await _delete(tx, parents, await fold_dependencies.fold_parents(tx, routing, parents, now))
    if grouped := by_target.get("group"):
        undecided += await _delete(tx, grouped, await groups.fold_groups(tx, grouped, now))
    if requeued := by_target.get("requeue"):
        await admin.requeue_children(tx, routing, sorted({wake.number for wake in requeued}), now, limits.CHUNK)
        await _delete(tx, requeued, [])
    if at_gates := by_target.get("gate"):
        undecided += await _delete(tx, at_gates, await gates.fold(tx, routing, at_gates, now))
    if lanes := by_target.get("lanes"):
        await target_ages.fold(tx, routing, now)
        await _delete(tx, lanes, [])
    await tx.move_wakes([wake.wake for wake in undecided], now.wall_ms + _AGAIN_MS)
    return len(undecided) < len(found)


async def _delete(tx: StoreTransaction, wakes: Sequence[Wake], undecided: list[Wake]) -> list[Wake]:
    """Delete the wake rows that were folded; return the others."""
    left = {wake.wake for wake in undecided}
    await tx.delete_wakes([wake.wake for wake in wakes if wake.wake not in left])
    return undecided
