"""Dependencies: storing them, and deciding about jobs whose parents have ended."""

from collections.abc import Iterable, Mapping, Sequence

from holdfast.domain import dependencies, errors, limits, transitions
from holdfast.domain.clock import Now
from holdfast.domain.job import FINISHED, Job, JobRow, job_of
from holdfast.domain.new_job import CheckedJob
from holdfast.domain.routing import RoutingTable
from holdfast.operations.apply_transitions import apply_transitions
from holdfast.operations.jobs import get_row
from holdfast.storage.contract import StoreTransaction
from holdfast.storage.flow_contract import Edge, JobState, Wake

_EDGES_MAX = 5 * limits.CHUNK
"""How many dependencies are decided at once."""


async def write(
    tx: StoreTransaction,
    created: Sequence[tuple[int, CheckedJob, JobRow]],
    all_jobs: Sequence[JobRow],
    now: Now,
    field: str,
) -> None:
    """Store the dependencies of new jobs; *all_jobs* are those of the call, by position.

    Raise `JobNotFound` for a parent that does not exist or belongs to another tenant. Parents are not locked: a wake
    row of the child asks to look at those that existed before.
    """
    named = {
        one for _, new, _ in created if new.dependencies for one in new.dependencies.after if isinstance(one, str)
    }
    known = await tx.jobs_named(sorted(named))
    stored_here = {job.seq: index for index, _, job in created}
    edges, look = [], []
    for index, new, job in created:
        if new.dependencies is None:
            continue
        path = f"{field}[{index}]." if len(all_jobs) > 1 else ""
        parents: dict[int, None] = {}
        for place, one in enumerate(new.dependencies.after):
            where = f"{path}after[{place}]"
            if isinstance(one, int):
                dependencies.check_position(one, index, where)
                parents[all_jobs[one].seq] = None
            else:
                seq, tenant = known.get(one, (0, None))
                if tenant != job.tenant:
                    raise errors.JobNotFound(one)
                dependencies.check_position(stored_here.get(seq, -1), index, where)
                parents[seq] = None
        on_failed = new.dependencies.on_failed
        edges += [(job.seq, parent, place, on_failed) for place, parent in enumerate(parents)]
        if not parents.keys() <= stored_here.keys():
            look.append(job.seq)
    await tx.insert_edges(edges)
    await tx.await_jobs(sorted({parent for _, parent, *_ in edges if parent in stored_here}))
    await tx.add_wakes("child", look, now)


async def parents(tx: StoreTransaction, job_id: str, tenant: str | None) -> list[Job]:
    """Return the jobs on which a job depends, in the given order."""
    job = await get_row(tx, job_id, tenant)
    return [job_of(row) for row in await tx.parents_of(job.seq)]


# --- folding -------------------------------------------------------------------------------------------------------


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
    waiting = sorted({edge.child for edge in edges})
    children = {job.seq: job for job in await tx.dependent_jobs(waiting)}
    busy = await _still_dependent(tx, [seq for seq in waiting if seq not in children])
    ended = [(found[edge.parent], edge) for edge in edges if edge.child not in busy]
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
