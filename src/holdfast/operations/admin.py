"""Managing jobs and kinds: cancel, requeue, change the priority, retire."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

from holdfast.domain import clock, errors, limits, results, transitions
from holdfast.domain.events import EventName
from holdfast.domain.job import WAITING, Job, JobRow, State, job_of
from holdfast.domain.kinds import Kind, Publication, kind_of
from holdfast.domain.routing import EventScope, Lane, LaneBackoff, LaneOrder, LaneState, RoutingTable, fair_key_of
from holdfast.operations import dependencies, enqueue, sessions, target_ages, webhook_events
from holdfast.operations.apply_transitions import apply_transitions, records
from holdfast.operations.jobs import get_row
from holdfast.storage import notifications
from holdfast.storage.contract import EventPosition, JobPosition, StoreTransaction


async def cancel(tx: StoreTransaction, job_id: str, tenant: str | None, *, force: bool) -> Job:
    """Cancel the job, or request it to stop if it is running."""
    routing = await tx.routing()
    job = await get_row(tx, job_id, tenant)
    now = await tx.now()
    transition = transitions.cancel(job, force=force, now=now)
    if transition is None:
        return job_of(job)
    [after] = await apply_transitions(tx, routing, [transition], now)
    if job.state == "running" and job.worker is not None:
        tx.notify([notifications.worker_topic(job.worker)])
    return job_of(after)


async def cancel_many(
    tx: StoreTransaction, job_ids: Sequence[str], tenant: str | None, *, force: bool
) -> results.CancelReport:
    """Cancel each job, or request it to stop if it is running; report those that cannot be cancelled."""
    jobs = {job.id: job for job in await tx.jobs_by_id(job_ids) if tenant in {None, job.tenant}}
    report = await cancel_rows(tx, [jobs[job_id] for job_id in dict.fromkeys(job_ids) if job_id in jobs], force=force)
    for job_id in dict.fromkeys(job_ids):
        if job_id not in jobs:
            missing = errors.JobNotFound(job_id)
            report.skipped.append(results.Skipped(job_id, str(missing), missing.code))
    return report


async def cancel_rows(tx: StoreTransaction, jobs: Sequence[JobRow], *, force: bool) -> results.CancelReport:
    """Cancel jobs that are locked, or request them to stop if they are running; report those that have finished."""
    routing = await tx.routing()
    now = await tx.now()
    report = results.CancelReport([], [], [])
    decided: list[transitions.Transition] = []
    for job in jobs:
        try:
            transition = transitions.cancel(job, force=force, now=now)
        except errors.Refused as refusal:
            report.skipped.append(results.Skipped(job.id, str(refusal), refusal.code))
            continue
        after = job if transition is None else transition.after
        (report.cancelled if after.state == "cancelled" else report.stop_requested).append(job.id)
        if transition is not None:
            decided.append(transition)
    # Blocked jobs first: otherwise cancelling a predecessor would make its blocked successor ready.
    await apply_transitions(tx, routing, _blocked_first(decided), now)
    workers = {one.before.worker for one in decided if one.before.state == "running"}
    tx.notify(notifications.worker_topic(worker) for worker in workers if worker is not None)
    return report


async def cancel_tree(
    tx: StoreTransaction, root: str, tenant: str | None, after: int | None, *, force: bool
) -> tuple[results.CancelReport, int | None]:
    """Cancel a chunk of the unfinished jobs of a tree; return the number after which the next one starts, if any."""
    first = await get_row(tx, root, tenant)
    if first.root is not None:
        raise errors.Conflict(f"job {root!r} is not the first of its tree; that is {first.root!r}", job_id=first.root)
    seqs = await tx.unfinished_of_tree(root, -1 if after is None else after, limits.CHUNK)
    wanted = seqs if after is not None else [first.seq, *seqs]
    jobs = await tx.jobs_by_seq(wanted) if wanted else []
    chosen = [job for job in jobs if not job.finished and tenant in {None, job.tenant}]
    return await cancel_rows(tx, chosen, force=force), seqs[-1] if len(seqs) == limits.CHUNK else None


def _blocked_first(decided: Sequence[transitions.Transition]) -> list[transitions.Transition]:
    return sorted(decided, key=lambda transition: transition.before.state != "blocked")


async def requeue(tx: StoreTransaction, job_id: str, tenant: str | None, *, with_children: bool = False) -> Job:
    """Make one failed or cancelled job ready again, and with it those that its end has cancelled dependent."""
    routing = await tx.routing()
    await enqueue.lock_jobs_and_keys(tx, [job_id])
    job = await get_row(tx, job_id, tenant)
    now = await tx.now()
    after = await _requeue(tx, routing, job, now)
    if with_children and routing.has_edges:
        await requeue_children(tx, routing, [job.seq], now, limits.REQUEUE_CHILDREN_MAX)
    return job_of(after)


async def requeue_children(
    tx: StoreTransaction, routing: RoutingTable, requeued: Sequence[int], now: clock.Now, jobs_max: int
) -> None:
    """Make the jobs dependent again that were cancelled because of others, and those cancelled because of them.

    After *jobs_max* of them it appends wake rows, whose folds go on.
    """
    parents, kept = list(requeued), set[int]()
    while found := await tx.cancelled_children(parents, limits.CHUNK + len(kept)):
        children = [job for job in await tx.jobs_by_seq(found) if job.seq not in kept and job.state == "cancelled"]
        if not children:
            return
        for job in children:
            try:
                await _requeue(tx, routing, job, now, state="dependent")
            except errors.Refused:
                # Its kind is retired, or another job holds its key: it stays cancelled.
                kept.add(job.seq)
        returned = [job.seq for job in children if job.seq not in kept]
        await tx.reopen_edges(returned)
        await tx.add_wakes("child", returned)
        parents += returned
        if len(parents) - len(requeued) >= jobs_max:
            await tx.add_wakes("requeue", parents)
            return


async def requeue_many(tx: StoreTransaction, job_ids: Sequence[str], tenant: str | None) -> results.Requeued:
    """Make each failed or cancelled job ready again; report those that cannot be requeued."""
    routing = await tx.routing()
    jobs = {job.id: job for job in await enqueue.lock_jobs_and_keys(tx, job_ids) if tenant in {None, job.tenant}}
    now = await tx.now()
    report = results.Requeued([], [])
    for job_id in dict.fromkeys(job_ids):
        try:
            if job_id not in jobs:
                raise errors.JobNotFound(job_id)
            await _requeue(tx, routing, jobs[job_id], now)
        except errors.Refused as refusal:
            report.skipped.append(results.Skipped(job_id, str(refusal), refusal.code))
        else:
            report.requeued.append(job_id)
    return report


async def _requeue(
    tx: StoreTransaction, routing: RoutingTable, job: JobRow, now: clock.Now, state: State = "ready"
) -> JobRow:
    transition = transitions.requeue(job, now)
    transition = transition._replace(after=transition.after._replace(state=state))
    if job.kind in routing.retired:
        raise errors.KindRetired(job.kind)
    if job.dedupe_key is not None:
        other = await enqueue.live_holder(tx, routing, (job.tenant, job.dedupe_kind or "", job.dedupe_key), now)
        if other is not None:
            raise errors.Conflict(
                f"its dedupe key is held by job {other.id!r}, which is {other.state}", job_id=other.id
            )
    [after] = await apply_transitions(tx, routing, [transition], now)
    if routing.has_edges:
        await dependencies.reopen_members(tx, job)
    return after


async def reprioritize(tx: StoreTransaction, job_id: str, priority: int, tenant: str | None) -> Job:
    """Change the priority of one job."""
    routing = await tx.routing()
    job = await get_row(tx, job_id, tenant)
    now = await tx.now()
    transition = transitions.reprioritize(job, priority)
    if transition is None:
        return job_of(job)
    after, event = transition.after, transition.event
    recorded: dict[int, EventName] = {}
    if records(routing, after, event):
        after = after.counting_event()
        recorded[after.seq] = event
    await tx.update_priority(after)
    await tx.append_events(recorded, now)
    return job_of(after)


async def retire_kind(tx: StoreTransaction, kind: str) -> tuple[list[int], int]:
    """Refuse new jobs of *kind*; return the routes of its existing jobs, and how many were retired with it: none."""
    await tx.lock_routing()
    await tx.retire_kind(kind, await tx.now())
    routing = await tx.routing()
    return [route.number for key, route in routing.routes.items() if key.kind == kind], 0


async def retire_jobs(tx: StoreTransaction, seqs: Sequence[int]) -> int:
    """Retire the jobs that are still waiting; return how many."""
    routing = await tx.routing()
    jobs = await tx.jobs_by_seq(seqs)
    now = await tx.now()
    waiting = [job for job in jobs if job.state in WAITING and job.kind in routing.retired]
    # Blocked jobs first: retiring a predecessor would retire its blocked successor as well.
    decided = _blocked_first([transitions.retire(job, now) for job in waiting])
    return len(await apply_transitions(tx, routing, decided, now))


async def kinds(tx: StoreTransaction) -> list[Kind]:
    """Return every kind that has jobs, is published or is retired, sorted by name."""
    routing = await tx.routing()
    names = {key.kind for key in routing.routes} | routing.kinds.keys()
    return [kind_of(routing.kinds[name]) if name in routing.kinds else Kind(name) for name in sorted(names)]


async def kind(tx: StoreTransaction, name: str) -> Kind | None:
    """Return one kind; None if it has no jobs and is neither published nor retired."""
    routing = await tx.routing()
    if name in routing.kinds:
        return kind_of(routing.kinds[name])
    return Kind(name) if any(key.kind == name for key in routing.routes) else None


async def changed_publications(
    tx: StoreTransaction, publications: Mapping[str, Publication]
) -> dict[str, Publication]:
    """Return those of *publications* that differ from the catalog."""
    published = (await tx.routing()).publications
    return {name: one for name, one in publications.items() if published.get(name) != one}


async def publish_kinds(tx: StoreTransaction, publications: Mapping[str, Publication], published_by: str) -> None:
    """Store what a worker publishes about its tasks in the catalog; write nothing if nothing has changed."""
    await tx.lock_routing()
    if changed := await changed_publications(tx, publications):
        await tx.publish_kinds(changed, published_by, await tx.now())


async def restore_kind(tx: StoreTransaction, kind: str) -> bool:
    """Accept new jobs of *kind* again; return whether it was retired."""
    await tx.lock_routing()
    return await tx.restore_kind(kind)


async def waiting_seqs(tx: StoreTransaction, routes: Sequence[int], after: int) -> list[int]:
    """Return the numbers of the next waiting jobs of these routes, in enqueue order, up to a chunk."""
    return await tx.waiting_seqs(routes, after, limits.CHUNK)


async def lanes(tx: StoreTransaction) -> list[Lane]:
    """Return every lane that was configured or used, sorted by name."""
    routing = await tx.routing()
    names = {key.lane for key in routing.routes} | set(routing.lanes)
    late = await tx.late_lanes()
    return [replace(routing.lane(name), late=name in late) for name in sorted(names)]


class LaneChange(NamedTuple):
    """New options of a lane; None keeps the current value."""

    state: LaneState | None = None
    order: LaneOrder | None = None
    events: EventScope | None = None
    backoff: LaneBackoff | None = None
    max_waiting: int | None = None
    target_age: float | None = None


async def set_lane(tx: StoreTransaction, name: str, change: LaneChange) -> tuple[Lane, list[int]]:
    """Change the given options of a lane; return the lane and its routes."""
    await tx.lock_routing()
    routing = await tx.routing()
    before = routing.lane(name)
    given = {option: value for option, value in change._asdict().items() if value is not None}
    # 0 removes a bound or a target.
    given |= {option: given[option] or None for option in ("max_waiting", "target_age") if option in given}
    after = replace(before, **given)
    await tx.set_lane(after)
    if before.target_age or after.target_age:
        await target_ages.look_soon(tx)
        after = replace(after, late=name in await tx.late_lanes())
    tx.notify([notifications.lane_topic(name), notifications.sessions_topic(name)])
    return after, routing.routes_of(name)


async def apply_lane_options(tx: StoreTransaction, seqs: Sequence[int]) -> None:
    """Set the fairness keys of these jobs and the heads of their sessions by the options of their lanes."""
    routing = await tx.routing()
    jobs = await tx.jobs_by_seq(seqs)
    keyed = [(fair_key_of(routing.lane(job.lane), job.tenant), job) for job in jobs]
    await tx.update_fair_keys([(fair_key, job.seq) for fair_key, job in keyed if fair_key != job.fair_key])
    if numbers := sessions.sessions_of(jobs):
        await sessions.refresh_sessions(tx, routing, numbers, await tx.now())


async def prune_jobs(
    tx: StoreTransaction, state: State, age_ms: int, after: JobPosition = (-1, -1)
) -> tuple[int, JobPosition]:
    """Delete a chunk of the jobs that finished in *state* longer ago than *age_ms*, with all their rows.

    Return how many, and the position after which the next chunk starts: the index may still have entries of the jobs
    deleted before.
    """
    now = await tx.now()
    deleted = await tx.delete_finished(state, after, now.wall_ms - age_ms, now, limits.CHUNK)
    if (await tx.routing()).has_edges:
        await tx.delete_groups(now.wall_ms - age_ms, limits.CHUNK)
    return deleted


async def count_prunable_events(tx: StoreTransaction, age_ms: int) -> tuple[int, bool]:
    """Count the events that `prune_events` would delete.

    Return how many, and whether an open transaction holds back the next ones.
    """
    now = await tx.now()
    horizon = await tx.event_horizon()
    before_ms = now.wall_ms - age_ms
    count, ends = await tx.count_old_events(horizon, before_ms)
    needed = await webhook_events.events_needed_after(tx)
    if needed is not None:
        needed, kept_ms = max(needed, horizon), now.wall_ms - limits.WEBHOOK_EVENTS_KEPT_MS
        unread, _ = await tx.count_old_events(needed, before_ms)
        expired, _ = await tx.count_old_events(needed, min(before_ms, kept_ms))
        count += expired - unread
    return count, not ends and await tx.events_held_back(horizon)


async def prune_message_ids(tx: StoreTransaction, age_ms: int) -> int:
    """Delete a chunk of the message ids whose entries were deleted longer ago than *age_ms*."""
    now = await tx.now()
    return await tx.forget_message_ids(now.wall_ms - age_ms, limits.CHUNK)


async def prune_events(tx: StoreTransaction, age_ms: int) -> tuple[int, bool]:
    """Delete a chunk of the oldest events, up to the first that is younger than *age_ms*.

    Events that the dispatcher of webhooks has not read stay up to a week longer.

    Return how many, and whether an open transaction holds back the next ones.
    """
    now = await tx.now()
    before_ms = now.wall_ms - age_ms
    # No event is before the horizon, but the index may still have entries of those that were deleted.
    horizon = await tx.event_horizon()
    head = await tx.oldest_events(horizon, limits.CHUNK)
    needed = await webhook_events.events_needed_after(tx)
    kept_ms = now.wall_ms - limits.WEBHOOK_EVENTS_KEPT_MS

    def is_old(event: tuple[EventPosition, int]) -> bool:
        position, at_ms = event
        # The dispatcher has not read it yet; a gap is announced if it never does.
        unread = needed is not None and position > needed
        return at_ms < before_ms and not (unread and at_ms >= kept_ms)

    old = list(takewhile(is_old, head))
    if old:
        await tx.delete_events(horizon, [position for position, _ in old])
    if len(old) < len(head) or len(head) == limits.CHUNK:
        return len(old), False
    return len(old), await tx.events_held_back(head[-1][0] if head else horizon)
