"""Output streams: append the text of running attempts, and read it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from holdfast.domain import output, transitions
from holdfast.domain.claims import Claim, JobFence, Note, Renewal
from holdfast.domain.errors import HoldfastError, JobNotFound
from holdfast.domain.job import FINISHED, WAITING
from holdfast.domain.output import OutputPage, OutputWrite, StreamEnd
from holdfast.operations.lease import heartbeat, held_job
from holdfast.storage.contract import StoreTransaction
from holdfast.storage.notifications import output_topic


async def append(
    tx: StoreTransaction, writes: Sequence[tuple[Claim, OutputWrite]]
) -> list[StreamEnd | HoldfastError]:
    """Append text to the output of each claimed job; return the end of its stream, or why it was refused.

    Parts that are already stored are skipped, so that a write may be sent again. The claims must be of different
    jobs.
    """
    if not writes:
        return []
    jobs = await tx.refresh([claim for claim, _ in writes])
    now = await tx.now()
    ends = await tx.output_ends(list(jobs))
    answers: list[StreamEnd | HoldfastError] = []
    appended = []
    for claim, write in writes:
        try:
            job = held_job(jobs, claim.fence)
            transitions.check_fence(job, claim.fence, now)
            end = ends.get(job.seq, StreamEnd())
            chunks = output.new_chunks(end, job.epoch, write)
        except HoldfastError as error:
            answers.append(error)
            continue
        appended += [(job, chunk) for chunk in chunks]
        answers.append(StreamEnd(chunks[-1].number, job.epoch, chunks[-1].part, chunks[-1].size) if chunks else end)
    await tx.append_output(appended, now)
    tx.notify({output_topic(job.id) for job, _ in appended})
    return answers


async def renew_and_append(
    tx: StoreTransaction,
    held: Sequence[tuple[JobFence, int]],
    notes: Mapping[int, Note],
    started: Collection[int],
    writes: Sequence[tuple[Claim, OutputWrite]],
) -> tuple[list[Renewal | HoldfastError], list[StreamEnd | HoldfastError]]:
    """Extend leases as `heartbeat` does and append output as `append` does, in one commit."""
    renewals = await heartbeat(tx, held, notes, started)
    return renewals, await append(tx, writes)


async def read(
    tx: StoreTransaction,
    job_id: str,
    after: int,
    limit: int,
    tenant: str | None,
    wait_seconds: float = 0.0,  # noqa: ARG001  # a transaction does not wait
) -> tuple[OutputPage, bool]:
    """Return chunks after a number, and whether the job waits although its deadline has passed.

    A store behind a server may wait up to *wait_seconds* for a chunk or the end of the job.
    """
    job = await tx.output_job(job_id)
    if job is None or tenant not in {None, job.tenant}:
        raise JobNotFound(job_id)
    chunks = await tx.output_after(job.seq, after, limit)
    ended = job.state in FINISHED and len(chunks) < limit
    overdue = False
    if job.deadline_at_ms is not None and job.state in WAITING:
        overdue = job.deadline_at_ms <= (await tx.now()).wall_ms
    return OutputPage(tuple(chunks), ended), overdue
