"""Output streams: append the text of running attempts, and read it."""

from collections.abc import Collection, Mapping, Sequence

from holdfast.domain import claims, errors, output, transitions
from holdfast.domain.job import FINISHED, WAITING
from holdfast.operations import lease
from holdfast.storage import contract, notifications


async def append(
    tx: contract.StoreTransaction, writes: Sequence[tuple[claims.Claim, output.OutputWrite]]
) -> list[output.StreamEnd | errors.HoldfastError]:
    """Append text to the output of each claimed job; return the end of its stream, or why it was refused.

    Parts that are already stored are skipped, so that a write may be sent again. The claims must be of different
    jobs.
    """
    if not writes:
        return []
    jobs = await tx.refresh([claim for claim, _ in writes])
    now = await tx.now()
    ends = await tx.output_ends(list(jobs))
    answers: list[output.StreamEnd | errors.HoldfastError] = []
    appended = []
    for claim, write in writes:
        try:
            job = lease.held_job(jobs, claims.fence_of(claim))
            transitions.check_fence(job, claims.fence_of(claim), now)
            end = ends.get(job.seq, output.StreamEnd())
            chunks = output.new_chunks(end, job.epoch, write)
        except errors.HoldfastError as error:
            answers.append(error)
            continue
        appended += [(job, chunk) for chunk in chunks]
        answers.append(
            output.StreamEnd(chunks[-1].number, job.epoch, chunks[-1].part, chunks[-1].size) if chunks else end
        )
    await tx.append_output(appended, now)
    tx.notify({notifications.output_topic(job.id) for job, _ in appended})
    return answers


async def renew_and_append(
    tx: contract.StoreTransaction,
    held: Sequence[tuple[claims.JobFence, int]],
    notes: Mapping[int, claims.Note],
    started: Collection[int],
    writes: Sequence[tuple[claims.Claim, output.OutputWrite]],
) -> tuple[list[claims.Renewal | errors.HoldfastError], list[output.StreamEnd | errors.HoldfastError]]:
    """Extend leases as `heartbeat` does and append output as `append` does, in one commit."""
    if not writes:
        return await lease.heartbeat(tx, held, notes, started), []
    renewals = await lease.renew_held(tx, held, notes, started)
    return renewals, await append(tx, writes)


async def read(
    tx: contract.StoreTransaction,
    job_id: str,
    after: int,
    limit: int,
    tenant: str | None,
    wait_seconds: float = 0.0,  # noqa: ARG001  # a transaction does not wait
) -> tuple[output.OutputPage, bool]:
    """Return chunks after a number, and whether the job waits although its deadline has passed.

    A store behind a server may wait up to *wait_seconds* for a chunk or the end of the job.
    """
    job = await tx.output_job(job_id)
    if job is None or tenant not in {None, job.tenant}:
        raise errors.JobNotFound(job_id)
    chunks = await tx.output_after(job.seq, after, limit)
    ended = job.state in FINISHED and len(chunks) < limit
    overdue = False
    if job.deadline_at_ms is not None and job.state in WAITING:
        overdue = job.deadline_at_ms <= (await tx.now()).wall_ms
    return output.OutputPage(tuple(chunks), ended), overdue
