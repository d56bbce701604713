"""Renewing and settling a session claim as a whole: all of its entries in one commit, or `LeaseLost` and nothing."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.domain import limits, transitions
from holdfast.domain.claims import Lease, Renewal
from holdfast.domain.clock import Now
from holdfast.domain.errors import LeaseLost
from holdfast.domain.job import WAITING, Job
from holdfast.domain.outcomes import CheckedOutcome
from holdfast.domain.session_leases import SessionClaim
from holdfast.domain.transitions import Transition
from holdfast.domain.validation import datetime_of
from holdfast.operations.apply_transitions import apply_transitions
from holdfast.operations.enqueue import enqueue_jobs, lock_matches
from holdfast.operations.lease import held_job, lock_held, write_artifacts
from holdfast.operations.settle import find_duplicate_settlement
from holdfast.storage.contract import Transaction


async def heartbeat_session(tx: Transaction, claim: SessionClaim, lease_ms: int) -> Renewal:
    """Extend the whole claim, or raise `LeaseLost`.

    One that a session lease keeps alive is only looked at: it ends when that does.
    """
    jobs = await lock_held(tx, [one.lease for one in claim.claims])
    now = await tx.now()
    extended = [
        transitions.heartbeat(held_job(jobs, one.lease), one.lease, lease_ms, now)
        if claim.generation is None
        else _looked_at(held_job(jobs, one.lease), one.lease, now)
        for one in claim.claims
    ]
    if claim.generation is None:
        await tx.renew_leases(extended)
    until_ms = min(job.lease_until_ms or 0 for job in extended)
    return Renewal(datetime_of(until_ms), any(job.cancel_requested for job in extended))


def _looked_at(job: Job, lease: Lease, now: Now) -> Job:
    transitions.check_fence(job, lease, now)
    return job


async def settle_session(tx: Transaction, claim: SessionClaim, outcomes: Sequence[CheckedOutcome]) -> list[Job]:
    """Settle every entry of the claim with its outcome, and return what that leaves of each, in order."""
    routing = await tx.routing()
    claims = claim.claims
    await lock_matches(tx, claims, [new for checked in outcomes for new in checked.follow_ups])
    jobs = await tx.refresh(claims)
    now = await tx.now()
    # The same for all: what failed together waits for as long, and comes back together.
    chance = tx.random()
    steps: list[Transition] = []
    try:
        for one, checked in zip(claims, outcomes, strict=True):
            steps.append(transitions.settle(held_job(jobs, one.lease), one.lease, checked, now, chance))
    except LeaseLost:
        again = await _settled_before(tx, jobs, claim, outcomes)
        if again is None:
            raise
        return again
    settled = await apply_transitions(tx, routing, steps, now)
    for job, checked in zip(settled, outcomes, strict=True):
        await enqueue_jobs(tx, checked.follow_ups, "follow_ups")
        await write_artifacts(tx, job, checked.artifacts, now)
    return settled


async def _settled_before(
    tx: Transaction, jobs: dict[int, Job], claim: SessionClaim, outcomes: Sequence[CheckedOutcome]
) -> list[Job] | None:
    """Return the entries if this very settlement of all of them was taken already."""
    found: list[Job] = []
    for one, checked in zip(claim.claims, outcomes, strict=True):
        job = await find_duplicate_settlement(tx, jobs.get(one.job.seq), one.lease, checked)
        if job is None:
            return None
        found.append(job)
    return found


async def cancel_waiting(tx: Transaction, tenant: str, name: str, after: int) -> tuple[list[str], int | None]:
    """Cancel a bite of the session's entries that nobody has in hand; return their ids and where to go on."""
    routing = await tx.routing()
    number = await tx.session_number(tenant, name)
    seqs = [] if number is None else await tx.session_waiting(number, after, limits.CHUNK)
    if not seqs:
        return [], None
    found = await tx.jobs_by_seq(seqs)
    now = await tx.now()
    waiting = [job for job in found if job.state in WAITING]
    steps = [step for job in waiting if (step := transitions.cancel(job, force=False, now=now)) is not None]
    cancelled = await apply_transitions(tx, routing, steps, now)
    return [job.id for job in cancelled], seqs[-1] if len(seqs) == limits.CHUNK else None
