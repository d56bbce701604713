"""Claiming: run due maintenance, select ready jobs in claim order, lease them."""

import math
from collections.abc import Sequence
from typing import Final

from holdfast.domain import clock, errors, events, limits, transitions
from holdfast.domain.claims import Claim, ClaimRequest, JobFence, Settlement, check_repeated, row_fence
from holdfast.domain.job import JobRow, job_of, row_of
from holdfast.domain.outcomes import CheckedOutcome
from holdfast.domain.routing import RoutingTable
from holdfast.domain.session_claims import SessionRequest
from holdfast.operations import gates, lease, maintenance, sessions, settle
from holdfast.operations.apply_transitions import apply_transitions, records
from holdfast.storage import notifications
from holdfast.storage.contract import Claimer, PassName, ReadyJobs, ReadyRequest, StoreTransaction
from holdfast.storage.plain_contract import ClaimedJobs

_CHUNKS_MAX = 10
_REFUSALS_MAX = 10
"""How often a claim looks further because jobs had no room at their gates."""
_CLAIMED: Final[events.EventName] = "claimed"


async def claim_jobs(tx: StoreTransaction, request: ClaimRequest) -> list[Claim]:
    """Lease up to `request.limit` ready jobs to one worker, in claim order.

    If the request repeats an earlier one, return the jobs that were leased then and are still held.
    """
    if not request.exclusive and not request.cut_off:
        # In a plain form, if the engine has one for the request and the state of the store.
        found = await tx.claim_plain(request)
        if found is not None:
            tx.forms["claim plain"] += 1
            return found.claims if found.fair_scope is None else await _complete(tx, request, found)
    return await _claim(tx, request, *await _begin(tx, request))


async def _complete(tx: StoreTransaction, request: ClaimRequest, found: ClaimedJobs) -> list[Claim]:
    """Return the claims of a plain form, and more if it has found fewer than the limit in its fairness scope."""
    claims = found.claims
    await _remember_fair_key(tx, found.fair_scope, found.last_fair_key, found.fair_key)
    if len(claims) < request.limit:
        claims += _claims(request, await _take(tx, found.routing, request, len(claims)))
    return claims


def _claims(request: ClaimRequest, jobs: Sequence[JobRow]) -> list[Claim]:
    return [Claim(job_of(job), request.lease_ms) for job in jobs]


async def settle_and_claim(
    tx: StoreTransaction,
    outcomes: Sequence[tuple[Claim, CheckedOutcome]],
    started: Sequence[JobFence],
    request: ClaimRequest,
) -> tuple[list[Settlement], list[Claim]]:
    """Settle, acknowledge the *started* leases and claim, in one transaction."""
    alone = len(outcomes) == 1 and settle.is_plain_success(outcomes[0][1])
    indexes = None if alone else settle.plain_indexes(outcomes)
    if alone or (indexes is not None and len(indexes) == len(outcomes)):
        if len(outcomes) <= tx.fuses_max and not request.exclusive and not request.cut_off:
            both = await tx.settle_and_claim_plain(outcomes, started, request)
            if both is not None:
                finished, claims = both
                settled = settle.accept_one(tx, *outcomes[0], finished) if alone else None
                settlements = [settled] if settled else await settle.accept_all(tx, outcomes, indexes, finished)
                if claims is None:
                    claims = await claim_jobs(tx, request)
                elif claims:
                    tx.forms["claim plain"] += 1
                return settlements, claims
        if alone:
            settlements = await settle.settle_alone(tx, outcomes)
        else:
            settlements = await settle.settle_indexed(tx, outcomes, indexes)
        if started:
            await lease.acknowledge_held(tx, started)
        return settlements, await claim_jobs(tx, request)
    if not indexes:
        await settle.expect(tx, outcomes)
    claimer, routing, due, now = await _begin(tx, request)
    settlements = await settle.settle_jobs(tx, outcomes, routing)
    await lease.acknowledge_held(tx, started)
    if any(checked.follow_ups for _, checked in outcomes):
        # Follow-ups may have added routes.
        routing = await tx.routing()
    claims = await _claim(tx, request, claimer, routing, due, now)
    return settlements, claims


async def _begin(
    tx: StoreTransaction, request: ClaimRequest
) -> tuple[Claimer, RoutingTable, frozenset[PassName], clock.Now]:
    return await tx.begin_claim_of(request, resent=request.resent or tx.resent)


