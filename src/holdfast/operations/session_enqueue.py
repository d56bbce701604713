"""Taking entries in: each session is locked, gives its entries their places, and knows the keys it has seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.domain.clock import Now
from holdfast.domain.job import Job
from holdfast.domain.new_job import CheckedJob
from holdfast.domain.routing import RoutingTable
from holdfast.domain.sessions import Session, entry_id
from holdfast.operations.sessions import refresh_heads, route_by_number
from holdfast.storage.contract import OvertakenError, SessionName, SourceRow, Transaction


@dataclass(slots=True)
class Entered:
    """One session, locked: the place of its newest entry, the entries by source key, and what was not yet written."""

    session: Session
    newest: int
    seen: dict[str, Job] = field(default_factory=dict)
    fresh: list[Job] = field(default_factory=list)


async def enter_sessions(
    tx: Transaction, routing: RoutingTable, wanted: Sequence[CheckedJob]
) -> dict[SessionName, Entered]:
    """Lock the sessions that *wanted* has entries for, in order of their numbers; make those that are new."""
    keys: dict[SessionName, list[str]] = {}
    for new in wanted:
        if new.entry is not None:
            kept = keys.setdefault((new.terms.tenant, new.entry.session), [])
            kept += [new.entry.source_key] if new.entry.source_key is not None else []
    known = await tx.sessions_by_name(keys.keys())
    entered = {(session.tenant, session.name): _entered(session) for session in known}
    for tenant, name in sorted(keys.keys() - entered.keys()):
        entered[tenant, name] = _entered(await create_session(tx, tenant, name))
    for session_name, source_keys in keys.items():
        if source_keys:
            await _meet_sources(tx, routing, entered[session_name], source_keys)
    return entered


def _entered(session: Session) -> Entered:
    return Entered(session, session.enqueue_seq)


async def create_session(tx: Transaction, tenant: str, name: str) -> Session:
    """Store a session that is not there yet, and lock it."""
    await tx.create_session(tenant, name)
    session = await tx.session_by_name(tenant, name)
    if session is None:
        raise OvertakenError(f"another transaction is creating session {name!r}")
    return session


# --- source keys ---------------------------------------------------------------------------------------------------


def seen_before(entered: dict[SessionName, Entered], new: CheckedJob) -> Job | None:
    """Return the entry that came with the source key of *new* before, if there is one."""
    if new.entry is None or new.entry.source_key is None:
        return None
    return entered[new.terms.tenant, new.entry.session].seen.get(new.entry.source_key)


async def _meet_sources(tx: Transaction, routing: RoutingTable, entered: Entered, keys: list[str]) -> None:
    """Find the entries that came with one of these source keys before."""
    sources = await tx.sources_seen(entered.session.number, list(dict.fromkeys(keys)))
    if not sources:
        return
    jobs = {job.seq: job for job in await tx.jobs_seen([source.seq for source in sources])}
    for source in sources:
        entered.seen[source.key] = jobs.get(source.seq) or _buried(routing, entered.session, source)


def _buried(routing: RoutingTable, session: Session, source: SourceRow) -> Job:
    """Return what is left of an entry that was deleted: who it was and how it ended, without payload and result."""
    key = route_by_number(routing, source.route).key
    gone: dict[str, Any] = dict.fromkeys(Job._fields)
    counters = (
        "attempt",
        "epoch",
        "priority",
        "unacknowledged",
        "cancel_requested",
        "suspect",
        "deferrals",
        "releases",
    )
    gone |= dict.fromkeys(counters, 0)
    gone |= {
        "seq": source.seq,
        "id": source.job_id,
        "state": source.state,
        "kind": key.kind,
        "lane": key.lane,
        "tenant": session.tenant,
        "fair_key": "",
        "requires_json": key.requires_json,
        "payload_json": "null",
        "headers_json": "{}",
        "tags_json": "{}",
        "enqueued_at_ms": source.enqueued_at_ms,
        "due_at_ms": source.enqueued_at_ms,
        "finished_at_ms": source.deleted_at_ms,
        "max_attempts": 0,
        "session_number": session.number,
        "enqueue_seq": source.enqueue_seq,
        "entry_json": source.entry_json,
        "record_all": 0,
        "event_count": 0,
    }
    return Job(**gone)


# --- places --------------------------------------------------------------------------------------------------------


def place_entry(entered: Entered, new: CheckedJob, job: Job, now: Now) -> Job:
    """Return the new *job* as the newest entry of its session, with an id of its own if the caller chose none."""
    assert new.entry is not None  # noqa: S101  # only entries come here
    entered.newest += 1
    job_id = job.id
    if new.digest is None:
        job_id = entry_id(job.tenant, new.entry.session, new.entry.source_key, now.wall_ms, nonce=job.id)
    placed = job._replace(
        id=job_id,
        session_number=entered.session.number,
        enqueue_seq=entered.newest,
        entry_json=new.entry.to_json(),
    )
    entered.fresh.append(placed)
    if new.entry.source_key is not None:
        entered.seen[new.entry.source_key] = placed
    return placed


async def write_sessions(
    tx: Transaction, routing: RoutingTable, entered: Sequence[Entered], routes: dict[int, int], now: Now
) -> None:
    """Write what new entries change of their sessions; *routes* has the route of each entry by its number."""
    grown = [one for one in entered if one.fresh]
    if not grown:
        return
    await tx.write_session_lengths([(one.newest, one.session.number) for one in grown])
    fresh = [job for one in grown for job in one.fresh]
    await tx.insert_sources([(job, routes[job.seq]) for job in fresh if _source_key(job) is not None])
    # A head on offer stays the head: what is new stands behind it.
    waking = [
        one.session for one in grown if one.session.head is None and any(job.state == "ready" for job in one.fresh)
    ]
    for one in grown:
        one.fresh.clear()
    await refresh_heads(tx, routing, waking, now)


def _source_key(job: Job) -> str | None:
    return None if job.entry is None else job.entry.source_key
