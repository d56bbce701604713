"""Folding the wake rows of dependencies: jobs whose parents, and groups whose members, have ended."""

from collections.abc import Iterable, Mapping, Sequence

from holdfast.domain import limits, transitions
from holdfast.domain.clock import Now
from holdfast.domain.job import FINISHED, JobRow
from holdfast.domain.routing import RoutingTable
from holdfast.operations import groups
from holdfast.operations.apply_transitions import apply_transitions
from holdfast.storage.contract import StoreTransaction
from holdfast.storage.flow_contract import Edge, JobState, Wake

_EDGES_MAX = 5 * limits.CHUNK
"""How many dependencies are decided at once."""


async def fold_children(tx: StoreTransaction, routing: RoutingTable, wakes: Sequence[Wake], now: Now) -> list[Wake]:
    """Look at the parents of dependent jobs; return the wake rows of those that could not be decided."""
    children = {job.seq: job for job in await tx.dependent_jobs([wake.number for wake in wakes])}
    undecided = await _still_dependent(tx, [wake.number for wake in wakes if wake.number not in children])
    edges = await tx.edges_of_children(sorted(children)) if children else []
    wanted = sorted({edge.parent for edge in edges})
    # A parent that another transaction has locked may be ending: whether it sees that others wait is unknown.
    found = await tx.unlocked_states(wanted)
    existing = await tx.states_of([seq for seq in wanted if seq not in found])
    await tx.await_jobs([seq for seq, one in found.items() if one.state not in FINISHED])
    undecided |= {edge.child for edge in edges if edge.parent in existing}
    ended = [(found[edge.parent], edge) for edge in edges if _has_ended(found, edge)]
    await _decide(tx, routing, children, ended, now)
    return [wake for wake in wakes if wake.number in undecided]


async def fold_parents(tx: StoreTransaction, routing: RoutingTable, wakes: Sequence[Wake], now: Now) -> list[Wake]:
    """Tell the children of jobs that have ended; return the wake rows of those that were not all told."""
    found = await tx.states_of(sorted({wake.number for wake in wakes}))
    # A job that was requeued since tells its children when it ends again.
    finished = [seq for seq, one in found.items() if one.state in FINISHED]
    edges = await tx.edges_of_parents(finished, _EDGES_MAX) if finished else []
    waiting = sorted({edge.child for edge in edges if edge.child > 0})
    children = {job.seq: job for job in await tx.dependent_jobs(waiting)}
    busy = await _still_dependent(tx, [seq for seq in waiting if seq not in children])
    if members := [edge for edge in edges if edge.child < 0]:
        busy |= await groups.count_ends(tx, members, now)
    ended = [(found[edge.parent], edge) for edge in edges if edge.child > 0 and edge.child not in busy]
    await _decide(tx, routing, children, ended, now)
    left = {edge.parent for edge in edges if edge.child in busy}
    if len(edges) == _EDGES_MAX:
        left |= {seq for seq in finished if seq >= edges[-1].parent}
    return [wake for wake in wakes if wake.number in left]


async def _still_dependent(tx: StoreTransaction, seqs: Sequence[int]) -> set[int]:
    """Return those of these jobs that are dependent: another transaction has locked them."""
    return {seq for seq, one in (await tx.states_of(seqs)).items() if one.state == "dependent"}


def _has_ended(found: Mapping[int, JobState], edge: Edge) -> bool:
    return edge.parent in found and found[edge.parent].state in FINISHED


async def _decide(
    tx: StoreTransaction,
    routing: RoutingTable,
    children: Mapping[int, JobRow],
    ended: Iterable[tuple[JobState, Edge]],
    now: Now,
) -> None:
    """Count the ends of parents, and release or cancel the children that wait for no more, or in vain."""
    counted = list(ended)
    await tx.end_edges([(parent.state, edge) for parent, edge in counted])
    failed: dict[int, JobState] = {}
    for parent, edge in counted:
        if parent.state != "done" and edge.on_failed == "cancel":
            failed.setdefault(edge.child, parent)
    told = {edge.child for _, edge in counted} & children.keys()
    pending = await tx.pending_children(sorted(told)) if told else set()
    decided = []
    for seq in sorted(told):
        if seq in failed:
            decided.append(transitions.fail_dependency(children[seq], *failed[seq], now))
        elif seq not in pending:
            decided.append(transitions.unblock(children[seq], now))
    await apply_transitions(tx, routing, decided, now)
