"""The job: one durable request for work.

`JobRow` is the stored form: JSON as text, times as milliseconds. Storage reads it and transitions change it. `Job` is
the public form: it wraps a row, or makes it when it is first needed, and decodes an attribute when it is read,
because most callers read few of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from inspect import Signature
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from holdfast.domain import backoff, codec, failures, sessions, strict_json, validation
from holdfast.domain.backoff import Backoff
from holdfast.domain.codec import Codec
from holdfast.domain.failures import Failure, FailureClass
from holdfast.domain.rollups import Ended
from holdfast.domain.sessions import SessionEntry
from holdfast.domain.strict_json import Json

if TYPE_CHECKING:
    from holdfast.domain.lazy_rows import LazyRow

State: TypeAlias = Literal[
    "scheduled", "blocked", "dependent", "parked", "ready", "running", "done", "failed", "cancelled", "retired"
]
"""The state of a job; the last four are final."""
AttemptOutcome: TypeAlias = Literal["done", "failed", "deferred", "released", "expired", "cancelled"]
"""How an attempt ended."""

WAITING: Final[tuple[State, ...]] = ("scheduled", "blocked", "dependent", "parked", "ready")
HOLDING_KEY: Final[tuple[State, ...]] = ("scheduled", "dependent", "parked", "ready", "running")
FINISHED: Final[tuple[State, ...]] = ("done", "failed", "cancelled", "retired")
STATE_NUMBERS: Final[Mapping[State, int]] = {
    "scheduled": 0,
    "blocked": 1,
    "dependent": 2,
    "parked": 3,
    "ready": 5,
    "running": 10,
    "done": 20,
    "failed": 21,
    "cancelled": 22,
    "retired": 23,
}
"""The numbers by which states are stored: waiting below 10, finished from 20."""
DELETED: Final = 30
"""The number of a deleted job whose row is kept, for an engine that would use its number again."""
STATES: Final[tuple[State, ...]] = (*WAITING, "running", *FINISHED)
SYSTEM_LANE: Final = "holdfast.webhooks"
"""The lane of deliveries of webhooks."""


class JobRow(NamedTuple):
    """The row of one job, with its newest attempt; earlier ones are stored separately (see `AttemptRow`).

    A named tuple, because one is made for every job claimed, settled or listed. Its fields are the only list of the
    columns of a job; both engines have a view with these columns in this order.
    """

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
    digest: str | None
    """Digest of the caller's arguments, stored if the caller chose the id."""
    parent: str | None
    """The id of the job that enqueued it as a follow-up or in its transaction; None for all others, like the next."""
    root: str | None
    """The id of the first job of its tree; None if it is that job."""
    session_number: int | None
    """The number of the session it is an entry of; None for all other jobs, like the next two."""
    enqueue_seq: int | None
    """Its position in the session."""
    entry_json: str | None
    record_all: int
    """1 if every transition is recorded as an event, not only the final one."""
    event_count: int

    @property
    def requires(self) -> tuple[str, ...]:
        """Capabilities that a worker must have."""
        return tuple(strict_json.decode(self.requires_json))

    @property
    def entry(self) -> SessionEntry | None:
        """The session entry, if the job is one."""
        return None if self.entry_json is None else sessions.entry_from_json(self.entry_json)

    @property
    def session(self) -> str | None:
        """The session it is an entry of, if any."""
        return None if self.entry is None else self.entry.session

    @property
    def backoff(self) -> Backoff:
        """The pauses between attempts."""
        return backoff.DEFAULT if self.backoff_json is None else backoff.from_json(self.backoff_json)

    @property
    def failure(self) -> Failure | None:
        """The newest failure, even while a further attempt waits or runs."""
        return _failure(self)

    @property
    def finished(self) -> bool:
        """Whether the job has reached a final state."""
        return self.state in FINISHED

    def done_at(self, now_ms: int) -> Ended:
        """Return what is counted of a running job that is done."""
        started_ms = self.started_at_ms or now_ms
        return Ended(self.lane, self.kind, "done", started_ms - self.due_at_ms, now_ms - started_ms)

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
    ) -> JobRow:
        """Return the job with a new attempt running, with its holder and no other data."""
        unacknowledged = 0 if acknowledged else self.unacknowledged + 1
        holder = (worker, incarnation, lease_token, lease_until_ms, claim_index, now_ms)
        attempt = (*holder, None, None, None, None, unacknowledged)
        # By index, because this runs once for every claim: the fields of an earlier attempt are adjacent.
        known, between, rest = self[3:_ATTEMPT], self[_ATTEMPT + 1 : _EPOCH], self[_UNACKNOWLEDGED + 1 :]
        head = (self.seq, self.id, "running", *known, self.attempt + 1, *between, self.epoch + 1)
        return tuple.__new__(JobRow, (*head, *attempt, *rest))

    def counting_event(self) -> JobRow:
        """Return the job with one more recorded event."""
        # The count is the last field, which makes this cheap; it runs once for every finished job.
        return tuple.__new__(JobRow, (*self[:-1], self.event_count + 1))


