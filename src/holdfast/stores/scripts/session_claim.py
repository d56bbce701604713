"""Handing sessions' work out: choose a session, choose the run of batches in it, lease it under one fence.

A claim locks the session first and never waits for a batch: whoever holds one may be waiting for the session.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from holdfast.domain import lifecycle, limits
from holdfast.domain.claim import Claim
from holdfast.domain.clock import Now
from holdfast.domain.job import Job
from holdfast.domain.lane import Catalog
from holdfast.domain.lifecycle import Step
from holdfast.domain.session import Session, WorkClass
from holdfast.domain.session_claim import SessionRequest, check_repeated
from holdfast.domain.session_lease import SessionClaim, SessionFence, check_runtime, derive_fence
from holdfast.stores import script
from holdfast.stores.engine import Engine
from holdfast.stores.script import OvertakenError, Script, Statement
from holdfast.stores.scripts.catalog import catalog_at, load_catalog
from holdfast.stores.scripts.claim import hold_claim, open_claim, seconds_to_come, tidy, undo_claims
from holdfast.stores.scripts.lease import held_job, stand
from holdfast.stores.scripts.moves import apply_steps
from holdfast.stores.scripts.session_lease import end_lapsed
from holdfast.stores.scripts.session_turns import offered_sessions, serve_turn
from holdfast.stores.scripts.sessions import choose_from_line, session_by_name

# How many sessions that turn out to have nothing for it, or to be in other hands, a claim of any passes by.
_TRIES_MAX = 64
_BITES_MAX = 10


def claim_session(engine: Engine, request: SessionRequest) -> Script[SessionClaim | None]:
    """Lease the next run of one session, or return None if it has nothing to take now."""
    catalog = yield from load_catalog(engine)
    held = (yield from _stand_held(request.holding)) if request.holding is not None else {}
    session = yield from session_by_name(request.tenant or "", request.session or "")
    if session is None:
        return None
    if request.holding is not None:
        return (yield from _take_in_more(catalog, session, request, request.holding, held))
    if request.resent and (again := (yield from _given_before(session, request))):
        return again
    session = yield from _tidy_session(catalog, session)
    check_runtime(session, request.under, (yield from script.now()))
    if (yield Statement("session_in_hand", {"session": session.number})):
        return None
    return (yield from _lease_run(catalog, session, request, None))


def claim_any_session(engine: Engine, request: SessionRequest) -> Script[SessionClaim | None]:
    """Lease the next run of whichever session is ready: the oldest head of the tenant whose turn it is."""
    version, untidy, now = yield from open_claim(engine, whole=True)
    catalog = yield from catalog_at(engine, version)
    if request.resent:
        holder = request.holder
        yield from hold_claim(holder.worker, holder.nonce)
        rows = yield Statement("session_by_nonce", {"worker": holder.worker, "nonce": holder.nonce})
        for row in rows:
            if again := (yield from _given_before(Session._make(row), request)):
                return again
    yield from tidy(catalog, untidy, now)
    yield from end_lapsed(catalog, now)
    for _ in range(_BITES_MAX):
        claim = yield from _claim_offered(catalog, request)
        if claim is not None:
            return claim
        # What this claim could take may stand behind what others could; it looks so far and no further.
        _, untidy, now = yield from open_claim(engine, whole=True)
        if not ((yield from tidy(catalog, untidy, now)) or (yield from end_lapsed(catalog, now))):
            break
    return None


def seconds_to_session() -> Script[float]:
    """Return in how many seconds, at the earliest, a batch falls due or a lease lapses; infinite if none will."""
    jobs = yield from seconds_to_come()
    [[lease_until_ms]] = yield Statement("session_next_moment")
    now = yield from script.now()
    session = math.inf if lease_until_ms is None else max(lease_until_ms - now.lease_ms, 0) / 1000
    return min(jobs, session)


# --- any session ---------------------------------------------------------------------------------------------------


def _claim_offered(catalog: Catalog, request: SessionRequest) -> Script[SessionClaim | None]:
    """Claim the first session on offer that is free; those in other hands are passed by, never waited for."""
    routes = catalog.serving_sessions(request.lanes, request.kinds, request.capabilities)
    if not routes:
        return None
    offers = offered_sessions(request, [route.number for route in routes])
    offer = yield from offers.first()
    for _ in range(_TRIES_MAX):
        if offer is None:
            return None
        rows = yield Statement("session_pick", {"numbers": offer.numbers})
        if rows:
            session = Session._make(rows[0])
            head = catalog.by_number.get(session.head_route or 0)
            asked = request if head is None else request.led_by(head.key.kind)
            claim = yield from _lease_run(catalog, session, asked, None, waits=False)
            if claim is not None:
                yield from serve_turn(offer)
                return claim
            offers.passed(session.number)
        offer = yield from offers.next(took=bool(rows))
    return None


# --- one session ---------------------------------------------------------------------------------------------------


class _Place(NamedTuple):
    """Under which fence a run is leased, and how many batches stand under it already."""

    fence: SessionFence
    taken: int


def _lease_run(
    catalog: Catalog, session: Session, request: SessionRequest, under: _Place | None, *, waits: bool = True
) -> Script[SessionClaim | None]:
    """Lease the run that leads the session's line, under a new fence unless one is given."""
    welcome = {route.number for route in catalog.serving_sessions(request.lanes, request.kinds, request.capabilities)}
    while True:
        choice = yield from choose_from_line(catalog, session.number, request.wanted, welcome)
        if not choice.run:
            return None
        rows = yield Statement("session_take", {"seqs": [batch.seq for batch in choice.run]})
        if len(rows) < len(choice.run):
            # Somebody is cancelling one of them, or the like. They are quick, and may be waiting for this session.
            if waits:
                raise OvertakenError(f"batches of session {session.name!r} are in other hands")
            return None
        jobs = sorted(map(Job._make, rows), key=lambda job: job.enqueue_seq or 0)
        now = yield from script.now()
        late = [job for job in jobs if lifecycle.overdue(job, now)]
        if not late:
            return (yield from _lease(catalog, session, request, jobs, under))
        yield from apply_steps(catalog, [lifecycle.expire(job, now) for job in late], now)


