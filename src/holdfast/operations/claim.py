"""Handing work out: tidy up in bounded bites, choose by the order, lease what was chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from holdfast.domain import limits, transitions
from holdfast.domain.claims import Claim, ClaimRequest, Lease, Settlement, check_repeated
from holdfast.domain.clock import Now
from holdfast.domain.errors import Conflict
from holdfast.domain.events import EventName
from holdfast.domain.job import Job
from holdfast.domain.outcomes import CheckedOutcome
from holdfast.domain.routing import RoutingTable
from holdfast.domain.transitions import Transition
from holdfast.operations.apply_transitions import apply_transitions, records
from holdfast.operations.fairness import remember_fair_key
from holdfast.operations.lease import acknowledge_held
from holdfast.operations.sessions import only_free
from holdfast.operations.settle import settle_under
from holdfast.storage.contract import Due, ReadyJobs, ReadyRequest, Transaction

_BITES_MAX = 10
_CLAIMED: Final[EventName] = "claimed"


async def claim_jobs(tx: Transaction, request: ClaimRequest) -> list[Claim]:
    """Lease up to the limit of ready jobs, in the order of claiming."""
    routing, untidy, now = await tx.begin_claim()
    return await _claim(tx, routing, request, untidy, now)


async def settle_and_claim(
    tx: Transaction,
    wanted: Sequence[tuple[Claim, CheckedOutcome]],
    started: Sequence[Lease],
    request: ClaimRequest,
) -> tuple[list[Settlement], list[Claim]]:
    """Settle, acknowledge what has *started* and claim in one transaction, which is opened with one statement."""
    routing, untidy, now = await tx.begin_claim()
    settlements = (await settle_under(tx, routing, wanted)) if wanted else []
    await acknowledge_held(tx, started)
    if any(checked.follow_ups for _, checked in wanted):
        # They may have brought new routes.
        routing = await tx.routing()
    claims = await _claim(tx, routing, request, untidy, now)
    return settlements, claims


async def _claim(tx: Transaction, routing: RoutingTable, request: ClaimRequest, untidy: Due, now: Now) -> list[Claim]:
    if request.exclusive:
        await _supersede(tx, routing, request)
    if request.resent and (held := (await _held_already(tx, request))):
        return held
    if request.cut_off:
        # Before leases that have ended are taken back below, which would make their jobs suspect.
        await _clear_suspicion(tx, routing, request.worker, request.incarnation)
    await tidy(tx, routing, untidy, now)
    jobs = await _take(tx, routing, request)
    return [Claim(job, request.lease_ms) for job in jobs]


async def _held_already(tx: Transaction, request: ClaimRequest) -> list[Claim]:
    """Return what this very claim was given before, if its answer was lost."""
    await tx.lock_claim_token(request.worker, request.lease_token)
    jobs = await tx.jobs_held(request.worker, request.lease_token)
    now = await tx.now()
    held = [job for job in jobs if transitions.holds(job, Claim(job, 0).lease, now)]
    check_repeated(request, held)
    return [Claim(job, request.lease_ms, repeated=True) for job in held]


async def undo_settle_and_claim(tx: Transaction, both: tuple[list[Settlement], list[Claim]]) -> None:
    """Give back what a fused call has leased; its settlements stay."""
    await undo_claims(tx, both[1])


async def undo_claims(tx: Transaction, claims: Sequence[Claim]) -> None:
    """Give back what a call has leased itself."""
    leased = [claim for claim in claims if not claim.repeated]
    if not leased:
        return
    routing = await tx.routing()
    jobs = await tx.refresh(leased)
    now = await tx.now()
    decided = [
        transitions.withdraw(jobs[claim.job.seq], claim.lease, now) for claim in leased if claim.job.seq in jobs
    ]
    await apply_transitions(tx, routing, [step for step in decided if step is not None], now)


async def seconds_to_come(tx: Transaction) -> float:
    """Return in how many seconds, at the earliest, a job falls due or a lease expires; infinite if none will."""
    due_at_ms, lease_until_ms = await tx.next_moments()
    now = await tx.now()
    waits = [
        at_ms - now_ms
        for at_ms, now_ms in ((due_at_ms, now.wall_ms), (lease_until_ms, now.lease_ms))
        if at_ms is not None
    ]
    return max(min(waits), 0) / 1000 if waits else math.inf


# --- choosing and leasing ------------------------------------------------------------------------------------------


async def _take(tx: Transaction, routing: RoutingTable, request: ClaimRequest) -> list[Job]:
    routes = routing.serving(request.lanes, request.kinds, request.capabilities)
    preference, taken = request.preference, list[Job]()
    bites_left = _BITES_MAX
    while routes and len(taken) < request.limit:
        # Past its bound an affinity gives way to one job at a time, until that brings another affinity.
        limit = 1 if preference.expired else request.limit - len(taken)
        wanted = ReadyRequest(request, preference, routes, limit, len(taken), routing.loud)
        selection = await tx.select_ready(wanted)
        if selection is not None and not selection.jobs:
            # What comes next would be one affinity too many.
            break
        if selection is not None:
            jobs = await _lease(tx, routing, request, selection, len(taken))
            await remember_fair_key(tx, selection, jobs)
            taken += jobs
            preference = preference.after(jobs[-1].affinity) if jobs else preference
            preference = preference.holding(job.affinity for job in jobs)
        elif bites_left and (await _tidy_more(tx, routing)):
            # What this claim could take may stand behind what others could; it looks so far and no further.
            bites_left -= 1
        else:
            break
    return taken


async def _lease(
    tx: Transaction, routing: RoutingTable, request: ClaimRequest, selection: ReadyJobs, place: int
) -> list[Job]:
    """Lease the chosen jobs, the first at *place* of the batch; one whose deadline has passed ends instead."""
    chosen = selection.jobs
    if selection.leased_at is not None:
        told = {job.seq: _CLAIMED for job in chosen if records(routing, job, _CLAIMED)}
        await tx.append_events(told, selection.leased_at)
        return chosen
    now = await tx.now()
    late = [job for job in chosen if transitions.overdue(job, now)]
    if late:
        await apply_transitions(tx, routing, [transitions.miss_deadline(job, now) for job in late], now)
        chosen = [job for job in chosen if not transitions.overdue(job, now)]
    started = [transitions.claim(job, request, place + index, now) for index, job in enumerate(chosen)]
    return await apply_transitions(tx, routing, started, now)


# --- tidying -------------------------------------------------------------------------------------------------------


async def _tidy_more(tx: Transaction, routing: RoutingTable) -> bool:
    """Tidy another bite; tell if there was anything."""
    _, untidy, now = await tx.begin_claim(thorough=True)
    return await tidy(tx, routing, untidy, now)


async def tidy(tx: Transaction, routing: RoutingTable, untidy: Due, now: Now) -> bool:
    """Promote due jobs, take back expired ones, fail late ones, a chunk of each; return whether there were any."""
    tidied = False
    if untidy.late:
        tidied |= await _bite(
            tx, routing, await tx.late_jobs(now, limits.BITE), partial(transitions.miss_deadline, now=now), now
        )
    if untidy.expired:
        expired = await tx.expired_jobs(now, limits.BITE)
        tidied |= await _bite(tx, routing, expired, partial(transitions.expire, now=now), now)
    if untidy.due:
        tidied |= await _bite(tx, routing, await tx.due_jobs(now, limits.BITE), transitions.promote, now)
    return tidied


async def expire_overdue(tx: Transaction) -> bool:
    """End a bite of the waiting jobs whose deadline has passed; tell if there were any."""
    routing = await tx.routing()
    now = await tx.now()
    return await _bite(
        tx, routing, await tx.late_jobs(now, limits.BITE), partial(transitions.miss_deadline, now=now), now
    )


async def _bite(
    tx: Transaction, routing: RoutingTable, found: Sequence[Job], decide: Callable[[Job], Transition], now: Now
) -> bool:
    jobs = await only_free(tx, found)
    await apply_transitions(tx, routing, [decide(job) for job in jobs], now)
    return bool(jobs)


# --- workers that were cut off -------------------------------------------------------------------------------------


async def _clear_suspicion(tx: Transaction, routing: RoutingTable, worker: str, incarnation: str) -> None:
    """Clear the suspicion of what one start of a worker held when its leases expired.

    Leases that have expired but were not taken back yet are taken back here, so that their jobs never become suspect.
    """
    now = await tx.now()
    while expired := await tx.expired_jobs_of(worker, incarnation, now, limits.BITE):
        jobs = await only_free(tx, expired)
        if not jobs:
            break
        await apply_transitions(tx, routing, [transitions.expire(job, now, lived=True) for job in jobs], now)
    while suspects := await tx.suspect_jobs_of(worker, incarnation, limits.BITE):
        decided = [transitions.clear_suspicion(job, worker, incarnation) for job in suspects]
        cleared = [job for job in decided if job is not None]
        await tx.clear_suspicion(cleared)
        if len(cleared) < limits.BITE:
            break


# --- exclusive workers ---------------------------------------------------------------------------------------------


async def _supersede(tx: Transaction, routing: RoutingTable, request: ClaimRequest) -> None:
    """Make this start the only one of its worker; refuse one that a later start has superseded."""
    superseded = await tx.is_superseded(request.worker, request.incarnation)
    if superseded:
        raise Conflict(f"a later start of the exclusive worker {request.worker!r} has taken over from this one")
    if superseded is not None:
        return
    now = await tx.now()
    await tx.supersede(request.worker, request.incarnation, now)
    chance = tx.random()
    while held := await tx.jobs_held_by_others(request.worker, request.incarnation, limits.BITE):
        await apply_transitions(tx, routing, [transitions.take_back(job, now, chance) for job in held], now)
