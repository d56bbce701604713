"""The job: one durable request for work, as stored.

`Job` is a named tuple because it is made from a row, once for every job claimed, settled or listed, which makes its
construction performance-critical. Its fields are the stored form (JSON as text, times as milliseconds); its
properties are the decoded form.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from holdfast.domain import backoff, failures, strict_json
from holdfast.domain.backoff import Backoff
from holdfast.domain.failures import Failure, FailureClass
from holdfast.domain.sessions import SessionEntry
from holdfast.domain.strict_json import Json
from holdfast.domain.validation import datetime_of

State: TypeAlias = Literal["scheduled", "blocked", "ready", "running", "done", "failed", "cancelled", "retired"]
AttemptOutcome: TypeAlias = Literal["done", "failed", "deferred", "released", "expired", "cancelled"]

WAITING: Final[tuple[State, ...]] = ("scheduled", "blocked", "ready")
HOLDING_KEY: Final[tuple[State, ...]] = ("scheduled", "ready", "running")
FINISHED: Final[tuple[State, ...]] = ("done", "failed", "cancelled", "retired")
STATES: Final[tuple[State, ...]] = (*WAITING, "running", *FINISHED)


class Job(NamedTuple):
    """One job. The row contains its newest attempt; earlier ones are stored separately (see `Attempt`)."""

    seq: int
    """Position in enqueue order; never reused."""
    id: str
    state: State
    kind: str
    lane: str
    tenant: str
    fair_key: str
    """The key for fairness in the lane: the tenant in a fair lane, empty in a strict one."""
    priority: int
    affinity: str | None
    requires_json: str
    payload_json: str
    headers_json: str
    tags_json: str
    result_json: str | None
    enqueued_at_ms: int
    due_at_ms: int
    deadline_at_ms: int | None
    finished_at_ms: int | None
    attempt: int
    """Attempts used, including the running one."""
    max_attempts: int
    backoff_json: str | None
    epoch: int
    """Incremented by every claim and never decremented: a fencing token for the handler's own writes."""
    worker: str | None
    incarnation: str | None
    lease_token: str | None
    lease_until_ms: int | None
    """When the lease expires, by the store's lease clock."""
    claim_index: int | None
    """Its index among the jobs of the newest claim."""
    started_at_ms: int | None
    outcome: AttemptOutcome | None
    """How the newest attempt ended; None while it runs."""
    settle_digest: str | None
    phase: str | None
    percent: float | None
    unacknowledged: int
    """How many claims in a row were not acknowledged, including the newest; 0 once it is acknowledged or settled."""
    cancel_requested: int
    suspect: int
    """1 if the last attempt expired: the job may have killed its worker."""
    deferrals: int
    deferred_since_ms: int | None
    releases: int
    failure_class: FailureClass | None
    failure_reason: str | None
    failure_message: str | None
    failure_traceback: str | None
    dedupe_key: str | None
    dedupe_kind: str | None
    """The kind within which the key is unique, or empty if it is unique within the tenant."""
    predecessor: int | None
    """The `seq` of the job that a blocked job waits for."""
    digest: bytes | None
    """Digest of the caller's arguments, stored if the caller chose the id."""
    session_number: int | None
    """The number of the session it is an entry of; None for all other jobs, like the next two."""
    enqueue_seq: int | None
    """Its position in the session."""
    entry_json: str | None
    record_all: int
    """1 if every transition is recorded as an event, not only the final one."""
    event_count: int

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.kind} {self.state}, attempt {self.attempt} of {self.max_attempts}>"

    @property
    def payload(self) -> Json:
        """The payload, decoded at each access; the caller may modify it."""
        return strict_json.decode(self.payload_json)

    @property
    def result(self) -> Json:
        """The result of a done job, else None."""
        return None if self.result_json is None else strict_json.decode(self.result_json)

    @property
    def headers(self) -> dict[str, str]:
        """Small strings for programs, such as a trace context."""
        headers: dict[str, str] = strict_json.decode(self.headers_json)
        return headers

    @property
    def tags(self) -> dict[str, str]:
        """Small strings for users and filters; copied into events."""
        tags: dict[str, str] = strict_json.decode(self.tags_json)
        return tags

    @property
    def requires(self) -> tuple[str, ...]:
        """Capabilities that a worker must have."""
        return tuple(strict_json.decode(self.requires_json))

    @property
    def entry(self) -> SessionEntry | None:
        """The session entry, if the job is one."""
        return None if self.entry_json is None else SessionEntry.from_json(self.entry_json)

    @property
    def session(self) -> str | None:
        """The session it is an entry of, if any."""
        return None if self.entry is None else self.entry.session

    @property
    def messages(self) -> list[Json]:
        """The messages of a session entry; of one message, and of any other job, the payload."""
        payload = self.payload
        return payload if self.entry is not None and self.entry.messages is not None else [payload]

    @property
    def backoff(self) -> Backoff:
        """The pauses between attempts."""
        return backoff.DEFAULT if self.backoff_json is None else Backoff.from_json(self.backoff_json)

    @property
    def failure(self) -> Failure | None:
        """The newest failure, even while a further attempt waits or runs."""
        return _failure(self)

    @property
    def finished(self) -> bool:
        """Whether the job has reached a final state."""
        return self.state in FINISHED

    def attempted(
        self,
        *,
        worker: str,
        incarnation: str,
        lease_token: str,
        lease_until_ms: int,
        claim_index: int,
        now_ms: int,
        acknowledged: bool = True,
    ) -> Job:
        """Return the job with a new attempt running, with its holder and no other data."""
        unacknowledged = 0 if acknowledged else self.unacknowledged + 1
        holder = (worker, incarnation, lease_token, lease_until_ms, claim_index, now_ms)
        attempt = (*holder, None, None, None, None, unacknowledged)
        # By index, because this runs once for every claim: the fields of an earlier attempt are adjacent.
        known, between, rest = self[3:_ATTEMPT], self[_ATTEMPT + 1 : _EPOCH], self[_UNACKNOWLEDGED + 1 :]
        head = (self.seq, self.id, "running", *known, self.attempt + 1, *between, self.epoch + 1)
        return tuple.__new__(Job, (*head, *attempt, *rest))

    def counting_event(self) -> Job:
        """Return the job with one more recorded event."""
        # The count is the last field, which makes this cheap; it runs once for every finished job.
        return tuple.__new__(Job, (*self[:-1], self.event_count + 1))

    @property
    def enqueued_at(self) -> datetime:
        """When it was enqueued."""
        return datetime_of(self.enqueued_at_ms)

    @property
    def due_at(self) -> datetime:
        """The earliest time at which it may be claimed."""
        return datetime_of(self.due_at_ms)

    @property
    def deadline_at(self) -> datetime | None:
        """The time by which it must have been started."""
        return None if self.deadline_at_ms is None else datetime_of(self.deadline_at_ms)

    @property
    def started_at(self) -> datetime | None:
        """When the newest attempt started."""
        return None if self.started_at_ms is None else datetime_of(self.started_at_ms)

    @property
    def finished_at(self) -> datetime | None:
        """When it finished."""
        return None if self.finished_at_ms is None else datetime_of(self.finished_at_ms)


