"""Convert results to JSON documents: snake_case keys, timestamps as `*_at_ms`; no lease tokens and no digests."""

from dataclasses import asdict
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, TypeAlias

from holdfast.client.async_api.enqueued import AsyncEnqueued
from holdfast.client.sync_api.enqueued import Enqueued
from holdfast.domain import (
    access,
    artifacts,
    backoff as backoff_settings,
    events,
    gates,
    groups,
    kinds,
    limits,
    output,
    results,
    routing,
    schedules,
    session_claims,
    strict_json,
    validation,
    webhooks,
    why as whys,
)
from holdfast.domain.backoff import Backoff
from holdfast.domain.claims import Claim, fence_of
from holdfast.domain.failures import Failure
from holdfast.domain.job import SYSTEM_LANE, Attempt, Job, columns_of, row_of, shown_payload
from holdfast.domain.lazy_rows import LazyRow, UsualColumns
from holdfast.domain.overview import FlowMinute, Need, Overview, WorkerModels
from holdfast.domain.serving import Unserved
from holdfast.domain.strict_json import quoted
from holdfast.worker.status import WorkerStatus

Document: TypeAlias = dict[str, Any]


def job(one: Job) -> Document:
    """Return the public fields of a job."""
    document: Document = strict_json.decode(job_text(one))
    return document


def job_text(one: Job) -> str:
    """Return the public fields of a job as JSON text.

    Payload, result and tags are stored as JSON and are copied without being parsed, because the service returns many
    jobs. A payload or result that a codec has encoded stays encoded.
    """
    columns = columns_of(one)
    if isinstance(columns, LazyRow) and (usual := columns.usual()) is not None and usual.lane != SYSTEM_LANE:
        return _usual_text(usual)
    row = row_of(one)
    # Unpacked in the order of the columns: with this many, reading attributes would take a third of the time.
    number, job_id, state, kind, lane, tenant, _, priority, affinity, requires, payload, headers, tags = row[:13]
    result, enqueued_at_ms, due_at_ms, deadline_at_ms, finished_at_ms, attempt, max_attempts, pauses = row[13:21]
    epoch, worker, incarnation, _, lease_until_ms, _, started_at_ms, outcome, _, phase, percent, _ = row[21:33]
    cancel_requested, suspect, deferrals, _, releases, failure_class, *_ = row[33:42]
    dedupe_key, dedupe_kind, _, _, parent, root, _, _, entry_json, record_all, _ = row[42:]
    null = "null"
    changes = _UNCHANGED_TEXT
    if (phase, percent, cancel_requested, suspect, deferrals, releases, dedupe_key) != _UNCHANGED:
        changes = (
            f',"phase":{null if phase is None else quoted(phase)},"percent":{null if percent is None else percent}'
            f',"cancel_requested":{_flag(cancel_requested)},"suspect":{_flag(suspect)}'
            f',"deferrals":{deferrals},"releases":{releases}'
            f',"dedupe_key":{null if dedupe_key is None else quoted(dedupe_key)}'
            f',"dedupe_scope":{null if dedupe_key is None else _DEDUPE_SCOPES[bool(dedupe_kind)]}'
        )
    return (
        f'{{"id":{quoted(job_id)},"number":{number}'
        f"{_place(state, kind, lane, tenant, priority, affinity, requires)}"
        f',"payload":{shown_payload(row) if lane == SYSTEM_LANE else payload}'
        f',"result":{null if result is None else result}'
        f',"failure":{null if failure_class is None else strict_json.compact(failure(row.failure))}'
        f',"headers":{headers},"tags":{tags},"enqueued_at_ms":{enqueued_at_ms},"due_at_ms":{due_at_ms}'
        f',"deadline_at_ms":{null if deadline_at_ms is None else deadline_at_ms}'
        f',"started_at_ms":{null if started_at_ms is None else started_at_ms}'
        f',"finished_at_ms":{null if finished_at_ms is None else finished_at_ms}'
        f',"lease_until_ms":{null if lease_until_ms is None else lease_until_ms}'
        f',"attempt":{attempt},"max_attempts":{max_attempts},"backoff":{_backoff(pauses)},"epoch":{epoch}'
        f"{_holder(worker, incarnation, outcome)}{changes}"
        f',"events":"{"all" if record_all else "terminal"}","parent":{null if parent is None else quoted(parent)}'
        f',"root":{quoted(root or job_id)}'
        f',"entry":{null if entry_json is None else strict_json.compact(entry(one))}}}'
    )


