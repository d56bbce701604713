"""All errors that Holdfast raises, grouped by what the caller should do next.

    HoldfastError
    ├── Refused            the request contradicts the store: do not retry it unchanged
    │   ├── JobNotFound        the job does not exist, or this caller may not see it
    │   ├── ArtifactNotFound   the job has no artifact of this name
    │   ├── UploadNotFound     the upload does not exist, has expired, or is another tenant's
    │   ├── SessionNotFound    the session was never used, or is another tenant's
    │   ├── WorkerNotFound     no worker of this name has registered
    │   ├── JobFailed          the job whose result was requested was not done
    │   ├── TokenNotFound      no token with this id exists
    │   ├── WebhookNotFound    no webhook with this id exists, or it is another tenant's
    │   ├── ScheduleNotFound   the tenant has no schedule of this name
    │   ├── GroupNotFound      the tenant has no group of this name
    │   ├── LimitNotFound      there is no limit of this name
    │   ├── LeaseLost          the lease expired, or another claim holds the job: stop working
    │   ├── Conflict           the job's state or content does not permit this
    │   ├── LaneDraining       the lane accepts no new jobs
    │   ├── QueueFull          the lane has too many waiting jobs
    │   ├── KindRetired        the kind accepts no new jobs
    │   ├── EventsPruned       the events after the cursor have been pruned
    │   ├── NotAuthenticated   the service needs a token that is valid now
    │   └── Forbidden          the token does not grant this; names the field and the limit
    ├── Unavailable        the store did not respond, or a worker cannot continue: retry with backoff
    │   ├── StoreBusy          other callers held the store for too long
    │   ├── StoreUnreachable   the file or server cannot be opened or read
    │   ├── StoreFull          no space is left
    │   ├── OutcomeUnknown     the commit was sent but not confirmed: send the same call again
    │   ├── HandlersStuck      too many handlers ignore the request to stop: restart the worker
    │   └── WaitTimeout        the job had not finished in time (also a TimeoutError)
    └── Misconfigured      the program, its input or the schema is wrong: fix it
        ├── InvalidInput       an argument is wrong; names the field and the limit (also a ValueError)
        ├── UnknownKind        a kind that is not registered
        ├── CodecFailed        a payload or result cannot be encoded or decoded
        ├── ReadOnlyStore      the store can be read but not written
        ├── SchemaMismatch     the schema requires a different version of the code
        ├── UnsupportedStore   Holdfast does not support the database library or file system
        └── StoreDamaged       the file is not a valid database

Each leaf has a stable `code`, the same in the library, on the command line and in the docs.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from holdfast.domain import masking

if TYPE_CHECKING:
    from holdfast.domain.failures import Failure
    from holdfast.domain.job import Job


class HoldfastError(Exception):
    """The base class of all errors that Holdfast raises on purpose. Credentials in the message are masked."""

    __module__ = "holdfast.errors"
    code: ClassVar[str] = "holdfast_error"
    """A stable name of the error, the same in the library, on the command line and over HTTP."""

    def __init_subclass__(cls) -> None:
        if cls.__module__ == __name__:
            # Tracebacks show the name under which programs import the class.
            cls.__module__ = "holdfast.errors"

    def __init__(self, message: str = "") -> None:
        super().__init__(masking.mask_url(message))


class Refused(HoldfastError):
    """The request contradicts the content of the store; repeating it unchanged will not help."""

    code = "refused"
    path: str | None = None
    """The part of the call that was refused, such as `jobs[3]`; None if it has only one."""

    def __str__(self) -> str:
        return super().__str__() if self.path is None else f"{self.path}: {super().__str__()}"


class Unavailable(HoldfastError):
    """The store did not respond; the same call may succeed later."""

    code = "unavailable"


class Misconfigured(HoldfastError):
    """The program, its input or the schema is wrong and has to be changed."""

    code = "misconfigured"


class JobNotFound(Refused):
    """No job with this id exists, or it belongs to a tenant that this call may not see."""

    code = "job_not_found"
    job_id: str
    """The id that was given."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"no job {job_id!r}")
        self.job_id = job_id


class JobFailed(Refused):
    """The job whose result was requested has failed, or was cancelled or retired."""

    code = "job_failed"
    job: Job
    """The job, as it was when it had finished."""
    failure: Failure | None
    """Its failure; None if it was cancelled or retired without one."""

    def __init__(self, job: Job) -> None:
        failure = job.failure
        why = "" if failure is None else f": {failure.reason}: {failure.message}"
        super().__init__(f"job {job.id!r} of kind {job.kind!r} is {job.state}{why}")
        self.job = job
        self.failure = failure


