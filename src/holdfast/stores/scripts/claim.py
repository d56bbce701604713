"""Handing work out: tidy up in bounded bites, choose by the order, lease what was chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from holdfast.domain import lifecycle, limits
from holdfast.domain.claim import Claim, ClaimRequest, Lease, Settlement, check_repeated
from holdfast.domain.clock import Now
from holdfast.domain.errors import Conflict
from holdfast.domain.event import EventName
from holdfast.domain.job import Job
from holdfast.domain.lane import Catalog
from holdfast.domain.lifecycle import Step
from holdfast.domain.outcome import CheckedOutcome
from holdfast.stores import script
from holdfast.stores.engine import Engine, Selection, Wanted
from holdfast.stores.script import Script, Statement
from holdfast.stores.scripts.catalog import catalog_at, load_catalog
from holdfast.stores.scripts.lease import acknowledge_held, stand
from holdfast.stores.scripts.moves import apply_steps, record, records, write_rows
from holdfast.stores.scripts.sessions import only_free
from holdfast.stores.scripts.settle import settle_under
from holdfast.stores.scripts.turns import move_turn

_INCARNATIONS_KEPT = 100
_BITES_MAX = 10
_CLAIMED: Final[EventName] = "claimed"


def claim_jobs(engine: Engine, request: ClaimRequest) -> Script[list[Claim]]:
    """Lease up to the limit of ready jobs, in the order of claiming."""
    version, untidy, now = yield from open_claim(engine)
    catalog = yield from catalog_at(engine, version)
    return (yield from _claim(engine, catalog, request, untidy, now))


def settle_and_claim(
    engine: Engine,
    wanted: Sequence[tuple[Claim, CheckedOutcome]],
    started: Sequence[Lease],
    request: ClaimRequest,
) -> Script[tuple[list[Settlement], list[Claim]]]:
    """Settle, acknowledge what has *started* and claim in one transaction, which is opened with one statement."""
    version, untidy, now = yield from open_claim(engine)
    catalog = yield from catalog_at(engine, version)
    settlements = (yield from settle_under(engine, catalog, wanted)) if wanted else []
    yield from acknowledge_held(started)
    if any(checked.follow_ups for _, checked in wanted):
        # They may have brought new routes.
        catalog = yield from load_catalog(engine)
    claims = yield from _claim(engine, catalog, request, untidy, now)
    return settlements, claims


def _claim(engine: Engine, catalog: Catalog, request: ClaimRequest, untidy: Untidy, now: Now) -> Script[list[Claim]]:
    if request.exclusive:
        yield from _supersede(catalog, request)
    if request.resent and (held := (yield from _held_already(request))):
        return held
    if request.cut_off:
        # Before leases that have ended are taken back below, which would make their jobs suspect.
        yield from _clear_suspicion(catalog, request.worker, request.incarnation)
    yield from tidy(catalog, untidy, now)
    jobs = yield from _take(engine, catalog, request)
    return [Claim(job, request.lease_ms) for job in jobs]


def _held_already(request: ClaimRequest) -> Script[list[Claim]]:
    """Return what this very claim was given before, if its answer was lost."""
    yield from hold_claim(request.worker, request.lease_token)
    rows = yield Statement("jobs_held", {"worker": request.worker, "lease_token": request.lease_token})
    now = yield from script.now()
    jobs = sorted(map(Job._make, rows), key=lambda job: job.claim_place or 0)
    held = [job for job in jobs if lifecycle.holds(job, Claim(job, 0).lease, now)]
    check_repeated(request, held)
    return [Claim(job, request.lease_ms, repeated=True) for job in held]


def undo_claims(engine: Engine, claims: Sequence[Claim]) -> Script[None] | None:
    """Return the script that gives back what a call has leased, or None if it has leased nothing itself."""
    leased = [claim for claim in claims if not claim.repeated]
    return _withdraw(engine, leased) if leased else None


def _withdraw(engine: Engine, claims: Sequence[Claim]) -> Script[None]:
    catalog = yield from load_catalog(engine)
    jobs = yield from stand(claims)
    now = yield from script.now()
    decided = [lifecycle.withdraw(jobs[claim.job.seq], claim.lease, now) for claim in claims if claim.job.seq in jobs]
    yield from apply_steps(catalog, [step for step in decided if step is not None], now)


def hold_claim(worker: str, token: str) -> Script[None]:
    """Wait until the same claim, if it was sent before and is still on its way, has been decided."""
    yield Statement("claim_hold", {"worker": worker, "token": token})


def seconds_to_come() -> Script[float]:
    """Return in how many seconds, at the earliest, a job falls due or a lease lapses; infinite if none will."""
    [[due_at_ms, lease_until_ms]] = yield Statement("claim_next_moments")
    now = yield from script.now()
    waits = [
        at_ms - now_ms
        for at_ms, now_ms in ((due_at_ms, now.wall_ms), (lease_until_ms, now.lease_ms))
        if at_ms is not None
    ]
    return max(min(waits), 0) / 1000 if waits else math.inf


# --- choosing and leasing ------------------------------------------------------------------------------------------


def _take(engine: Engine, catalog: Catalog, request: ClaimRequest) -> Script[list[Job]]:
    routes = catalog.serving(request.lanes, request.kinds, request.capabilities)
    preference, taken = request.preference, list[Job]()
    bites_left = _BITES_MAX
    while routes and len(taken) < request.limit:
        # Past its bound an affinity gives way to one job at a time, until that brings another affinity.
        limit = 1 if preference.expired else request.limit - len(taken)
        wanted = Wanted(request, preference, routes, limit, len(taken), catalog.loud)
        selection = yield from engine.select_ready(wanted)
        if selection is not None and not selection.jobs:
            # What comes next would be one affinity too many.
            break
        if selection is not None:
            jobs = yield from _lease(catalog, request, selection, len(taken))
            yield from move_turn(selection, jobs)
            taken += jobs
            preference = preference.after(jobs[-1].affinity) if jobs else preference
            preference = preference.holding(job.affinity for job in jobs)
        elif bites_left and (yield from _tidy_more(engine, catalog)):
            # What this claim could take may stand behind what others could; it looks so far and no further.
            bites_left -= 1
        else:
            break
    return taken


def _lease(catalog: Catalog, request: ClaimRequest, selection: Selection, place: int) -> Script[list[Job]]:
    """Lease the chosen jobs, the first at *place* of the batch; one whose deadline has passed ends instead."""
    chosen = selection.jobs
    if selection.leased_at is not None:
        told = {job.seq: _CLAIMED for job in chosen if records(catalog, job, _CLAIMED)}
        yield from record(told, selection.leased_at)
        return chosen
    now = yield from script.now()
    late = [job for job in chosen if lifecycle.overdue(job, now)]
    if late:
        yield from apply_steps(catalog, [lifecycle.expire(job, now) for job in late], now)
        chosen = [job for job in chosen if not lifecycle.overdue(job, now)]
    started = [lifecycle.claim(job, request, place + index, now) for index, job in enumerate(chosen)]
    return (yield from apply_steps(catalog, started, now))


# --- tidying -------------------------------------------------------------------------------------------------------


class Untidy(NamedTuple):
    """Whether there is anything to promote, to take back or to end."""

    due: bool
    lapsed: bool
    overdue: bool


def open_claim(engine: Engine, *, whole: bool = False) -> Script[tuple[int, Untidy, Now]]:
    """Read what every claim begins with, in one statement: most have nothing to tidy.

    An engine that knows until when nothing was due looks from there on, unless the *whole* is to be looked at.
    """
    now = yield from script.now()
    values = {"wall_now": now.wall_ms, "lease_now": now.lease_ms}
    if engine.moments is not None:
        values |= engine.moments.lows(whole=whole)
    [[version, *found]] = yield Statement("claim_opening", values)
    if engine.moments is not None:
        engine.moments.looked(now, whole=whole, found=any(found))
    return int(version), Untidy(*map(bool, found)), now


def _tidy_more(engine: Engine, catalog: Catalog) -> Script[bool]:
    """Tidy another bite; tell if there was anything."""
    _, untidy, now = yield from open_claim(engine, whole=True)
    return (yield from tidy(catalog, untidy, now))


def tidy(catalog: Catalog, untidy: Untidy, now: Now) -> Script[bool]:
    """Promote what is due, take back what lapsed, end what is overdue, a bite of each; tell if there was anything."""
    tidied = False
    if untidy.overdue:
        tidied |= yield from _bite(catalog, "jobs_overdue", now.wall_ms, lambda job: lifecycle.expire(job, now), now)
    if untidy.lapsed:
        tidied |= yield from _bite(catalog, "jobs_lapsed", now.lease_ms, lambda job: lifecycle.lapse(job, now), now)
    if untidy.due:
        tidied |= yield from _bite(catalog, "jobs_due", now.wall_ms, lifecycle.promote, now)
    return tidied


def expire_overdue(engine: Engine) -> Script[bool]:
    """End a bite of the waiting jobs whose deadline has passed; tell if there were any."""
    catalog = yield from load_catalog(engine)
    now = yield from script.now()
    return (yield from _bite(catalog, "jobs_overdue", now.wall_ms, lambda job: lifecycle.expire(job, now), now))


def _bite(catalog: Catalog, found: str, by_ms: int, decide: Callable[[Job], Step], now: Now) -> Script[bool]:
    rows = yield Statement(found, {"now": by_ms, "limit": limits.BITE})
    jobs = yield from only_free([Job._make(row) for row in rows])
    yield from apply_steps(catalog, [decide(job) for job in jobs], now)
    return bool(jobs)


# --- workers that were cut off -------------------------------------------------------------------------------------


def _clear_suspicion(catalog: Catalog, worker: str, incarnation: str) -> Script[None]:
    """Clear the suspicion of what one start of a worker held when its leases lapsed.

    Leases that have lapsed but were not taken back yet are taken back here, so that their jobs never become suspect.
    """
    now = yield from script.now()
    who = {"worker": worker, "incarnation": incarnation, "limit": limits.BITE}
    while rows := (yield Statement("jobs_lapsed_of_worker", {**who, "now": now.lease_ms})):
        jobs = yield from only_free([Job._make(row) for row in rows])
        if not jobs:
            break
        yield from apply_steps(catalog, [lifecycle.lapse(job, now, lived=True) for job in jobs], now)
    while rows := (yield Statement("jobs_suspect_of_worker", who)):
        decided = [lifecycle.clear_suspicion(Job._make(row), worker, incarnation) for row in rows]
        cleared = [job for job in decided if job is not None]
        values = [(job.suspect, job.failure_reason, job.failure_message, job.seq, job.epoch) for job in cleared]
        yield from write_rows("job_clear", values)
        if len(cleared) < limits.BITE:
            break


# --- exclusive workers ---------------------------------------------------------------------------------------------


def _supersede(catalog: Catalog, request: ClaimRequest) -> Script[None]:
    """Make this start the only one of its worker; refuse one that a later start has superseded."""
    who = {"worker": request.worker, "incarnation": request.incarnation}
    rows = yield Statement("incarnation_read", who)
    if rows and rows[0][0]:
        raise Conflict(f"a later start of the exclusive worker {request.worker!r} has taken over from this one")
    if rows:
        return
    now = yield from script.now()
    yield Statement("incarnation_supersede", {"worker": request.worker})
    yield Statement("incarnation_insert", {**who, "now": now.wall_ms})
    yield Statement("incarnation_forget", {"worker": request.worker, "keep": _INCARNATIONS_KEPT})
    chance = yield from script.chance()
    while held := (yield Statement("jobs_held_by_others", {**who, "limit": limits.BITE})):
        yield from apply_steps(catalog, [lifecycle.take_back(Job._make(row), now, chance) for row in held], now)
