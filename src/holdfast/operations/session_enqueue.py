"""Taking batches in: each session is locked, gives its batches their places, and knows the keys it has seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.domain.clock import Now
from holdfast.domain.job import Job
from holdfast.domain.new_job import Admission
from holdfast.domain.routing import Catalog
from holdfast.domain.sessions import Session, batch_id
from holdfast.operations.routing import route_by_number
from holdfast.operations.sessions import refresh_heads
from holdfast.storage.contract import OvertakenError, SessionName, SourceRow, Transaction


@dataclass(slots=True)
class Entered:
    """One session, locked: the place of its newest batch, the batches by source key, and what was not yet written."""

    session: Session
    newest: int
    seen: dict[str, Job] = field(default_factory=dict)
    fresh: list[Job] = field(default_factory=list)


async def enter_sessions(
    tx: Transaction, catalog: Catalog, wanted: Sequence[Admission]
) -> dict[SessionName, Entered]:
    """Lock the sessions that *wanted* has batches for, in order of their numbers; make those that are new."""
    keys: dict[SessionName, list[str]] = {}
    for new in wanted:
        if new.batch is not None:
            kept = keys.setdefault((new.terms.tenant, new.batch.session), [])
            kept += [new.batch.source_key] if new.batch.source_key is not None else []
    if not keys:
        return {}
    known = await tx.sessions_by_name(keys.keys())
    entered = {(session.tenant, session.name): _entered(session) for session in known}
    for tenant, name in sorted(keys.keys() - entered.keys()):
        entered[tenant, name] = _entered(await create_session(tx, tenant, name))
    for session_name, source_keys in keys.items():
        if source_keys:
            await _meet_sources(tx, catalog, entered[session_name], source_keys)
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


def seen_before(entered: dict[SessionName, Entered], new: Admission) -> Job | None:
    """Return the batch that came with the source key of *new* before, if there is one."""
    if new.batch is None or new.batch.source_key is None:
        return None
    return entered[new.terms.tenant, new.batch.session].seen.get(new.batch.source_key)


async def _meet_sources(tx: Transaction, catalog: Catalog, entered: Entered, keys: list[str]) -> None:
    """Find the batches that came with one of these source keys before."""
    sources = await tx.sources_seen(entered.session.number, list(dict.fromkeys(keys)))
    if not sources:
        return
    jobs = {job.seq: job for job in await tx.jobs_seen([source.seq for source in sources])}
    for source in sources:
        entered.seen[source.key] = jobs.get(source.seq) or _buried(catalog, entered.session, source)


def _buried(catalog: Catalog, session: Session, source: SourceRow) -> Job:
    """Return what is left of a batch that was deleted: who it was and how it ended, without payload and result."""
    key = route_by_number(catalog, source.route).key
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
        "turn": "",
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
        "batch_json": source.entry_json,
        "record_all": 0,
        "event_count": 0,
    }
    return Job(**gone)


# --- places --------------------------------------------------------------------------------------------------------


def place_batch(entered: Entered, new: Admission, job: Job, now: Now) -> Job:
    """Return the new *job* as the newest batch of its session, with an id of its own if the caller chose none."""
    assert new.batch is not None  # noqa: S101  # only batches come here
    entered.newest += 1
    job_id = job.id
    if new.digest is None:
        job_id = batch_id(job.tenant, new.batch.session, new.batch.source_key, now.wall_ms, nonce=job.id)
    placed = job._replace(
        id=job_id,
        session_number=entered.session.number,
        enqueue_seq=entered.newest,
        batch_json=new.batch.to_json(),
    )
    entered.fresh.append(placed)
    if new.batch.source_key is not None:
        entered.seen[new.batch.source_key] = placed
    return placed


async def write_sessions(
    tx: Transaction, catalog: Catalog, entered: Sequence[Entered], routes: dict[int, int], now: Now
) -> None:
    """Write what new batches change of their sessions; *routes* has the route of each batch by its number."""
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
    await refresh_heads(tx, catalog, waking, now)


def _source_key(job: Job) -> str | None:
    return None if job.batch is None else job.batch.source_key
