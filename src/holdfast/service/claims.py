"""Handlers of `/v1/claims`: the protocol of remote workers. Every call may be sent again."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from starlette.responses import Response

from holdfast import json_view
from holdfast.domain import access, errors, limits, routing, strict_json, validation
from holdfast.domain.claims import Claim, Lease, Renewal, SettledAndClaimed, Settlement, lease_ms
from holdfast.domain.job import Job, job_of, row_of
from holdfast.domain.outcomes import Deferred, Done, Failed, Outcome, Released, SentDone, check_plain
from holdfast.operations import access as access_operations
from holdfast.service import new_jobs, problems, schemas
from holdfast.service.call import Call, reply, reply_text

INCARNATION: Final = "http"
# The keys of each outcome.
_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "done": frozenset(("result", "follow_ups", "artifacts", "digest", "usage")),
    "failed": frozenset(("message", "reason", "permanent", "retry_after", "traceback", "backoff", "usage")),
    "deferred": frozenset(("after", "until", "closes", "usage")),
    "released": frozenset(),
}
# The options of a claim that most claims do not have.
_AFFINITY_OPTIONS: Final = ("affinity", "affinities_held", "affinities_max", "hold_left")
_OTHER_OPTIONS: Final = frozenset(
    (*_AFFINITY_OPTIONS, "capabilities", "lease_token", "drain", "exclusive", "cut_off")
)
_LEASE_KEYS: Final = frozenset(("job_id", "epoch", "lease_token", "outcome", "tenant", "entries"))
_PLAIN_KEYS: Final = _LEASE_KEYS | {"result"}


async def claim(call: Call) -> Response:
    """Lease jobs for `ack_ms`; they are released unless the caller acknowledges or settles them in time."""
    body, grants = call.body, call.grants
    limit = body.get("limit", 1)
    access.check_claim_size(grants, limit)
    ack_ms = validation.integer(
        body.get("ack_ms", schemas.ACK_MS_DEFAULT), "ack_ms", schemas.ACK_MS_MIN, schemas.ACK_MS_MAX
    )
    options: dict[str, Any] = {
        "worker": body["worker"],
        "incarnation": body.get("incarnation", INCARNATION),
        "lanes": _tuple(access.scoped_names(body.get("lanes"), grants.lanes, "lanes")) or (routing.DEFAULT_NAME,),
        "kinds": _tuple(access.scoped_names(body.get("kinds"), grants.kinds, "kinds")),
        "tenant": access.tenant_for(grants, body.get("tenant")),
        "lease": ack_ms / 1000,
        "acknowledged": 0,
    }
    if not _OTHER_OPTIONS.isdisjoint(body):
        options |= {name: body[name] for name in _OTHER_OPTIONS if name in body}
        options["capabilities"] = tuple(body.get("capabilities", ()))
        for name in ("exclusive", "cut_off"):
            # They act on all jobs of a worker's name, which no tenant owns.
            if options.get(name, False) and grants.tenant is not None:
                raise errors.Forbidden("needs a token for any tenant", field=name)
    seconds = validation.number(body["wait"], "wait", 0, schemas.WAIT_SECONDS_MAX) if "wait" in body else 0
    settled: list[str] = []
    if body.get("settlements") or body.get("started"):
        settled, claims = await _settle_and_claim(call, limit, options)
    else:
        claims = await call.service.combined.claim(call.caller.actor, limit, options)
    if seconds and not claims:
        seconds = min(seconds, call.service.settings.wait_seconds_max)
        claims = await call.wait_for(call.queue.claim_many(limit=limit, wait=seconds, **options), [])
    call.service.held.keep(claims)
    texts = ",".join(map(json_view.claim_text, claims))
    return reply_text(f'{{"claims":[{texts}],"settlements":[{",".join(settled)}]}}')


async def acknowledge(call: Call) -> Response:
    """Record that the work starts, and extend the lease."""
    return await _renewed(call, acknowledge=True)


async def heartbeat(call: Call) -> Response:
    """Extend the lease; the answer has its new end and whether the job is to be cancelled."""
    return await _renewed(call, acknowledge=False)


async def _renewed(call: Call, *, acknowledge: bool) -> Response:
    lease, length_ms = _lease(call), _lease_ms(call.body)
    renewal = await call.service.runner.write(
        access_operations.renew_held, lease, length_ms, call.grants, acknowledge=acknowledge
    )
    return renewed(renewal)


async def progress(call: Call) -> Response:
    """Store the progress of a running job."""
    held = await _held(call)
    job = await call.queue.progress(held, phase=call.body.get("phase"), percent=call.body.get("percent"))
    return reply_text(json_view.job_text(job))


async def emit(call: Call) -> Response:
    """Append text to the output of a running job."""
    held = await _held(call)
    number = await call.queue.emit(held, call.body["text"], part=call.body.get("part"))
    return reply({"number": number})


async def attach(call: Call) -> Response:
    """Store artifacts of a running job, and return all that it has."""
    artifacts = new_jobs.artifacts_of(call.body["artifacts"], "")
    held = await _held(call)
    await call.queue.attach(held, artifacts)
    return reply({"artifacts": [json_view.artifact(one) for one in await call.queue.artifacts(held.job.id)]})


async def settle(call: Call) -> Response:
    """Record the outcome of an attempt; follow-ups and artifacts commit with it."""
    outcome = outcome_of(call, call.body, "")
    _check_lease(call.body, "")
    checked = check_plain(outcome)
    if checked is not None:
        proof = _proof(call)
        held = call.service.held.take(*proof, call.grants) or Lease(*proof)
        job = await call.service.combined.settle(access_operations.HeldSettlement(held, checked, call.grants))
    else:
        job = await call.queue.settle(await _held(call), outcome)
    if job.finished:
        call.service.waiter.answer((job,))
    return reply_text(json_view.job_text(job))


def renewed(renewal: Renewal) -> Response:
    """Return the new end of a lease, and whether the work is to be cancelled."""
    return reply(renewal_view(renewal))


def renewal_view(renewal: Renewal) -> dict[str, Any]:
    """Return the result of a heartbeat as JSON."""
    until_ms = round(renewal.lease_until.timestamp() * 1000)
    return {"lease_until_ms": until_ms, "cancel_requested": renewal.cancel_requested}


def _lease(call: Call) -> Lease:
    """Return the proof of the claim of the path."""
    _check_lease(call.body, "")
    return Lease(*_proof(call))


def _proof(call: Call) -> tuple[str, int, str, str | None]:
    """Return the values of the lease of the path; a job id that none can have is not found."""
    job_id, body = call.path["job_id"], call.body
    try:
        validation.name(job_id, "job_id", limits.JOB_ID_CHARS_MAX)
    except errors.InvalidInput:
        raise errors.JobNotFound(job_id) from None
    return job_id, body["epoch"], body["lease_token"], call.tenant


def _tuple(names: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


def _lease_ms(given: Mapping[str, Any]) -> int:
    return lease_ms(given.get("lease", limits.LEASE_MS_DEFAULT / 1000))


async def _held(call: Call) -> Claim:
    """Return the claim of the path, as `_claim_of` does."""
    _check_lease(call.body, "")
    return await _claim_of(call, call.body, call.path["job_id"])


async def _claim_of(call: Call, given: Mapping[str, Any], job_id: str) -> Claim:
    """Return the claim that the caller says it holds. The operation checks epoch and token in its transaction."""
    return _as_claim(await call.job(job_id), given)


def _as_claim(job: Job, given: Mapping[str, Any]) -> Claim:
    row = row_of(job)._replace(epoch=given["epoch"], lease_token=given["lease_token"])
    return Claim(job_of(row), _lease_ms(given))


async def claims_of(call: Call, given: Sequence[Mapping[str, Any]], field: str) -> list[Claim | errors.HoldfastError]:
    """Return the claims that the caller says it holds, or `JobNotFound` in the place of a missing one."""
    for index, one in enumerate(given):
        validation.name(one["job_id"], f"{field}[{index}].job_id", limits.JOB_ID_CHARS_MAX)
        _check_lease(one, f"{field}[{index}].")
    if not given:
        return []
    found = await call.service.runner.read(access_operations.jobs_by_id, [one["job_id"] for one in given])
    visible = {
        job.id: job
        for job in found
        if call.tenant in {None, job.tenant} and access.covers(call.grants, job.lane, job.kind)
    }
    return [
        _as_claim(visible[one["job_id"]], one) if one["job_id"] in visible else errors.JobNotFound(one["job_id"])
        for one in given
    ]


def _check_lease(given: Mapping[str, Any], path: str) -> None:
    validation.integer(given["epoch"], f"{path}epoch", 0, schemas.EPOCH_MAX)
    validation.name(given["lease_token"], f"{path}lease_token", limits.LEASE_TOKEN_CHARS_MAX)


async def _settle_and_claim(call: Call, limit: int, options: dict[str, Any]) -> tuple[list[str], list[Claim]]:
    """Settle several jobs and claim, in one commit; each result is the job or the problem, as JSON text."""
    named = await claims_of(call, call.body.get("started", ()), "started")
    started = [one for one in named if isinstance(one, Claim)]
    return await settle_all(
        call,
        call.body.get("settlements", ()),
        lambda held: call.queue.settle_and_claim(held, limit=limit, started=started, **options),
    )


async def settle_all(
    call: Call,
    bodies: Sequence[dict[str, Any]],
    settle_and_claim: Callable[[list[tuple[Claim, Outcome]]], Awaitable[SettledAndClaimed]] | None = None,
) -> tuple[list[str], list[Claim]]:
    """Settle several jobs in one commit, which may also claim; return the results as JSON text."""
    outcomes = [outcome_of(call, body, f"settlements[{index}].") for index, body in enumerate(bodies)]
    found = await claims_of(call, bodies, "settlements")
    held = [(one, outcome) for one, outcome in zip(found, outcomes, strict=True) if isinstance(one, Claim)]
    claims: list[Claim] = []
    if settle_and_claim is None:
        settled = await call.queue.settle_many(held)
    else:
        both = await settle_and_claim(held)
        settled, claims = both.settlements, both.claims
    call.service.waiter.answer(one.job for one in settled if one.job is not None and one.job.finished)
    of_store = iter(settled)
    results = [
        _refused(body["job_id"], one) if isinstance(one, errors.HoldfastError) else _settlement(next(of_store))
        for one, body in zip(found, bodies, strict=True)
    ]
    return results, claims


def _settlement(settlement: Settlement) -> str:
    if settlement.error is not None:
        return _refused(settlement.claim.job.id, settlement.error)
    job = settlement.job
    assert job is not None  # noqa: S101  # without an error there is a job
    return f'{{"job_id":{strict_json.quoted(job.id)},"state":"{job.state}","job":{json_view.job_text(job)}}}'


def _refused(job_id: str, error: errors.HoldfastError) -> str:
    return strict_json.compact({"job_id": job_id, "error": problems.document(problems.describe(error))})


def outcome_of(call: Call, body: Mapping[str, Any], path: str) -> Outcome:
    """Return the outcome that *body* describes."""
    name = body["outcome"]
    if name == "done" and body.keys() <= _PLAIN_KEYS:
        return Done(body.get("result"))
    given = {key: value for key, value in body.items() if key not in _LEASE_KEYS}
    if surplus := given.keys() - _KEYS[name]:
        raise errors.InvalidInput(f"{path}{min(surplus)}", f"does not belong to the outcome {name!r}")
    match name:
        case "done":
            return _done(call, given, path)
        case "failed":
            if "message" not in given:
                raise errors.InvalidInput(f"{path}message", "is missing")
            if given.get("backoff") is not None:
                given["backoff"] = new_jobs.backoff_of(given["backoff"], path)
            return Failed(**given)
        case "deferred":
            if "until" in given:
                given["until"] = new_jobs.time_of(given["until"], f"{path}until")
            return Deferred(**given)
        case _:
            return Released()


def _done(call: Call, given: dict[str, Any], path: str) -> Done:
    follow_ups = [
        new_jobs.granted_job(call.grants, one, f"{path}follow_ups[{index}].")
        for index, one in enumerate(given.get("follow_ups", ()))
    ]
    artifacts = new_jobs.artifacts_of(given.get("artifacts", ()), path)
    parts = (given.get("result"), follow_ups, artifacts, given.get("usage"))
    digest = new_jobs.identity_of(given, path)
    return Done(*parts) if digest is None else SentDone(*parts, digest)
