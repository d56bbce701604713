"""Taking batches in: each session is locked, gives its batches their places, and knows the keys it has seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from holdfast.domain.admission import Admission
from holdfast.domain.clock import Now
from holdfast.domain.job import Job
from holdfast.domain.lane import Catalog
from holdfast.domain.session import Session, batch_id
from holdfast.stores.script import OvertakenError, Row, Script, Statement
from holdfast.stores.scripts.catalog import route_by_number
from holdfast.stores.scripts.sessions import refresh_heads

SessionName: TypeAlias = tuple[str, str]
"""Tenant and name."""


@dataclass(slots=True)
class Entered:
    """One session, locked: the place of its newest batch, the batches by source key, and what was not yet written."""

    session: Session
    newest: int
    seen: dict[str, Job] = field(default_factory=dict)
    fresh: list[Job] = field(default_factory=list)


def enter_sessions(catalog: Catalog, wanted: Sequence[Admission]) -> Script[dict[SessionName, Entered]]:
    """Lock the sessions that *wanted* has batches for, in order of their numbers; make those that are new."""
    keys: dict[SessionName, list[str]] = {}
    for new in wanted:
        if new.batch is not None:
            kept = keys.setdefault((new.terms.tenant, new.batch.session), [])
            kept += [new.batch.source_key] if new.batch.source_key is not None else []
    if not keys:
        return {}
    rows = yield Statement("sessions_by_name", {"names": [list(name) for name in keys]})
    entered = {(session.tenant, session.name): _entered(session) for session in map(Session._make, rows)}
    for tenant, name in sorted(keys.keys() - entered.keys()):
        entered[tenant, name] = _entered((yield from create_session(tenant, name)))
    for session_name, source_keys in keys.items():
        if source_keys:
            yield from _meet_sources(catalog, entered[session_name], source_keys)
    return entered


def _entered(session: Session) -> Entered:
    return Entered(session, session.enqueue_seq)


def create_session(tenant: str, name: str) -> Script[Session]:
    """Store a session that is not there yet, and lock it."""
    yield Statement("session_create", {"tenant": tenant, "name": name})
    rows = yield Statement("session_by_name", {"tenant": tenant, "name": name})
    if not rows:
        raise OvertakenError(f"session {name!r} was being made by somebody else")
    return Session._make(rows[0])


# --- source keys ---------------------------------------------------------------------------------------------------


def seen_before(entered: dict[SessionName, Entered], new: Admission) -> Job | None:
    """Return the batch that came with the source key of *new* before, if there is one."""
    if new.batch is None or new.batch.source_key is None:
        return None
    return entered[new.terms.tenant, new.batch.session].seen.get(new.batch.source_key)


def _meet_sources(catalog: Catalog, entered: Entered, keys: list[str]) -> Script[None]:
    """Find the batches that came with one of these source keys before."""
    values = {"session": entered.session.number, "keys": list(dict.fromkeys(keys))}
    rows = yield Statement("sources_seen", values)
    if not rows:
        return
    found = yield Statement("jobs_seen", {"seqs": [row[1] for row in rows]})
    jobs = {job.seq: job for job in map(Job._make, found)}
    for row in rows:
        entered.seen[row[0]] = jobs.get(row[1]) or _buried(catalog, entered.session, row)


def _buried(catalog: Catalog, session: Session, row: Row) -> Job:
    """Return what is left of a batch that was deleted: who it was and how it ended, without payload and result."""
    _, seq, job_id, route, batch_json, enqueue_seq, enqueued_at_ms, state, deleted_at_ms = row
    key = route_by_number(catalog, route).key
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
        "seq": seq,
        "id": job_id,
        "state": state,
        "kind": key.kind,
        "lane": key.lane,
        "tenant": session.tenant,
        "turn": "",
        "requires_json": key.requires_json,
        "payload_json": "null",
        "headers_json": "{}",
        "tags_json": "{}",
        "enqueued_at_ms": enqueued_at_ms,
        "due_at_ms": enqueued_at_ms,
        "finished_at_ms": deleted_at_ms,
        "max_attempts": 0,
        "session_number": session.number,
        "enqueue_seq": enqueue_seq,
        "batch_json": batch_json,
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


def write_sessions(catalog: Catalog, entered: Sequence[Entered], routes: dict[int, int], now: Now) -> Script[None]:
    """Write what new batches change of their sessions; *routes* has the route of each batch by its number."""
    grown = [one for one in entered if one.fresh]
    if not grown:
        return
    yield Statement("session_enter", many=[(one.newest, one.session.number) for one in grown])
    sources = [_source(job, routes[job.seq]) for one in grown for job in one.fresh if _source_key(job) is not None]
    if sources:
        yield Statement("source_insert", many=sources)
    # A head on offer stays the head: what is new stands behind it.
    waking = [
        one.session for one in grown if one.session.head is None and any(job.state == "ready" for job in one.fresh)
    ]
    for one in grown:
        one.fresh.clear()
    yield from refresh_heads(catalog, waking, now)


def _source_key(job: Job) -> str | None:
    return None if job.batch is None else job.batch.source_key


def _source(job: Job, route: int) -> Row:
    return (
        job.session_number,
        _source_key(job),
        job.seq,
        job.id,
        route,
        job.batch_json,
        job.enqueue_seq,
        job.enqueued_at_ms,
    )
