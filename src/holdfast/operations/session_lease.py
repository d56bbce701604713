"""The session lease of its owner: open, renew, close, take over.

Entries claimed under it have the same expiry time, so the usual check of an entry's lease covers the session lease.
Entries are locked before their session, as in every operation that changes entries.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from holdfast.domain import clock, errors, limits, session_claims, sessions, transitions, validation
from holdfast.domain.claims import JobFence, Renewal, fence_of
from holdfast.domain.job import WAITING, Job, JobRow, job_of
from holdfast.domain.outcomes import CheckedOutcome, children_of
from holdfast.domain.routing import RoutingTable
from holdfast.operations import artifacts, enqueue, gates, session_enqueue, settle
from holdfast.operations.apply_transitions import apply_transitions
from holdfast.operations.lease import held_job, lock_held
from holdfast.operations.sessions import refresh_heads, refresh_sessions
from holdfast.storage.contract import OvertakenError, StoreTransaction


async def open_session(tx: StoreTransaction, opening: session_claims.Opening) -> session_claims.SessionLease:
    """Make the caller the session's owner; a takeover takes back the entries that others hold."""
    routing = await tx.routing()
    session, running = await _lock_with_running(tx, opening.tenant, opening.session)
    if session is None:
        session = await session_enqueue.create_session(tx, opening.tenant, opening.session)
    now = await tx.now()
    held = [job for job in running if not transitions.expired(job, now)]
    opened = session_claims.open_lease(session, opening, held, now)
    if opened is not session:
        await tx.write_session_lease(opened)
        chance = tx.random()
        decided = [
            transitions.expire(job, now) if transitions.expired(job, now) else transitions.revoke(job, now, chance)
            for job in running
        ]
        await apply_transitions(tx, routing, decided, now)
        await refresh_sessions(tx, routing, [opened.number], now)
    return replace(session_claims.lease_of(opened, opening.lease_ms), repeated=opened is session)


async def undo_open_session(
    tx: StoreTransaction, lease: session_claims.SessionLease | None, _request: object
) -> None:
    """Close the session, unless an earlier call opened it or none did."""
    if lease is not None and not lease.repeated:
        # Another owner may have taken over the session since.
        with suppress(errors.LeaseLost):
            await close_session(tx, lease)


async def renew_session(
    tx: StoreTransaction, lease: session_claims.SessionLease, lease_ms: int
) -> session_claims.SessionLease:
    """Extend the session lease and the leases of the entries claimed under it, or raise `LeaseLost`."""
    session, running = await _lock_with_running(tx, lease.tenant, lease.session)
    now = await tx.now()
    renewed = session_claims.renew_lease(session, lease, lease_ms, now)
    await tx.write_session_lease(renewed)
    await tx.renew_leases([job._replace(lease_until_ms=renewed.lease_until_ms) for job in running])
    return session_claims.lease_of(renewed, lease_ms)


async def close_session(tx: StoreTransaction, lease: session_claims.SessionLease) -> None:
    """End the session lease and release the entries held under it, without using up attempts."""
    routing = await tx.routing()
    session, running = await _lock_with_running(tx, lease.tenant, lease.session)
    now = await tx.now()
    closed = session_claims.close_lease(session, lease, now)
    if closed == session:
        return
    await tx.write_session_lease(closed)
    chance = tx.random()
    held = [job for job in running if not transitions.expired(job, now)]
    await apply_transitions(tx, routing, [transitions.release_for_holder(job, now, chance) for job in held], now)
    await refresh_sessions(tx, routing, [closed.number], now)


async def end_expired_leases(tx: StoreTransaction, routing: RoutingTable, now: clock.Now) -> bool:
    """End a chunk of the expired session leases, which frees their sessions; return whether there were any."""
    ended = [session_claims.end_lease(session) for session in await tx.expired_sessions(now, limits.CHUNK)]
    for session in ended:
        await tx.write_session_lease(session)
    await refresh_heads(tx, routing, ended, now)
    return bool(ended)


async def _lock_with_running(
    tx: StoreTransaction, tenant: str, name: str
) -> tuple[sessions.Session | None, list[JobRow]]:
    """Lock the running entries of the session, then the session; return both."""
    number = await tx.session_number(tenant, name)
    if number is None:
        return None, []
    running = await tx.session_running(number)
    session = await tx.session_by_name(tenant, name)
    if await tx.session_running_seqs(number) != {job.seq for job in running}:
        raise OvertakenError(f"another transaction claimed entries of session {name!r}")
    return session, running


