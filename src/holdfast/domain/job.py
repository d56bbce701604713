"""The job: one durable request for work, as the store holds it.

`Job` is a named tuple because it is made from a row, once for every job claimed, settled or listed: that is
the hottest construction there is. Its fields are the stored form (JSON as text, moments as milliseconds); its
properties are what people read.
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
    """One job. The row carries its newest attempt; earlier ones are history (see `Attempt`)."""

    seq: int
    """Position in enqueue order; never reused."""
    id: str
    state: State
    kind: str
    lane: str
    tenant: str
    fair_key: str
    """Whose turn it takes in the lane: the tenant in a fair lane, empty in a strict one."""
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
    """Attempts spent, the running one included."""
    max_attempts: int
    backoff_json: str | None
    epoch: int
    """Raised by every claim and never lowered: a fencing token for the handler's own writes."""
    worker: str | None
    incarnation: str | None
    lease_token: str | None
    lease_until_ms: int | None
    """When the lease expires, by the store's lease clock."""
    claim_index: int | None
    """Its index among the jobs that the newest claim took."""
    started_at_ms: int | None
    outcome: AttemptOutcome | None
    """How the newest attempt ended; none while it runs."""
    settle_digest: str | None
    phase: str | None
    percent: float | None
    unacknowledged: int
    """How many claims in a row were not acknowledged, the newest included; 0 once that is acknowledged or settled."""
    cancel_requested: int
    suspect: int
    """1 if the last attempt expired: it may have killed its worker."""
    deferrals: int
    deferred_since_ms: int | None
    releases: int
    failure_class: FailureClass | None
    failure_reason: str | None
    failure_message: str | None
    failure_traceback: str | None
    dedupe_key: str | None
    dedupe_kind: str | None
    """The kind within which the key is unique, or empty where it is unique within the tenant."""
    predecessor: int | None
    """The `seq` of the job whose end a blocked job waits for."""
    digest: bytes | None
    """Digest of the caller's arguments, kept where the caller chose the id."""
    session_number: int | None
    """The store's number of the session it is an entry of; empty in all other jobs, as the next two are."""
    enqueue_seq: int | None
    """Its place in the session."""
    entry_json: str | None
    record_all: int
    """1 if every transition is recorded as an event, not only the last."""
    event_count: int

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.kind} {self.state}, attempt {self.attempt} of {self.max_attempts}>"

    @property
    def payload(self) -> Json:
        """The payload, decoded anew at each access, so that it is the caller's to change."""
        return strict_json.decode(self.payload_json)

    @property
    def result(self) -> Json:
        """The result of a done job, else None."""
        return None if self.result_json is None else strict_json.decode(self.result_json)

    @property
    def headers(self) -> dict[str, str]:
        """Small strings for machinery, such as a trace context."""
        headers: dict[str, str] = strict_json.decode(self.headers_json)
        return headers

    @property
    def tags(self) -> dict[str, str]:
        """Small strings for people and filters; copied into events."""
        tags: dict[str, str] = strict_json.decode(self.tags_json)
        return tags

    @property
    def requires(self) -> tuple[str, ...]:
        """Capabilities that a worker must all have."""
        return tuple(strict_json.decode(self.requires_json))

    @property
    def entry(self) -> SessionEntry | None:
        """What makes it an entry of a session, if it is one."""
        return None if self.entry_json is None else SessionEntry.from_json(self.entry_json)

    @property
    def session(self) -> str | None:
        """The session it is an entry of, if any."""
        return None if self.entry is None else self.entry.session

    @property
    def items(self) -> list[Json]:
        """The items of an entry that has several; else the payload as the only one."""
        payload = self.payload
        return payload if self.entry is not None and self.entry.items is not None else [payload]

    @property
    def backoff(self) -> Backoff:
        """The pauses between attempts."""
        return backoff.DEFAULT if self.backoff_json is None else Backoff.from_json(self.backoff_json)

    @property
    def failure(self) -> Failure | None:
        """The newest failure, also while a further attempt waits or runs."""
        return _failure(self)

    @property
    def finished(self) -> bool:
        """Whether the job has ended, in whichever way."""
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
        """Return the job with a new attempt running, of which nothing is known yet but who holds it."""
        unacknowledged = 0 if acknowledged else self.unacknowledged + 1
        holder = (worker, incarnation, lease_token, lease_until_ms, claim_index, now_ms)
        attempt = (*holder, None, None, None, None, unacknowledged)
        # By place, as this is done once for every claim: what was known of an earlier attempt stands in one run.
        known, between, rest = self[3:_ATTEMPT], self[_ATTEMPT + 1 : _EPOCH], self[_UNACKNOWLEDGED + 1 :]
        head = (self.seq, self.id, "running", *known, self.attempt + 1, *between, self.epoch + 1)
        return tuple.__new__(Job, (*head, *attempt, *rest))

    def counting_event(self) -> Job:
        """Return the job with one more event recorded of it."""
        # The count stands last so that this, done once for every end of a job, is cheap.
        return tuple.__new__(Job, (*self[:-1], self.event_count + 1))

    @property
    def enqueued_at(self) -> datetime:
        """When it was enqueued."""
        return datetime_of(self.enqueued_at_ms)

    @property
    def due_at(self) -> datetime:
        """From when it may be claimed."""
        return datetime_of(self.due_at_ms)

    @property
    def deadline_at(self) -> datetime | None:
        """By when it must have been started."""
        return None if self.deadline_at_ms is None else datetime_of(self.deadline_at_ms)

    @property
    def started_at(self) -> datetime | None:
        """When the newest attempt started."""
        return None if self.started_at_ms is None else datetime_of(self.started_at_ms)

    @property
    def finished_at(self) -> datetime | None:
        """When it ended."""
        return None if self.finished_at_ms is None else datetime_of(self.finished_at_ms)


_PLACES: Final = {name: place for place, name in enumerate(Job._fields)}
_ATTEMPT, _EPOCH, _UNACKNOWLEDGED = _PLACES["attempt"], _PLACES["epoch"], _PLACES["unacknowledged"]


def _replace(job: Job, /, **changes: Any) -> Job:
    fields = list(job)
    for name, value in changes.items():
        fields[_PLACES[name]] = value
    return tuple.__new__(Job, fields)


# What a named tuple brings asks for every field by name; with this many of them that takes three times as long.
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
    """Whether the job's newest failure was that its worker fell silent, or that its own process died.

    The mark that an expiry leaves is taken away by whatever settles the job next, a release too. The failure stays
    until an attempt shows that the job ends in another way.
    """
    return job.suspect == 1 or job.failure_reason in _DEATHS
