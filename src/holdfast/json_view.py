"""Convert results to JSON documents: snake_case keys, timestamps as `*_at_ms`; no lease tokens and no digests."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any, TypeAlias

from holdfast.client.async_api.enqueued import AsyncEnqueued
from holdfast.client.sync_api.enqueued import Enqueued
from holdfast.domain import strict_json
from holdfast.domain.access import AuditEntry, Token
from holdfast.domain.artifacts import Upload
from holdfast.domain.backoff import Backoff
from holdfast.domain.claims import Claim
from holdfast.domain.events import Event
from holdfast.domain.failures import Failure
from holdfast.domain.job import Attempt, Job, row_of
from holdfast.domain.kinds import Kind
from holdfast.domain.output import OutputChunk
from holdfast.domain.results import (
    ArtifactInfo,
    CancelReport,
    Finding,
    Pruned,
    Requeued,
    SessionInfo,
    Tally,
    WorkerInfo,
)
from holdfast.domain.routing import Lane
from holdfast.domain.serving import Unserved
from holdfast.domain.session_claims import SessionClaim, SessionLease
from holdfast.domain.validation import milliseconds_of
from holdfast.worker.status import WorkerStatus

Document: TypeAlias = dict[str, Any]


def job(one: Job) -> Document:
    """Return the public fields of a job."""
    return {
        "id": one.id,
        "number": one.number,
        "state": one.state,
        "kind": one.kind,
        "lane": one.lane,
        "tenant": one.tenant,
        "priority": one.priority,
        "affinity": one.affinity,
        "requires": list(one.requires),
        "payload": _stored(row_of(one).payload_json),
        "result": _stored(row_of(one).result_json),
        "failure": failure(one.failure),
        "headers": one.headers,
        "tags": one.tags,
        "enqueued_at_ms": _timestamp(one.enqueued_at),
        "due_at_ms": _timestamp(one.due_at),
        "deadline_at_ms": _timestamp(one.deadline_at),
        "started_at_ms": _timestamp(one.started_at),
        "finished_at_ms": _timestamp(one.finished_at),
        "lease_until_ms": _timestamp(one.lease_until),
        "attempt": one.attempt,
        "max_attempts": one.max_attempts,
        "backoff": backoff(one.backoff),
        "epoch": one.epoch,
        "worker": one.worker,
        "incarnation": one.incarnation,
        "outcome": one.outcome,
        "phase": one.phase,
        "percent": one.percent,
        "cancel_requested": one.cancel_requested,
        "suspect": one.suspect,
        "deferrals": one.deferrals,
        "releases": one.releases,
        "dedupe_key": one.dedupe_key,
        "dedupe_scope": _dedupe_scope(one),
        "events": "all" if row_of(one).record_all else "terminal",
        "entry": entry(one),
    }


def _stored(text: str | None) -> Any:
    """Return a payload or result as it is stored: an encoded one stays encoded."""
    return None if text is None else strict_json.decode(text)


def entry(one: Job) -> Document | None:
    """Return the session entry of a job, or None."""
    return None if one.entry is None else {**asdict(one.entry), "enqueue_seq": row_of(one).enqueue_seq}


def failure(one: Failure | None) -> Document | None:
    """Return a failure, or None."""
    if one is None:
        return None
    return {
        "class": one.failure_class,
        "reason": one.reason,
        "message": one.message,
        "traceback": one.traceback,
    }


def backoff(one: Backoff) -> Document:
    """Return the backoff settings."""
    base_ms, cap_ms = (_milliseconds(value) for value in (one.base, one.cap))
    return {"base_ms": base_ms, "factor": one.factor, "cap_ms": cap_ms, "jitter": one.jitter}


def attempt(one: Attempt) -> Document:
    """Return one attempt."""
    return {
        "epoch": one.epoch,
        "number": one.number,
        "worker": one.worker,
        "incarnation": one.incarnation,
        "started_at_ms": _timestamp(one.started_at),
        "ended_at_ms": _timestamp(one.ended_at),
        "outcome": one.outcome,
        "failure": failure(one.failure),
    }


def artifact(one: ArtifactInfo) -> Document:
    """Return the properties of an artifact, without its content."""
    return _with_timestamps(one)


def upload(one: Upload) -> Document:
    """Return an upload, without its bytes."""
    return _with_timestamps(one)


def output_chunk(one: OutputChunk) -> Document:
    """Return one chunk of a job's output."""
    return {
        "number": one.number,
        "attempt": one.attempt,
        "epoch": one.epoch,
        "at_ms": _timestamp(one.at),
        "text": one.text,
    }


def event(one: Event) -> Document:
    """Return one event, with its cursor."""
    return {
        "cursor": one.cursor,
        "name": one.name,
        "at_ms": _timestamp(one.at),
        "job_id": one.job_id,
        "number": one.number,
        "kind": one.kind,
        "lane": one.lane,
        "tenant": one.tenant,
        "tags": one.tags,
        "details": one.details,
    }


