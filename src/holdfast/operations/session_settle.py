"""Renewing and settling session claims: all entries of a claim in one commit, or none."""

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
    """Extend the leases of all entries of the claim, or raise `LeaseLost`.

    A claim under a session lease is only checked: it expires with the session lease.
    """
    jobs = await lock_held(tx, [one.lease for one in claim.claims])
    now = await tx.now()
    extended = [
        transitions.heartbeat(held_job(jobs, one.lease), one.lease, lease_ms, now)
        if claim.generation is None
        else _check_held(held_job(jobs, one.lease), one.lease, now)
        for one in claim.claims
    ]
    if claim.generation is None:
        await tx.renew_leases(extended)
    until_ms = min(job.lease_until_ms or 0 for job in extended)
    return Renewal(datetime_of(until_ms), any(job.cancel_requested for job in extended))


def _check_held(job: Job, lease: Lease, now: Now) -> Job:
    transitions.check_fence(job, lease, now)
    return job


async def settle_session(tx: Transaction, claim: SessionClaim, outcomes: Sequence[CheckedOutcome]) -> list[Job]:
    """Settle every entry of the claim with its outcome, and return the settled entries, in order."""
    routing = await tx.routing()
    claims = claim.claims
    await lock_matches(tx, claims, [new for checked in outcomes for new in checked.follow_ups])
    jobs = await tx.refresh(claims)
    now = await tx.now()
    # One random number for all: entries that fail together are retried at the same time.
    chance = tx.random()
    decided: list[Transition] = []
    try:
        for one, checked in zip(claims, outcomes, strict=True):
            decided.append(transitions.settle(held_job(jobs, one.lease), one.lease, checked, now, chance))
    except LeaseLost:
        duplicate = await _find_duplicate(tx, jobs, claim, outcomes)
        if duplicate is None:
            raise
        return duplicate
    settled = await apply_transitions(tx, routing, decided, now)
    for job, checked in zip(settled, outcomes, strict=True):
        await enqueue_jobs(tx, checked.follow_ups, "follow_ups")
        await write_artifacts(tx, job, checked.artifacts, now)
    return settled


async def _find_duplicate(
    tx: Transaction, jobs: dict[int, Job], claim: SessionClaim, outcomes: Sequence[CheckedOutcome]
) -> list[Job] | None:
    """Return the entries if all of them are already settled with the same outcomes."""
    found: list[Job] = []
    for one, checked in zip(claim.claims, outcomes, strict=True):
        job = await find_duplicate_settlement(tx, jobs.get(one.job.seq), one.lease, checked)
        if job is None:
            return None
        found.append(job)
    return found


async def cancel_waiting(tx: Transaction, tenant: str, name: str, after: int) -> tuple[list[str], int | None]:
    """Cancel a chunk of the session's waiting entries; return their ids and where to continue, None at the end."""
    routing = await tx.routing()
    number = await tx.session_number(tenant, name)
    seqs = [] if number is None else await tx.session_waiting(number, after, limits.CHUNK)
    if not seqs:
        return [], None
    found = await tx.jobs_by_seq(seqs)
    now = await tx.now()
    waiting = [job for job in found if job.state in WAITING]
    decided = [transitions.cancel(job, force=False, now=now) for job in waiting]
    cancelled = await apply_transitions(tx, routing, [one for one in decided if one is not None], now)
    return [job.id for job in cancelled], seqs[-1] if len(seqs) == limits.CHUNK else None