def _usual_text(usual: UsualColumns) -> str:
    """Return the same text of a job with the usual values, without making its row."""
    seq, job_id, state, kind, lane, tenant, priority, requires, payload, result, enqueued_at_ms, *attempt = usual
    shown_id = quoted(job_id)
    return (
        f'{{"id":{shown_id},"number":{seq}{_place(state, kind, lane, tenant, priority, None, requires)}'
        f',"payload":{payload},"result":{"null" if result is None else result}'
        f',"failure":null,"headers":{{}},"tags":{{}},"enqueued_at_ms":{enqueued_at_ms},"due_at_ms":{enqueued_at_ms}'
        f"{_usual_attempt(*attempt)}{shown_id}"
        ',"entry":null}'
    )


@lru_cache(1_000)
def _usual_attempt(
    started_at_ms: int | None,
    finished_at_ms: int | None,
    lease_until_ms: int | None,
    epoch: int,
    worker: str | None,
    incarnation: str | None,
    outcome: str | None,
) -> str:
    """Return the text from the deadline to the root; jobs of one claim have the same."""
    times = {
        "deadline_at_ms": None,
        "started_at_ms": started_at_ms,
        "finished_at_ms": finished_at_ms,
        "lease_until_ms": lease_until_ms,
    }
    return (
        f",{strict_json.compact(times)[1:-1]}"
        f',"attempt":{epoch},"max_attempts":{limits.MAX_ATTEMPTS_DEFAULT},"backoff":{_backoff(None)},"epoch":{epoch}'
        f'{_holder(worker, incarnation, outcome)}{_UNCHANGED_TEXT},"events":"terminal","parent":null,"root":'
    )


# Phase, percent, cancel_requested, suspect, deferrals, releases and dedupe key of most jobs, and their text.
_UNCHANGED: Final = (None, None, 0, 0, 0, 0, None)
_UNCHANGED_TEXT: Final = (
    ',"phase":null,"percent":null,"cancel_requested":false,"suspect":false,"deferrals":0,"releases":0'
    ',"dedupe_key":null,"dedupe_scope":null'
)


@lru_cache(1_000)
def _place(state: str, kind: str, lane: str, tenant: str, priority: int, affinity: str | None, requires: str) -> str:
    """Return where a job belongs, as the part of its text; many jobs have the same."""
    return (
        f',"state":"{state}","kind":{quoted(kind)},"lane":{quoted(lane)},"tenant":{quoted(tenant)}'
        f',"priority":{priority},"affinity":{"null" if affinity is None else quoted(affinity)},"requires":{requires}'
    )


@lru_cache(1_000)
def _holder(worker: str | None, incarnation: str | None, outcome: str | None) -> str:
    """Return who holds or has held a job, and how its last attempt ended, as the part of its text."""
    shown = {"worker": worker, "incarnation": incarnation, "outcome": outcome}
    return "," + strict_json.compact(shown)[1:-1]


_DEDUPE_SCOPES: Final = ('"tenant"', '"kind"')


def _flag(value: object) -> str:
    return "true" if value else "false"


@lru_cache(100)
def _backoff(text: str | None) -> str:
    return strict_json.compact(
        backoff(backoff_settings.DEFAULT if text is None else backoff_settings.from_json(text))
    )


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


def artifact(one: results.ArtifactInfo) -> Document:
    """Return the properties of an artifact, without its content."""
    return _with_timestamps(one)


def upload(one: artifacts.Upload) -> Document:
    """Return an upload, without its bytes."""
    return _with_timestamps(one)


def output_chunk(one: output.OutputChunk) -> Document:
    """Return one chunk of a job's output."""
    return {
        "number": one.number,
        "attempt": one.attempt,
        "epoch": one.epoch,
        "at_ms": _timestamp(one.at),
        "text": one.text,
    }


def event(one: events.Event) -> Document:
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


def enqueued_text(one: Enqueued[Any] | AsyncEnqueued[Any] | results.StoredJob) -> str:
    """Return what `enqueued` does, as JSON text."""
    return f'{{"created":{_flag(one.created)},"job":{job_text(one.job)}}}'


def kind(one: kinds.Kind) -> Document:
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


def lane(one: routing.Lane) -> Document:
    """Return a lane with its settings."""
    return asdict(one)


def requeued(one: results.Requeued) -> Document:
    """Return the ids of requeued jobs, and the skipped ones with the reason."""
    return {"requeued": one.requeued, "skipped": [asdict(skipped) for skipped in one.skipped]}


def cancel_report(one: results.CancelReport) -> Document:
    """Return the ids of cancelled jobs and of those asked to stop, and the skipped ones with the reason."""
    return {
        "cancelled": one.cancelled,
        "stop_requested": one.stop_requested,
        "skipped": [asdict(skipped) for skipped in one.skipped],
    }