class ArtifactNotFound(Refused):
    """The job exists but has no artifact of this name."""

    code = "artifact_not_found"
    job_id: str
    """The id of the job."""
    name: str
    """The name that was given."""

    def __init__(self, job_id: str, name: str) -> None:
        super().__init__(f"job {job_id!r} has no artifact {name!r}")
        self.job_id = job_id
        self.name = name


class UploadNotFound(Refused):
    """No upload with this id exists, it has expired, or it belongs to another tenant. Upload the bytes again."""

    code = "upload_not_found"
    upload_id: str
    """The id that was given."""

    def __init__(self, upload_id: str) -> None:
        super().__init__(f"no upload {upload_id!r}, or it has expired")
        self.upload_id = upload_id


class SessionNotFound(Refused):
    """No session of this name exists in the tenant; a session exists from its first use on."""

    code = "session_not_found"
    session: str
    """The name that was given."""

    def __init__(self, session: str) -> None:
        super().__init__(f"no session {session!r}")
        self.session = session


class WorkerNotFound(Refused):
    """No worker of this name is in the registry; the message names similar ones."""

    code = "worker_not_found"
    worker: str
    """The name that was given."""
    similar: tuple[str, ...]
    """Similar names of registered workers."""

    def __init__(self, worker: str, similar: Sequence[str] = ()) -> None:
        suggestion = f"; did you mean {' or '.join(map(repr, similar))}?" if similar else ""
        super().__init__(f"no worker {worker!r} has registered{suggestion}")
        self.worker = worker
        self.similar = tuple(similar)


class TokenNotFound(Refused):
    """No token with this id exists."""

    code = "token_not_found"
    token_id: str
    """The id that was given."""

    def __init__(self, token_id: str) -> None:
        super().__init__(f"no token {token_id!r}")
        self.token_id = token_id


class WebhookNotFound(Refused):
    """No webhook with this id exists, or it belongs to another tenant."""

    code = "webhook_not_found"
    webhook_id: str
    """The id that was given."""

    def __init__(self, webhook_id: str) -> None:
        super().__init__(f"no webhook {webhook_id!r}")
        self.webhook_id = webhook_id


class ScheduleNotFound(Refused):
    """The tenant has no schedule of this name."""

    code = "schedule_not_found"
    name: str
    """The name that was given."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no schedule {name!r}")
        self.name = name


class GroupNotFound(Refused):
    """The tenant has no group of this name."""

    code = "group_not_found"
    name: str
    """The name that was given."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no group {name!r}")
        self.name = name


class LimitNotFound(Refused):
    """There is no limit of this name."""

    code = "limit_not_found"
    name: str
    """The name that was given."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no limit {name!r}")
        self.name = name


class LeaseLost(Refused):
    """The lease is no longer held: it expired, or another claim holds the job. Stop working on the job."""

    code = "lease_lost"
    job_id: str
    """The id of the job; for a session lease, the name of the session."""
    epoch: int
    """The epoch of the lost claim; for a session lease, its generation."""
    why: str
    """The reason, for people."""

    def __init__(self, job_id: str, epoch: int, why: str) -> None:
        super().__init__(f"lease on job {job_id!r} at epoch {epoch} is lost: {why}")
        self.job_id = job_id
        self.epoch = epoch
        self.why = why


def session_lease_lost(session: str, generation: int, why: str) -> LeaseLost:
    """Return the error of a session lease, whose message names the session."""
    error = LeaseLost(session, generation, why)
    error.args = (f"lease on session {session!r} at generation {generation} is lost: {why}",)
    return error


class Conflict(Refused):
    """The job's state or content does not permit this request."""

    code = "conflict"
    job_id: str | None
    """The id of the conflicting job, if any."""

    def __init__(self, problem: str, *, job_id: str | None = None) -> None:
        super().__init__(problem)
        self.job_id = job_id


class LaneDraining(Refused):
    """The lane is draining: its jobs are processed, new ones are refused."""

    code = "lane_draining"
    lane: str
    """The name of the lane."""

    def __init__(self, lane: str) -> None:
        super().__init__(f"lane {lane!r} is draining and accepts no new jobs; set it active to enqueue again")
        self.lane = lane


class QueueFull(Refused):
    """The tenant has as many jobs waiting in the lane as the lane allows."""

    code = "queue_full"
    lane: str
    """The name of the lane."""
    limit: int
    """How many jobs of one tenant may wait in it."""

    def __init__(self, lane: str, tenant: str, limit: int) -> None:
        super().__init__(
            f"lane {lane!r} is full: tenant {tenant!r} would have more than {limit} jobs waiting in it;"
            " enqueue again later, or raise max_waiting of the lane"
        )
        self.lane = lane
        self.limit = limit


