"""What each operation does over HTTP. A function here has the signature and the result of its operation."""

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Concatenate, Final, ParamSpec, TypeAlias, TypeVar

from holdfast.domain import access, errors, events, limits, new_job, results, serving, strict_json, validation
from holdfast.domain.claims import Claim, ClaimRequest, JobFence, Lease, Note, Renewal, Settlement, fence_of
from holdfast.domain.job import Attempt, Job, State, job_of, row_of
from holdfast.domain.kinds import Kind, Publication
from holdfast.domain.outcomes import CheckedOutcome
from holdfast.domain.output import OutputWrite, StreamEnd
from holdfast.domain.routing import Lane, RoutingTable
from holdfast.operations import (
    access as access_operations,
    admin as admin_operations,
    claim as claim_operations,
    dependencies as dependency_operations,
    enqueue as enqueue_operations,
    jobs as job_operations,
    lease as lease_operations,
    maintenance,
    output as output_operations,
    settle as settle_operations,
)
from holdfast.remote import decode, encode
from holdfast.remote.connection import WAIT_SECONDS, Http, path
from holdfast.remote.errors import error_of, not_available
from holdfast.storage.contract import JobPosition, StoreTransaction

P = ParamSpec("P")
T = TypeVar("T")

Operation: TypeAlias = Callable[Concatenate[StoreTransaction, P], Coroutine[Any, Any, T]]
OverHttp: TypeAlias = Callable[Concatenate[Http, P], Coroutine[Any, Any, T]]

_CALLS: Final[dict[Any, Any]] = {}
# How long a caller that waits for a job pauses between two requests in which the server waits.
PAUSE_SECONDS: Final = 0.05


def over_http(operation: Operation[P, T]) -> Callable[[OverHttp[P, T]], OverHttp[P, T]]:
    """Return a decorator for the function that does over HTTP what *operation* does in a transaction."""

    def register(function: OverHttp[P, T]) -> OverHttp[P, T]:
        _CALLS[operation] = function
        return function

    return register


def translate(operation: Any) -> Any:
    """Return the function that does over HTTP what *operation* does, or raise `Misconfigured`."""
    function = _CALLS.get(operation)
    if function is None:
        raise not_available(operation.__name__)
    return function


# --- enqueue -------------------------------------------------------------------------------------------------------


@over_http(enqueue_operations.enqueue_job)
async def enqueue_job(http: Http, new: new_job.CheckedJob) -> results.StoredJob:
    """Store one job; the id makes the request repeatable."""
    return _stored(await http.post(path("jobs"), encode.new_job(new)), new)


@over_http(enqueue_operations.enqueue_many)
async def enqueue_many(
    http: Http, checked_jobs: Sequence[new_job.CheckedJob], field: str = "jobs"
) -> list[results.StoredJob]:
    """Store many jobs, all or none."""
    if not checked_jobs:
        return []
    reply = await http.post(path("jobs", "batch"), {"jobs": [encode.new_job(new) for new in checked_jobs]})
    return [_stored(one, new) for one, new in zip(reply["jobs"], checked_jobs, strict=True)]


def _stored(reply: Mapping[str, Any], new: new_job.CheckedJob) -> results.StoredJob:
    job = decode.job(reply["job"])
    # Only this call has an id that this process generated; if it was sent twice, the first may have stored the job.
    created = reply["created"] or (new.digest is None and job.id == new.id)
    return results.StoredJob(job, created)


# --- claims --------------------------------------------------------------------------------------------------------


@over_http(claim_operations.claim_jobs)
async def claim_jobs(http: Http, request: ClaimRequest) -> list[Claim]:
    """Claim jobs; the server waits for one, a part of the time for which the caller waits."""
    wait = min(request.wait_ms / 1000, WAIT_SECONDS)
    reply = await http.post(path("claims"), encode.claim(request, wait), wait=wait)
    return await _acknowledged(http, request, reply["claims"])


