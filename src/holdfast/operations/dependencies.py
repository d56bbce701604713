"""Dependencies: storing and reading them."""

from collections.abc import Sequence

from holdfast.domain import dependencies, errors, groups
from holdfast.domain.job import Job, JobRow, job_of
from holdfast.domain.new_job import CheckedJob
from holdfast.operations.jobs import get_row
from holdfast.storage.contract import StoreTransaction


async def write(
    tx: StoreTransaction,
    created: Sequence[tuple[int, CheckedJob, JobRow]],
    all_jobs: Sequence[JobRow],
    field: str,
) -> None:
    """Store the dependencies of new jobs; *all_jobs* are those of the call, by position.

    Raise `JobNotFound` for a parent that does not exist or belongs to another tenant. Unfinished parents are not
    locked: a wake row of the child asks to look at those that existed before.
    """
    stored_here = {job.seq: index for index, _, job in created}
    # Also the jobs of this call that are duplicates: retention may have deleted the first ones.
    named = {job.id for job in all_jobs if job.seq not in stored_here}
    named |= {
        one for _, new, _ in created if new.dependencies for one in new.dependencies.after if isinstance(one, str)
    }
    known = await tx.jobs_named(sorted(named))
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
                earlier = all_jobs[one]
                if earlier.tenant != job.tenant:
                    raise errors.InvalidInput(
                        where, f"is {one}, a job of tenant {earlier.tenant!r}, not {job.tenant!r}"
                    )
                if earlier.seq not in stored_here and earlier.id not in known:
                    raise _not_found(earlier.id, where)
                parents[earlier.seq] = None
            else:
                seq, tenant = known.get(one, (0, None))
                if tenant != job.tenant:
                    raise _not_found(one, where)
                dependencies.check_position(stored_here.get(seq, -1), index, where)
                parents[seq] = None
        on_failed = new.dependencies.on_failed
        edges += [(job.seq, parent, place, on_failed) for place, parent in enumerate(parents)]
        if not parents.keys() <= stored_here.keys():
            look.append(job.seq)
    await tx.insert_edges(edges)
    await tx.await_jobs(sorted({parent for _, parent, *_ in edges if parent in stored_here}))
    await tx.add_wakes("child", look)


def _not_found(job_id: str, path: str) -> errors.JobNotFound:
    """Return the error for a missing parent; the path distinguishes it from a missing job of the call itself."""
    error = errors.JobNotFound(job_id)
    error.path = path
    return error


async def parents(tx: StoreTransaction, job_id: str, tenant: str | None) -> list[Job]:
    """Return the jobs on which a job depends, in the given order."""
    job = await get_row(tx, job_id, tenant)
    return [job_of(row) for row in await tx.parents_of(job.seq)]


async def reopen_members(tx: StoreTransaction, job: JobRow) -> None:
    """Count a job that is requeued as unfinished again, in groups that have not ended."""
    found = {one.number: one for one in await tx.groups_of_member(job.seq)}
    reopened = await tx.reopen_members(job.seq, sorted(found))
    for number in reopened:
        await tx.write_group(groups.counted(found[number], job.state, -1))
    if reopened:
        # One that had ended before it became a member was counted then, and no end of it appends a wake row.
        await tx.await_jobs([job.seq])