def _lease(
    catalog: Catalog, session: Session, request: SessionRequest, jobs: list[Job], under: _Place | None
) -> Script[SessionClaim]:
    now, holder = (yield from script.now()), request.holder
    place = under or _Place(derive_fence(session, jobs[0].id, holder, now.wall_ms), 0)
    until_ms = now.lease_ms + request.lease_ms
    if request.under is not None:
        until_ms = session.lease_until_ms or until_ms
    steps = [
        Step(
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
    leased = yield from apply_steps(catalog, steps, now)
    if under is None:
        values = {
            "number": session.number,
            "fence": place.fence.fencing_token,
            "claim_id": place.fence.claim_id,
            "worker": holder.worker,
            "nonce": holder.nonce if request.resent else None,
            "lease_token": place.fence.lease_token,
        }
        yield Statement("session_claim_write", values)
    return _claim(session, request, place.fence, leased)


def undo_session_claim(engine: Engine, claim: SessionClaim | None) -> Script[None] | None:
    """Return the script that gives back what a call has leased, or None if it has leased nothing itself."""
    return None if claim is None or claim.repeated else undo_claims(engine, claim.claims)


def _claim(
    session: Session,
    request: SessionRequest,
    fence: SessionFence,
    jobs: Sequence[Job],
    *,
    repeated: bool = False,
) -> SessionClaim:
    batch = jobs[0].batch
    work_class: WorkClass = "turn" if batch is None else batch.work_class
    return SessionClaim(
        session=session.name,
        tenant=session.tenant,
        work_class=work_class,
        claim_id=fence.claim_id,
        fencing_token=fence.fencing_token,
        batches=tuple(jobs),
        lease_ms=request.lease_ms if request.under is None else request.under.lease_ms,
        generation=None if request.under is None else request.under.generation,
        repeated=repeated,
    )


def _given_before(session: Session, request: SessionRequest) -> Script[SessionClaim | None]:
    """Return what this very claim was given before, if its answer was lost."""
    holder = request.holder
    if (session.claim_worker, session.claim_nonce) != (holder.worker, holder.nonce):
        return None
    jobs = yield from _held_under(session)
    fence = SessionFence(session.claim_id or "", session.fence, session.claim_token or "")
    check_repeated(request, jobs)
    return _claim(session, request, fence, jobs, repeated=True) if jobs else None


def _held_under(session: Session) -> Script[list[Job]]:
    """Return the batches that are held under the session's newest claim, in their order."""
    values = {"worker": session.claim_worker, "lease_token": session.claim_token}
    rows = yield Statement("jobs_held", values)
    now = yield from script.now()
    jobs = sorted(map(Job._make, rows), key=lambda job: job.claim_place or 0)
    return [job for job in jobs if lifecycle.holds(job, Claim(job, 0).lease, now)]


# --- checkpoints ---------------------------------------------------------------------------------------------------


def _stand_held(holding: SessionClaim) -> Script[dict[int, Job]]:
    return (yield from stand(holding.claims))


def _take_in_more(
    catalog: Catalog, session: Session, request: SessionRequest, holding: SessionClaim, held: dict[int, Job]
) -> Script[SessionClaim | None]:
    """Lease more of the session under the fence of *holding*, which must be its live claim, or raise `LeaseLost`."""
    now = yield from script.now()
    for claim in holding.claims:
        lifecycle.check_fence(held_job(held, claim.lease), claim.lease, now)
    check_runtime(session, request.under, now)
    fence = SessionFence(session.claim_id or "", session.fence, holding.lease_token)
    under_fence = yield from _held_under(session)
    named = {job.seq for job in holding.batches}
    if unnamed := [job for job in under_fence if job.seq not in named]:
        # An earlier call took these in, and its answer was lost.
        return _claim(session, request, fence, unnamed, repeated=True)
    yield from _promote_due(catalog, session.number, now)
    return (yield from _lease_run(catalog, session, request, _Place(fence, len(under_fence))))


# --- tidying -------------------------------------------------------------------------------------------------------


def _tidy_session(catalog: Catalog, session: Session) -> Script[Session]:
    """Take back what lapsed and promote what is due in one session, and return it as that leaves it."""
    now = yield from script.now()
    lapsed = {"session": session.number, "now": now.lease_ms}
    moved = yield from _bites(catalog, Statement("session_lapsed", lapsed), partial(lifecycle.lapse, now=now), now)
    moved |= yield from _promote_due(catalog, session.number, now)
    if not moved:
        return session
    [row] = yield Statement("sessions_by_number", {"numbers": [session.number]})
    return Session._make(row)


def _promote_due(catalog: Catalog, session: int, now: Now) -> Script[bool]:
    due = Statement("session_due", {"session": session, "now": now.wall_ms})
    return (yield from _bites(catalog, due, lifecycle.promote, now))


def _bites(catalog: Catalog, found: Statement, decide: Callable[[Job], Step], now: Now) -> Script[bool]:
    """Move all of one session's batches that a statement finds, a bite at a time."""
    moved = False
    while rows := (yield Statement(found.name, {**found.values, "limit": limits.BITE})):
        yield from apply_steps(catalog, [decide(Job._make(row)) for row in rows], now)
        moved = True
    return moved
