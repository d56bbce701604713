"""The options of `enqueue`, as types for editors and type checkers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from holdfast.domain import sessions
from holdfast.domain.artifacts import AnyArtifact
from holdfast.domain.backoff import Backoff
from holdfast.domain.dependencies import OnFailed
from holdfast.domain.routing import EventScope
from holdfast.domain.strict_json import Json
from holdfast.domain.validation import Duration

if TYPE_CHECKING:
    from holdfast.domain.new_job import NewJob

OnDuplicate: TypeAlias = Literal["keep", "replace", "run_again"]
"""What an enqueue does if an unfinished job has its dedupe key; see `EnqueueOptions`."""
DedupeScope: TypeAlias = Literal["kind", "tenant"]
"""Within what a dedupe key is unique: tenant and kind, or tenant."""


class EnqueueOptions(sessions.SessionOptions, total=False):
    """The options of `enqueue` besides `delay`, `priority`, `lane`, `tenant` and `dedupe_key`."""

    run_at: datetime
    """The earliest time at which it may be claimed; not together with `delay`."""
    deadline: Duration | datetime
    """It fails unless started by then; seconds from now, or a datetime."""
    requires: Sequence[str]
    """Capabilities that a worker must have."""
    affinity: str | None
    """The resource with which it is cheaper to run."""
    headers: Mapping[str, str]
    """Small strings for programs, such as a trace context."""
    tags: Mapping[str, str]
    """Small strings for users and filters; copied into events."""
    max_attempts: int
    """How many attempts it may use; default 5."""
    backoff: Backoff | None
    """The pauses between attempts; default: from one minute to one hour, doubling, spread by 20 %."""
    job_id: str | None
    """An id chosen by the caller: enqueueing the same job again returns the first."""
    dedupe_scope: DedupeScope
    """Whether the key is unique within tenant and kind (default) or within the tenant."""
    dedupe_for: Duration | None
    """For how many seconds after the enqueue the key finds the job also if it has finished; default: not at all."""
    on_duplicate: OnDuplicate
    """If an unfinished job has the dedupe key: `keep` (default) returns it; `replace` gives it the new content if it
    was never claimed; `run_again` adds a job that runs after it if it is running, else returns it."""
    debounce: Duration | None
    """With a dedupe key: it runs so many seconds after the last enqueue of the key, with the newest content. If the
    job was already claimed, one more job runs after it."""
    max_wait: Duration | None
    """With `debounce`: at most for how many seconds after the first enqueue it is postponed; default: any time."""
    events: EventScope
    """`all` records every transition of this job, not only the final one."""
    artifacts: Sequence[AnyArtifact]
    """Input artifacts: bytes for the handler, given directly or uploaded before."""
    webhook_url: str | None
    """Where each event of this job is sent; implies `events="all"`. A duplicate keeps the URL of its first job."""
    after: Sequence[str | int]
    """It runs after these jobs have ended: ids, or in `enqueue_many` positions of earlier jobs of the call."""
    on_end: NewJob | Mapping[str, Any] | None
    """A job that runs once it has ended, however it did: a `NewJob`, or a dict with `kind`, `payload` and options."""
    on_failed: OnFailed
    """If one of them is not done: `cancel` this job as well (default), or `run` it all the same."""
    limit_key: str | None
    """Its key for limits by key whose `key` is `given`."""
    limit_weight: int | None
    """What it counts at limits by key that have a `weight`, such as the number of tokens that it may use."""


class JobOptions(EnqueueOptions, total=False):
    """All options of a job, for `NewJob`, `task.using` and other functions that take them."""

    delay: Duration
    """Seconds before it may be claimed."""
    priority: int
    """Higher comes first; default 0."""
    lane: str
    """The lane from which workers claim it; default `default`."""
    tenant: str
    """The tenant it belongs to; default `default`."""
    dedupe_key: str | None
    """While a job with this key is unfinished, another enqueue adds none."""


class NewJobOptions(JobOptions, total=False):
    """A job to be enqueued, as a plain dict."""

    kind: str
    """The kind of work."""
    payload: Json
    """What its handler receives."""