@over_http(claim_operations.settle_and_claim)
async def settle_and_claim(
    http: Http,
    outcomes: Sequence[tuple[Claim, CheckedOutcome]],
    started: Sequence[JobFence],
    request: ClaimRequest,
) -> tuple[list[Settlement], list[Claim]]:
    """Settle and claim without waiting, so that the settlements are answered at once."""
    body = {
        **encode.claim(request, 0),
        "settlements": encode.settlements(outcomes),
        "started": [encode.lease(fence) for fence in started],
    }
    reply = await http.post(path("claims"), body)
    return _settled(outcomes, reply["settlements"]), await _acknowledged(http, request, reply["claims"])


async def _acknowledged(http: Http, request: ClaimRequest, found: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Extend the leases of new claims to their length, and acknowledge those that start at once.

    Until then the claims are released soon if this process ends, or if their response was lost.
    """
    claims = [decode.claim(one, request.lease_ms) for one in found]
    # A repeated claim may have been acknowledged before.
    new = [claim for claim, one in zip(claims, found, strict=True) if not one["acknowledged"]]
    if not new:
        return claims
    started = {one.job.number for one in claims[: request.acknowledged]}
    try:
        renewals = await heartbeat(http, [(fence_of(one), one.lease_ms) for one in new], None, started)
    except errors.Unavailable as error:
        # The same claim, sent again with its token, returns the same jobs.
        raise errors.OutcomeUnknown(f"the claims could not be acknowledged: {error}") from None
    except (errors.HoldfastError, GeneratorExit):
        raise
    except BaseException:  # cancelled or interrupted
        if not request.resent:
            await http.undo(_release(http, new))
        raise
    answers = dict(zip((one.job.number for one in new), renewals, strict=True))
    return [
        _extended(claim, answers.get(claim.job.number))
        for claim in claims
        if not isinstance(answers.get(claim.job.number), errors.HoldfastError)
    ]


async def _release(http: Http, claims: Sequence[Claim]) -> None:
    """Release claims that no caller has received; one whose acknowledgement arrives later has ended by then."""
    released = [{**encode.lease(fence_of(claim)), "outcome": "released"} for claim in claims]
    await http.post(path("settlements"), {"settlements": released})


def _extended(claim: Claim, renewal: Renewal | errors.HoldfastError | None) -> Claim:
    if not isinstance(renewal, Renewal):
        return claim
    lease_until_ms = round(renewal.lease_until.timestamp() * 1000)
    return Claim(job_of(row_of(claim.job)._replace(lease_until_ms=lease_until_ms)), claim.lease_ms)


@over_http(claim_operations.seconds_to_next_change)
async def seconds_to_next_change(http: Http) -> float:
    """Return a short time: the server has waited."""
    return PAUSE_SECONDS


@over_http(settle_operations.settle_jobs)
async def settle_jobs(
    http: Http, outcomes: Sequence[tuple[Claim, CheckedOutcome]], routing: RoutingTable | None = None
) -> list[Settlement]:
    """Settle many jobs in one commit."""
    if not outcomes:
        return []
    reply = await http.post(path("settlements"), {"settlements": encode.settlements(outcomes)})
    return _settled(outcomes, reply["settlements"])


def _settled(
    outcomes: Sequence[tuple[Claim, CheckedOutcome]], found: Sequence[Mapping[str, Any]]
) -> list[Settlement]:
    settlements = []
    for (claim, _), one in zip(outcomes, found, strict=True):
        if "error" in one:
            settlements.append(Settlement(claim, error=_of_lease(error_of(one["error"]), fence_of(claim))))
        else:
            settlements.append(Settlement(claim, decode.job(one["job"])))
    return settlements


def _of_lease(error: errors.HoldfastError, fence: JobFence) -> errors.HoldfastError:
    """Return the error for the holder of a lease: a lost lease if the job itself is missing, not a parent."""
    if isinstance(error, errors.JobNotFound) and error.job_id == fence.job_id and error.path is None:
        return errors.LeaseLost(fence.job_id, fence.epoch, "the job was deleted")
    return error


@over_http(lease_operations.heartbeat)
async def heartbeat(
    http: Http,
    held: Sequence[tuple[JobFence, int]],
    notes: Mapping[int, Note] | None = None,
    started: Collection[int] = (),
) -> list[Renewal | errors.HoldfastError]:
    """Extend many leases."""
    renewals, _ = await renew_and_append(http, held, notes or {}, started, [])
    return renewals


@over_http(output_operations.renew_and_append)
async def renew_and_append(
    http: Http,
    held: Sequence[tuple[JobFence, int]],
    notes: Mapping[int, Note],
    started: Collection[int],
    writes: Sequence[tuple[Claim, OutputWrite]],
) -> tuple[list[Renewal | errors.HoldfastError], list[StreamEnd | errors.HoldfastError]]:
    """Extend leases, write progress and append output, in one commit."""
    if not held and not writes:
        return [], []
    leases = []
    for fence, lease_ms in held:
        note = notes.get(fence.seq, Note())
        leases.append(
            {
                **encode.lease(fence),
                "lease": lease_ms / 1000,
                "acknowledge": fence.seq in started,
                "phase": note.phase,
                "percent": note.percent,
            }
        )
    output = [
        {**encode.lease(fence_of(claim)), "part": write.first, "texts": list(write.texts)} for claim, write in writes
    ]
    repeatable = all(write.first is not None for _, write in writes)
    reply = await http.post(path("heartbeats"), {"leases": leases, "output": output}, repeatable=repeatable)
    renewals = [
        _of_lease(error_of(one["error"]), fence) if "error" in one else decode.renewal(one)
        for (fence, _), one in zip(held, reply["leases"], strict=True)
    ]
    ends = [
        _of_lease(error_of(one["error"]), fence_of(claim)) if "error" in one else StreamEnd(**one)
        for (claim, _), one in zip(writes, reply["output"], strict=True)
    ]
    return renewals, ends


@over_http(output_operations.append)
async def append(http: Http, writes: Sequence[tuple[Claim, OutputWrite]]) -> list[StreamEnd | errors.HoldfastError]:
    """Append to the output of several jobs."""
    _, ends = await renew_and_append(http, [], {}, (), writes)
    return ends


@over_http(lease_operations.progress)
async def progress(http: Http, fence: JobFence, phase: str | None, percent: float | None) -> Job:
    """Write the progress of a running attempt."""
    body = {"epoch": fence.epoch, "lease_token": fence.lease_token, "phase": phase, "percent": percent}
    try:
        return decode.job(await http.post(path("claims", fence.job_id, "progress"), body))
    except errors.JobNotFound as error:
        raise _of_lease(error, fence) from None


@over_http(lease_operations.claim_of_lease)
async def claim_of_lease(http: Http, lease: Lease) -> Claim:
    """Return the claim that *lease* proves; the write that follows checks it."""
    job = await get(http, lease.job_id, lease.tenant)
    row = row_of(job)._replace(epoch=lease.epoch, lease_token=lease.lease_token)
    return Claim(job_of(row), limits.LEASE_MS_DEFAULT)


# --- jobs ----------------------------------------------------------------------------------------------------------


@over_http(job_operations.get)
async def get(http: Http, job_id: str | int, tenant: str | None) -> Job:
    """Return one job."""
    by = "number" if isinstance(job_id, int) else None
    return decode.job(await http.get(path("jobs", job_id), {"tenant": tenant, "by": by}))


@over_http(job_operations.get_overdue)
async def get_overdue(http: Http, job_id: str, tenant: str | None, wait_seconds: float = 0.0) -> tuple[Job, bool]:
    """Return one job once it has finished, or as it is after some time; the server fails a late one."""
    wait = min(wait_seconds, WAIT_SECONDS)
    query = {"tenant": tenant, "wait": float(wait) if wait else None}
    return decode.job(await http.get(path("jobs", job_id), query, wait=wait)), False


@over_http(maintenance.fail_late_jobs)
async def fail_late_jobs(http: Http) -> bool:
    """Do nothing: the server does it."""
    return False


@over_http(job_operations.jobs)
async def jobs(http: Http, job_filter: results.JobFilter, after: str | None, limit: int) -> results.JobPage:
    """Return a page of jobs."""
    reply = await http.get(path("jobs"), {**encode.job_filter(job_filter), "after": after, "limit": limit})
    return results.JobPage(tuple(decode.job(one) for one in reply["jobs"]), reply["cursor"])


@over_http(dependency_operations.parents)
async def parents(http: Http, job_id: str, tenant: str | None) -> list[Job]:
    """Return the jobs on which a job depends."""
    reply = await http.get(path("jobs", job_id, "parents"), {"tenant": tenant})
    return [decode.job(one) for one in reply["jobs"]]


@over_http(job_operations.attempts)
async def attempts(http: Http, job_id: str, tenant: str | None) -> list[Attempt]:
    """Return the attempts of a job."""
    reply = await http.get(path("jobs", job_id, "attempts"), {"tenant": tenant})
    return [decode.attempt(one) for one in reply["attempts"]]


@over_http(job_operations.counts)
async def counts(http: Http, by: results.CountBy, tenant: str | None) -> dict[str, int]:
    """Count jobs by one property."""
    found: dict[str, int] = (await http.get(path("counts"), {"by": by, "tenant": tenant}))["jobs"]
    return found


@over_http(job_operations.tally)
async def tally(http: Http, job_filter: results.JobFilter) -> list[results.Tally]:
    """Count jobs by lane, kind and state."""
    reply = await http.get(path("stats"), encode.job_filter(job_filter))
    return [results.Tally(**one) for one in reply["jobs"]]


@over_http(job_operations.backlog)
async def backlog(http: Http) -> results.Backlog:
    """Count waiting and running jobs."""
    return decode.backlog(await http.get(path("backlog")))


@over_http(job_operations.unserved)
async def unserved(http: Http) -> list[serving.Unserved]:
    """Return the ready jobs that no live worker serves."""
    return [decode.unserved(one) for one in (await http.get(path("problems")))["unserved"]]


@over_http(job_operations.problems)
async def problems(http: Http) -> list[results.Finding]:
    """Return findings about jobs."""
    return [results.Finding(**one) for one in (await http.get(path("problems")))["findings"]]


@over_http(job_operations.event_page)
async def page(http: Http, after: str | None, limit: int, tenant: str | None) -> tuple[events.EventPage, bool]:
    """Return a page of events; the server has waited for those that were held back."""
    reply = await http.get(path("events"), {"after": after, "limit": limit, "tenant": tenant})
    return events.EventPage(tuple(decode.event(one) for one in reply["events"]), reply["cursor"]), False


# --- change jobs ---------------------------------------------------------------------------------------------------


@over_http(admin_operations.cancel)
async def cancel(http: Http, job_id: str, tenant: str | None, *, force: bool) -> Job:
    """Cancel one job."""
    return decode.job(await http.post(path("jobs", job_id, "cancel"), {"force": force}, {"tenant": tenant}))


@over_http(admin_operations.cancel_many)
async def cancel_many(http: Http, job_ids: Sequence[str], tenant: str | None, *, force: bool) -> results.CancelReport:
    """Cancel many jobs."""
    body = {"job_ids": list(job_ids), "force": force}
    return decode.cancel_report(await http.post(path("admin", "cancel"), body, {"tenant": tenant}))


@over_http(admin_operations.requeue)
async def requeue(http: Http, job_id: str, tenant: str | None, *, with_children: bool = False) -> Job:
    """Requeue one job."""
    query, body = {"tenant": tenant}, {"with_children": True} if with_children else None
    return decode.job(await http.post(path("jobs", job_id, "requeue"), body, query, repeatable=False))


@over_http(admin_operations.requeue_many)
async def requeue_many(http: Http, job_ids: Sequence[str], tenant: str | None) -> results.Requeued:
    """Requeue many jobs."""
    body = {"job_ids": list(job_ids)}
    return decode.requeued(await http.post(path("admin", "requeue"), body, {"tenant": tenant}, repeatable=False))


@over_http(admin_operations.reprioritize)
async def reprioritize(http: Http, job_id: str, priority: int, tenant: str | None) -> Job:
    """Change the priority of one job."""
    return decode.job(
        await http.post(path("jobs", job_id, "reprioritize"), {"priority": priority}, {"tenant": tenant})
    )


# --- delete --------------------------------------------------------------------------------------------------------


@over_http(admin_operations.prune_jobs)
async def prune_jobs(http: Http, state: State, age_ms: int, after: JobPosition = (-1, -1)) -> tuple[int, JobPosition]:
    """Delete a chunk of finished jobs."""
    reply = await prune_chunk(http, "jobs", age_ms, state=state, after=list(after))
    position: JobPosition = tuple(reply["after"])
    return reply["deleted"], position


@over_http(admin_operations.prune_message_ids)
async def prune_message_ids(http: Http, age_ms: int) -> int:
    """Delete a chunk of message ids."""
    deleted: int = (await prune_chunk(http, "message_ids", age_ms))["deleted"]
    return deleted


@over_http(admin_operations.prune_events)
async def prune_events(http: Http, age_ms: int) -> tuple[int, bool]:
    """Delete a chunk of events."""
    reply = await prune_chunk(http, "events", age_ms)
    return reply["deleted"], reply["held_back"]


@over_http(admin_operations.count_prunable_events)
async def count_prunable_events(http: Http, age_ms: int) -> tuple[int, bool]:
    """Count the events that would be deleted."""
    reply = await prune_chunk(http, "events", age_ms, dry_run=True)
    return reply["deleted"], reply["held_back"]


async def prune_chunk(http: Http, what: str, age_ms: int, **options: Any) -> Any:
    """Delete a chunk of what is named."""
    # A chunk that was deleted twice would be counted once.
    return await http.post(path("admin", "prune"), {"what": what, "age_ms": age_ms, **options})


# --- lanes and kinds -----------------------------------------------------------------------------------------------


@over_http(admin_operations.lanes)
async def lanes(http: Http) -> list[Lane]:
    """Return the lanes."""
    return [Lane(**one) for one in (await http.get(path("lanes")))["lanes"]]


@over_http(admin_operations.set_lane)
async def set_lane(http: Http, name: str, change: admin_operations.LaneChange) -> tuple[Lane, list[int]]:
    """Change a lane; the server also updates its waiting jobs, so that no routes are left."""
    body = {option: value for option, value in change._asdict().items() if value is not None}
    return Lane(**await http.post(path("lanes", name), body, method="PATCH")), []


@over_http(admin_operations.waiting_seqs)
async def waiting_seqs(http: Http, routes: Sequence[int], after: int) -> list[int]:
    """Return nothing: the server has changed the waiting jobs."""
    return []


@over_http(admin_operations.kinds)
async def kinds(http: Http) -> list[Kind]:
    """Return the kinds."""
    return [decode.kind(one) for one in (await http.get(path("kinds")))["kinds"]]


@over_http(admin_operations.kind)
async def kind(http: Http, name: str) -> Kind | None:
    """Return one kind."""
    try:
        return decode.kind(await http.get(path("kinds", name)))
    except errors.UnknownKind:
        return None


@over_http(admin_operations.retire_kind)
async def retire_kind(http: Http, kind: str) -> tuple[list[int], int]:
    """Retire a kind with its waiting jobs, so that no routes are left."""
    reply = await http.post(path("kinds", kind, "retire"), repeatable=False)
    return [], reply["jobs"]


@over_http(admin_operations.restore_kind)
async def restore_kind(http: Http, kind: str) -> bool:
    """Restore a kind."""
    try:
        await http.post(path("kinds", kind, "restore"), repeatable=False)
    except errors.UnknownKind:
        return False
    return True


@over_http(admin_operations.changed_publications)
async def changed_publications(http: Http, publications: Mapping[str, Publication]) -> dict[str, Publication]:
    """Return all of them: the server compares them."""
    return dict(publications)


@over_http(admin_operations.publish_kinds)
async def publish_kinds(http: Http, publications: Mapping[str, Publication], published_by: str) -> None:
    """Publish tasks."""
    kinds = {
        name: {
            "options": strict_json.decode(one.options_json),
            "timeout_ms": one.timeout_ms,
            "session": one.session,
            "schema": None if one.schema_json is None else strict_json.decode(one.schema_json),
        }
        for name, one in publications.items()
    }
    await http.post(path("kinds"), {"published_by": published_by, "kinds": kinds})


# --- workers and the audit log -------------------------------------------------------------------------------------


@over_http(job_operations.write_worker)
async def write_worker(http: Http, worker: results.WorkerInfo) -> results.WorkerRequest | None:
    """Write the registry row of a worker."""
    told = ("incarnation", "host", "process", "version", "state", "concurrency", "running")
    warm = ("switches", "switches_saved", "hold_left")
    named = ("lanes", "kinds", "capabilities", "loaded")
    body = {name: getattr(worker, name) for name in told + warm} | {
        name: list(getattr(worker, name)) for name in named
    }
    reply = await http.post(path("workers", worker.worker), body, method="PUT")
    requested: results.WorkerRequest | None = reply["requested"]
    return requested


@over_http(job_operations.delete_worker)
async def delete_worker(http: Http, worker: str, incarnation: str) -> None:
    """Delete the registry row of a worker."""
    await http.post(path("workers", worker, "leave"), {"incarnation": incarnation})


@over_http(job_operations.newest_workers)
async def newest_workers(http: Http, limit: int) -> list[results.WorkerInfo]:
    """Return the workers that were active last."""
    return [decode.worker(one) for one in (await http.get(path("workers"), {"limit": limit}))["workers"]]


@over_http(job_operations.request_worker)
async def request_worker(http: Http, worker: str, requested: results.WorkerRequest) -> list[results.WorkerInfo]:
    """Request a worker to drain or stop."""
    return [decode.worker(one) for one in (await http.post(path("workers", worker, requested)))["workers"]]


@over_http(access_operations.create_token)
async def create_token(
    http: Http,
    token_id: str,
    secret_hash: str,
    name: str,
    grants: access.Grants,
    expires_ms: int | None,
    actor: str,
) -> access.Token:
    """Create a token whose secret this process has generated; the server names its own token as the actor."""
    options = {option: value for option, value in asdict(grants).items() if value is not None}
    body = {**options, "name": name, "roles": list(grants.roles), "id": token_id, "secret_hash": secret_hash}
    if expires_ms is not None:
        body["expires_in"] = expires_ms / 1000
    return decode.token((await http.post(path("tokens"), body))["token"])


@over_http(access_operations.rotate_token)
async def rotate_token(
    http: Http, token_id: str, new_id: str, secret_hash: str, overlap_ms: int, actor: str
) -> access.Token:
    """Create a token with the grants of another."""
    body = {"overlap": overlap_ms / 1000, "id": new_id, "secret_hash": secret_hash}
    return decode.token((await http.post(path("tokens", token_id, "rotate"), body))["token"])


@over_http(access_operations.revoke_token)
async def revoke_token(http: Http, token_id: str, actor: str) -> access.Token:
    """Revoke a token."""
    return decode.token(await http.post(path("tokens", token_id, "revoke")))


@over_http(access_operations.tokens)
async def tokens(http: Http, limit: int) -> list[access.Token]:
    """Return the tokens that were created last."""
    return [decode.token(one) for one in (await http.get(path("tokens"), {"limit": limit}))["tokens"]]


@over_http(access_operations.record)
async def record(http: Http, actor: str, action: str, target: str, detail: dict[str, strict_json.Json]) -> None:
    """Append to the audit log; the server names the token as the actor."""
    await http.post(path("audit"), {"action": action, "target": target, "detail": detail}, repeatable=False)


@over_http(access_operations.audit_log)
async def audit_log(http: Http, before: int, limit: int) -> list[access.AuditEntry]:
    """Return entries of the audit log."""
    # A number beyond every entry stands for the newest ones.
    query = {"before": before if before < 1 << 50 else None, "limit": limit}
    entries = (await http.get(path("audit"), query))["entries"]
    return [
        access.AuditEntry(**{**_without_time(one), "at": validation.datetime_of(one["at_ms"])}) for one in entries
    ]


def _without_time(one: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in one.items() if name != "at_ms"}
