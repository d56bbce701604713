"""Classes that programs receive or name in annotations, but do not construct: results, options, tasks, namespaces."""

from holdfast.client.async_api.admin import AsyncAdmin
from holdfast.client.async_api.content import AsyncUploads
from holdfast.client.async_api.enqueued import AsyncEnqueued
from holdfast.client.async_api.groups import AsyncGroupBlock, AsyncGroups
from holdfast.client.async_api.kinds import AsyncKinds
from holdfast.client.async_api.lanes import AsyncLanes
from holdfast.client.async_api.limits import AsyncLimits
from holdfast.client.async_api.schedules import AsyncSchedules
from holdfast.client.async_api.sessions import AsyncSessions, AsyncTurns
from holdfast.client.async_api.tokens import AsyncTokens
from holdfast.client.async_api.webhooks import AsyncWebhooks
from holdfast.client.middleware import ClaimCall, EndedAttempt, JobDraft
from holdfast.client.sync_api.admin import Admin
from holdfast.client.sync_api.content import Uploads
from holdfast.client.sync_api.enqueued import Enqueued
from holdfast.client.sync_api.groups import GroupBlock, Groups
from holdfast.client.sync_api.kinds import Kinds
from holdfast.client.sync_api.lanes import Lanes
from holdfast.client.sync_api.limits import Limits
from holdfast.client.sync_api.schedules import Schedules
from holdfast.client.sync_api.sessions import Sessions, Turns
from holdfast.client.sync_api.tokens import Tokens
from holdfast.client.sync_api.webhooks import Webhooks
from holdfast.domain.access import AuditEntry, Grants, NewToken, Token, TokenOptions
from holdfast.domain.artifacts import Upload, UploadedArtifact
from holdfast.domain.claims import ClaimOptions, Renewal, SettledAndClaimed, Settlement
from holdfast.domain.clock import Clock, Now
from holdfast.domain.events import Event, EventPage
from holdfast.domain.failures import Failure
from holdfast.domain.gates import KeyUse, Limit, LimitOptions
from holdfast.domain.groups import JobGroup
from holdfast.domain.job import Attempt
from holdfast.domain.job_options import EnqueueOptions, JobOptions
from holdfast.domain.kinds import Kind
from holdfast.domain.output import OutputChunk, OutputPage
from holdfast.domain.overview import AffinityFlow, FlowMinute, LaneFlow, Need, Overview, WorkerModels
from holdfast.domain.results import (
    ArtifactInfo,
    Backlog,
    CancelReport,
    FailurePattern,
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
from holdfast.domain.schedules import Schedule, ScheduleOptions
from holdfast.domain.serving import Unserved
from holdfast.domain.session_claims import (
    AnySessionOptions,
    CheckpointOptions,
    SessionClaim,
    SessionClaimOptions,
    SessionLease,
)
from holdfast.domain.sessions import SessionEntry
from holdfast.domain.webhooks import Delivery, NewWebhook, Webhook, WebhookOptions
from holdfast.domain.why import Reason, Why
from holdfast.tasks.policy import Policy, TaskOptions
from holdfast.tasks.session_tasks import AsyncSessionTask, SessionTask, SessionTaskOptions
from holdfast.tasks.task import AsyncContextTask, AsyncTask, ContextTask, Task, TaskRegistry
from holdfast.worker.status import FailedAttempt, RunningJob, WorkerStatus

__all__ = [
    "Admin",
    "AffinityFlow",
    "AnySessionOptions",
    "ArtifactInfo",
    "AsyncAdmin",
    "AsyncContextTask",
    "AsyncEnqueued",
    "AsyncGroupBlock",
    "AsyncGroups",
    "AsyncKinds",
    "AsyncLanes",
    "AsyncLimits",
    "AsyncSchedules",
    "AsyncSessionTask",
    "AsyncSessions",
    "AsyncTask",
    "AsyncTokens",
    "AsyncTurns",
    "AsyncUploads",
    "AsyncWebhooks",
    "Attempt",
    "AuditEntry",
    "Backlog",
    "CancelReport",
    "CheckpointOptions",
    "ClaimCall",
    "ClaimOptions",
    "Clock",
    "ContextTask",
    "Delivery",
    "EndedAttempt",
    "EnqueueOptions",
    "Enqueued",
    "Event",
    "EventPage",
    "FailedAttempt",
    "Failure",
    "FailurePattern",
    "Finding",
    "FlowMinute",
    "Grants",
    "GroupBlock",
    "Groups",
    "JobDraft",
    "JobGroup",
    "JobOptions",
    "JobPage",
    "KeyUse",
    "Kind",
    "Kinds",
    "Lane",
    "LaneFlow",
    "Lanes",
    "Limit",
    "LimitOptions",
    "Limits",
    "Need",
    "NewToken",
    "NewWebhook",
    "Now",
    "OutputChunk",
    "OutputPage",
    "Overview",
    "Policy",
    "Pruned",
    "Reason",
    "Renewal",
    "Requeued",
    "RunningJob",
    "Schedule",
    "ScheduleOptions",
    "Schedules",
    "SessionClaim",
    "SessionClaimOptions",
    "SessionEntry",
    "SessionInfo",
    "SessionLease",
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
    "Webhook",
    "WebhookOptions",
    "Webhooks",
    "Why",
    "WorkerInfo",
    "WorkerModels",
    "WorkerStatus",
]

for _name in __all__:
    # As in `help` and documentation: the name under which programs import the class.
    globals()[_name].__module__ = __name__
