"""The lease of a session's runtime: opening, renewing, closing and taking over.

The batches claimed under it share its end, so that each write of theirs passes the same fence as any other. Batches
are locked first and their session after, as by everybody who changes batches.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from holdfast.domain import lifecycle, limits
from holdfast.domain.clock import Now
from holdfast.domain.errors import LeaseLost
from holdfast.domain.job import Job
from holdfast.domain.lane import Catalog
from holdfast.domain.session import Session
from holdfast.domain.session_lease import (
    Opening,
    SessionLease,
    close_lease,
    end_lease,
    open_lease,
    renew_lease,
    shown,
)
from holdfast.stores import script
from holdfast.stores.engine import Engine
from holdfast.stores.script import OvertakenError, Script, Statement
from holdfast.stores.scripts.catalog import load_catalog
from holdfast.stores.scripts.moves import apply_steps, write_rows
from holdfast.stores.scripts.session_enqueue import create_session
from holdfast.stores.scripts.sessions import refresh_heads, refresh_sessions, session_by_name


def open_session(engine: Engine, asked: Opening) -> Script[SessionLease]:
    """Make the asker the session's runtime; a takeover takes back at once what others hold of it."""
    catalog = yield from load_catalog(engine)
    session, running = yield from _lock_whole(asked.tenant, asked.session)
    if session is None:
        session = yield from create_session(asked.tenant, asked.session)
    now = yield from script.now()
    held = [job for job in running if not lifecycle.lapsed(job, now)]
    opened = open_lease(session, asked, held, now)
    if opened is not session:
        yield from _write(opened)
        chance = yield from script.chance()
        steps = [
            lifecycle.lapse(job, now) if lifecycle.lapsed(job, now) else lifecycle.take_back(job, now, chance)
            for job in running
        ]
        yield from apply_steps(catalog, steps, now)
        yield from refresh_sessions(catalog, [opened.number], now)
    return replace(shown(opened, asked.lease_ms), repeated=opened is session)


def undo_open_session(engine: Engine, lease: SessionLease) -> Script[None] | None:
    """Return the script that closes the session again, or None if an earlier call opened it."""
    return None if lease.repeated else _close_if_held(engine, lease)


def _close_if_held(engine: Engine, lease: SessionLease) -> Script[None]:
    # Another runtime may have taken the session over in between.
    with suppress(LeaseLost):
        yield from close_session(engine, lease)


def renew_session(lease: SessionLease, lease_ms: int) -> Script[SessionLease]:
    """Extend the session lease, and with it the leases of the batches claimed under it, or raise `LeaseLost`."""
    session, running = yield from _lock_whole(lease.tenant, lease.session)
    now = yield from script.now()
    renewed = renew_lease(session, lease, lease_ms, now)
    yield from _write(renewed)
    rows = [(renewed.lease_until_ms, job.unacknowledged, job.seq, job.epoch) for job in running]
    yield from write_rows("job_lease", rows)
    return shown(renewed, lease_ms)


def close_session(engine: Engine, lease: SessionLease) -> Script[None]:
    """End the session lease; what is still held under it is released, without spending attempts."""
    catalog = yield from load_catalog(engine)
    session, running = yield from _lock_whole(lease.tenant, lease.session)
    now = yield from script.now()
    closed = close_lease(session, lease, now)
    if closed == session:
        return
    yield from _write(closed)
    chance = yield from script.chance()
    held = [job for job in running if not lifecycle.lapsed(job, now)]
    yield from apply_steps(catalog, [lifecycle.hand_back(job, now, chance) for job in held], now)
    yield from refresh_sessions(catalog, [closed.number], now)


def end_lapsed(catalog: Catalog, now: Now) -> Script[bool]:
    """End a bite of the session leases that have lapsed, so that their sessions are on offer again."""
    rows = yield Statement("sessions_lapsed", {"now": now.lease_ms, "limit": limits.BITE})
    ended = [end_lease(Session._make(row)) for row in rows]
    for session in ended:
        yield from _write(session)
    yield from refresh_heads(catalog, ended, now)
    return bool(ended)


def _lock_whole(tenant: str, name: str) -> Script[tuple[Session | None, list[Job]]]:
    """Return the session and those of its batches that run, all locked, the batches first."""
    rows = yield Statement("session_number", {"tenant": tenant, "name": name})
    if not rows:
        return None, []
    number = rows[0][0]
    found = yield Statement("session_running", {"session": number})
    running = [Job._make(row) for row in found]
    session = yield from session_by_name(tenant, name)
    in_hand = yield Statement("session_in_hand", {"session": number})
    if {seq for seq, _ in in_hand} != {job.seq for job in running}:
        raise OvertakenError(f"batches of session {name!r} were claimed meanwhile")
    return session, running


def _write(session: Session) -> Script[None]:
    values = {
        "number": session.number,
        "generation": session.generation,
        "lease_token": session.lease_token,
        "lease_worker": session.lease_worker,
        "lease_incarnation": session.lease_incarnation,
        "lease_until_ms": session.lease_until_ms,
    }
    yield Statement("session_lease_write", values)
