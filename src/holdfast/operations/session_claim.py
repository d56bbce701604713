"""Claiming sessions: choose a session, choose its next entries, lease them with one fencing token.

A claim locks the session first and never waits for the lock of an entry, because the transaction that holds that lock
may be waiting for the session.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from holdfast.domain import claim_order, claims, clock, limits, session_claims, sessions, transitions
from holdfast.domain.job import JobRow, job_of
from holdfast.domain.routing import RoutingTable
from holdfast.operations import gates, lease, maintenance, session_lease
from holdfast.operations.apply_transitions import apply_transitions
from holdfast.operations.claim import seconds_to_next_change, undo_claims
from holdfast.operations.sessions import choose_from_line, sessions_of
from holdfast.storage import notifications
from holdfast.storage.contract import OvertakenError, StoreTransaction

# How many heads of one fairness key are read: other workers may have locked some of them.
_WINDOW = 16
# If sessions were locked, the next round reads this many times more heads, twice at most.
_WIDEN_FACTOR = 4


class CandidateSessions(NamedTuple):
    """Sessions of one fairness key, those with the oldest heads first."""

    numbers: list[int]
    scope: str | None
    fair_key: str | None
    last_fair_key: str | None


@dataclass
class CandidateSearch:
    """Goes through the fairness keys, and again with a wider window if sessions were locked."""

    request: session_claims.SessionRequest
    heads: list[tuple[int, sessions.EntryType]]
    """The routes and entry types that the head of a session may have."""
    scope: str | None
    last_fair_key: str | None = None
    current: str | None = None
    """The fairness key of the last candidates."""
    visited: set[str] = field(default_factory=set)
    """The fairness keys of this round so far."""
    window: int = _WINDOW
    skipped: set[int] = field(default_factory=set)
    """Sessions without entries for this claim."""
    found_locked: bool = False

    async def first(self, tx: StoreTransaction) -> CandidateSessions | None:
        """Return the sessions of the first fairness key, or None."""
        if self.scope is not None:
            self.last_fair_key = self.current = await tx.last_fair_key(self.scope)
        return await self._find(tx)

    def skip(self, number: int) -> None:
        """Leave this session out of further candidates."""
        self.skipped.add(number)

    async def next(self, tx: StoreTransaction, *, locked_one: bool) -> CandidateSessions | None:
        """Return the next candidates; *locked_one* if the claim could lock a session of the last ones."""
        self.found_locked |= not locked_one
        return await self._find(tx, same_key=locked_one)

    async def _find(self, tx: StoreTransaction, *, same_key: bool = False) -> CandidateSessions | None:
        if self.scope is None:
            return await self._find_of_tenant(tx, same_key=same_key)
        while True:
            fair_key = self.current if same_key and self.current is not None else (await self._next_fair_key(tx))
            if fair_key is None:
                return None
            if not same_key and fair_key in self.visited and not self._widen():
                return None
            self.visited.add(fair_key)
            self.current, same_key = fair_key, False
            rows = await tx.session_heads(self.heads, fair_key, self.window + len(self.skipped))
            if numbers := self._numbers(rows):
                return CandidateSessions(numbers, self.scope, fair_key, self.last_fair_key)

    async def _next_fair_key(self, tx: StoreTransaction) -> str | None:
        fair_keys = await tx.next_session_fair_keys(self.heads, self.current or "")
        return min(fair_keys, key=lambda fair_key: claim_order.fair_order_key(fair_key, self.current), default=None)

    async def _find_of_tenant(self, tx: StoreTransaction, *, same_key: bool) -> CandidateSessions | None:
        tenant = self.request.tenant or ""
        if tenant in self.visited and not same_key and not self._widen():
            return None
        self.visited.add(tenant)
        limit = self.window + len(self.skipped)
        fair = await tx.session_heads(self.heads, tenant, limit)
        strict = await tx.session_heads_of_tenant(self.heads, tenant, limit)
        numbers = self._numbers([*fair, *strict])
        return CandidateSessions(numbers, None, None, None) if numbers else None

    def _widen(self) -> bool:
        """Begin another round with a wider window if sessions were locked in this one; return whether it did."""
        if not self.found_locked or self.window > _WINDOW * _WIDEN_FACTOR:
            return False
        self.window, self.found_locked = self.window * _WIDEN_FACTOR, False
        self.visited.clear()
        return True

    def _numbers(self, rows: Sequence[tuple[int, int]]) -> list[int]:
        return [number for _, number in sorted(rows) if number not in self.skipped][: self.window]


def candidate_sessions(request: session_claims.SessionRequest, routes: Sequence[int]) -> CandidateSearch:
    """Return the search for sessions that *request* may claim on these routes."""
    heads = [(route, entry_type) for route in routes for entry_type in request.entry_types]
    return CandidateSearch(request, heads, None if request.tenant is not None else request.fair_scope)


async def remember_session_fair_key(tx: StoreTransaction, candidates: CandidateSessions) -> None:
    """Store the fairness key served last, if tenants alternate and it has changed."""
    if (
        candidates.scope is not None
        and candidates.fair_key is not None
        and candidates.fair_key != candidates.last_fair_key
    ):
        now = await tx.now()
        await tx.set_last_fair_key(candidates.scope, candidates.fair_key, now, first=candidates.last_fair_key is None)


# How many sessions without entries for it, or locked by others, a claim of any session skips.
_TRIES_MAX = 64
_CHUNKS_MAX = 10


async def claim_session(
    tx: StoreTransaction, request: session_claims.SessionRequest
) -> session_claims.SessionClaim | None:
    """Lease the next entries of one session, or return None if none can be claimed now."""
    routing = await tx.routing()
    held = (await tx.refresh(request.turn.claims)) if request.turn is not None else {}
    if request.resent and (repeated := await _find_held_claim(tx, request)):
        return repeated
    session = await tx.session_by_name(request.tenant or "", request.session or "")
    if session is None:
        return None
    if request.turn is not None:
        return await _lease_more(tx, routing, session, request, request.turn, held)
    session = await _maintain_session(tx, routing, session)
    session_claims.check_owner(session, request.session_lease, (await tx.now()))
    if await tx.session_running_seqs(session.number):
        return None
    return await _lease_run(tx, routing, session, request, None)


async def claim_any_session(
    tx: StoreTransaction, request: session_claims.SessionRequest
) -> session_claims.SessionClaim | None:
    """Lease the next entries of any ready session: tenants alternate, the oldest head goes first."""
    plain = await tx.claim_session_plain(request)
    if plain is not None:
        return _claim(plain.session, plain.tenant, request, plain.fence, plain.jobs) if plain.jobs else None
    routing, due, now = await tx.begin_claim(thorough=True)
    if (request.resent or tx.resent) and (repeated := await _find_held_claim(tx, request)):
        return repeated
    await maintenance.run_maintenance(tx, routing, due, now)
    await session_lease.end_expired_leases(tx, routing, now)
    for _ in range(_CHUNKS_MAX):
        claim = await _claim_candidate(tx, routing, request)
        if claim is not None:
            return claim
        # Entries this claim could take may become ready only after more maintenance; look a bounded number of times.
        if not (
            await maintenance.run_due_maintenance(tx, routing)
            or await session_lease.end_expired_leases(tx, routing, await tx.now())
        ):
            break
    return None


async def seconds_to_session(tx: StoreTransaction) -> float:
    """Return the seconds until the next entry is due or the next lease expires; infinite if there is none."""
    jobs = await seconds_to_next_change(tx)
    lease_until_ms = await tx.next_session_expiry()
    now = await tx.now()
    session = math.inf if lease_until_ms is None else max(lease_until_ms - now.lease_ms, 0) / 1000
    return min(jobs, session)


async def seconds_to_maintenance(tx: StoreTransaction) -> float:
    """Return the seconds until `maintain` has something to do; infinite if there is nothing."""
    _, due, _ = await tx.begin_claim(thorough=True)
    return 0.0 if due else await seconds_to_session(tx)


async def maintain(tx: StoreTransaction) -> bool:
    """Do what a claim does before it selects jobs, a chunk of it; return whether anything has changed."""
    routing, due, now = await tx.begin_claim(thorough=True)
    changed = await maintenance.run_maintenance(tx, routing, due, now)
    return await session_lease.end_expired_leases(tx, routing, now) or changed


# --- any session ---------------------------------------------------------------------------------------------------


async def _claim_candidate(
    tx: StoreTransaction, routing: RoutingTable, request: session_claims.SessionRequest
) -> session_claims.SessionClaim | None:
    """Claim the first candidate session that is not locked; skip locked sessions instead of waiting."""
    routes = routing.serving_sessions(request.lanes, request.kinds, request.capabilities)
    if not routes:
        return None
    search = candidate_sessions(request, [route.number for route in routes])
    candidates = await search.first(tx)
    for _ in range(_TRIES_MAX):
        if candidates is None:
            return None
        session = await tx.pick_session(candidates.numbers)
        if session is not None:
            head = routing.by_number.get(session.head_route or 0)
            for_head = request if head is None else request.led_by(head.key.kind)
            claim = await _lease_run(tx, routing, session, for_head, None, waits=False)
            if claim is not None:
                await remember_session_fair_key(tx, candidates)
                return claim
            search.skip(session.number)
        candidates = await search.next(tx, locked_one=session is not None)
    if search.skipped and routing.is_gated(routes):
        # Others may be claimable behind so many that were parked: let claimers look again after the commit.
        tx.notify([notifications.sessions_topic(route.key.lane) for route in routes])
    return None


# --- one session ---------------------------------------------------------------------------------------------------


class _OpenClaim(NamedTuple):
    """The fence of a claim and the number of entries already leased under it."""

    fence: session_claims.SessionFence
    leased: int


async def _lease_run(
    tx: StoreTransaction,
    routing: RoutingTable,
    session: sessions.Session,
    request: session_claims.SessionRequest,
    extended: _OpenClaim | None,
    *,
    waits: bool = True,
) -> session_claims.SessionClaim | None:
    """Lease the session's next entries, with a new fence unless they extend a claim."""
    accepted = {
        route.number for route in routing.serving_sessions(request.lanes, request.kinds, request.capabilities)
    }
    while True:
        choice = await choose_from_line(tx, routing, session.number, request.criteria, accepted)
        if not choice.run:
            return None
        taken = await tx.take_entries([entry.seq for entry in choice.run])
        if len(taken) < len(choice.run):
            # Another transaction, such as a cancellation, has locked an entry and may be waiting for this session.
            if waits:
                raise OvertakenError(f"another transaction has locked entries of session {session.name!r}")
            return None
        jobs = sorted(taken, key=lambda job: job.enqueue_seq or 0)
        now = await tx.now()
        late = [job for job in jobs if transitions.overdue(job, now)]
        if not late:
            return await _lease(tx, routing, session, request, jobs, extended)
        await apply_transitions(tx, routing, [transitions.miss_deadline(job, now) for job in late], now)


