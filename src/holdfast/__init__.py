"""Holdfast: a durable work queue with fenced leases. One SQLite file to start with, PostgreSQL for many machines."""

from holdfast.client.asking import Cancelled, Defer, Fail, Retry
from holdfast.client.async_queue import AsyncQueue, AsyncTransaction
from holdfast.client.connect import connect, connect_async
from holdfast.client.context import Context
from holdfast.client.declaring import AsyncTasks, Tasks
from holdfast.client.operations import SettledAndClaimed
from holdfast.client.policy import Policy, TaskOptions
from holdfast.client.queue import Queue, Transaction
from holdfast.client.session_context import AsyncSessionContext, SessionContext
from holdfast.client.session_tasks import AsyncSessionTask, SessionTask, SessionTaskOptions
from holdfast.client.tasks import AsyncContextTask, AsyncTask, ContextTask, Task, TaskRegistry
from holdfast.domain.admission import JobOptions, NewJob
from holdfast.domain.backoff import Backoff
from holdfast.domain.claim import Claim, ClaimOptions, Renewal, Settlement
from holdfast.domain.clock import Clock, Now
from holdfast.domain.errors import (
    ArtifactNotFound,
    Conflict,
    EventsPruned,
    HandlersStuck,
    HoldfastError,
    InvalidInput,
    JobNotFound,
    KindRetired,
    LaneDraining,
    LeaseLost,
    Misconfigured,
    OutcomeUnknown,
    ReadOnlyStore,
    Refused,
    SchemaMismatch,
    StoreBusy,
    StoreDamaged,
    StoreFull,
    StoreUnreachable,
    Unavailable,
    UnknownKind,
    UnsupportedStore,
    WaitTimeout,
)
from holdfast.domain.event import Event, EventPage
from holdfast.domain.failure import Failure
from holdfast.domain.job import Attempt, Job
from holdfast.domain.lane import Lane
from holdfast.domain.outcome import Artifact, Deferred, Done, Failed, Outcome, Released
from holdfast.domain.records import (
    ArtifactInfo,
    Backlog,
    CancelReport,
    Enqueued,
    Finding,
    JobPage,
    Kind,
    Pruned,
    Requeued,
    Skipped,
    StoreReport,
    Tally,
    Waiting,
    WorkerInfo,
)
from holdfast.domain.serving import Unserved
from holdfast.domain.session import Batch
from holdfast.domain.session_claim import AnySessionOptions, SessionClaimOptions
from holdfast.domain.session_lease import SessionClaim, SessionLease
from holdfast.runtime.status import FailedAttempt, RunningJob, WorkerStatus
from holdfast.runtime.worker import Worker
from holdfast.version import __version__

__all__ = [
    "AnySessionOptions",
    "Artifact",
    "ArtifactInfo",
    "ArtifactNotFound",
    "AsyncContextTask",
    "AsyncQueue",
    "AsyncSessionContext",
    "AsyncSessionTask",
    "AsyncTask",
    "AsyncTasks",
    "AsyncTransaction",
    "Attempt",
    "Backlog",
    "Backoff",
    "Batch",
    "CancelReport",
    "Cancelled",
    "Claim",
    "ClaimOptions",
    "Clock",
    "Conflict",
    "Context",
    "ContextTask",
    "Defer",
    "Deferred",
    "Done",
    "Enqueued",
    "Event",
    "EventPage",
    "EventsPruned",
    "Fail",
    "Failed",
    "FailedAttempt",
    "Failure",
    "Finding",
    "HandlersStuck",
    "HoldfastError",
    "InvalidInput",
    "Job",
    "JobNotFound",
    "JobOptions",
    "JobPage",
    "Kind",
    "KindRetired",
    "Lane",
    "LaneDraining",
    "LeaseLost",
    "Misconfigured",
    "NewJob",
    "Now",
    "Outcome",
    "OutcomeUnknown",
    "Policy",
    "Pruned",
    "Queue",
    "ReadOnlyStore",
    "Refused",
    "Released",
    "Renewal",
    "Requeued",
    "Retry",
    "RunningJob",
    "SchemaMismatch",
    "SessionClaim",
    "SessionClaimOptions",
    "SessionContext",
    "SessionLease",
    "SessionTask",
    "SessionTaskOptions",
    "SettledAndClaimed",
    "Settlement",
    "Skipped",
    "StoreBusy",
    "StoreDamaged",
    "StoreFull",
    "StoreReport",
    "StoreUnreachable",
    "Tally",
    "Task",
    "TaskOptions",
    "TaskRegistry",
    "Tasks",
    "Transaction",
    "Unavailable",
    "UnknownKind",
    "Unserved",
    "UnsupportedStore",
    "WaitTimeout",
    "Waiting",
    "Worker",
    "WorkerInfo",
    "WorkerStatus",
    "__version__",
    "connect",
    "connect_async",
]
