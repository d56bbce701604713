"""Results of operations: jobs stored, listed, requeued or deleted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from holdfast.domain import validation
from holdfast.domain.failures import FailureClass
from holdfast.domain.job import Job, State

CountBy: TypeAlias = Literal["state", "kind", "lane", "tenant", "failure_class"]
"""By what `counts` groups jobs."""
COUNT_BY: Final[tuple[CountBy, ...]] = ("state", "kind", "lane", "tenant", "failure_class")


@dataclass(frozen=True, slots=True)
class StoredJob:
    """The job that an enqueue stored or found, and whether it is new."""

    job: Job
    """The job as it is stored."""
    created: bool
    """Whether the call created the job; false if it found a duplicate."""


class NewJobs(Sequence[StoredJob]):
    """The jobs of an enqueue that has created all of them."""

    __slots__ = ("jobs",)

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs

    def __len__(self) -> int:
        return len(self.jobs)

    def __getitem__(self, index: Any) -> Any:
        found = self.jobs[index]
        return NewJobs(found) if isinstance(index, slice) else StoredJob(found, created=True)


class JobFilter(NamedTuple):
    """A filter of jobs; None matches any value."""

    states: tuple[State, ...] = ()
    """Any of these; empty matches any state."""
    kind: str | None = None
    lane: str | None = None
    tenant: str | None = None
    failure_class: FailureClass | None = None
    session: str | None = None
    """A session of the given tenant, or of the default tenant."""
    root: str | None = None
    """The id of the first job of a tree."""
    group: str | None = None
    """A group of the given tenant, or of the default tenant; only without a session and a root."""
    tags: tuple[tuple[str, str], ...] = ()
    """All of these."""
    fingerprint: str | None = None
    """That of a failure; only without a session, a root and a group."""
    age_ms: int | None = None
    """The minimum age: since it finished, or since it was enqueued if it has not finished."""


@dataclass(frozen=True, slots=True)
class Tally:
    """How many jobs of one kind in one lane are in one state."""

    lane: str
    """The lane."""
    kind: str
    """The kind."""
    state: State
    """The state."""
    jobs: int
    """How many jobs."""


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some jobs, and the cursor from which to continue if there are more."""

    jobs: tuple[Job, ...]
    """The jobs; the page itself can be iterated and indexed too."""
    cursor: str | None
    """Pass it as `after` for the next page; None if there is none."""

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)

    def __getitem__(self, index: int) -> Job:
        return self.jobs[index]


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session: its counters and its owner. `queue.jobs(session=…)` lists its entries."""

    session: str
    """Its name."""
    tenant: str
    """Its tenant."""
    entries: int
    """How many entries were ever enqueued into it."""
    fencing_token: int
    """The fencing token of its newest turn; 0 if it had none."""
    ready: bool
    """Whether any worker could claim a turn of it when it changed last."""
    generation: int
    """How many times an owner has opened it."""
    owner: str | None
    """The worker that holds the session lease; None if there is none."""
    lease_until: datetime | None
    """When the session lease expires unless it is renewed, by the store's lease clock."""


@dataclass(frozen=True, slots=True)
class SessionPage:
    """Some sessions, and the cursor from which to continue if there are more."""

    sessions: tuple[SessionInfo, ...]
    """The sessions of this page, by tenant and name."""
    cursor: str | None
    """Pass it as *after* to get the next page; None if this page is the last."""

    def __iter__(self) -> Iterator[SessionInfo]:
        return iter(self.sessions)

    def __len__(self) -> int:
        return len(self.sessions)

    def __getitem__(self, index: int) -> SessionInfo:
        return self.sessions[index]


@dataclass(frozen=True, slots=True)
class Waiting:
    """The ready jobs of one kind in one lane."""

    lane: str
    """The lane."""
    kind: str
    """The kind."""
    jobs: int
    """How many, counted up to 10,000."""
    oldest_age_seconds: float
    """For how long the oldest of them has been due."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Waiting and running jobs; each number is counted up to 10,000."""

    ready: tuple[Waiting, ...]
    """By lane and kind; only those that have any."""
    scheduled: int
    """Jobs that wait for their due time."""
    blocked: int
    """Jobs that wait for a predecessor to end."""
    running: int
    """Jobs under a lease."""
    expired: int
    """Running according to their rows, but their leases have expired and no claim has processed them yet."""
    suspect: int
    """Ready again after their last attempt expired."""
    dependent: int = 0
    """Jobs that wait for others to end."""
    parked: int = 0
    """Jobs that wait for room at a limit."""


@dataclass(frozen=True, slots=True)
class ArtifactInfo:
    """An artifact without its bytes."""

    name: str
    """Its name."""
    media_type: str
    """Its media type."""
    size: int
    """The number of bytes."""
    digest: str
    """The SHA-256 of the bytes, as 64 hexadecimal digits."""
    input: bool
    """Whether it was enqueued with the job; else an attempt stored it."""
    epoch: int
    """The epoch of the attempt that stored it; 0 for an input."""
    created_at: datetime
    """When it was stored."""