async def claim_of_turn(tx: StoreTransaction, lease: session_claims.TurnLease) -> session_claims.SessionClaim:
    """Return the claim that *lease* proves, or raise `JobNotFound`; the write that follows checks each fence."""
    jobs = {job.id: job for job in await tx.jobs_by_id([job_id for job_id, _ in lease.entries])}
    if len({job_id for job_id, _ in lease.entries}) < len(lease.entries):
        raise errors.InvalidInput("entries", "names an entry twice")
    held: list[JobRow] = []
    for job_id, epoch in lease.entries:
        job = jobs.get(job_id)
        if job is None or job.entry is None or (job.tenant, job.entry.session) != (lease.tenant, lease.session):
            raise errors.JobNotFound(job_id)
        held.append(job._replace(epoch=epoch, lease_token=lease.lease_token))
    session = await tx.session_by_name(lease.tenant, lease.session)
    if session is None or held[0].entry is None:
        raise errors.JobNotFound(held[0].id)
    return session_claims.SessionClaim(
        session=lease.session,
        tenant=lease.tenant,
        entry_type=held[0].entry.entry_type,
        claim_id=session.claim_id or "",
        fencing_token=session.fence,
        entries=tuple(map(job_of, held)),
        lease_ms=limits.LEASE_MS_DEFAULT,
        # While a session is leased, only the holder of that lease has claims on it.
        generation=session.generation if session.leased(await tx.now()) else None,
    )


async def heartbeat_session(tx: StoreTransaction, claim: session_claims.SessionClaim, lease_ms: int) -> Renewal:
    """Extend the leases of all entries of the claim and acknowledge it, or raise `LeaseLost`.

    A claim under a session lease is only checked: it expires with the session lease.
    """
    jobs = await lock_held(tx, [fence_of(one) for one in claim.claims])
    now = await tx.now()
    extended = [
        transitions.heartbeat(held_job(jobs, fence_of(one)), fence_of(one), lease_ms, now, acknowledges=True)
        if claim.generation is None
        else _check_held(held_job(jobs, fence_of(one)), fence_of(one), now)
        for one in claim.claims
    ]
    if claim.generation is None:
        await tx.renew_leases(extended)
    until_ms = min(job.lease_until_ms or 0 for job in extended)
    return Renewal(validation.datetime_of(until_ms), any(job.cancel_requested for job in extended))


def _check_held(job: JobRow, fence: JobFence, now: clock.Now) -> JobRow:
    transitions.check_fence(job, fence, now)
    return job


async def settle_session(
    tx: StoreTransaction, claim: session_claims.SessionClaim, outcomes: Sequence[CheckedOutcome]
) -> list[Job]:
    """Settle every entry of the claim with its outcome, and return the settled entries, in order."""
    claims = claim.claims
    settlements = list(zip(claims, outcomes, strict=True))
    if all(map(settle.is_plain_success, outcomes)):
        finished = await tx.settle_session_plain(claim, settlements)
        if finished is not None:
            rows = [(one.job, finished.jobs[one.job.number][:-1], checked) for one, checked in settlements]
            return [job_of(transitions.SucceededRow(*row, finished.at)) for row in rows]
    routing = await tx.routing()
    await enqueue.lock_matches(tx, claims, [new for checked in outcomes for new in checked.follow_ups])
    jobs = await tx.refresh(claims)
    now = await tx.now()
    # One random number for all: entries that fail together are retried at the same time.
    chance = tx.random()
    decided: list[transitions.Transition] = []
    try:
        for one, checked in settlements:
            decided.append(transitions.settle(held_job(jobs, fence_of(one)), fence_of(one), checked, now, chance))
    except errors.LeaseLost:
        duplicate = await _find_duplicate(tx, jobs, claim, outcomes)
        if duplicate is None:
            raise
        return list(map(job_of, duplicate))
    for transition, checked in zip(decided, outcomes, strict=True):
        await settle.close_gate(tx, routing, checked, transition.after)
    settled = await apply_transitions(tx, routing, decided, now)
    if routing.has_weights and any(checked.usage for checked in outcomes):
        # The first entry counts at a gate; what is reported with the others is not counted again.
        used = [(job, dict(checked.usage)) for job, checked in zip(settled, outcomes, strict=True)]
        await gates.report_usage(tx, routing, used)
    for job, checked in zip(settled, outcomes, strict=True):
        await enqueue.enqueue_jobs(tx, children_of(job, checked.follow_ups), "follow_ups")
        await artifacts.write_outputs(tx, job, checked.artifacts, now)
    return list(map(job_of, settled))


async def _find_duplicate(
    tx: StoreTransaction,
    jobs: dict[int, JobRow],
    claim: session_claims.SessionClaim,
    outcomes: Sequence[CheckedOutcome],
) -> list[JobRow] | None:
    """Return the entries if all of them are already settled with the same outcomes."""
    found: list[JobRow] = []
    for one, checked in zip(claim.claims, outcomes, strict=True):
        job = await settle.find_duplicate_settlement(tx, jobs.get(one.job.number), fence_of(one), checked)
        if job is None:
            return None
        found.append(job)
    return found


async def cancel_waiting(tx: StoreTransaction, tenant: str, name: str, after: int) -> tuple[list[str], int | None]:
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
