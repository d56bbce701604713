"""Classes that programs receive or name in annotations, but do not construct: results, options, tasks, namespaces."""

from holdfast.client.async_api.admin import AsyncAdmin
from holdfast.client.async_api.content import AsyncUploads
from holdfast.client.async_api.kinds import AsyncKinds
from holdfast.client.async_api.lanes import AsyncLanes
from holdfast.client.async_api.sessions import AsyncSessions, AsyncTurns
from holdfast.client.async_api.tokens import AsyncTokens
from holdfast.client.middleware import ClaimCall, EndedAttempt, JobDraft
from holdfast.client.sync_api.admin import Admin
from holdfast.client.sync_api.content import Uploads
from holdfast.client.sync_api.kinds import Kinds
from holdfast.client.sync_api.lanes import Lanes
from holdfast.client.sync_api.sessions import Sessions, Turns
from holdfast.client.sync_api.tokens import Tokens
from holdfast.domain.access import AuditEntry, Grants, NewToken, Token, TokenOptions
from holdfast.domain.artifacts import Upload, UploadedArtifact
from holdfast.domain.claims import ClaimOptions, Renewal, SettledAndClaimed, Settlement
from holdfast.domain.clock import Now
from holdfast.domain.events import Event, EventPage
from holdfast.domain.failures import Failure
from holdfast.domain.job import Attempt
from holdfast.domain.kinds import Kind
from holdfast.domain.new_job import EnqueueOptions, JobOptions
from holdfast.domain.output import OutputChunk, OutputPage
from holdfast.domain.results import (
    ArtifactInfo,
    Backlog,
    CancelReport,
    Finding,
    JobPage,
    Pruned,
    Requeued,
    SessionInfo,
    SessionPage,
    Skipped,
    StoredJob,
    StoreReport,
    Tally,
    Waiting,
    WorkerInfo,
)
from holdfast.domain.routing import Lane
from holdfast.domain.serving import Unserved
from holdfast.domain.session_claims import AnySessionOptions, CheckpointOptions, SessionClaimOptions
from holdfast.domain.sessions import SessionEntry
from holdfast.tasks.policy import Policy, TaskOptions
from holdfast.tasks.session_tasks import AsyncSessionTask, SessionTask, SessionTaskOptions
from holdfast.tasks.task import AsyncContextTask, AsyncTask, ContextTask, Task, TaskRegistry
from holdfast.worker.status import FailedAttempt, RunningJob, WorkerStatus

__all__ = [
    "Admin",
    "AnySessionOptions",
    "ArtifactInfo",
    "AsyncAdmin",
    "AsyncContextTask",
    "AsyncKinds",
    "AsyncLanes",
    "AsyncSessionTask",
    "AsyncSessions",
    "AsyncTask",
    "AsyncTokens",
    "AsyncTurns",
    "AsyncUploads",
    "Attempt",
    "AuditEntry",
    "Backlog",
    "CancelReport",
    "CheckpointOptions",
    "ClaimCall",
    "ClaimOptions",
    "ContextTask",
    "EndedAttempt",
    "EnqueueOptions",
    "Event",
    "EventPage",
    "FailedAttempt",
    "Failure",
    "Finding",
    "Grants",
    "JobDraft",
    "JobOptions",
    "JobPage",
    "Kind",
    "Kinds",
    "Lane",
    "Lanes",
    "NewToken",
    "Now",
    "OutputChunk",
    "OutputPage",
    "Policy",
    "Pruned",
    "Renewal",
    "Requeued",
    "RunningJob",
    "SessionClaimOptions",
    "SessionEntry",
    "SessionInfo",
    "SessionPage",
    "SessionTask",
    "SessionTaskOptions",
    "Sessions",
    "SettledAndClaimed",
    "Settlement",
    "Skipped",
    "StoreReport",
    "StoredJob",
    "Tally",
    "Task",
    "TaskOptions",
    "TaskRegistry",
    "Token",
    "TokenOptions",
    "Tokens",
    "Turns",
    "Unserved",
    "Upload",
    "UploadedArtifact",
    "Uploads",
    "Waiting",
    "WorkerInfo",
    "WorkerStatus",
]

for _name in __all__:
    # As in `help` and documentation: the name under which programs import the class.
    globals()[_name].__module__ = __name__
