"""Groups: storing members, counting their ends by folding wake rows, callbacks, waiting and cancelling."""

from collections.abc import Mapping, Sequence

from holdfast.domain import errors, groups, limits, results
from holdfast.domain.clock import Now
from holdfast.domain.job import FINISHED, State
from holdfast.domain.new_job import CheckedJob
from holdfast.domain.results import StoredJob
from holdfast.operations import admin, enqueue
from holdfast.storage import notifications
from holdfast.storage.contract import StoreTransaction
from holdfast.storage.flow_contract import Edge, Wake

# --- reading -------------------------------------------------------------------------------------------------------


async def get_group(tx: StoreTransaction, name: str, tenant: str) -> groups.JobGroup:
    """Return a group, or raise `GroupNotFound`."""
    found = await tx.group_of_name(tenant, name)
    if found is None:
        raise errors.GroupNotFound(name)
    return groups.public(found)


async def list_groups(tx: StoreTransaction, tenant: str | None, limit: int) -> list[groups.JobGroup]:
    """Return groups, newest first."""
    return [groups.public(stored) for stored in await tx.newest_groups(tenant, limit)]


async def get_overdue(
    tx: StoreTransaction,
    name: str,
    tenant: str,
    wait_seconds: float,  # noqa: ARG001
) -> tuple[groups.JobGroup, bool]:
    """Return a group, and whether it may have ended: it is unfinished, and wake rows are due.

    *wait_seconds* is for how long the caller waits.
    """
    found = await get_group(tx, name, tenant)
    return found, not found.finished and await tx.is_wake_due(await tx.now())


# --- storing -------------------------------------------------------------------------------------------------------


async def add_members(
    tx: StoreTransaction, call: groups.GroupCall, members: Sequence[CheckedJob]
) -> tuple[groups.JobGroup, Sequence[StoredJob]]:
    """Store jobs as members of a group, which is made unless there is one of its name; return it and the jobs.

    Raise `Conflict` if it is sealed. A call that is sent again adds nothing and returns no jobs.
    """
    await tx.use_edges()
    stored = await tx.group_by_name(call.tenant, call.name)
    if stored is not None and stored.token == call.token:
        return groups.public(stored), []
    now = await tx.now()
    if stored is None:
        stored = groups.new_group(call, now.wall_ms)
        number = await tx.insert_group(stored)
        if number is None:
            raise errors.Conflict(f"group {call.name!r} was made at the same time; send the call again")
        stored = stored._replace(number=number)
    else:
        stored = groups.joined(stored, call)
    jobs = await enqueue.enqueue_jobs(tx, members, "members")
    after = await _join(tx, stored, jobs)
    after = after._replace(sealed=call.seal)
    await tx.write_group(after)
    if after.complete or after.has_failures:
        await tx.add_wake("group", after.number, now.wall_ms)
    return groups.public(after), jobs


async def _join(tx: StoreTransaction, stored: groups.StoredGroup, jobs: Sequence[StoredJob]) -> groups.StoredGroup:
    """Make jobs members of a group, and count those that have ended."""
    existing = {one.job.number: one.job.state for one in jobs if not one.created}
    # Locked: a job that ends at the same time sees afterwards that others wait for it.
    found = {job.seq: job for job in await tx.jobs_by_seq(sorted(existing))} if existing else {}
    ended = {seq: job.state for seq, job in found.items() if job.finished}
    # The others are duplicates of jobs that retention has deleted: only how they ended is left.
    deleted = {seq: state for seq, state in existing.items() if seq not in found}
    seqs = [one for one in dict.fromkeys(one.job.number for one in jobs) if one not in deleted]
    added = await tx.insert_members(stored.number, seqs, stored.members) if seqs else []
    await tx.await_jobs([seq for seq in added if seq not in ended])
    if deleted:
        # A place below 0: retention does not wait for these members, which a later block may add again.
        added += await tx.insert_members(stored.number, list(deleted), -len(deleted))
    ended |= deleted
    stored = stored._replace(members=stored.members + len(added))
    return await _count(tx, stored, {seq: ended[seq] for seq in added if seq in ended})


async def _count(tx: StoreTransaction, stored: groups.StoredGroup, ended: Mapping[int, State]) -> groups.StoredGroup:
    """Count the ends of members that were not counted; the group is locked."""
    by_state: dict[State, list[int]] = {}
    for seq, state in ended.items():
        by_state.setdefault(state, []).append(seq)
    for state, seqs in by_state.items():
        stored = groups.counted(stored, state, await tx.end_members(stored.number, seqs, state))
    return stored


