"""What operators do: cancel, requeue, change priority, retire a kind."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.domain import limits, transitions
from holdfast.domain.clock import Now
from holdfast.domain.errors import Conflict, JobNotFound, KindRetired, Refused
from holdfast.domain.events import EventName
from holdfast.domain.job import WAITING, Job
from holdfast.domain.results import CancelReport, Kind, Requeued, Skipped
from holdfast.domain.routing import RoutingTable
from holdfast.domain.transitions import Transition
from holdfast.operations.apply_transitions import apply_transitions, records
from holdfast.operations.enqueue import live_holder, lock_jobs_and_keys
from holdfast.operations.jobs import get
from holdfast.storage.contract import Transaction
from holdfast.storage.notifications import worker_topic


async def cancel(tx: Transaction, job_id: str, tenant: str | None, *, force: bool) -> Job:
    """Cancel the job or ask it to stop."""
    routing = await tx.routing()
    job = await get(tx, job_id, tenant)
    now = await tx.now()
    step = transitions.cancel(job, force=force, now=now)
    if step is None:
        return job
    [after] = await apply_transitions(tx, routing, [step], now)
    if job.state == "running" and job.worker is not None:
        tx.notify([worker_topic(job.worker)])
    return after


async def cancel_many(tx: Transaction, job_ids: Sequence[str], tenant: str | None, *, force: bool) -> CancelReport:
    """Cancel each job that can be or ask it to stop, and report the others."""
    routing = await tx.routing()
    jobs = {job.id: job for job in await tx.jobs_by_id(job_ids) if tenant in {None, job.tenant}}
    now = await tx.now()
    report = CancelReport([], [], [])
    steps: list[Transition] = []
    for job_id in dict.fromkeys(job_ids):
        try:
            if job_id not in jobs:
                raise JobNotFound(job_id)
            step = transitions.cancel(jobs[job_id], force=force, now=now)
        except Refused as refusal:
            report.skipped.append(Skipped(job_id, str(refusal)))
            continue
        job = jobs[job_id] if step is None else step.after
        (report.cancelled if job.state == "cancelled" else report.asked).append(job_id)
        if step is not None:
            steps.append(step)
    # Blocked jobs first: the end of a predecessor in the same call must not make one of them ready.
    await apply_transitions(tx, routing, sorted(steps, key=lambda step: step.before.state != "blocked"), now)
    workers = {step.before.worker for step in steps if step.before.state == "running"}
    tx.notify(worker_topic(worker) for worker in workers if worker is not None)
    return report


async def requeue(tx: Transaction, job_id: str, tenant: str | None) -> Job:
    """Make one failed or cancelled job ready again."""
    routing = await tx.routing()
    await lock_jobs_and_keys(tx, [job_id])
    job = await get(tx, job_id, tenant)
    now = await tx.now()
    return await _requeue(tx, routing, job, now)


async def requeue_many(tx: Transaction, job_ids: Sequence[str], tenant: str | None) -> Requeued:
    """Make each job ready again that can be, and report the others."""
    routing = await tx.routing()
    jobs = {job.id: job for job in await lock_jobs_and_keys(tx, job_ids) if tenant in {None, job.tenant}}
    now = await tx.now()
    report = Requeued([], [])
    for job_id in dict.fromkeys(job_ids):
        try:
            if job_id not in jobs:
                raise JobNotFound(job_id)
            await _requeue(tx, routing, jobs[job_id], now)
        except Refused as refusal:
            report.skipped.append(Skipped(job_id, str(refusal)))
        else:
            report.requeued.append(job_id)
    return report


async def _requeue(tx: Transaction, routing: RoutingTable, job: Job, now: Now) -> Job:
    step = transitions.requeue(job, now)
    if job.kind in routing.retired:
        raise KindRetired(job.kind)
    if job.dedupe_key is not None:
        other = await live_holder(tx, routing, (job.tenant, job.dedupe_kind or "", job.dedupe_key), now)
        if other is not None:
            raise Conflict(f"its dedupe key is held by job {other.id!r}, which is {other.state}", job_id=other.id)
    [after] = await apply_transitions(tx, routing, [step], now)
    return after


async def reprioritize(tx: Transaction, job_id: str, priority: int, tenant: str | None) -> Job:
    """Change the priority of one job."""
    routing = await tx.routing()
    job = await get(tx, job_id, tenant)
    now = await tx.now()
    step = transitions.reprioritize(job, priority)
    if step is None:
        return job
    after, event = step.after, step.event
    told: dict[int, EventName] = {}
    if records(routing, after, event):
        after = after.counting_event()
        told[after.seq] = event
    await tx.update_priority(after)
    await tx.append_events(told, now)
    return after


async def retire_kind(tx: Transaction, kind: str) -> list[int]:
    """Refuse new jobs of *kind* from here on; return the routes on which old ones may wait."""
    await tx.lock_routing()
    await tx.retire_kind(kind, await tx.now())
    routing = await tx.routing()
    return [route.number for key, route in routing.routes.items() if key.kind == kind]


async def retire_jobs(tx: Transaction, seqs: Sequence[int]) -> int:
    """Set aside those of these jobs that still wait; return how many."""
    routing = await tx.routing()
    jobs = await tx.jobs_by_seq(seqs)
    now = await tx.now()
    waiting = [job for job in jobs if job.state in WAITING and job.kind in routing.retired]
    # A successor may have been set aside together with its predecessor already.
    steps = [transitions.retire(job, now) for job in sorted(waiting, key=lambda job: job.state != "blocked")]
    return len(await apply_transitions(tx, routing, steps, now))


async def kinds(tx: Transaction) -> list[Kind]:
    """Return every kind that was used or retired, by name."""
    routing = await tx.routing()
    names = {key.kind for key in routing.routes} | set(routing.retired)
    return [Kind(name, name in routing.retired) for name in sorted(names)]


async def restore_kind(tx: Transaction, kind: str) -> bool:
    """Take new jobs of *kind* again; tell whether it had been retired."""
    await tx.lock_routing()
    return await tx.restore_kind(kind)


async def waiting_on(tx: Transaction, routes: Sequence[int], after: int) -> list[int]:
    """Return the next waiting jobs of these routes in enqueue order, a bite of them."""
    return await tx.waiting_seqs(routes, after, limits.CHUNK)