_INDEXES: Final = {name: index for index, name in enumerate(JobRow._fields)}
_ATTEMPT, _EPOCH, _UNACKNOWLEDGED = _INDEXES["attempt"], _INDEXES["epoch"], _INDEXES["unacknowledged"]


_COUNTERS: Final = (
    *("attempt", "max_attempts", "epoch", "priority", "unacknowledged", "cancel_requested", "suspect"),
    *("deferrals", "releases", "record_all", "event_count"),
)


def deleted_row(**known: Any) -> JobRow:
    """Return the row of a deleted job of which only *known* is left: identity and state, no payload or result."""
    values: dict[str, Any] = {**dict.fromkeys(JobRow._fields), **dict.fromkeys(_COUNTERS, 0)}
    values |= {"fair_key": "", "payload_json": "null", "headers_json": "{}", "tags_json": "{}"}
    return JobRow(**{**values, "due_at_ms": known["enqueued_at_ms"], **known})


def _replace(job: JobRow, /, **changes: Any) -> JobRow:
    fields = list(job)
    for name, value in changes.items():
        fields[_INDEXES[name]] = value
    return tuple.__new__(JobRow, fields)


# The generated `_replace` looks up every field by name; with this many fields that takes three times as long.
JobRow._replace = _replace  # type: ignore[method-assign, assignment]


# Not frozen: properties without setters are read-only, and setting the slots directly makes construction cheaper.
@dataclass(slots=True, eq=False, repr=False, match_args=False)
class _JobData:
    """What a job holds, with a generated constructor, which `job_of` calls."""

    _made: JobRow | LazyRow
    """The row, or what makes it when it is needed."""
    _codec: Codec | None = None
    """The codec of its queue, if any."""

    @property
    def _row(self) -> JobRow:
        row = self._made
        if not isinstance(row, JobRow):
            self._made = row = row.make()
        return row

    def __eq__(self, other: object) -> bool:
        return self._row == other._row if isinstance(other, _JobData) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._row)

    def __reduce__(self) -> tuple[Any, ...]:
        return Job, (self._row, self._codec)


