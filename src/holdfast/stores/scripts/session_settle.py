"""Renewing and settling a session claim as a whole: all of its batches in one commit, or `LeaseLost` and nothing."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.domain import lifecycle, limits
from holdfast.domain.checks import datetime_of
from holdfast.domain.claim import Lease, Renewal
from holdfast.domain.clock import Now
from holdfast.domain.errors import LeaseLost
from holdfast.domain.job import WAITING, Job
from holdfast.domain.lifecycle import Step
from holdfast.domain.outcome import CheckedOutcome
from holdfast.domain.session_lease import SessionClaim
from holdfast.stores import script
from holdfast.stores.engine import Engine
from holdfast.stores.script import Script, Statement
from holdfast.stores.scripts.catalog import load_catalog
from holdfast.stores.scripts.enqueue import enqueue_jobs, lock_met
from holdfast.stores.scripts.lease import held_job, lock_held, stand, write_artifacts
from holdfast.stores.scripts.moves import apply_steps, write_rows
from holdfast.stores.scripts.settle import sent_again


def heartbeat_session(claim: SessionClaim, lease_ms: int) -> Script[Renewal]:
    """Extend the whole claim, or raise `LeaseLost`.

    One that a session lease keeps alive is only looked at: it ends when that does.
    """
    jobs = yield from lock_held([one.lease for one in claim.claims])
    now = yield from script.now()
    extended = [
        lifecycle.heartbeat(held_job(jobs, one.lease), one.lease, lease_ms, now)
        if claim.generation is None
        else _looked_at(held_job(jobs, one.lease), one.lease, now)
        for one in claim.claims
    ]
    if claim.generation is None:
        rows = [(job.lease_until_ms, job.unacknowledged, job.seq, job.epoch) for job in extended]
        yield from write_rows("job_lease", rows)
    until_ms = min(job.lease_until_ms or 0 for job in extended)
    return Renewal(datetime_of(until_ms), any(job.cancel_requested for job in extended))


def _looked_at(job: Job, lease: Lease, now: Now) -> Job:
    lifecycle.check_fence(job, lease, now)
    return job


def settle_session(engine: Engine, claim: SessionClaim, outcomes: Sequence[CheckedOutcome]) -> Script[list[Job]]:
    """Settle every batch of the claim with its outcome, and return what that leaves of each, in order."""
    catalog = yield from load_catalog(engine)
    claims = claim.claims
    yield from lock_met(claims, [new for checked in outcomes for new in checked.follow_ups])
    jobs = yield from stand(claims)
    now = yield from script.now()
    # The same for all: what failed together waits for as long, and comes back together.
    chance = yield from script.chance()
    steps: list[Step] = []
    try:
        for one, checked in zip(claims, outcomes, strict=True):
            steps.append(lifecycle.settle(held_job(jobs, one.lease), one.lease, checked, now, chance))
    except LeaseLost:
        again = yield from _settled_before(jobs, claim, outcomes)
        if again is None:
            raise
        return again
    settled = yield from apply_steps(catalog, steps, now)
    for job, checked in zip(settled, outcomes, strict=True):
        yield from enqueue_jobs(engine, checked.follow_ups, "follow_ups")
        yield from write_artifacts(job, checked.artifacts, now)
    return settled


def _settled_before(
    jobs: dict[int, Job], claim: SessionClaim, outcomes: Sequence[CheckedOutcome]
) -> Script[list[Job] | None]:
    """Return the batches if this very settlement of all of them was taken already."""
    found: list[Job] = []
    for one, checked in zip(claim.claims, outcomes, strict=True):
        job = yield from sent_again(jobs.get(one.job.seq), one.lease, checked)
        if job is None:
            return None
        found.append(job)
    return found


def cancel_waiting(engine: Engine, tenant: str, name: str, after: int) -> Script[tuple[list[str], int | None]]:
    """Cancel a bite of the session's batches that nobody has in hand; return their ids and where to go on."""
    catalog = yield from load_catalog(engine)
    rows = yield Statement("session_number", {"tenant": tenant, "name": name})
    if not rows:
        return [], None
    values = {"session": rows[0][0], "after": after, "limit": limits.BITE}
    seqs = [seq for (seq,) in (yield Statement("session_waiting", values))]
    if not seqs:
        return [], None
    found = yield Statement("jobs_by_seq", {"seqs": seqs})
    now = yield from script.now()
    waiting = [job for job in map(Job._make, found) if job.state in WAITING]
    steps = [step for job in waiting if (step := lifecycle.cancel(job, force=False, now=now)) is not None]
    cancelled = yield from apply_steps(catalog, steps, now)
    return [job.id for job in cancelled], seqs[-1] if len(seqs) == limits.BITE else None