_INDEXES: Final = {name: index for index, name in enumerate(Job._fields)}
_ATTEMPT, _EPOCH, _UNACKNOWLEDGED = _INDEXES["attempt"], _INDEXES["epoch"], _INDEXES["unacknowledged"]


def _replace(job: Job, /, **changes: Any) -> Job:
    fields = list(job)
    for name, value in changes.items():
        fields[_INDEXES[name]] = value
    return tuple.__new__(Job, fields)


# The generated `_replace` looks up every field by name; with this many fields that takes three times as long.
Job._replace = _replace  # type: ignore[method-assign, assignment]


class Attempt(NamedTuple):
    """One run of a job under one epoch; a running attempt has no end and no outcome."""

    epoch: int
    number: int
    worker: str
    incarnation: str
    started_at_ms: int
    ended_at_ms: int | None
    outcome: AttemptOutcome | None
    failure_class: FailureClass | None
    failure_reason: str | None
    failure_message: str | None
    failure_traceback: str | None

    @property
    def failure(self) -> Failure | None:
        """Why it failed, if it did."""
        return _failure(self)

    @property
    def started_at(self) -> datetime:
        """When it started."""
        return datetime_of(self.started_at_ms)

    @property
    def ended_at(self) -> datetime | None:
        """When it ended."""
        return None if self.ended_at_ms is None else datetime_of(self.ended_at_ms)


def _failure(row: Job | Attempt) -> Failure | None:
    if row.failure_class is None:
        return None
    return Failure(row.failure_class, row.failure_reason or "", row.failure_message or "", row.failure_traceback)


_DEATHS: Final = (failures.LEASE_EXPIRED, failures.PROCESS_DIED)


def is_suspect(job: Job) -> bool:
    """Return whether the job's newest failure was an expired lease or the death of its own process.

    The next settlement, including a release, clears the mark that an expiry leaves. The failure stays until an
    attempt ends in another way.
    """
    return job.suspect == 1 or job.failure_reason in _DEATHS