# --- folding -------------------------------------------------------------------------------------------------------


async def fold_groups(tx: StoreTransaction, wakes: Sequence[Wake], now: Now) -> list[Wake]:
    """End groups of which all members have ended; return the wake rows of those that were locked."""
    locked = {one.number: one for one in await tx.groups_to_fold(sorted({wake.number for wake in wakes}))}
    for stored in locked.values():
        await _write_ends(tx, stored, stored, now)
    # A group that was deleted has ended before.
    existing = await tx.existing_groups([wake.number for wake in wakes if wake.number not in locked])
    return [wake for wake in wakes if wake.number in existing]


async def count_ends(tx: StoreTransaction, edges: Sequence[Edge], now: Now) -> set[int]:
    """Count the ends of members by their dependencies; return those groups, as children, that were locked."""
    wanted = sorted({-edge.child for edge in edges})
    locked = {one.number: one for one in await tx.groups_to_fold(wanted)}
    # Read under the locks: a requeue of a member takes them as well.
    states = await tx.states_of(sorted({edge.parent for edge in edges}))
    ended: dict[int, dict[int, State]] = {number: {} for number in locked}
    for edge in edges:
        if -edge.child in locked and edge.parent in states and states[edge.parent].state in FINISHED:
            ended[-edge.child][edge.parent] = states[edge.parent].state
    for number, stored in locked.items():
        await _write_ends(tx, stored, await _count(tx, stored, ended[number]), now)
    return {-number for number in wanted if number not in locked}


async def _write_ends(tx: StoreTransaction, before: groups.StoredGroup, after: groups.StoredGroup, now: Now) -> None:
    """Store a group whose members were counted, and enqueue the callbacks that follow from it."""
    if after.has_failures:
        after = await _call(tx, after, "on_first_failure", now)
    if after.complete and after.ended_at_ms is None:
        if not after.has_failures:
            after = await _call(tx, after, "on_success", now)
        after = await _call(tx, after, "on_end", now)
        after = after._replace(ended_at_ms=now.wall_ms)
        tx.notify([notifications.group_topic(after.tenant, after.name)])
    if after != before:
        await tx.write_group(after)


async def _call(
    tx: StoreTransaction, stored: groups.StoredGroup, event: groups.GroupEvent, now: Now
) -> groups.StoredGroup:
    """Enqueue a callback, unless it was; a refused one is stored as failed."""
    callback = stored.callback(event)
    if callback is None or await tx.job_by_id(groups.callback_id(stored, event)) is not None:
        return stored
    new = groups.callback_job(stored, event, callback)
    try:
        async with tx.savepoint():
            [made] = await enqueue.enqueue_jobs(tx, [new], "")
            number = made.job.number
    except (errors.Refused, errors.InvalidInput) as refusal:
        reason = str(refusal)[: limits.FAILURE_MESSAGE_CHARS_MAX]
        try:
            number = await enqueue.store_refused(tx, new, reason, now)
        except errors.InvalidInput:
            return stored._replace(problem=f"{event}: {reason}")
    # The members are the parents of their callback: it reads their results, and retention keeps them until it ends.
    edge = Edge(number, -stored.number, "run")
    await tx.insert_edges([(number, -stored.number, 0, "run")])
    await tx.end_edges([("done", edge)])
    return stored


# --- changing ------------------------------------------------------------------------------------------------------


async def cancel_members(
    tx: StoreTransaction, name: str, tenant: str, after: int, *, force: bool
) -> tuple[results.CancelReport, int | None]:
    """Seal a group and cancel a chunk of its members; return the number after which the next chunk starts, if any."""
    stored = await tx.group_by_name(tenant, name)
    if stored is None:
        raise errors.GroupNotFound(name)
    now = await tx.now()
    if not stored.sealed:
        stored = stored._replace(sealed=True)
        await tx.write_group(stored)
        await tx.add_wake("group", stored.number, now.wall_ms)
    seqs = await tx.unfinished_members(stored.number, after, limits.CHUNK)
    jobs = [job for job in await tx.jobs_by_seq(seqs) if not job.finished] if seqs else []
    report = await admin.cancel_rows(tx, jobs, force=force)
    return report, seqs[-1] if len(seqs) == limits.CHUNK else None
