"""Handing sessions' work out: choose a session, choose the run of entries in it, lease it under one fence.

A claim locks the session first and never waits for an entry: whoever holds one may be waiting for the session.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from holdfast.domain import limits, transitions
from holdfast.domain.claims import Claim
from holdfast.domain.clock import Now
from holdfast.domain.job import Job
from holdfast.domain.routing import RoutingTable
from holdfast.domain.session_claims import SessionRequest, check_repeated
from holdfast.domain.session_leases import SessionClaim, SessionFence, check_runtime, derive_fence
from holdfast.domain.sessions import Session, WorkClass
from holdfast.domain.transitions import Transition
from holdfast.operations.apply_transitions import apply_transitions
from holdfast.operations.claim import seconds_to_next_change, undo_claims
from holdfast.operations.lease import held_job
from holdfast.operations.maintenance import run_due_maintenance, run_maintenance
from holdfast.operations.session_candidates import offered_sessions, remember_session_fair_key
from holdfast.operations.session_lease import end_expired
from holdfast.operations.sessions import choose_from_line
from holdfast.storage.contract import OvertakenError, Transaction

# How many sessions that turn out to have nothing for it, or to be in other hands, a claim of any passes by.
_TRIES_MAX = 64
_CHUNKS_MAX = 10


async def claim_session(tx: Transaction, request: SessionRequest) -> SessionClaim | None:
    """Lease the next run of one session, or return None if it has nothing to take now."""
    routing = await tx.routing()
    held = (await _stand_held(tx, request.holding)) if request.holding is not None else {}
    session = await tx.session_by_name(request.tenant or "", request.session or "")
    if session is None:
        return None
    if request.holding is not None:
        return await _take_in_more(tx, routing, session, request, request.holding, held)
    if request.resent and (again := (await _given_before(tx, session, request))):
        return again
    session = await _tidy_session(tx, routing, session)
    check_runtime(session, request.under, (await tx.now()))
    if await tx.session_running_seqs(session.number):
        return None
    return await _lease_run(tx, routing, session, request, None)


async def claim_any_session(tx: Transaction, request: SessionRequest) -> SessionClaim | None:
    """Lease the next run of whichever session is ready: the oldest head of the tenant whose turn it is."""
    routing, due, now = await tx.begin_claim(thorough=True)
    if request.resent:
        holder = request.holder
        await tx.lock_claim_token(holder.worker, holder.nonce)
        for session in await tx.sessions_by_nonce(holder.worker, holder.nonce):
            if again := await _given_before(tx, session, request):
                return again
    await run_maintenance(tx, routing, due, now)
    await end_expired(tx, routing, now)
    for _ in range(_CHUNKS_MAX):
        claim = await _claim_offered(tx, routing, request)
        if claim is not None:
            return claim
        # What this claim could take may stand behind what others could; it looks so far and no further.
        if not (await run_due_maintenance(tx, routing) or await end_expired(tx, routing, await tx.now())):
            break
    return None


async def seconds_to_session(tx: Transaction) -> float:
    """Return in how many seconds, at the earliest, an entry falls due or a lease expires; infinite if none will."""
    jobs = await seconds_to_next_change(tx)
    lease_until_ms = await tx.next_session_expiry()
    now = await tx.now()
    session = math.inf if lease_until_ms is None else max(lease_until_ms - now.lease_ms, 0) / 1000
    return min(jobs, session)


# --- any session ---------------------------------------------------------------------------------------------------


async def _claim_offered(tx: Transaction, routing: RoutingTable, request: SessionRequest) -> SessionClaim | None:
    """Claim the first session on offer that is free; those in other hands are passed by, never waited for."""
    routes = routing.serving_sessions(request.lanes, request.kinds, request.capabilities)
    if not routes:
        return None
    offers = offered_sessions(request, [route.number for route in routes])
    offer = await offers.first(tx)
    for _ in range(_TRIES_MAX):
        if offer is None:
            return None
        session = await tx.pick_session(offer.numbers)
        if session is not None:
            head = routing.by_number.get(session.head_route or 0)
            asked = request if head is None else request.led_by(head.key.kind)
            claim = await _lease_run(tx, routing, session, asked, None, waits=False)
            if claim is not None:
                await remember_session_fair_key(tx, offer)
                return claim
            offers.passed(session.number)
        offer = await offers.next(tx, took=session is not None)
    return None


# --- one session ---------------------------------------------------------------------------------------------------


class _RunPosition(NamedTuple):
    """Under which fence a run is leased, and how many entries stand under it already."""

    fence: SessionFence
    taken: int


async def _lease_run(
    tx: Transaction,
    routing: RoutingTable,
    session: Session,
    request: SessionRequest,
    under: _RunPosition | None,
    *,
    waits: bool = True,
) -> SessionClaim | None:
    """Lease the run that leads the session's line, under a new fence unless one is given."""
    welcome = {route.number for route in routing.serving_sessions(request.lanes, request.kinds, request.capabilities)}
    while True:
        choice = await choose_from_line(tx, routing, session.number, request.wanted, welcome)
        if not choice.run:
            return None
        taken = await tx.take_entries([entry.seq for entry in choice.run])
        if len(taken) < len(choice.run):
            # Somebody is cancelling one of them, or the like. They are quick, and may be waiting for this session.
            if waits:
                raise OvertakenError(f"entries of session {session.name!r} are in other hands")
            return None
        jobs = sorted(taken, key=lambda job: job.enqueue_seq or 0)
        now = await tx.now()
        late = [job for job in jobs if transitions.overdue(job, now)]
        if not late:
            return await _lease(tx, routing, session, request, jobs, under)
        await apply_transitions(tx, routing, [transitions.miss_deadline(job, now) for job in late], now)