class Job(_JobData):
    """One job, as it was when it was read; made by the calls of a queue, not by programs.

    Its attributes are read-only; payload and result are decoded when read.
    """

    __slots__ = ()

    # Editors and `help` do not show the arguments of the generated constructor.
    __signature__ = Signature()
    if TYPE_CHECKING:

        def __init__(self) -> None: ...

    def __repr__(self) -> str:
        row = self._row
        return f"<Job {row.id} {row.kind} {row.state}, attempt {row.attempt} of {row.max_attempts}>"

    @property
    def number(self) -> int:
        """Its position in enqueue order; never reused. `Queue.get` takes it as well as the id."""
        return self._made.seq

    @property
    def id(self) -> str:
        """Its id, chosen by the caller or generated."""
        return self._made.id

    @property
    def state(self) -> State:
        """Its state; `done`, `failed`, `cancelled` and `retired` are final."""
        return self._row.state

    @property
    def finished(self) -> bool:
        """Whether it has reached a final state."""
        finished: bool = self._made.finished
        return finished

    @property
    def kind(self) -> str:
        """The kind of work, which names its task."""
        return self._made.kind

    @property
    def lane(self) -> str:
        """The lane from which workers claim it."""
        return self._made.lane

    @property
    def tenant(self) -> str:
        """The tenant it belongs to."""
        return self._made.tenant

    @property
    def priority(self) -> int:
        """Jobs with a higher priority are claimed first."""
        return self._row.priority

    @property
    def affinity(self) -> str | None:
        """The resource that its worker should have loaded."""
        return self._row.affinity

    @property
    def requires(self) -> tuple[str, ...]:
        """Capabilities that a worker must have."""
        return self._row.requires

    @property
    def payload(self) -> Json:
        """The payload, decoded at each access; the caller may modify it. Raises `CodecFailed` if it is unreadable."""
        made = self._made
        text = made.payload_json
        # Only a delivery has a payload that is shown in another form, because it has the URL of an endpoint.
        if '"url"' in text and made.lane == SYSTEM_LANE:
            return strict_json.decode(shown_payload(self._row))
        if not codec.is_encoded(text):
            return strict_json.decode(text)
        return codec.decode_text(self._codec, text, made.id, "payload")

    @property
    def headers(self) -> dict[str, str]:
        """Small strings for programs, such as a trace context."""
        headers: dict[str, str] = strict_json.decode(self._row.headers_json)
        return headers

    @property
    def tags(self) -> dict[str, str]:
        """Small strings for users and filters; copied into events."""
        tags: dict[str, str] = strict_json.decode(self._row.tags_json)
        return tags

    @property
    def result(self) -> Json:
        """The result of a done job, else None. Raises `CodecFailed` if it is unreadable."""
        text = self._row.result_json
        return None if text is None else codec.decode_text(self._codec, text, self._row.id, "result")

    @property
    def failure(self) -> Failure | None:
        """The newest failure, even while a further attempt waits or runs."""
        return self._row.failure

    @property
    def enqueued_at(self) -> datetime:
        """When it was enqueued."""
        return validation.datetime_of(self._row.enqueued_at_ms)

    @property
    def due_at(self) -> datetime:
        """The earliest time at which it may be claimed."""
        return validation.datetime_of(self._row.due_at_ms)

    @property
    def deadline_at(self) -> datetime | None:
        """The time by which it must have been started."""
        return validation.optional_datetime_of(self._row.deadline_at_ms)

    @property
    def started_at(self) -> datetime | None:
        """When the newest attempt started."""
        return validation.optional_datetime_of(self._row.started_at_ms)

    @property
    def finished_at(self) -> datetime | None:
        """When it finished."""
        return validation.optional_datetime_of(self._row.finished_at_ms)

    @property
    def attempt(self) -> int:
        """Attempts used, including the running one."""
        return self._row.attempt

    @property
    def max_attempts(self) -> int:
        """How many attempts it may use."""
        return self._row.max_attempts

    @property
    def backoff(self) -> Backoff:
        """The pauses between attempts."""
        return self._row.backoff

    @property
    def deferrals(self) -> int:
        """How many times in a row it was deferred."""
        return self._row.deferrals

    @property
    def releases(self) -> int:
        """How many times in a row it was released."""
        return self._row.releases

    @property
    def epoch(self) -> int:
        """Incremented by every claim and never decremented: a fencing token for the handler's own writes."""
        return self._row.epoch

    @property
    def worker(self) -> str | None:
        """The worker that claimed it last."""
        return self._row.worker

    @property
    def incarnation(self) -> str | None:
        """The start of that worker."""
        return self._row.incarnation

    @property
    def lease_until(self) -> datetime | None:
        """When the lease of a running job expires, by the store's lease clock."""
        return validation.optional_datetime_of(self._row.lease_until_ms)

    @property
    def outcome(self) -> AttemptOutcome | None:
        """How the newest attempt ended; None while it runs."""
        return self._row.outcome

    @property
    def phase(self) -> str | None:
        """The phase that its handler reported last."""
        return self._row.phase

    @property
    def percent(self) -> float | None:
        """The percentage that its handler reported last."""
        return self._row.percent

    @property
    def cancel_requested(self) -> bool:
        """Whether the running job was requested to stop."""
        return self._row.cancel_requested == 1

    @property
    def suspect(self) -> bool:
        """Whether the last attempt expired: the job may have killed its worker."""
        return self._row.suspect == 1

    @property
    def dedupe_key(self) -> str | None:
        """The key under which it is unique while it is unfinished."""
        return self._row.dedupe_key

    @property
    def parent(self) -> str | None:
        """The id of the job that enqueued it as a follow-up or in its handler's transaction; else None."""
        return self._row.parent

    @property
    def root(self) -> str:
        """The id of the first job of its tree, which has no parent: its own unless it has one."""
        return self._row.root or self._row.id

    @property
    def session(self) -> str | None:
        """The session it is an entry of, if any."""
        return self._row.session

    @property
    def entry(self) -> SessionEntry | None:
        """The session entry, if the job is one."""
        return self._row.entry

    @property
    def messages(self) -> list[Json]:
        """The messages of a session entry; of one message, and of any other job, the payload."""
        payload, entry = self.payload, self.entry
        return payload if entry is not None and entry.messages is not None else [payload]


