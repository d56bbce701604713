"""Folding wake rows: look at what waits for a time or for another job, and decide."""

from collections.abc import Sequence

from holdfast.domain import limits
from holdfast.domain.clock import Now
from holdfast.domain.routing import RoutingTable
from holdfast.operations import admin, fold_dependencies, gates, groups, schedules
from holdfast.storage.contract import StoreTransaction
from holdfast.storage.flow_contract import Wake

_AGAIN_MS = 100
"""When what could not be decided is looked at again."""


async def fold(tx: StoreTransaction, routing: RoutingTable, now: Now) -> bool:
    """Fold a chunk of the wake rows that are due; return whether anything was decided."""
    found = await tx.due_wakes(now, limits.CHUNK)
    by_target: dict[str, list[Wake]] = {}
    for wake in found:
        by_target.setdefault(wake.target, []).append(wake)
    undecided = await schedules.fire(tx, by_target.get("schedule", ()), now)
    if children := by_target.get("child"):
        undecided += await _fold(tx, children, await fold_dependencies.fold_children(tx, routing, children, now))
    if parents := by_target.get("parent"):
        undecided += await _fold(tx, parents, await fold_dependencies.fold_parents(tx, routing, parents, now))
    if grouped := by_target.get("group"):
        undecided += await _fold(tx, grouped, await groups.fold_groups(tx, grouped, now))
    if requeued := by_target.get("requeue"):
        await admin.requeue_children(tx, routing, sorted({wake.number for wake in requeued}), now, limits.CHUNK)
        await _fold(tx, requeued, [])
    if at_gates := by_target.get("gate"):
        undecided += await _fold(tx, at_gates, await gates.fold(tx, routing, at_gates, now))
    await tx.move_wakes([wake.wake for wake in undecided], now.wall_ms + _AGAIN_MS)
    return len(undecided) < len(found)


async def _fold(tx: StoreTransaction, wakes: Sequence[Wake], undecided: list[Wake]) -> list[Wake]:
    """Delete the wake rows that were folded; return the others."""
    left = {wake.wake for wake in undecided}
    await tx.delete_wakes([wake.wake for wake in wakes if wake.wake not in left])
    return undecided