class KindRetired(Refused):
    """The kind is retired: its waiting jobs were retired and new ones are refused."""

    code = "kind_retired"
    kind: str
    """The name of the kind."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"kind {kind!r} is retired and accepts no new jobs; restore it to enqueue again")
        self.kind = kind


class EventsPruned(Refused):
    """Events after this cursor were pruned before they were read; continue from `horizon` and expect a gap."""

    code = "events_pruned"
    horizon: str
    """The cursor from which events can be read."""

    def __init__(self, horizon: str) -> None:
        super().__init__(
            f"events after this cursor have been pruned; continue from cursor {horizon!r} and expect a gap"
        )
        self.horizon = horizon


class NotAuthenticated(Refused):
    """The service needs a token: none was sent, or it is unknown, expired or revoked."""

    code = "not_authenticated"


class Forbidden(Refused):
    """The token does not grant this."""

    code = "forbidden"
    field: str | None
    """The refused part of the request, if it is one field."""
    limit: int | None
    """The ceiling that the token sets, if any."""

    def __init__(self, problem: str, *, field: str | None = None, limit: int | None = None) -> None:
        super().__init__(problem if field is None else f"{field}: {problem}")
        self.field = field
        self.limit = limit


class StoreBusy(Unavailable):
    """Other callers held the store for longer than the timeout."""

    code = "store_busy"


class StoreUnreachable(Unavailable):
    """The store cannot be opened, read or written now."""

    code = "store_unreachable"


class StoreFull(Unavailable):
    """No space is left for the write; nothing was stored."""

    code = "store_full"


class OutcomeUnknown(Unavailable):
    """The commit was sent but not confirmed. Send the same call again: that is always safe."""

    code = "outcome_unknown"


class WaitTimeout(Unavailable, TimeoutError):
    """The job or group had not finished within the timeout; it continues."""

    code = "wait_timeout"
    job_id: str
    """The id of the job, or the name of the group."""

    def __init__(self, job_id: str, timeout: float, waited_for: str = "job") -> None:
        super().__init__(f"{waited_for} {job_id!r} had not finished after {timeout:g} s")
        self.job_id = job_id


class HandlersStuck(Unavailable):
    """More handlers than the worker has slots ignore the request to stop; only a new process ends them."""

    code = "handlers_stuck"
    count: int
    """How many handlers keep running."""
    kinds: tuple[str, ...]
    """Their kinds."""

    def __init__(self, count: int, kinds: Sequence[str]) -> None:
        super().__init__(
            f"{count} handlers ignore the request to stop, of kind {', '.join(kinds)};"
            " the worker stops, so that its process can be restarted"
        )
        self.count = count
        self.kinds = tuple(kinds)


class InvalidInput(Misconfigured, ValueError):
    """An argument is wrong, as the message says; nothing was stored."""

    code = "invalid_input"
    field: str
    """The argument, such as `priority` or `jobs[3].payload.to`."""
    problem: str
    """What is wrong with it, for people."""
    limit: float | None
    """The size, count or value that it exceeds, if any."""

    def __init__(self, field: str, problem: str, limit: float | None = None) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = masking.mask_url(problem)
        self.limit = limit


class UnknownKind(Misconfigured):
    """No task of this kind is declared, or the store does not know the kind."""

    code = "unknown_kind"
    kind: str
    """The name of the kind."""

    def __init__(self, kind: str, problem: str) -> None:
        super().__init__(f"kind {kind!r}: {problem}")
        self.kind = kind


class CodecFailed(Misconfigured):
    """A payload or result is encoded and cannot be decoded here, or cannot be encoded.

    The message contains no part of the value; the cause is the codec's error.
    """

    code = "codec_failed"
    job_id: str | None
    """The id of the job; None if it is not stored."""

    def __init__(self, message: str, *, job_id: str | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id


class ReadOnlyStore(Misconfigured):
    """The store can be read but not written by this process."""

    code = "read_only_store"


class SchemaMismatch(Misconfigured):
    """The schema in the store does not match this version of the code."""

    code = "schema_mismatch"


class UnsupportedStore(Misconfigured):
    """The database library, server or file system does not provide the guarantees that Holdfast needs."""

    code = "unsupported_store"


class StoreDamaged(Misconfigured):
    """The file is not a valid database; restore it from a backup."""

    code = "store_damaged"


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 100


def shown(value: object) -> str:
    """Return *value*, an invalid argument of any type, for a message: shortened, or its type."""
    try:
        return _REPR.repr(value)
    except Exception:  # an integer of thousands of digits, or code of the caller
        return f"a value of type {type(value).__name__}"