async def _lease(
    tx: Transaction,
    routing: RoutingTable,
    session: Session,
    request: SessionRequest,
    jobs: list[Job],
    under: _RunPosition | None,
) -> SessionClaim:
    now, holder = (await tx.now()), request.holder
    place = under or _RunPosition(derive_fence(session, jobs[0].id, holder, now.wall_ms), 0)
    until_ms = now.lease_ms + request.lease_ms
    if request.under is not None:
        until_ms = session.lease_until_ms or until_ms
    steps = [
        Transition(
            job,
            job.attempted(
                worker=holder.worker,
                incarnation=holder.incarnation,
                lease_token=place.fence.lease_token,
                lease_until_ms=until_ms,
                claim_place=place.taken + index,
                now_ms=now.wall_ms,
            ),
            "claimed",
        )
        for index, job in enumerate(jobs)
    ]
    leased = await apply_transitions(tx, routing, steps, now)
    if under is None:
        claimed = session._replace(
            fence=place.fence.fencing_token,
            claim_id=place.fence.claim_id,
            claim_worker=holder.worker,
            claim_nonce=holder.nonce if request.resent else None,
            claim_token=place.fence.lease_token,
        )
        await tx.write_session_claim(claimed)
    return _claim(session, request, place.fence, leased)


async def undo_session_claim(tx: Transaction, claim: SessionClaim | None) -> None:
    """Give back what a call has leased itself."""
    if claim is not None and not claim.repeated:
        await undo_claims(tx, claim.claims)


def _claim(
    session: Session,
    request: SessionRequest,
    fence: SessionFence,
    jobs: Sequence[Job],
    *,
    repeated: bool = False,
) -> SessionClaim:
    entry = jobs[0].entry
    work_class: WorkClass = "turn" if entry is None else entry.work_class
    return SessionClaim(
        session=session.name,
        tenant=session.tenant,
        work_class=work_class,
        claim_id=fence.claim_id,
        fencing_token=fence.fencing_token,
        entries=tuple(jobs),
        lease_ms=request.lease_ms if request.under is None else request.under.lease_ms,
        generation=None if request.under is None else request.under.generation,
        repeated=repeated,
    )


async def _given_before(tx: Transaction, session: Session, request: SessionRequest) -> SessionClaim | None:
    """Return what this very claim was given before, if its answer was lost."""
    holder = request.holder
    if (session.claim_worker, session.claim_nonce) != (holder.worker, holder.nonce):
        return None
    jobs = await _held_under(tx, session)
    fence = SessionFence(session.claim_id or "", session.fence, session.claim_token or "")
    check_repeated(request, jobs)
    return _claim(session, request, fence, jobs, repeated=True) if jobs else None


async def _held_under(tx: Transaction, session: Session) -> list[Job]:
    """Return the entries that are held under the session's newest claim, in their order."""
    jobs = await tx.jobs_held(session.claim_worker or "", session.claim_token or "")
    now = await tx.now()
    return [job for job in jobs if transitions.holds(job, Claim(job, 0).lease, now)]


# --- checkpoints ---------------------------------------------------------------------------------------------------


async def _stand_held(tx: Transaction, holding: SessionClaim) -> dict[int, Job]:
    return await tx.refresh(holding.claims)


async def _take_in_more(
    tx: Transaction,
    routing: RoutingTable,
    session: Session,
    request: SessionRequest,
    holding: SessionClaim,
    held: dict[int, Job],
) -> SessionClaim | None:
    """Lease more of the session under the fence of *holding*, which must be its live claim, or raise `LeaseLost`."""
    now = await tx.now()
    for claim in holding.claims:
        transitions.check_fence(held_job(held, claim.lease), claim.lease, now)
    check_runtime(session, request.under, now)
    fence = SessionFence(session.claim_id or "", session.fence, holding.lease_token)
    under_fence = await _held_under(tx, session)
    named = {job.seq for job in holding.entries}
    if unnamed := [job for job in under_fence if job.seq not in named]:
        # An earlier call took these in, and its answer was lost.
        return _claim(session, request, fence, unnamed, repeated=True)
    await _promote_due(tx, routing, session.number, now)
    return await _lease_run(tx, routing, session, request, _RunPosition(fence, len(under_fence)))


# --- tidying -------------------------------------------------------------------------------------------------------


async def _tidy_session(tx: Transaction, routing: RoutingTable, session: Session) -> Session:
    """Take back what expired and promote what is due in one session, and return it as that leaves it."""
    now = await tx.now()
    moved = await _bites(
        tx, routing, partial(tx.session_expired, session.number), partial(transitions.expire, now=now), now
    )
    moved |= await _promote_due(tx, routing, session.number, now)
    if not moved:
        return session
    [tidied] = await tx.sessions_by_number([session.number])
    return tidied


async def _promote_due(tx: Transaction, routing: RoutingTable, session: int, now: Now) -> bool:
    return await _bites(tx, routing, partial(tx.session_due, session), transitions.promote, now)


async def _bites(
    tx: Transaction,
    routing: RoutingTable,
    find: Callable[[Now, int], Awaitable[list[Job]]],
    decide: Callable[[Job], Transition],
    now: Now,
) -> bool:
    """Apply a transition to all of one session's entries that *find* returns, a chunk at a time."""
    moved = False
    while jobs := await find(now, limits.CHUNK):
        await apply_transitions(tx, routing, [decide(job) for job in jobs], now)
        moved = True
    return moved