@dataclass(frozen=True, slots=True)
class FailurePattern:
    """Jobs that failed in the same way: the same kind, exception, place and message, up to numbers and ids."""

    fingerprint: str
    """What these failures have in common, as 16 hexadecimal digits; `queue.jobs(fingerprint=…)` lists the jobs."""
    kind: str
    """The kind of the jobs."""
    error: str
    """The class of the exception, or the reason of a failure without one."""
    message: str
    """The message, with `#` in place of numbers and ids."""
    frames: tuple[str, ...]
    """The innermost calls in the user's code, outermost first, each as `file.py function`."""
    tenants: tuple[str, ...]
    """The tenants of the jobs."""
    lanes: tuple[str, ...]
    """The lanes of the jobs."""
    count: int
    """How often a job failed so, counted up to 1,000 for each tenant and lane; requeued jobs count too."""
    this_hour: int
    """How often within the last hour."""
    hour_before: int
    """How often within the hour before it."""
    first_at: datetime
    """When a job first failed so."""
    last_at: datetime
    """When a job last failed so."""
    example: str | None
    """The id of the newest job that failed so; None if it was deleted."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A job that was not requeued or cancelled, and the reason."""

    job_id: str
    """The id of the job."""
    why: str
    """The reason, for people."""
    code: str
    """The code of the error that a call for this job alone would raise."""


@dataclass(frozen=True, slots=True)
class Requeued:
    """The ids of the jobs requeued, and of those skipped with the reason."""

    requeued: list[str]
    """The ids of the jobs that are ready again."""
    skipped: list[Skipped]
    """The jobs that were not requeued."""


@dataclass(frozen=True, slots=True)
class CancelReport:
    """The ids of the jobs cancelled, of those requested to stop, and of those skipped with the reason."""

    cancelled: list[str]
    """The ids of the jobs that are cancelled."""
    stop_requested: list[str]
    """Running jobs: each ends as cancelled when its handler stops."""
    skipped: list[Skipped]
    """The jobs that were not cancelled."""


def add_cancelled(total: CancelReport, more: CancelReport) -> None:
    """Add the jobs of another call to *total*."""
    total.cancelled.extend(more.cancelled)
    total.stop_requested.extend(more.stop_requested)
    total.skipped.extend(more.skipped)


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many finished jobs and how many events were deleted, or would be."""

    jobs: int
    """How many jobs."""
    events: int
    """How many events."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One health check and its result."""

    name: str
    """What was checked."""
    status: Literal["ok", "warning", "problem"]
    """The result of the check."""
    detail: str
    """What was found, for people."""
    remedy: str = ""
    """What to do about it; empty if nothing."""
    subject: str = ""
    """Distinguishes findings of the same name; independent of the numbers in their text."""


@dataclass(frozen=True, slots=True)
class StoreReport:
    """All findings of a health check."""

    findings: list[Finding]
    """One or more for each check."""

    @property
    def healthy(self) -> bool:
        """Whether there is no problem; warnings are ignored."""
        return all(finding.status != "problem" for finding in self.findings)


# The store sets the times of a worker; the worker's own report has none.
_NEVER: Final = validation.datetime_of(0)

WorkerState: TypeAlias = Literal["active", "draining", "stopping", "silent"]
"""The state of a worker in the registry."""
WorkerRequest: TypeAlias = Literal["drain", "stop"]
"""A request to a worker."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One start of a worker, as last reported."""

    worker: str
    """The worker's name."""
    incarnation: str
    """The unique id of this start of the worker."""
    host: str
    """The host it runs on."""
    process: int
    """Its process id."""
    version: str
    """The version of Holdfast that it runs."""
    state: WorkerState
    """`silent` if it has not reported for a minute: it may be gone, or disconnected."""
    concurrency: int
    """How many jobs it runs at once."""
    running: int
    """Handlers that were running at the last report."""
    lanes: tuple[str, ...]
    """The lanes it takes jobs from."""
    kinds: tuple[str, ...]
    """The kinds it takes."""
    capabilities: tuple[str, ...]
    """Its capabilities."""
    loaded: tuple[str, ...]
    """The affinities it has loaded."""
    switches: int = 0
    """How often one of these was replaced by another."""
    switches_saved: int = 0
    """How many more switches it would have made if it had run its jobs in the order in which they were enqueued."""
    hold_left: float | None = None
    """For how many seconds after its last report it prefers jobs of these affinities; None without a bound."""
    requested: WorkerRequest | None = None
    """What `admin.drain_worker` or `admin.stop_worker` requested of it."""
    started_at: datetime = _NEVER
    """When it started."""
    beat_at: datetime = _NEVER
    """When it last reported."""
    held: int = 0
    """Jobs that it currently holds in the store."""
