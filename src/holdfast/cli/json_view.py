"""How things look as JSON: snake_case, moments as `*_at_ms`, bodies decoded. Lease tokens and digests stay inside."""

from __future__ import annotations

from typing import Any, TypeAlias

from holdfast import (
    ArtifactInfo,
    Attempt,
    Backoff,
    CancelReport,
    Enqueued,
    Event,
    Failure,
    Finding,
    Job,
    Lane,
    Pruned,
    Requeued,
    Tally,
    Unserved,
    WorkerInfo,
    WorkerStatus,
)

Document: TypeAlias = dict[str, Any]


def job(one: Job) -> Document:
    """Return all of a job that others may see."""
    return {
        "id": one.id,
        "number": one.seq,
        "state": one.state,
        "kind": one.kind,
        "lane": one.lane,
        "tenant": one.tenant,
        "priority": one.priority,
        "affinity": one.affinity,
        "requires": list(one.requires),
        "payload": one.payload,
        "result": one.result,
        "failure": failure(one.failure),
        "headers": one.headers,
        "tags": one.tags,
        "enqueued_at_ms": one.enqueued_at_ms,
        "due_at_ms": one.due_at_ms,
        "deadline_at_ms": one.deadline_at_ms,
        "started_at_ms": one.started_at_ms,
        "finished_at_ms": one.finished_at_ms,
        "attempt": one.attempt,
        "max_attempts": one.max_attempts,
        "backoff": backoff(one.backoff),
        "epoch": one.epoch,
        "worker": one.worker,
        "incarnation": one.incarnation,
        "outcome": one.outcome,
        "phase": one.phase,
        "percent": one.percent,
        "cancel_requested": bool(one.cancel_requested),
        "suspect": bool(one.suspect),
        "deferrals": one.deferrals,
        "releases": one.releases,
        "dedupe_key": one.dedupe_key,
        "dedupe_scope": _dedupe_scope(one),
        "events": "all" if one.record_all else "terminal",
        "entry": entry(one),
    }


def entry(one: Job) -> Document | None:
    """Return what makes a job an entry of a session, or nothing where it is none."""
    return None if one.entry is None else {**one.entry._asdict(), "enqueue_seq": one.enqueue_seq}


def failure(one: Failure | None) -> Document | None:
    """Return a failure, or nothing where there is none."""
    if one is None:
        return None
    return {
        "class": one.failure_class,
        "reason": one.reason,
        "message": one.message,
        "traceback": one.traceback,
    }


def backoff(one: Backoff) -> Document:
    """Return the pauses between attempts."""
    base_ms, cap_ms = (_milliseconds(value) for value in (one.base, one.cap))
    return {"base_ms": base_ms, "factor": one.factor, "cap_ms": cap_ms, "jitter": one.jitter}


def attempt(one: Attempt) -> Document:
    """Return one attempt."""
    return {
        "epoch": one.epoch,
        "number": one.number,
        "worker": one.worker,
        "incarnation": one.incarnation,
        "started_at_ms": one.started_at_ms,
        "ended_at_ms": one.ended_at_ms,
        "outcome": one.outcome,
        "failure": failure(one.failure),
    }


def artifact(one: ArtifactInfo) -> Document:
    """Return what is known of an artifact, without its bytes."""
    return dict(one._asdict())


def event(one: Event) -> Document:
    """Return one event with the cursor to read on from."""
    return {
        "cursor": one.cursor,
        "name": one.name,
        "at_ms": one.at_ms,
        "job_id": one.job_id,
        "number": one.number,
        "kind": one.kind,
        "lane": one.lane,
        "tenant": one.tenant,
        "tags": one.tags,
        "details": one.details,
    }


def enqueued(one: Enqueued) -> Document:
    """Return the job an enqueue led to and whether it is new."""
    return {"created": one.created, "job": job(one.job)}


def lane(one: Lane) -> Document:
    """Return a lane and how it is set."""
    return {"name": one.name, "state": one.state, "order": one.order, "events": one.events, "backoff": one.backoff}


def requeued(one: Requeued) -> Document:
    """Return which jobs were requeued and which were skipped, with the reason."""
    return {"requeued": one.requeued, "skipped": [dict(skipped._asdict()) for skipped in one.skipped]}


def cancel_report(one: CancelReport) -> Document:
    """Return which jobs were cancelled, which were asked to stop, and which were skipped, with the reason."""
    return {
        "cancelled": one.cancelled,
        "asked": one.asked,
        "skipped": [dict(skipped._asdict()) for skipped in one.skipped],
    }


def tally(one: Tally) -> Document:
    """Return how many jobs of a kind in a lane are in one state."""
    return dict(one._asdict())


def pruned(one: Pruned) -> Document:
    """Return how much was deleted."""
    return dict(one._asdict())


def finding(one: Finding) -> Document:
    """Return one thing the doctor looked at."""
    return {"name": one.name, "status": one.status, "says": one.says, "remedy": one.remedy}


def worker(one: WorkerInfo) -> Document:
    """Return one start of a worker, as it last said of itself."""
    return dict(one._asdict())


def unserved(one: Unserved) -> Document:
    """Return ready jobs that no live worker takes."""
    return {**one._asdict(), "requires": list(one.requires)}


def worker_status(one: WorkerStatus, seconds: float) -> Document:
    """Return what a worker has done in so many seconds, and how much it has in its hands."""
    return {
        "worker": one.worker,
        "seconds": round(seconds, 3),
        "running": len(one.running),
        "ended": one.ended,
        "stopping": one.stopping,
        "abandoned": one.abandoned,
        "loaded": list(one.loaded),
        "loading": list(one.loading),
        "switches": one.switches,
    }


def _dedupe_scope(one: Job) -> str | None:
    if one.dedupe_key is None:
        return None
    return "kind" if one.dedupe_kind else "tenant"


def _milliseconds(value: Any) -> int:
    seconds = value if isinstance(value, int | float) else value.total_seconds()
    return round(seconds * 1000)
