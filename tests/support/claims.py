"""Helpers for many tests: claim one job, claim all, expire leases, read everything known about one."""

from __future__ import annotations

from typing import NamedTuple, Unpack

import holdfast
from holdfast import Claim, Job, Queue
from holdfast.client.queue_state import state_of
from holdfast.domain.job import job_of, row_of
from holdfast.types import Attempt, ClaimOptions, Event


def claim_one(queue: Queue, **options: Unpack[ClaimOptions]) -> Claim:
    """Claim the next job; fail if there is none."""
    claim = queue.claim(**options)
    assert claim is not None, "nothing was claimed"
    return claim


def expire_leases(queue: Queue) -> None:
    """End every lease in the store at once: a killed worker may have a long lease, which a busy machine keeps."""
    address = state_of(queue).store.address() or {}
    prefix = f"{address['schema']}." if "schema" in address else "holdfast_"
    with queue.transaction() as transaction:
        for table in ("job", "session"):
            transaction.execute(f"update {prefix}{table} set lease_until_ms = 0 where lease_until_ms is not null")
        if "schema" in address:
            # When to look at the jobs of a claim.
            transaction.execute(f"update {prefix}lease set until_ms = 0")


def claim_ids(queue: Queue, limit: int = 100, **options: Unpack[ClaimOptions]) -> list[str]:
    """Claim several jobs at once and return their ids, in claim order."""
    return [claim.job.id for claim in queue.claim_many(limit=limit, **options)]


def claim_singly(queue: Queue, **options: Unpack[ClaimOptions]) -> list[Job]:
    """Claim one by one until no job is left."""
    jobs = []
    while claim := queue.claim(**options):
        jobs.append(claim.job)
    return jobs


def claim_all(queue: Queue, **options: Unpack[ClaimOptions]) -> list[Claim]:
    """Claim several at once until no job is left."""
    claims: list[Claim] = []
    while entry := queue.claim_many(limit=1000, **options):
        claims += entry
    return claims


def changed_job(job: Job, **columns: object) -> Job:
    """Return *job* with other values in some columns, as no store would return it."""
    return job_of(row_of(job)._replace(**columns))  # type: ignore[arg-type]  # columns by name


class StoredJob(NamedTuple):
    """All stored values of one job, and the number of jobs in the store."""

    job: Job
    attempts: list[Attempt]
    artifacts: list[holdfast.types.ArtifactInfo]
    events: tuple[Event, ...]
    counts: dict[str, int]


def known(queue: Queue, job_id: str) -> StoredJob:
    """Read everything, so that a test can assert that nothing changed."""
    return StoredJob(
        queue.get(job_id),
        queue.attempts(job_id),
        queue.artifacts(job_id),
        queue.events(limit=1000).events,
        queue.counts(by="state"),
    )
