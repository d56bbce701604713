"""Values from the JSON of the service: the inverse of `holdfast.json_view`."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final, TypeAlias

from holdfast.domain import (
    access,
    backoff as backoffs,
    events,
    gates,
    groups,
    kinds,
    output,
    results,
    schedules,
    sessions,
    strict_json,
    validation,
    webhooks,
    why as whys,
)
from holdfast.domain.claims import Claim, Renewal
from holdfast.domain.failures import Failure
from holdfast.domain.job import Attempt, Job, JobRow, job_of
from holdfast.domain.overview import AffinityFlow, FlowMinute, LaneFlow, Need, Overview, WorkerModels
from holdfast.domain.serving import Unserved

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
        backoff_json=backoffs.to_json(_backoff(one["backoff"])),
        cancel_requested=int(one["cancel_requested"]),
        suspect=int(one["suspect"]),
        failure_class=None if failed is None else failed["class"],
        failure_reason=None if failed is None else failed["reason"],
        failure_message=None if failed is None else failed["message"],
        failure_traceback=None if failed is None else failed["traceback"],
        dedupe_kind={None: None, "tenant": "", "kind": one["kind"]}[one["dedupe_scope"]],
        parent=one["parent"],
        root=None if one["parent"] is None else one["root"],
        session_number=None if entry is None else 0,
        enqueue_seq=None if entry is None else entry["enqueue_seq"],
        entry_json=None if entry is None else sessions.entry_to_json(_entry(entry)),
        record_all=int(one["events"] == "all"),
        **{name: one[name] for name in _SAME},
        **{**_HIDDEN, "lease_token": lease_token},
    )
    return job_of(row)


def _backoff(one: Document) -> backoffs.Backoff:
    return backoffs.Backoff(one["base_ms"] / 1000, one["factor"], one["cap_ms"] / 1000, one["jitter"])


def _entry(one: Document) -> sessions.SessionEntry:
    return sessions.SessionEntry(**{name: one[name] for name in sessions.SessionEntry.__slots__})


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
        validation.datetime_of(one["started_at_ms"]),
        validation.optional_datetime_of(one["ended_at_ms"]),
        one["outcome"],
        failure(one["failure"]),
    )


def claim(one: Document, lease_ms: int) -> Claim:
    """Return a job under a lease of this length."""
    return Claim(job(one["job"], one["lease_token"]), lease_ms)


def renewal(one: Document) -> Renewal:
    """Return the result of a heartbeat."""
    return Renewal(validation.datetime_of(one["lease_until_ms"]), one["cancel_requested"])


def event(one: Document) -> events.Event:
    """Return one event."""
    return events.Event(**{"at" if name == "at_ms" else name: _converted(name, value) for name, value in one.items()})


def kind(one: Document) -> kinds.Kind:
    """Return a kind."""
    return kinds.Kind(
        one["name"],
        validation.optional_datetime_of(one["retired_at_ms"]),
        one["published_by"],
        validation.optional_datetime_of(one["published_at_ms"]),
        one["lane"],
        one["max_attempts"],
        one["timeout"],
        one["session"],
        one["options"],
        one["schema"],
    )


def worker(one: Document) -> results.WorkerInfo:
    """Return one start of a worker."""
    return results.WorkerInfo(**_with_times(one))


def token(one: Document) -> access.Token:
    """Return a token."""
    granted = {field.name for field in fields(access.Grants)}
    values = _with_times(one)
    grants = access.Grants(**{name: value for name, value in values.items() if name in granted})
    return access.Token(
        **{name: value for name, value in values.items() if name not in {*granted, "state"}}, grants=grants
    )


def webhook(one: Document) -> webhooks.Webhook:
    """Return a webhook."""
    return webhooks.Webhook(**_with_all_times(one))


def delivery(one: Document) -> webhooks.Delivery:
    """Return a delivery of a webhook."""
    return webhooks.Delivery(**_with_all_times(one))


def schedule(one: Document) -> schedules.Schedule:
    """Return a schedule."""
    return schedules.Schedule(**_with_all_times(one))


def group(one: Document) -> groups.JobGroup:
    """Return a group."""
    return groups.JobGroup(**_with_all_times(one))


def limit(one: Document) -> gates.Limit:
    """Return a limit by key."""
    values: dict[str, Any] = {name: tuple(value) if type(value) is list else value for name, value in one.items()}
    return gates.Limit(**values)


def key_use(one: Document) -> gates.KeyUse:
    """Return the use of a limit by a key."""
    return gates.KeyUse(**_with_all_times(one))


def why(one: Document) -> whys.Why:
    """Return why a job is in its state."""
    reasons = tuple(
        whys.Reason(
            reason["code"],
            reason["text"],
            reason["blocks"],
            validation.optional_datetime_of(reason["until_ms"]),
            reason["detail"],
        )
        for reason in one["reasons"]
    )
    return whys.Why(one["job_id"], one["state"], one["summary"], reasons)


def _with_all_times(one: Document) -> dict[str, Any]:
    times = {
        name.removesuffix("_ms"): validation.optional_datetime_of(value)
        for name, value in one.items()
        if name.endswith("_ms")
    }
    return times | {name: _converted(name, value) for name, value in one.items() if not name.endswith("_ms")}


def artifact(one: Document) -> results.ArtifactInfo:
    """Return the properties of an artifact."""
    return results.ArtifactInfo(**_with_times(one))


def output_chunk(one: Document) -> output.OutputChunk:
    """Return one chunk of a job's output."""
    return output.OutputChunk(
        one["number"], one["attempt"], one["epoch"], validation.datetime_of(one["at_ms"]), one["text"]
    )


def requeued(one: Document) -> results.Requeued:
    """Return the result of requeueing many jobs."""
    return results.Requeued(one["requeued"], [results.Skipped(**skipped) for skipped in one["skipped"]])


def cancel_report(one: Document) -> results.CancelReport:
    """Return the result of cancelling many jobs."""
    return results.CancelReport(
        one["cancelled"], one["stop_requested"], [results.Skipped(**skipped) for skipped in one["skipped"]]
    )


def backlog(one: Document) -> results.Backlog:
    """Return the backlog."""
    return results.Backlog(**{**one, "ready": tuple(results.Waiting(**waiting) for waiting in one["ready"])})


def overview(one: Document) -> Overview:
    """Return the overview."""
    parts = {
        "needs": tuple(Need(**_with_times(need)) for need in one["needs"]),
        "flow": tuple(FlowMinute(**_with_times(minute)) for minute in one["flow"]),
        "lanes": tuple(LaneFlow(**lane) for lane in one["lanes"]),
        "workers": tuple(worker(start) for start in one["workers"]),
        "models": tuple(WorkerModels(**_with_times(each)) for each in one["models"]),
        "affinities": tuple(AffinityFlow(**_with_times(each)) for each in one["affinities"]),
    }
    return Overview(**{**_with_times(one), **parts})


def failure_pattern(one: Document) -> results.FailurePattern:
    """Return jobs that failed in the same way."""
    return results.FailurePattern(**_with_times(one))


def unserved(one: Document) -> Unserved:
    """Return a group of ready jobs that no live worker takes."""
    return Unserved(**{**one, "requires": tuple(one["requires"])})


def _with_times(one: Document) -> dict[str, Any]:
    return {
        name.removesuffix("_ms") if name.endswith("at_ms") else name: _converted(name, value)
        for name, value in one.items()
    }


def _converted(name: str, value: Any) -> Any:
    if name.endswith("at_ms"):
        return validation.optional_datetime_of(value)
    return tuple(value) if isinstance(value, list) else value