job_of: Callable[[JobRow | LazyRow], Job] = Job  # type: ignore[assignment]  # the constructor is not public
"""Returns the job of a row."""


def shown_payload(row: JobRow) -> str:
    """Return the payload; that of a delivery has only the origin of its URL: the rest may contain credentials."""
    if row.lane != SYSTEM_LANE:
        return row.payload_json
    payload = strict_json.decode(row.payload_json)
    if "url" in payload:
        payload["url"] = "/".join(payload["url"].partition("?")[0].split("/", 3)[:3])
    return strict_json.compact(payload)


def row_of(job: Job) -> JobRow:
    """Return the row of *job*: the only way in which internal code reads columns that are not public."""
    return job._row  # noqa: SLF001


columns_of: Final[Callable[[Job], JobRow | LazyRow]] = attrgetter("_made")
"""Return an object whose attributes are the columns of a job, without making its row."""


def with_row(job: Job, row: JobRow) -> Job:
    """Return a job of *row* with the codec of *job*."""
    return set_codec(job_of(row), job._codec)  # noqa: SLF001


def set_codec(job: Job, codec: codec.Codec | None) -> Job:
    """Make *job* decode its payload and result with *codec*, and return it."""
    job._codec = codec  # noqa: SLF001
    return job


class AttemptRow(NamedTuple):
    """The row of one attempt."""

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


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a job under one epoch; a running attempt has no end and no outcome."""

    epoch: int
    """The job's epoch in this attempt."""
    number: int
    """Its number among the attempts that count; a deferred or released attempt does not."""
    worker: str
    """The worker that ran it."""
    incarnation: str
    """The start of that worker."""
    started_at: datetime
    """When it was claimed."""
    ended_at: datetime | None
    """When it ended; None while it runs."""
    outcome: AttemptOutcome | None
    """How it ended; None while it runs."""
    failure: Failure | None
    """Why it failed, if it did."""


def attempt_of(row: AttemptRow) -> Attempt:
    """Return the attempt that *row* describes."""
    return Attempt(
        row.epoch,
        row.number,
        row.worker,
        row.incarnation,
        validation.datetime_of(row.started_at_ms),
        validation.optional_datetime_of(row.ended_at_ms),
        row.outcome,
        _failure(row),
    )


def _failure(row: JobRow | AttemptRow) -> Failure | None:
    if row.failure_class is None:
        return None
    return Failure(row.failure_class, row.failure_reason or "", row.failure_message or "", row.failure_traceback)


_DEATHS: Final = (failures.LEASE_EXPIRED, failures.PROCESS_DIED)


def is_suspect(job: Job) -> bool:
    """Return whether the job's newest failure was an expired lease or the death of its own process.

    The next settlement, including a release, clears the mark that an expiry leaves. The failure stays until an
    attempt ends in another way.
    """
    row = columns_of(job)
    return row.suspect == 1 or row.failure_reason in _DEATHS
