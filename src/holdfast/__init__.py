"""Holdfast: a durable work queue with fenced leases, on a SQLite file or on PostgreSQL.

Each public name is imported from its module on first use, which keeps `import holdfast` fast.
"""

import sys
from typing import TYPE_CHECKING

from holdfast.version import __version__

if sys.platform == "win32":
    raise ImportError(
        "Holdfast does not support Windows: it needs POSIX file locks and signals. "
        "Use Linux instead, for example in WSL 2 or in a container."
    )

if TYPE_CHECKING:
    from holdfast.client.async_api.enqueued import AsyncEnqueued
    from holdfast.client.async_api.queue import AsyncQueue, AsyncTransaction
    from holdfast.client.connect import connect, connect_async
    from holdfast.client.sync_api.enqueued import Enqueued
    from holdfast.client.sync_api.queue import Queue, Transaction
    from holdfast.domain.backoff import Backoff
    from holdfast.domain.claims import Claim, ClaimOptions, Lease, Renewal, SettledAndClaimed, Settlement
    from holdfast.domain.clock import Clock, Now
    from holdfast.domain.errors import (
        ArtifactNotFound,
        Conflict,
        EventsPruned,
        HandlersStuck,
        HoldfastError,
        InvalidInput,
        JobFailed,
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
        WorkerNotFound,
    )
    from holdfast.domain.events import Event, EventPage
    from holdfast.domain.failures import Failure
    from holdfast.domain.job import Attempt, Job
    from holdfast.domain.kinds import Kind
    from holdfast.domain.new_job import EnqueueOptions, JobOptions, NewJob
    from holdfast.domain.outcomes import Artifact, Deferred, Done, Failed, Outcome, Released
    from holdfast.domain.results import (
        ArtifactInfo,
        Backlog,
        CancelReport,
        Finding,
        JobPage,
        Pruned,
        Requeued,
        Skipped,
        StoreReport,
        Tally,
        Waiting,
        WorkerInfo,
    )
    from holdfast.domain.routing import Lane
    from holdfast.domain.serving import Unserved
    from holdfast.domain.session_claims import (
        AnySessionOptions,
        CheckpointOptions,
        SessionClaim,
        SessionClaimOptions,
        SessionLease,
        TurnLease,
    )
    from holdfast.domain.sessions import SessionEntry
    from holdfast.tasks.context import Context
    from holdfast.tasks.control_flow import Cancelled, Defer, Fail, Retry
    from holdfast.tasks.decorators import AsyncTasks, Tasks
    from holdfast.tasks.policy import Policy, TaskOptions
    from holdfast.tasks.session_context import AsyncSessionContext, SessionContext
    from holdfast.tasks.session_tasks import AsyncSessionTask, SessionTask, SessionTaskOptions
    from holdfast.tasks.task import AsyncContextTask, AsyncTask, ContextTask, Task, TaskRegistry
    from holdfast.worker.status import FailedAttempt, RunningJob, WorkerStatus
    from holdfast.worker.warm_resources import WarmResources
    from holdfast.worker.worker import Worker

__all__ = [
    "AnySessionOptions",
    "Artifact",
    "ArtifactInfo",
    "ArtifactNotFound",
    "AsyncContextTask",
    "AsyncEnqueued",
    "AsyncQueue",
    "AsyncSessionContext",
    "AsyncSessionTask",
    "AsyncTask",
    "AsyncTasks",
    "AsyncTransaction",
    "Attempt",
    "Backlog",
    "Backoff",
    "CancelReport",
    "Cancelled",
    "CheckpointOptions",
    "Claim",
    "ClaimOptions",
    "Clock",
    "Conflict",
    "Context",
    "ContextTask",
    "Defer",
    "Deferred",
    "Done",
    "EnqueueOptions",
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
    "JobFailed",
    "JobNotFound",
    "JobOptions",
    "JobPage",
    "Kind",
    "KindRetired",
    "Lane",
    "LaneDraining",
    "Lease",
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
    "SessionEntry",
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
    "TurnLease",
    "Unavailable",
    "UnknownKind",
    "Unserved",
    "UnsupportedStore",
    "WaitTimeout",
    "Waiting",
    "WarmResources",
    "Worker",
    "WorkerInfo",
    "WorkerNotFound",
    "WorkerStatus",
    "__version__",
    "connect",
    "connect_async",
]

# The imports above at run time: the names of each module.
_NAMES_BY_MODULE = {
    "tasks.control_flow": "Cancelled Defer Fail Retry",
    "client.async_api.queue": "AsyncQueue AsyncTransaction",
    "client.async_api.enqueued": "AsyncEnqueued",
    "client.sync_api.enqueued": "Enqueued",
    "client.connect": "connect connect_async",
    "tasks.context": "Context",
    "tasks.decorators": "AsyncTasks Tasks",
    "tasks.policy": "Policy TaskOptions",
    "client.sync_api.queue": "Queue Transaction",
    "tasks.session_context": "AsyncSessionContext SessionContext",
    "tasks.session_tasks": "AsyncSessionTask SessionTask SessionTaskOptions",
    "tasks.task": "AsyncContextTask AsyncTask ContextTask Task TaskRegistry",
    "domain.new_job": "EnqueueOptions JobOptions NewJob",
    "domain.backoff": "Backoff",
    "domain.claims": "Claim ClaimOptions Lease Renewal SettledAndClaimed Settlement",
    "domain.clock": "Clock Now",
    "domain.errors": (
        "ArtifactNotFound Conflict EventsPruned HandlersStuck HoldfastError InvalidInput JobFailed JobNotFound "
        "KindRetired LaneDraining LeaseLost Misconfigured OutcomeUnknown ReadOnlyStore Refused SchemaMismatch "
        "StoreBusy StoreDamaged StoreFull StoreUnreachable Unavailable UnknownKind UnsupportedStore "
        "WaitTimeout WorkerNotFound"
    ),
    "domain.events": "Event EventPage",
    "domain.failures": "Failure",
    "domain.job": "Attempt Job",
    "domain.kinds": "Kind",
    "domain.routing": "Lane",
    "domain.outcomes": "Artifact Deferred Done Failed Outcome Released",
    "domain.results": (
        "ArtifactInfo Backlog CancelReport Finding JobPage Pruned Requeued Skipped StoreReport "
        "Tally Waiting WorkerInfo"
    ),
    "domain.serving": "Unserved",
    "domain.sessions": "SessionEntry",
    "domain.session_claims": (
        "AnySessionOptions CheckpointOptions SessionClaim SessionClaimOptions SessionLease TurnLease"
    ),
    "worker.status": "FailedAttempt RunningJob WorkerStatus",
    "worker.warm_resources": "WarmResources",
    "worker.worker": "Worker",
}
_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}


# Hidden from type checkers: with a module __getattr__ they would accept any name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module  # noqa: PLC0415

        value: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        # The next access does not call this function.
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