async def _claim(
    tx: StoreTransaction,
    request: ClaimRequest,
    claimer: Claimer,
    routing: RoutingTable,
    due: frozenset[PassName],
    now: clock.Now,
) -> list[Claim]:
    if request.exclusive:
        await _supersede(tx, routing, request, claimer)
    if claimer.held and (held := await _find_held(tx, request, claimer)):
        return held
    if request.cut_off:
        # Maintenance would take back the expired leases and make their jobs suspect.
        await _clear_suspicion(tx, routing, request.worker, request.incarnation)
    await maintenance.run_maintenance(tx, routing, due, now)
    if "wakes" in due:
        # The jobs of schedules may have added routes.
        routing = await tx.routing()
    jobs = await _take(tx, routing, request)
    tx.forms["claim full"] += 1 if jobs else 0
    return _claims(request, jobs)


async def _find_held(tx: StoreTransaction, request: ClaimRequest, claimer: Claimer) -> list[Claim]:
    """Return the jobs that an earlier send of the same claim has leased."""
    now = await tx.now()
    held = [job for job in claimer.held if transitions.holds(job, row_fence(job), now)]
    check_repeated(request, held)
    return [Claim(job_of(job), request.lease_ms, repeated=request.resent) for job in held]


async def undo_settle_and_claim(
    tx: StoreTransaction, both: tuple[list[Settlement], list[Claim]] | None, request: ClaimRequest
) -> None:
    """Release the jobs that a settle-and-claim has leased; its settlements stay."""
    await undo_claims(tx, None if both is None else both[1], request)


async def undo_claims(
    tx: StoreTransaction, claims: Sequence[Claim] | None, request: ClaimRequest | SessionRequest
) -> None:
    """Release the jobs that this call has leased, not those that it found held already.

    If the claims are not known, release what is leased under the token of the request, unless the caller has chosen
    it: then an earlier call may have leased it, and the caller can repeat the claim.
    """
    if claims is None:
        held = [] if request.resent else await tx.jobs_held(request.worker, request.lease_token)
        claims = [Claim(job_of(job), request.lease_ms) for job in held]
    leased = [claim for claim in claims if not claim.repeated]
    if not leased:
        return
    routing = await tx.routing()
    jobs = await tx.refresh(leased)
    now = await tx.now()
    decided = [
        transitions.withdraw(jobs[claim.job.number], row_of(claim.job), now)
        for claim in leased
        if claim.job.number in jobs
    ]
    await apply_transitions(tx, routing, [transition for transition in decided if transition is not None], now)


async def seconds_to_next_change(tx: StoreTransaction) -> float:
    """Return the seconds until a job or a wake row is due or a lease expires; infinite if there is none."""
    due_at_ms, lease_until_ms, wake_at_ms = await tx.next_times()
    now = await tx.now()
    times = ((due_at_ms, now.wall_ms), (lease_until_ms, now.lease_ms), (wake_at_ms, now.wall_ms))
    waits = [at_ms - now_ms for at_ms, now_ms in times if at_ms is not None]
    return max(min(waits), 0) / 1000 if waits else math.inf


# --- selecting and leasing -----------------------------------------------------------------------------------------


async def _take(tx: StoreTransaction, routing: RoutingTable, request: ClaimRequest, claimed: int = 0) -> list[JobRow]:
    """Lease ready jobs until the claim, which has leased *claimed* jobs before, has as many as its limit."""
    preference, chunks_left, refusals_left = request.preference, _CHUNKS_MAX, _REFUSALS_MAX
    taken: list[JobRow] = []
    while (left := request.limit - claimed - len(taken)) > 0:
        routes = routing.serving(request.lanes, request.kinds, request.capabilities)
        if not routes:
            break
        # After its time limit an affinity yields to one job at a time, until one of them has another affinity.
        limit = 1 if preference.expired else left
        first, gated = claimed + len(taken), routing.is_gated(routes)
        if gated and refusals_left < _REFUSALS_MAX and not preference.expired:
            # Jobs without room come first: look further, and park all of them.
            limit = max(limit, limits.CHUNK)
        selection = await tx.select_ready(
            ReadyRequest(request, preference, routes, limit, first, routing.recorded_lanes, leases=not gated)
        )
        if selection is not None and not selection.jobs:
            # The next job has an affinity that the claim may not add.
            break
        if selection is not None:
            jobs = await _lease(tx, routing, request, selection, first)
            if gated and len(jobs) < min(left, len(selection.jobs)):
                refusals_left -= 1
                if not refusals_left:
                    # There may be jobs behind those that were parked: look again at once.
                    tx.notify([notifications.lane_topic(lane) for lane in request.lanes])
                    break
            if jobs:
                await _remember_fair_key(tx, selection.fair_scope, selection.last_fair_key, jobs[-1].fair_key)
            taken += jobs
            if jobs and (preference.affinities or preference.affinities_max is not None):
                preference = preference.after(jobs[-1].affinity).holding(job.affinity for job in jobs)
        elif chunks_left and await maintenance.run_due_maintenance(tx, routing):
            # Jobs this claim could take may become ready only after more maintenance; look a bounded number of times.
            chunks_left -= 1
        else:
            break
    return taken