def enqueued(one: Enqueued[Any] | AsyncEnqueued[Any]) -> Document:
    """Return the job of an enqueue and whether it was created."""
    return {"created": one.created, "job": job(one.job)}


def kind(one: Kind) -> Document:
    """Return a kind with what workers published about it."""
    return {
        "name": one.name,
        "retired": one.retired,
        "retired_at_ms": _timestamp(one.retired_at),
        "published_by": one.published_by,
        "published_at_ms": _timestamp(one.published_at),
        "lane": one.lane,
        "max_attempts": one.max_attempts,
        "timeout": one.timeout,
        "session": one.session,
        "options": one.options,
        "schema": one.schema,
    }


def lane(one: Lane) -> Document:
    """Return a lane with its settings."""
    return {"name": one.name, "state": one.state, "order": one.order, "events": one.events, "backoff": one.backoff}


def requeued(one: Requeued) -> Document:
    """Return the ids of requeued jobs, and the skipped ones with the reason."""
    return {"requeued": one.requeued, "skipped": [asdict(skipped) for skipped in one.skipped]}


def cancel_report(one: CancelReport) -> Document:
    """Return the ids of cancelled jobs and of those asked to stop, and the skipped ones with the reason."""
    return {
        "cancelled": one.cancelled,
        "stop_requested": one.stop_requested,
        "skipped": [asdict(skipped) for skipped in one.skipped],
    }


def tally(one: Tally) -> Document:
    """Return the number of jobs of one kind, lane and state."""
    return asdict(one)


def pruned(one: Pruned) -> Document:
    """Return the numbers of deleted jobs and events."""
    return asdict(one)


def finding(one: Finding) -> Document:
    """Return one finding of the health report."""
    return {"name": one.name, "status": one.status, "detail": one.detail, "remedy": one.remedy}


def worker(one: WorkerInfo) -> Document:
    """Return one worker as last reported by its heartbeat."""
    return _with_timestamps(one)


def unserved(one: Unserved) -> Document:
    """Return a group of ready jobs that no live worker takes."""
    return {**asdict(one), "requires": list(one.requires)}


def token(one: Token, now: datetime) -> Document:
    """Return a token with its grants; it has no secret."""
    document = _with_timestamps(one)
    grants = document.pop("grants")
    return {**document, "state": one.state(now), **grants}


def audit_entry(one: AuditEntry) -> Document:
    """Return an entry of the audit log."""
    return _with_timestamps(one)


def claim(one: Claim) -> Document:
    """Return a job under a lease, with the three values that prove the lease."""
    return {
        "job": job(one.job),
        "epoch": one.epoch,
        "lease_token": one.lease_token,
        "lease_until_ms": _timestamp(one.lease_until),
        "acknowledged": not row_of(one.job).unacknowledged,
    }


def turn(one: SessionClaim) -> Document:
    """Return a turn with what proves its lease."""
    return {
        "session": one.session,
        "tenant": one.tenant,
        "entry_type": one.entry_type,
        "claim_id": one.claim_id,
        "fencing_token": one.fencing_token,
        "generation": one.generation,
        "lease_token": one.lease_token,
        "lease_until_ms": _timestamp(one.lease_until),
        "acknowledged": not any(row_of(entry).unacknowledged for entry in one.entries),
        "entries": [job(entry) for entry in one.entries],
    }


def session(one: SessionInfo) -> Document:
    """Return a session."""
    document = asdict(one)
    lease_until = document.pop("lease_until")
    return {**document, "lease_until_ms": _timestamp(lease_until)}


def session_lease(one: SessionLease) -> Document:
    """Return the lease of a session's owner."""
    return {
        "session": one.session,
        "tenant": one.tenant,
        "generation": one.generation,
        "worker": one.worker,
        "lease_token": one.lease_token,
        "lease_until_ms": _timestamp(one.lease_until),
    }


def worker_status(one: WorkerStatus, seconds: float) -> Document:
    """Return the status of a worker that has run for *seconds*."""
    return {
        "worker": one.worker,
        "seconds": round(seconds, 3),
        "running": len(one.running),
        "ended": one.ended,
        "draining": one.draining,
        "stopping": one.stopping,
        "abandoned": one.abandoned,
        "loaded": list(one.loaded),
        "loading": list(one.loading),
        "switches": one.switches,
    }


def _timestamp(at: datetime | None) -> int | None:
    return None if at is None else milliseconds_of(at)


def _with_timestamps(one: ArtifactInfo | AuditEntry | Token | Upload | WorkerInfo) -> Document:
    """Return the fields, timestamps as `*_at_ms`."""
    return dict(
        (f"{name}_ms", _timestamp(value)) if name.rpartition("_")[2] == "at" else (name, value)
        for name, value in asdict(one).items()
    )


def _dedupe_scope(one: Job) -> str | None:
    if one.dedupe_key is None:
        return None
    return "kind" if row_of(one).dedupe_kind else "tenant"


def _milliseconds(value: Any) -> int:
    seconds = value if isinstance(value, int | float) else value.total_seconds()
    return round(seconds * 1000)