def tally(one: results.Tally) -> Document:
    """Return the number of jobs of one kind, lane and state."""
    return asdict(one)


def pruned(one: results.Pruned) -> Document:
    """Return the numbers of deleted jobs and events."""
    return asdict(one)


def finding(one: results.Finding) -> Document:
    """Return one finding of the health report."""
    return {"name": one.name, "status": one.status, "detail": one.detail, "remedy": one.remedy}


def overview(one: Overview) -> Document:
    """Return the overview."""
    document = asdict(one)
    return {
        "at_ms": _timestamp(document.pop("at")),
        **document,
        "needs": [_with_timestamps(need) for need in one.needs],
        "flow": [_with_timestamps(minute) for minute in one.flow],
        "workers": [worker(start) for start in one.workers],
        "models": [_with_timestamps(each) for each in one.models],
    }


def failure_pattern(one: results.FailurePattern) -> Document:
    """Return jobs that failed in the same way."""
    return _with_timestamps(one)


def worker(one: results.WorkerInfo) -> Document:
    """Return one worker as last reported by its heartbeat."""
    return _with_timestamps(one)


def unserved(one: Unserved) -> Document:
    """Return a group of ready jobs that no live worker takes."""
    return {**asdict(one), "requires": list(one.requires)}


def token(one: access.Token, now: datetime) -> Document:
    """Return a token with its grants; it has no secret."""
    document = _with_timestamps(one)
    grants = document.pop("grants")
    return {**document, "state": one.state(now), **grants}


def webhook(one: webhooks.Webhook) -> Document:
    """Return a webhook; it has no secret."""
    document = asdict(one)
    for name in ("created_at", "since", "last_success_at", "failing_since", "closed_until"):
        document[f"{name}_ms"] = _timestamp(document.pop(name))
    return document


def schedule(one: schedules.Schedule) -> Document:
    """Return a schedule."""
    return _with_timestamps(one)


def group(one: groups.JobGroup) -> Document:
    """Return a group."""
    return _with_timestamps(one)


def limit(one: gates.Limit) -> Document:
    """Return a limit by key."""
    return asdict(one)


def key_use(one: gates.KeyUse) -> Document:
    """Return the use of a limit by a key."""
    return _with_timestamps(one)


def why(one: whys.Why) -> Document:
    """Return why a job is in its state."""
    reasons = [
        {
            "code": reason.code,
            "text": reason.text,
            "blocks": reason.blocks,
            "until_ms": _timestamp(reason.until),
            "detail": dict(reason.detail),
        }
        for reason in one.reasons
    ]
    return {"job_id": one.job_id, "state": one.state, "summary": one.summary, "reasons": reasons}


def delivery(one: webhooks.Delivery) -> Document:
    """Return a delivery of a webhook."""
    document = asdict(one)
    for name in ("created_at", "next_try_at"):
        document[f"{name}_ms"] = _timestamp(document.pop(name))
    return document


def audit_entry(one: access.AuditEntry) -> Document:
    """Return an entry of the audit log."""
    return _with_timestamps(one)


def claim_text(one: Claim) -> str:
    """Return a job under a lease, with the three values that prove the lease, as JSON text."""
    columns, fence = columns_of(one.job), fence_of(one)
    return (
        f'{{"job":{job_text(one.job)},"epoch":{fence.epoch},"lease_token":{quoted(fence.lease_token)}'
        f',"lease_until_ms":{columns.lease_until_ms or "null"},"acknowledged":{_flag(not columns.unacknowledged)}}}'
    )


def turn(one: session_claims.SessionClaim) -> Document:
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


def session(one: results.SessionInfo) -> Document:
    """Return a session."""
    document = asdict(one)
    lease_until = document.pop("lease_until")
    return {**document, "lease_until_ms": _timestamp(lease_until)}


def session_lease(one: session_claims.SessionLease) -> Document:
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
    return None if at is None else validation.milliseconds_of(at)


def _with_timestamps(
    one: results.ArtifactInfo
    | access.AuditEntry
    | access.Token
    | artifacts.Upload
    | FlowMinute
    | Need
    | WorkerModels
    | results.FailurePattern
    | results.WorkerInfo
    | schedules.Schedule
    | groups.JobGroup
    | gates.KeyUse,
) -> Document:
    """Return the fields, timestamps as `*_at_ms`."""
    return dict(
        (f"{name}_ms", _timestamp(value)) if name.rpartition("_")[2] == "at" else (name, value)
        for name, value in asdict(one).items()
    )


def _milliseconds(value: Any) -> int:
    seconds = value if isinstance(value, int | float) else value.total_seconds()
    return round(seconds * 1000)
