"""Enqueueing session entries: lock their sessions, find duplicate message ids, append the new entries."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.domain import clock, new_job
from holdfast.domain.job import JobRow, deleted_row
from holdfast.domain.routing import RoutingTable
from holdfast.domain.sessions import Session, entry_id, entry_to_json
from holdfast.operations.sessions import refresh_heads, route_by_number
from holdfast.storage.contract import MessageIdRow, OvertakenError, SessionName, StoreTransaction


@dataclass(slots=True)
class LockedSession:
    """A locked session during one enqueue call."""

    session: Session
    last_enqueue_seq: int
    by_message_id: dict[str, JobRow] = field(default_factory=dict)
    """The entries with a message id of this call, stored and new ones."""
    unwritten: list[JobRow] = field(default_factory=list)
    """New entries not yet written."""


async def lock_sessions(
    tx: StoreTransaction, routing: RoutingTable, checked_jobs: Sequence[new_job.CheckedJob]
) -> dict[SessionName, LockedSession]:
    """Lock the sessions of the entries in *checked_jobs*, in order of their numbers; create missing ones."""
    message_ids: dict[SessionName, list[str]] = {}
    for new in checked_jobs:
        if new.entry is not None:
            ids = message_ids.setdefault((new.settings.tenant, new.entry.session), [])
            ids += [new.entry.message_id] if new.entry.message_id is not None else []
    stored = await tx.sessions_by_name(message_ids.keys())
    locked = {(session.tenant, session.name): LockedSession(session, session.enqueue_seq) for session in stored}
    for tenant, name in sorted(message_ids.keys() - locked.keys()):
        created = await create_session(tx, tenant, name)
        locked[tenant, name] = LockedSession(created, created.enqueue_seq)
    for session_name, ids in message_ids.items():
        if ids:
            await _load_message_ids(tx, routing, locked[session_name], ids)
    return locked


async def create_session(tx: StoreTransaction, tenant: str, name: str) -> Session:
    """Store a new session and lock it."""
    await tx.create_session(tenant, name)
    session = await tx.session_by_name(tenant, name)
    if session is None:
        raise OvertakenError(f"another transaction is creating session {name!r}")
    return session


# --- message ids ---------------------------------------------------------------------------------------------------


def find_by_message_id(sessions: dict[SessionName, LockedSession], new: new_job.CheckedJob) -> JobRow | None:
    """Return the entry that has the message id of *new*, or None."""
    if new.entry is None or new.entry.message_id is None:
        return None
    return sessions[new.settings.tenant, new.entry.session].by_message_id.get(new.entry.message_id)


async def _load_message_ids(
    tx: StoreTransaction, routing: RoutingTable, locked: LockedSession, ids: list[str]
) -> None:
    """Read the stored entries that have one of these message ids."""
    rows = await tx.message_ids_seen(locked.session.number, list(dict.fromkeys(ids)))
    if not rows:
        return
    jobs = {job.seq: job for job in await tx.jobs_seen([row.seq for row in rows])}
    for row in rows:
        locked.by_message_id[row.message_id] = jobs.get(row.seq) or _deleted_entry(routing, locked.session, row)


def _deleted_entry(routing: RoutingTable, session: Session, row: MessageIdRow) -> JobRow:
    """Return a deleted entry as its message id row describes it: identity and state, no payload or result."""
    key = route_by_number(routing, row.route).key
    return deleted_row(
        seq=row.seq,
        id=row.job_id,
        state=row.state,
        kind=key.kind,
        lane=key.lane,
        tenant=session.tenant,
        requires_json=key.requires_json,
        enqueued_at_ms=row.enqueued_at_ms,
        finished_at_ms=row.deleted_at_ms,
        session_number=session.number,
        enqueue_seq=row.enqueue_seq,
        entry_json=row.entry_json,
    )


# --- appending -----------------------------------------------------------------------------------------------------


def append_entry(locked: LockedSession, new: new_job.CheckedJob, job: JobRow, now: clock.Now) -> JobRow:
    """Return *job* as the last entry of its session, with an entry id unless the caller chose one."""
    assert new.entry is not None  # noqa: S101  # only entries come here
    locked.last_enqueue_seq += 1
    job_id = job.id
    if new.digest is None:
        job_id = entry_id(job.tenant, new.entry.session, new.entry.message_id, now.wall_ms, fresh_id=job.id)
    appended = job._replace(
        id=job_id,
        session_number=locked.session.number,
        enqueue_seq=locked.last_enqueue_seq,
        entry_json=entry_to_json(new.entry),
    )
    locked.unwritten.append(appended)
    if new.entry.message_id is not None:
        locked.by_message_id[new.entry.message_id] = appended
    return appended


async def write_sessions(
    tx: StoreTransaction,
    routing: RoutingTable,
    sessions: Sequence[LockedSession],
    routes: dict[int, int],
    now: clock.Now,
) -> None:
    """Write lengths, message ids and heads of the sessions with new entries; *routes* maps entries to routes."""
    changed = [one for one in sessions if one.unwritten]
    if not changed:
        return
    await tx.write_session_lengths([(one.last_enqueue_seq, one.session.number) for one in changed])
    new = [job for one in changed for job in one.unwritten]
    await tx.insert_message_ids([(job, routes[job.seq]) for job in new if _message_id(job) is not None])
    # New entries come last, so a session that has a head keeps it.
    headless = [
        one.session
        for one in changed
        if one.session.head is None and any(job.state == "ready" for job in one.unwritten)
    ]
    for one in changed:
        one.unwritten.clear()
    await refresh_heads(tx, routing, headless, now)


def _message_id(job: JobRow) -> str | None:
    return None if job.entry is None else job.entry.message_id