async def _lease(
    tx: StoreTransaction,
    routing: RoutingTable,
    session: sessions.Session,
    request: session_claims.SessionRequest,
    jobs: list[JobRow],
    extended: _OpenClaim | None,
) -> session_claims.SessionClaim | None:
    """Write the leases of entries; None if the first was parked, because a limit has no room for it."""
    now = await tx.now()
    at_gates: dict[int, int | None] = {}
    if extended is None and routing.has_limits and routing.limits_of(jobs[0].lane, jobs[0].kind):
        admitted = await gates.admit_turn(tx, routing, jobs)
        if admitted is None:
            return None
        at_gates = admitted
    claim = extended or _OpenClaim(session_claims.derive_fence(session, jobs[0].id, request.lease_token), 0)
    until_ms = now.lease_ms + request.lease_ms
    if request.generation is not None:
        until_ms = session.lease_until_ms or until_ms
    decided = [
        transitions.Transition(
            job,
            job.attempted(
                worker=request.worker,
                incarnation=request.incarnation,
                lease_token=claim.fence.lease_token,
                lease_until_ms=until_ms,
                claim_index=claim.leased + index,
                now_ms=now.wall_ms,
                acknowledged=request.acknowledged,
            ),
            "claimed",
        )
        for index, job in enumerate(jobs)
    ]
    leased = await apply_transitions(tx, routing, decided, now)
    await tx.set_gates([(gate, seq) for seq, gate in at_gates.items()])
    if extended is None:
        claimed = session._replace(fence=claim.fence.fencing_token, claim_id=claim.fence.claim_id)
        await tx.write_session_claim(claimed)
    return _claim(session.name, session.tenant, request, claim.fence, leased)


