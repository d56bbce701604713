"""What operators do: cancel, requeue, change priority, retire a kind."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.domain import lifecycle, limits
from holdfast.domain.clock import Now
from holdfast.domain.errors import Conflict, JobNotFound, KindRetired, Refused
from holdfast.domain.event import EventName
from holdfast.domain.job import WAITING, Job
from holdfast.domain.lane import Catalog
from holdfast.domain.lifecycle import Step
from holdfast.domain.records import CancelReport, Kind, Requeued, Skipped
from holdfast.stores import script
from holdfast.stores.engine import Engine
from holdfast.stores.script import Script, Signal, Statement, worker_topic
from holdfast.stores.scripts.catalog import hold_catalog, load_catalog, touch_catalog
from holdfast.stores.scripts.enqueue import live_holder
from holdfast.stores.scripts.inspect import get
from holdfast.stores.scripts.moves import apply_steps, record, records


def cancel(engine: Engine, job_id: str, tenant: str | None, *, force: bool) -> Script[Job]:
    """Cancel the job or ask it to stop."""
    catalog = yield from load_catalog(engine)
    job = yield from get(job_id, tenant)
    now = yield from script.now()
    step = lifecycle.cancel(job, force=force, now=now)
    if step is None:
        return job
    [after] = yield from apply_steps(catalog, [step], now)
    if job.state == "running" and job.worker is not None:
        yield Signal([worker_topic(job.worker)])
    return after


def cancel_many(engine: Engine, job_ids: Sequence[str], tenant: str | None, *, force: bool) -> Script[CancelReport]:
    """Cancel each job that can be or ask it to stop, and report the others."""
    catalog = yield from load_catalog(engine)
    rows = yield Statement("jobs_by_id", {"ids": list(job_ids)})
    jobs = {job.id: job for job in map(Job._make, rows) if tenant in {None, job.tenant}}
    now = yield from script.now()
    report = CancelReport([], [], [])
    steps: list[Step] = []
    for job_id in dict.fromkeys(job_ids):
        try:
            if job_id not in jobs:
                raise JobNotFound(job_id)
            step = lifecycle.cancel(jobs[job_id], force=force, now=now)
        except Refused as refusal:
            report.skipped.append(Skipped(job_id, str(refusal)))
            continue
        job = jobs[job_id] if step is None else step.after
        (report.cancelled if job.state == "cancelled" else report.asked).append(job_id)
        if step is not None:
            steps.append(step)
    # Blocked jobs first: the end of a predecessor in the same call must not make one of them ready.
    yield from apply_steps(catalog, sorted(steps, key=lambda step: step.before.state != "blocked"), now)
    told = {step.before.worker for step in steps if step.before.state == "running"} - {None}
    if told:
        yield Signal([worker_topic(worker) for worker in told if worker is not None])
    return report


def requeue(engine: Engine, job_id: str, tenant: str | None) -> Script[Job]:
    """Make one failed or cancelled job ready again."""
    catalog = yield from load_catalog(engine)
    job = yield from get(job_id, tenant)
    now = yield from script.now()
    return (yield from _requeue(catalog, job, now))


def requeue_many(engine: Engine, job_ids: Sequence[str], tenant: str | None) -> Script[Requeued]:
    """Make each job ready again that can be, and report the others."""
    catalog = yield from load_catalog(engine)
    rows = yield Statement("jobs_by_id", {"ids": list(job_ids)})
    jobs = {job.id: job for job in map(Job._make, rows) if tenant in {None, job.tenant}}
    now = yield from script.now()
    report = Requeued([], [])
    for job_id in dict.fromkeys(job_ids):
        try:
            if job_id not in jobs:
                raise JobNotFound(job_id)
            yield from _requeue(catalog, jobs[job_id], now)
        except Refused as refusal:
            report.skipped.append(Skipped(job_id, str(refusal)))
        else:
            report.requeued.append(job_id)
    return report


def _requeue(catalog: Catalog, job: Job, now: Now) -> Script[Job]:
    step = lifecycle.requeue(job, now)
    if job.kind in catalog.retired:
        raise KindRetired(job.kind)
    if job.dedupe_key is not None:
        other = yield from live_holder(catalog, (job.tenant, job.dedupe_kind or "", job.dedupe_key), now)
        if other is not None:
            raise Conflict(f"its dedupe key is held by job {other.id!r}, which is {other.state}", job_id=other.id)
    [after] = yield from apply_steps(catalog, [step], now)
    return after


def reprioritize(engine: Engine, job_id: str, priority: int, tenant: str | None) -> Script[Job]:
    """Change the priority of one job."""
    catalog = yield from load_catalog(engine)
    job = yield from get(job_id, tenant)
    now = yield from script.now()
    step = lifecycle.reprioritize(job, priority)
    if step is None:
        return job
    after, event = step.after, step.event
    told: dict[int, EventName] = {}
    if records(catalog, after, event):
        after = after.counting_event()
        told[after.seq] = event
    yield Statement("job_priority", {"seq": after.seq, "priority": after.priority, "event_count": after.event_count})
    yield from record(told, now)
    return after


def retire_kind(engine: Engine, kind: str) -> Script[list[int]]:
    """Refuse new jobs of *kind* from here on; return the routes on which old ones may wait."""
    yield from hold_catalog()
    now = yield from script.now()
    yield Statement("kind_retire", {"kind": kind, "now": now.wall_ms})
    yield from touch_catalog()
    catalog = yield from load_catalog(engine)
    return [route.number for key, route in catalog.routes.items() if key.kind == kind]


def retire_jobs(engine: Engine, seqs: Sequence[int]) -> Script[int]:
    """Set aside those of these jobs that still wait; return how many."""
    catalog = yield from load_catalog(engine)
    rows = yield Statement("jobs_by_seq", {"seqs": list(seqs)})
    now = yield from script.now()
    waiting = [job for job in map(Job._make, rows) if job.state in WAITING and job.kind in catalog.retired]
    # A successor may have been set aside together with its predecessor already.
    steps = [lifecycle.retire(job, now) for job in sorted(waiting, key=lambda job: job.state != "blocked")]
    return len((yield from apply_steps(catalog, steps, now)))


def kinds(engine: Engine) -> Script[list[Kind]]:
    """Return every kind that was used or retired, by name."""
    catalog = yield from load_catalog(engine)
    names = {key.kind for key in catalog.routes} | set(catalog.retired)
    return [Kind(name, name in catalog.retired) for name in sorted(names)]


def restore_kind(kind: str) -> Script[bool]:
    """Take new jobs of *kind* again; tell whether it had been retired."""
    yield from hold_catalog()
    rows = yield Statement("kind_restore", {"kind": kind})
    yield from touch_catalog()
    return bool(rows)


def waiting_on(routes: Sequence[int], after: int) -> Script[list[int]]:
    """Return the next waiting jobs of these routes in enqueue order, a bite of them."""
    rows = yield Statement("jobs_waiting_on_routes", {"routes": list(routes), "after": after, "limit": limits.BITE})
    return [seq for (seq,) in rows]
