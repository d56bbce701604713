"""Small moves that many tests are made of: claim one job, claim all, look at everything known of one."""

from __future__ import annotations

from typing import NamedTuple, Unpack

import holdfast
from holdfast import Attempt, Claim, ClaimOptions, Event, Job, Queue


def claim_one(queue: Queue, **words: Unpack[ClaimOptions]) -> Claim:
    """Claim the next job, which must be there."""
    claim = queue.claim(**words)
    assert claim is not None, "nothing was claimed"
    return claim


def claim_ids(queue: Queue, limit: int = 100, **words: Unpack[ClaimOptions]) -> list[str]:
    """Claim an entry and return the ids of its jobs, in the order they came."""
    return [claim.job.id for claim in queue.claim_many(limit=limit, **words)]


def claim_singly(queue: Queue, **words: Unpack[ClaimOptions]) -> list[Job]:
    """Claim one by one until nothing is left."""
    jobs = []
    while claim := queue.claim(**words):
        jobs.append(claim.job)
    return jobs


def claim_all(queue: Queue, **words: Unpack[ClaimOptions]) -> list[Claim]:
    """Claim in entries until nothing is left."""
    claims: list[Claim] = []
    while entry := queue.claim_many(limit=1000, **words):
        claims += entry
    return claims


class Known(NamedTuple):
    """All that a store tells of one job, and how many jobs it holds."""

    job: Job
    attempts: list[Attempt]
    artifacts: list[holdfast.ArtifactInfo]
    events: tuple[Event, ...]
    counts: dict[str, int]


def known(queue: Queue, job_id: str) -> Known:
    """Look at everything, so that a test can tell that nothing changed."""
    return Known(
        queue.get(job_id),
        queue.attempts(job_id),
        queue.artifacts(job_id),
        queue.events(limit=1000).events,
        queue.counts(by="state"),
    )