async def undo_session_claim(
    tx: StoreTransaction, claim: session_claims.SessionClaim | None, request: session_claims.SessionRequest
) -> None:
    """Release the entries that this call has leased, not those that it found held already."""
    if claim is None and request.turn is None:
        # None were leased, or the result was lost. A turn that was to be extended keeps its entries.
        await undo_claims(tx, None, request)
    elif claim is not None and not claim.repeated:
        await undo_claims(tx, claim.claims, request)


def _claim(
    session: str,
    tenant: str,
    request: session_claims.SessionRequest,
    fence: session_claims.SessionFence,
    jobs: Sequence[JobRow],
    *,
    repeated: bool = False,
) -> session_claims.SessionClaim:
    entry = jobs[0].entry
    entry_type: sessions.EntryType = "message" if entry is None else entry.entry_type
    return session_claims.SessionClaim(
        session=session,
        tenant=tenant,
        entry_type=entry_type,
        claim_id=fence.claim_id,
        fencing_token=fence.fencing_token,
        entries=tuple(map(job_of, jobs)),
        lease_ms=request.lease_ms,
        generation=request.generation,
        repeated=repeated,
    )


async def _find_held_claim(
    tx: StoreTransaction, request: session_claims.SessionRequest
) -> session_claims.SessionClaim | None:
    """Return the claim that an earlier send of the same request made, if it is still held.

    Lock the token first, so that a send that is still in flight is decided before this one.
    """
    await tx.lock_claim_token(request.worker, request.lease_token)
    found = await _held_jobs(tx, request)
    session_claims.check_repeated(request, found)
    if not found:
        return None
    [session] = await tx.sessions_by_number(sessions_of(found))
    # Their holder may have settled them before the session was locked.
    jobs = await _held_jobs(tx, request)
    fence = session_claims.SessionFence(session.claim_id or "", session.fence, request.lease_token)
    return _claim(session.name, session.tenant, request, fence, jobs, repeated=True) if jobs else None


