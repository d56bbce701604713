"""Handlers of `/v1/claims`: the protocol of remote workers. Every call may be sent again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from starlette.responses import Response

from holdfast import json_view
from holdfast.domain import access, limits, validation
from holdfast.domain.claims import Claim, Renewal, SettledAndClaimed, Settlement, lease_ms
from holdfast.domain.errors import Forbidden, HoldfastError, InvalidInput, JobNotFound
from holdfast.domain.job import Job, row_of
from holdfast.domain.outcomes import Deferred, Done, Failed, Outcome, Released
from holdfast.domain.routing import DEFAULT_NAME
from holdfast.operations import access as access_operations
from holdfast.service import problems
from holdfast.service.call import Call, reply
from holdfast.service.new_jobs import artifacts_of, backoff_of, granted_job, time_of
from holdfast.service.schemas import ACK_MS_DEFAULT, ACK_MS_MAX, ACK_MS_MIN, EPOCH_MAX, WAIT_SECONDS_MAX

INCARNATION: Final = "http"
# The keys of each outcome.
_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "done": frozenset(("result", "follow_ups", "artifacts")),
    "failed": frozenset(("message", "reason", "permanent", "retry_after", "traceback", "backoff")),
    "deferred": frozenset(("after", "until")),
    "released": frozenset(),
}
_WORKER_OPTIONS: Final = ("affinities_held", "affinities_max", "hold_left", "drain", "exclusive", "cut_off")
_LEASE_KEYS: Final = frozenset(("job_id", "epoch", "lease_token", "outcome", "tenant", "entries"))


async def claim(call: Call) -> Response:
    """Lease jobs for `ack_ms`; they are released unless the caller acknowledges or settles them in time."""
    body = call.body
    limit = body.get("limit", 1)
    access.check_claim_size(call.grants, limit)
    options: dict[str, Any] = {
        name: body[name] for name in ("worker", "capabilities", "affinity", "lease_token") if name in body
    }
    options["incarnation"] = body.get("incarnation", INCARNATION)
    options["lanes"] = access.scoped_names(body.get("lanes"), call.grants.lanes, "lanes") or (DEFAULT_NAME,)
    options["kinds"] = access.scoped_names(body.get("kinds"), call.grants.kinds, "kinds")
    options["tenant"] = access.tenant_for(call.grants, body.get("tenant"))
    ack_ms = validation.integer(body.get("ack_ms", ACK_MS_DEFAULT), "ack_ms", ACK_MS_MIN, ACK_MS_MAX)
    options["lease"] = ack_ms / 1000
    options["acknowledged"] = 0
    options |= {name: body[name] for name in _WORKER_OPTIONS if name in body}
    for name in ("exclusive", "cut_off"):
        # They act on all jobs of a worker's name, which no tenant owns.
        if body.get(name, False) and call.grants.tenant is not None:
            raise Forbidden("needs a token for any tenant", field=name)
    seconds = validation.number(body.get("wait", 0), "wait", 0, WAIT_SECONDS_MAX)
    seconds = min(seconds, call.service.settings.wait_seconds_max)
    started = [one for one in await claims_of(call, body.get("started", []), "started") if isinstance(one, Claim)]
    settled, claims = await _settle_and_claim(call, body.get("settlements", []), limit, started, options)
    if seconds and not claims:
        claims = await call.wait_for(call.queue.claim_many(limit=limit, wait=seconds, **options), [])
    return reply({"claims": [json_view.claim(one) for one in claims], "settlements": settled})


async def acknowledge(call: Call) -> Response:
    """Record that the work starts, and extend the lease."""
    held = await _held(call)
    return renewed(await call.queue.acknowledge(held))


async def heartbeat(call: Call) -> Response:
    """Extend the lease; the answer has its new end and whether the job is to be cancelled."""
    held = await _held(call)
    return renewed(await call.queue.heartbeat(held))


async def progress(call: Call) -> Response:
    """Store the progress of a running job."""
    held = await _held(call)
    job = await call.queue.progress(held, phase=call.body.get("phase"), percent=call.body.get("percent"))
    return reply(json_view.job(job))


async def emit(call: Call) -> Response:
    """Append text to the output of a running job."""
    held = await _held(call)
    number = await call.queue.emit(held, call.body["text"], part=call.body.get("part"))
    return reply({"number": number})


async def attach(call: Call) -> Response:
    """Store artifacts of a running job, and return all that it has."""
    artifacts = artifacts_of(call.body["artifacts"], "")
    held = await _held(call)
    await call.queue.attach(held, artifacts)
    return reply({"artifacts": [json_view.artifact(one) for one in await call.queue.artifacts(held.job.id)]})


async def settle(call: Call) -> Response:
    """Record the outcome of an attempt; follow-ups and artifacts commit with it."""
    outcome = outcome_of(call, call.body, "")
    held = await _held(call)
    return reply(json_view.job(await call.queue.settle(held, outcome)))


def renewed(renewal: Renewal) -> Response:
    """Return the new end of a lease, and whether the work is to be cancelled."""
    return reply(renewal_view(renewal))


def renewal_view(renewal: Renewal) -> dict[str, Any]:
    """Return the result of a heartbeat as JSON."""
    until_ms = round(renewal.lease_until.timestamp() * 1000)
    return {"lease_until_ms": until_ms, "cancel_requested": renewal.cancel_requested}


async def _held(call: Call) -> Claim:
    """Return the claim of the path, as `_claim_of` does."""
    _check_lease(call.body, "")
    return await _claim_of(call, call.body, call.path["job_id"])


async def _claim_of(call: Call, given: Mapping[str, Any], job_id: str) -> Claim:
    """Return the claim that the caller says it holds. The operation checks epoch and token in its transaction."""
    return _as_claim(await call.job(job_id), given)


def _as_claim(job: Job, given: Mapping[str, Any]) -> Claim:
    length_ms = lease_ms(given.get("lease", limits.LEASE_MS_DEFAULT / 1000))
    return Claim(Job(row_of(job)._replace(epoch=given["epoch"], lease_token=given["lease_token"])), length_ms)


async def claims_of(call: Call, given: Sequence[Mapping[str, Any]], field: str) -> list[Claim | HoldfastError]:
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
        _as_claim(visible[one["job_id"]], one) if one["job_id"] in visible else JobNotFound(one["job_id"])
        for one in given
    ]


def _check_lease(given: Mapping[str, Any], path: str) -> None:
    validation.integer(given["epoch"], f"{path}epoch", 0, EPOCH_MAX)
    validation.name(given["lease_token"], f"{path}lease_token", limits.LEASE_TOKEN_CHARS_MAX)


async def _settle_and_claim(
    call: Call, bodies: list[dict[str, Any]], limit: int, started: Sequence[Claim], options: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[Claim]]:
    """Settle several jobs and claim, in one commit; each result is the job or the problem of that settlement."""
    if not bodies and not started:
        return [], await call.queue.claim_many(limit=limit, **options)
    return await settle_all(
        call, bodies, lambda held: call.queue.settle_and_claim(held, limit=limit, started=started, **options)
    )


async def settle_all(
    call: Call,
    bodies: list[dict[str, Any]],
    settle_and_claim: Callable[[list[tuple[Claim, Outcome]]], Awaitable[SettledAndClaimed]] | None = None,
) -> tuple[list[dict[str, Any]], list[Claim]]:
    """Settle several jobs in one commit, which may also claim."""
    outcomes = [outcome_of(call, body, f"settlements[{index}].") for index, body in enumerate(bodies)]
    found = await claims_of(call, bodies, "settlements")
    held = [(one, outcome) for one, outcome in zip(found, outcomes, strict=True) if isinstance(one, Claim)]
    claims: list[Claim] = []
    if settle_and_claim is None:
        settled = await call.queue.settle_many(held)
    else:
        both = await settle_and_claim(held)
        settled, claims = both.settlements, both.claims
    of_store = iter(settled)
    results = [
        {"job_id": body["job_id"], "error": problems.document(problems.describe(one))}
        if isinstance(one, HoldfastError)
        else _settlement(next(of_store))
        for one, body in zip(found, bodies, strict=True)
    ]
    return results, claims


def _settlement(settlement: Settlement) -> dict[str, Any]:
    if settlement.error is not None:
        problem = problems.describe(settlement.error)
        return {"job_id": settlement.claim.job.id, "error": problems.document(problem)}
    assert settlement.job is not None  # noqa: S101  # without an error there is a job
    return {"job_id": settlement.job.id, "state": settlement.job.state, "job": json_view.job(settlement.job)}


def outcome_of(call: Call, body: Mapping[str, Any], path: str) -> Outcome:
    """Return the outcome that *body* describes."""
    name = body["outcome"]
    given = {key: value for key, value in body.items() if key not in _LEASE_KEYS}
    if surplus := given.keys() - _KEYS[name]:
        raise InvalidInput(f"{path}{min(surplus)}", f"does not belong to the outcome {name!r}")
    match name:
        case "done":
            return _done(call, given, path)
        case "failed":
            if "message" not in given:
                raise InvalidInput(f"{path}message", "is missing")
            if given.get("backoff") is not None:
                given["backoff"] = backoff_of(given["backoff"], path)
            return Failed(**given)
        case "deferred":
            if "until" in given:
                given["until"] = time_of(given["until"], f"{path}until")
            return Deferred(**given)
        case _:
            return Released()


def _done(call: Call, given: dict[str, Any], path: str) -> Done:
    follow_ups = [
        granted_job(call.grants, one, f"{path}follow_ups[{index}].")
        for index, one in enumerate(given.get("follow_ups", ()))
    ]
    return Done(given.get("result"), follow_ups, artifacts_of(given.get("artifacts", ()), path))
