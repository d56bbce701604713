"""Writes of a running attempt before it settles: heartbeats and progress. Each checks the lease."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from holdfast.domain import limits, transitions
from holdfast.domain.claims import Claim, JobFence, Lease, Note, Renewal
from holdfast.domain.clock import Now
from holdfast.domain.errors import HoldfastError, LeaseLost
from holdfast.domain.job import Job, JobRow
from holdfast.domain.validation import datetime_of
from holdfast.operations.jobs import get_row
from holdfast.storage.contract import StoreTransaction


async def claim_of_lease(tx: StoreTransaction, lease: Lease) -> Claim:
    """Return the claim that *lease* proves, or raise `JobNotFound`; the write that follows checks the fence."""
    row = await get_row(tx, lease.job_id, lease.tenant)
    held = row._replace(epoch=lease.epoch, lease_token=lease.lease_token)
    return Claim(Job(held), limits.LEASE_MS_DEFAULT)


async def lock_held(tx: StoreTransaction, leases: Sequence[JobFence]) -> dict[int, JobRow]:
    """Lock the jobs of *leases* and return them by number, without deleted ones."""
    return {job.seq: job for job in await tx.jobs_by_seq([lease.seq for lease in leases])}


def held_job(jobs: dict[int, JobRow], lease: JobFence) -> JobRow:
    """Return the job of *lease*, or raise `LeaseLost` if it was deleted."""
    job = jobs.get(lease.seq)
    if job is None:
        raise LeaseLost(lease.job_id, lease.epoch, "the job was deleted")
    return job


async def heartbeat(
    tx: StoreTransaction,
    held: Sequence[tuple[JobFence, int]],
    notes: Mapping[int, Note] | None = None,
    started: Collection[int] = (),
) -> list[Renewal | HoldfastError]:
    """Extend each lease by its length and write its progress note, if any; return a renewal or an error for each.

    Acknowledge the claims of jobs whose numbers are in *started*.
    """
    if not held:
        return []
    jobs = await lock_held(tx, [lease for lease, _ in held])
    now = await tx.now()
    results = [_renew(jobs, lease, lease_ms, now, started) for lease, lease_ms in held]
    renewed = {job.seq: job for job in results if isinstance(job, JobRow)}
    await tx.renew_leases(list(renewed.values()))
    for lease, _ in held if notes else ():
        if notes and lease.seq in notes and lease.seq in renewed:
            await _write_note(tx, renewed[lease.seq], lease, notes[lease.seq], now)
    return [one if isinstance(one, HoldfastError) else _renewal(one) for one in results]


async def acknowledge_held(tx: StoreTransaction, leases: Sequence[JobFence]) -> None:
    """Acknowledge the *leases* that are still held; the next heartbeat reports the others as lost."""
    if leases:
        now = await tx.now()
        await tx.acknowledge(leases, now)


def _renew(
    jobs: dict[int, JobRow], lease: JobFence, lease_ms: int, now: Now, started: Collection[int]
) -> JobRow | HoldfastError:
    try:
        return transitions.heartbeat(held_job(jobs, lease), lease, lease_ms, now, acknowledges=lease.seq in started)
    except LeaseLost as lost:
        return lost


def _renewal(job: JobRow) -> Renewal:
    return Renewal(datetime_of(job.lease_until_ms or 0), bool(job.cancel_requested))


async def progress(tx: StoreTransaction, lease: JobFence, phase: str | None, percent: float | None) -> Job:
    """Write the phase and percentage of a running attempt."""
    jobs = await lock_held(tx, [lease])
    now = await tx.now()
    return Job(await _write_note(tx, held_job(jobs, lease), lease, Note(phase, percent), now))


async def _write_note(tx: StoreTransaction, job: JobRow, lease: JobFence, note: Note, now: Now) -> JobRow:
    noted = transitions.progress(job, lease, note.phase, note.percent, now)
    await tx.update_progress(noted)
    return noted
