"""Writes of a running attempt before it settles: heartbeats and progress. Each checks the lease."""

from collections.abc import Collection, Mapping, Sequence

from holdfast.domain import clock, errors, limits, transitions, validation
from holdfast.domain.claims import Claim, JobFence, Lease, Note, Renewal
from holdfast.domain.job import Job, JobRow, job_of
from holdfast.operations.jobs import get_row
from holdfast.storage.contract import StoreTransaction


async def claim_of_lease(tx: StoreTransaction, lease: Lease) -> Claim:
    """Return the claim that *lease* proves, or raise `JobNotFound`; the write that follows checks the fence."""
    row = await get_row(tx, lease.job_id, lease.tenant)
    held = row._replace(epoch=lease.epoch, lease_token=lease.lease_token)
    return Claim(job_of(held), limits.LEASE_MS_DEFAULT)


async def lock_held(tx: StoreTransaction, fences: Sequence[JobFence]) -> dict[int, JobRow]:
    """Lock the jobs of *fences* and return them by number, without deleted ones."""
    return {job.seq: job for job in await tx.jobs_by_seq([fence.seq for fence in fences])}


def held_job(jobs: dict[int, JobRow], fence: JobFence) -> JobRow:
    """Return the job of *fence*, or raise `LeaseLost` if it was deleted."""
    job = jobs.get(fence.seq)
    if job is None:
        raise errors.LeaseLost(fence.job_id, fence.epoch, "the job was deleted")
    return job


async def heartbeat(
    tx: StoreTransaction,
    held: Sequence[tuple[JobFence, int]],
    notes: Mapping[int, Note] | None = None,
    started: Collection[int] = (),
) -> list[Renewal | errors.HoldfastError]:
    """Extend each lease by its length and write its progress note, if any; return a renewal or an error for each.

    Acknowledge the claims of jobs whose numbers are in *started*.
    """
    if not held:
        return []
    renewals = await tx.renew_plain(held, notes or {}, started)
    if renewals is not None:
        found = [renewals[fence.seq] for fence, _ in held]
        return [Renewal(validation.datetime_of(until_ms), cancel_requested) for until_ms, cancel_requested in found]
    return await renew_held(tx, held, notes, started)


async def renew_held(
    tx: StoreTransaction,
    held: Sequence[tuple[JobFence, int]],
    notes: Mapping[int, Note] | None = None,
    started: Collection[int] = (),
) -> list[Renewal | errors.HoldfastError]:
    """Do what `heartbeat` does, in its full form."""
    if not held:
        return []
    jobs = await lock_held(tx, [fence for fence, _ in held])
    now = await tx.now()
    results = [_renew(jobs, fence, lease_ms, now, started) for fence, lease_ms in held]
    renewed = {job.seq: job for job in results if isinstance(job, JobRow)}
    await tx.renew_leases(list(renewed.values()))
    for fence, _ in held if notes else ():
        if notes and fence.seq in notes and fence.seq in renewed:
            await _write_note(tx, renewed[fence.seq], fence, notes[fence.seq], now)
    return [one if isinstance(one, errors.HoldfastError) else _renewal(one) for one in results]


async def acknowledge_held(tx: StoreTransaction, fences: Sequence[JobFence]) -> None:
    """Acknowledge the claims of *fences* that are still held; the next heartbeat reports the others as lost."""
    if fences:
        now = await tx.now()
        await tx.acknowledge(fences, now)


def _renew(
    jobs: dict[int, JobRow], fence: JobFence, lease_ms: int, now: clock.Now, started: Collection[int]
) -> JobRow | errors.HoldfastError:
    try:
        return transitions.heartbeat(held_job(jobs, fence), fence, lease_ms, now, acknowledges=fence.seq in started)
    except errors.LeaseLost as lost:
        return lost


def _renewal(job: JobRow) -> Renewal:
    return Renewal(validation.datetime_of(job.lease_until_ms or 0), bool(job.cancel_requested))


async def progress(tx: StoreTransaction, fence: JobFence, phase: str | None, percent: float | None) -> Job:
    """Write the phase and percentage of a running attempt."""
    jobs = await lock_held(tx, [fence])
    now = await tx.now()
    return job_of(await _write_note(tx, held_job(jobs, fence), fence, Note(phase, percent), now))


async def _write_note(tx: StoreTransaction, job: JobRow, fence: JobFence, note: Note, now: clock.Now) -> JobRow:
    noted = transitions.progress(job, fence, note.phase, note.percent, now)
    await tx.update_progress(noted)
    return noted