async def _held_jobs(tx: StoreTransaction, request: session_claims.SessionRequest) -> list[JobRow]:
    """Return the jobs that the worker of *request* holds under its lease token, in order."""
    jobs = await tx.jobs_held(request.worker, request.lease_token)
    now = await tx.now()
    return [job for job in jobs if transitions.holds(job, claims.row_fence(job), now)]


# --- checkpoints ---------------------------------------------------------------------------------------------------


async def _lease_more(
    tx: StoreTransaction,
    routing: RoutingTable,
    session: sessions.Session,
    request: session_claims.SessionRequest,
    turn: session_claims.SessionClaim,
    held: dict[int, JobRow],
) -> session_claims.SessionClaim | None:
    """Lease more of the session under the fence of *turn*, which must be its live claim, or raise `LeaseLost`.

    This covers the session lease too: a turn does not outlive the session lease under which it was claimed.
    """
    now = await tx.now()
    for claim in turn.claims:
        transitions.check_fence(lease.held_job(held, claims.fence_of(claim)), claims.fence_of(claim), now)
    fence = session_claims.SessionFence(session.claim_id or "", session.fence, turn.lease_token)
    leased = [job for job in await _held_jobs(tx, request) if job.session_number == session.number]
    known = {job.number for job in turn.entries}
    if unknown := [job for job in leased if job.seq not in known]:
        # An earlier send of this call leased them, and its result was lost.
        return _claim(session.name, session.tenant, request, fence, unknown, repeated=True)
    await _promote_due(tx, routing, session.number, now)
    return await _lease_run(tx, routing, session, request, _OpenClaim(fence, len(leased)))


# --- maintenance ---------------------------------------------------------------------------------------------------


async def _maintain_session(
    tx: StoreTransaction, routing: RoutingTable, session: sessions.Session
) -> sessions.Session:
    """Take back expired entries and promote due entries of one session; return the current session."""
    now = await tx.now()
    changed = await _apply_in_chunks(
        tx, routing, partial(tx.session_expired, session.number), partial(transitions.expire, now=now), now
    )
    changed |= await _promote_due(tx, routing, session.number, now)
    if not changed:
        return session
    [current] = await tx.sessions_by_number([session.number])
    return current


async def _promote_due(tx: StoreTransaction, routing: RoutingTable, session: int, now: clock.Now) -> bool:
    return await _apply_in_chunks(tx, routing, partial(tx.session_due, session), transitions.promote, now)


async def _apply_in_chunks(
    tx: StoreTransaction,
    routing: RoutingTable,
    find: Callable[[clock.Now, int], Awaitable[list[JobRow]]],
    decide: Callable[[JobRow], transitions.Transition],
    now: clock.Now,
) -> bool:
    """Apply a transition to all entries that *find* returns, a chunk at a time; return whether there were any."""
    changed = False
    while jobs := await find(now, limits.CHUNK):
        await apply_transitions(tx, routing, [decide(job) for job in jobs], now)
        changed = True
    return changed
