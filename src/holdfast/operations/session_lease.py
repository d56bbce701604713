"""The session lease of a runtime: open, renew, close, take over.

Entries claimed under it have the same expiry time, so the usual check of an entry's lease covers the session lease.
Entries are locked before their session, as in every operation that changes entries.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from holdfast.domain import limits, transitions
from holdfast.domain.clock import Now
from holdfast.domain.errors import LeaseLost
from holdfast.domain.job import Job
from holdfast.domain.routing import RoutingTable
from holdfast.domain.session_leases import (
    Opening,
    SessionLease,
    close_lease,
    end_lease,
    lease_of,
    open_lease,
    renew_lease,
)
from holdfast.domain.sessions import Session
from holdfast.operations.apply_transitions import apply_transitions
from holdfast.operations.session_enqueue import create_session
from holdfast.operations.sessions import refresh_heads, refresh_sessions
from holdfast.storage.contract import OvertakenError, Transaction


async def open_session(tx: Transaction, opening: Opening) -> SessionLease:
    """Make the caller the session's runtime; a takeover takes back the entries that others hold."""
    routing = await tx.routing()
    session, running = await _lock_with_running(tx, opening.tenant, opening.session)
    if session is None:
        session = await create_session(tx, opening.tenant, opening.session)
    now = await tx.now()
    held = [job for job in running if not transitions.expired(job, now)]
    opened = open_lease(session, opening, held, now)
    if opened is not session:
        await tx.write_session_lease(opened)
        chance = tx.random()
        decided = [
            transitions.expire(job, now) if transitions.expired(job, now) else transitions.revoke(job, now, chance)
            for job in running
        ]
        await apply_transitions(tx, routing, decided, now)
        await refresh_sessions(tx, routing, [opened.number], now)
    return replace(lease_of(opened, opening.lease_ms), repeated=opened is session)


async def undo_open_session(tx: Transaction, lease: SessionLease) -> None:
    """Close the session, unless an earlier call opened it."""
    if not lease.repeated:
        # Another runtime may have taken over the session since.
        with suppress(LeaseLost):
            await close_session(tx, lease)


async def renew_session(tx: Transaction, lease: SessionLease, lease_ms: int) -> SessionLease:
    """Extend the session lease and the leases of the entries claimed under it, or raise `LeaseLost`."""
    session, running = await _lock_with_running(tx, lease.tenant, lease.session)
    now = await tx.now()
    renewed = renew_lease(session, lease, lease_ms, now)
    await tx.write_session_lease(renewed)
    await tx.renew_leases([job._replace(lease_until_ms=renewed.lease_until_ms) for job in running])
    return lease_of(renewed, lease_ms)


async def close_session(tx: Transaction, lease: SessionLease) -> None:
    """End the session lease and release the entries held under it, without using up attempts."""
    routing = await tx.routing()
    session, running = await _lock_with_running(tx, lease.tenant, lease.session)
    now = await tx.now()
    closed = close_lease(session, lease, now)
    if closed == session:
        return
    await tx.write_session_lease(closed)
    chance = tx.random()
    held = [job for job in running if not transitions.expired(job, now)]
    await apply_transitions(tx, routing, [transitions.release_for_holder(job, now, chance) for job in held], now)
    await refresh_sessions(tx, routing, [closed.number], now)


async def end_expired_leases(tx: Transaction, routing: RoutingTable, now: Now) -> bool:
    """End a chunk of the expired session leases, which frees their sessions; return whether there were any."""
    ended = [end_lease(session) for session in await tx.expired_sessions(now, limits.CHUNK)]
    for session in ended:
        await tx.write_session_lease(session)
    await refresh_heads(tx, routing, ended, now)
    return bool(ended)


async def _lock_with_running(tx: Transaction, tenant: str, name: str) -> tuple[Session | None, list[Job]]:
    """Lock the running entries of the session, then the session; return both."""
    number = await tx.session_number(tenant, name)
    if number is None:
        return None, []
    running = await tx.session_running(number)
    session = await tx.session_by_name(tenant, name)
    if await tx.session_running_seqs(number) != {job.seq for job in running}:
        raise OvertakenError(f"another transaction claimed entries of session {name!r}")
    return session, running
