"""Values from the JSON of the service: the inverse of `holdfast.json_view`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from holdfast.domain import strict_json
from holdfast.domain.backoff import Backoff
from holdfast.domain.claims import Claim, Renewal
from holdfast.domain.events import Event
from holdfast.domain.failures import Failure
from holdfast.domain.job import Attempt, Job, JobRow
from holdfast.domain.kinds import Kind
from holdfast.domain.output import OutputChunk
from holdfast.domain.results import ArtifactInfo, Backlog, CancelReport, Requeued, Skipped, Waiting, WorkerInfo
from holdfast.domain.serving import Unserved
from holdfast.domain.sessions import SessionEntry
from holdfast.domain.validation import datetime_of, optional_datetime_of

Document: TypeAlias = Mapping[str, Any]

# The columns of a job that the service does not show, because nothing but the store uses them.
_HIDDEN: Final[Mapping[str, Any]] = {
    "fair_key": "",
    "lease_token": None,
    "claim_index": None,
    "settle_digest": None,
    "unacknowledged": 0,
    "deferred_since_ms": None,
    "predecessor": None,
    "digest": None,
    "event_count": 0,
}
# The columns that have the same name and form in JSON.
_SAME: Final = (
    "id",
    "state",
    "kind",
    "lane",
    "tenant",
    "priority",
    "affinity",
    "enqueued_at_ms",
    "due_at_ms",
    "deadline_at_ms",
    "started_at_ms",
    "finished_at_ms",
    "lease_until_ms",
    "attempt",
    "max_attempts",
    "epoch",
    "worker",
    "incarnation",
    "outcome",
    "phase",
    "percent",
    "deferrals",
    "releases",
    "dedupe_key",
)


def job(one: Document, lease_token: str | None = None) -> Job:
    """Return a job; *lease_token* is that of the claim which the caller holds."""
    failed, entry = one["failure"], one["entry"]
    row = JobRow(
        seq=one["number"],
        requires_json=strict_json.compact(one["requires"]),
        payload_json=strict_json.compact(one["payload"]),
        headers_json=strict_json.compact(one["headers"]),
        tags_json=strict_json.compact(one["tags"]),
        result_json=strict_json.compact(one["result"]) if one["state"] == "done" else None,
        backoff_json=_backoff(one["backoff"]).to_json(),
        cancel_requested=int(one["cancel_requested"]),
        suspect=int(one["suspect"]),
        failure_class=None if failed is None else failed["class"],
        failure_reason=None if failed is None else failed["reason"],
        failure_message=None if failed is None else failed["message"],
        failure_traceback=None if failed is None else failed["traceback"],
        dedupe_kind={None: None, "tenant": "", "kind": one["kind"]}[one["dedupe_scope"]],
        session_number=None if entry is None else 0,
        enqueue_seq=None if entry is None else entry["enqueue_seq"],
        entry_json=None if entry is None else _entry(entry).to_json(),
        record_all=int(one["events"] == "all"),
        **{name: one[name] for name in _SAME},
        **{**_HIDDEN, "lease_token": lease_token},
    )
    return Job(row)


def _backoff(one: Document) -> Backoff:
    return Backoff(one["base_ms"] / 1000, one["factor"], one["cap_ms"] / 1000, one["jitter"])


def _entry(one: Document) -> SessionEntry:
    return SessionEntry(**{name: one[name] for name in SessionEntry.__slots__})


def failure(one: Document | None) -> Failure | None:
    """Return a failure, or None."""
    return None if one is None else Failure(one["class"], one["reason"], one["message"], one["traceback"])


def attempt(one: Document) -> Attempt:
    """Return one attempt."""
    return Attempt(
        one["epoch"],
        one["number"],
        one["worker"],
        one["incarnation"],
        datetime_of(one["started_at_ms"]),
        optional_datetime_of(one["ended_at_ms"]),
        one["outcome"],
        failure(one["failure"]),
    )


def claim(one: Document, lease_ms: int) -> Claim:
    """Return a job under a lease of this length."""
    return Claim(job(one["job"], one["lease_token"]), lease_ms)


def renewal(one: Document) -> Renewal:
    """Return the result of a heartbeat."""
    return Renewal(datetime_of(one["lease_until_ms"]), one["cancel_requested"])


def event(one: Document) -> Event:
    """Return one event."""
    return Event(**{"at" if name == "at_ms" else name: _converted(name, value) for name, value in one.items()})


def kind(one: Document) -> Kind:
    """Return a kind."""
    return Kind(
        one["name"],
        optional_datetime_of(one["retired_at_ms"]),
        one["published_by"],
        optional_datetime_of(one["published_at_ms"]),
        one["lane"],
        one["max_attempts"],
        one["timeout"],
        one["session"],
        one["options"],
        one["schema"],
    )


def worker(one: Document) -> WorkerInfo:
    """Return one start of a worker."""
    return WorkerInfo(**_with_times(one))


def artifact(one: Document) -> ArtifactInfo:
    """Return the properties of an artifact."""
    return ArtifactInfo(**_with_times(one))


def output_chunk(one: Document) -> OutputChunk:
    """Return one chunk of a job's output."""
    return OutputChunk(one["number"], one["attempt"], one["epoch"], datetime_of(one["at_ms"]), one["text"])


def requeued(one: Document) -> Requeued:
    """Return the result of requeueing many jobs."""
    return Requeued(one["requeued"], [Skipped(**skipped) for skipped in one["skipped"]])


def cancel_report(one: Document) -> CancelReport:
    """Return the result of cancelling many jobs."""
    return CancelReport(one["cancelled"], one["stop_requested"], [Skipped(**skipped) for skipped in one["skipped"]])


def backlog(one: Document) -> Backlog:
    """Return the backlog."""
    return Backlog(**{**one, "ready": tuple(Waiting(**waiting) for waiting in one["ready"])})


def unserved(one: Document) -> Unserved:
    """Return a group of ready jobs that no live worker takes."""
    return Unserved(**{**one, "requires": tuple(one["requires"])})


def _with_times(one: Document) -> dict[str, Any]:
    return {
        name.removesuffix("_ms") if name.endswith("_at_ms") else name: _converted(name, value)
        for name, value in one.items()
    }


def _converted(name: str, value: Any) -> Any:
    if name.endswith("at_ms"):
        return optional_datetime_of(value)
    return tuple(value) if isinstance(value, list) else value