async def _lease(
    tx: StoreTransaction, routing: RoutingTable, request: ClaimRequest, selection: ReadyJobs, offset: int
) -> list[JobRow]:
    """Lease the selected jobs and fail those whose deadline has passed; *offset* is the claim index of the first."""
    chosen = selection.jobs
    if selection.leased_at is not None:
        recorded = {job.seq: _CLAIMED for job in chosen if records(routing, job, _CLAIMED)}
        await tx.append_events(recorded, selection.leased_at)
        return chosen
    now = await tx.now()
    late = [job for job in chosen if transitions.overdue(job, now)]
    if late:
        await apply_transitions(tx, routing, [transitions.miss_deadline(job, now) for job in late], now)
        chosen = [job for job in chosen if not transitions.overdue(job, now)]
    if routing.has_limits and any(routing.limits_of(job.lane, job.kind) for job in chosen):
        return await _lease_gated(tx, routing, request, chosen, offset)
    started = [transitions.claim(job, request, offset + index, now) for index, job in enumerate(chosen)]
    if routing.recorded_lanes or any(job.record_all for job in chosen):
        return await apply_transitions(tx, routing, started, now)
    # Without an event only the rows have to be written: a claim notifies no one and unblocks nothing.
    jobs = [transition.after for transition in started]
    if jobs:
        await tx.write_claims(jobs)
    return jobs


async def _lease_gated(
    tx: StoreTransaction, routing: RoutingTable, request: ClaimRequest, chosen: Sequence[JobRow], offset: int
) -> list[JobRow]:
    """Lease those of *chosen* for which there is room at their gates, up to the limit, and park the others."""
    admitted = await gates.admit(tx, routing, chosen, request.limit - offset)
    now = await tx.now()
    started = [transitions.claim(job, request, offset + index, now) for index, (job, _) in enumerate(admitted)]
    if any(records(routing, job, _CLAIMED) for job, _ in admitted):
        jobs = await apply_transitions(tx, routing, started, now)
        await tx.set_gates([(gate, job.seq) for job, gate in admitted])
        return jobs
    jobs = [transition.after for transition in started]
    if jobs:
        await tx.write_gated_claims([(job, gate) for job, (_, gate) in zip(jobs, admitted, strict=True)])
    return jobs


async def _remember_fair_key(tx: StoreTransaction, scope: str | None, last: str | None, served: str) -> None:
    """Store the fairness key served last, if tenants alternate and it has changed."""
    if scope is not None and served != last:
        await tx.set_last_fair_key(scope, served, await tx.now(), first=last is None)


# --- workers that were cut off -------------------------------------------------------------------------------------


async def _clear_suspicion(tx: StoreTransaction, routing: RoutingTable, worker: str, incarnation: str) -> None:
    """Clear the suspicion of jobs that one incarnation of a worker held when their leases expired.

    Take back its expired leases here, so that their jobs do not become suspect.
    """
    now = await tx.now()
    while expired := await tx.expired_jobs_of(worker, incarnation, now, limits.CHUNK):
        jobs = await sessions.lock_free_sessions(tx, expired)
        if not jobs:
            break
        await apply_transitions(tx, routing, [transitions.expire(job, now, was_alive=True) for job in jobs], now)
    while suspects := await tx.suspect_jobs_of(worker, incarnation, limits.CHUNK):
        decided = [transitions.clear_suspicion(job, worker, incarnation) for job in suspects]
        cleared = [job for job in decided if job is not None]
        await tx.clear_suspicion(cleared)
        if len(cleared) < limits.CHUNK:
            break


# --- exclusive workers ---------------------------------------------------------------------------------------------


async def _supersede(tx: StoreTransaction, routing: RoutingTable, request: ClaimRequest, claimer: Claimer) -> None:
    """Make this incarnation the only one of its worker; raise `Conflict` if a later one has superseded it."""
    if claimer.superseded:
        raise errors.Conflict(
            f"a later start of the exclusive worker {request.worker!r} has taken over from this one"
        )
    if claimer.superseded is not None:
        return
    now = await tx.now()
    await tx.supersede(request.worker, request.incarnation, now)
    chance = tx.random()
    while held := await tx.jobs_held_by_others(request.worker, request.incarnation, limits.CHUNK):
        await apply_transitions(tx, routing, [transitions.revoke(job, now, chance) for job in held], now)
