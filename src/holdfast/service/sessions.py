"""Handlers of `/v1/turns` and `/v1/sessions`: turns of remote workers, sessions and their owners."""

from dataclasses import replace
from typing import Any

from starlette.responses import Response

from holdfast import json_view
from holdfast.domain import access, claims, errors, limits, outcomes, routing, session_claims, validation
from holdfast.operations import session_lease as lease_operations
from holdfast.service import schemas
from holdfast.service.call import Call, check_limits, reply, reply_text
from holdfast.service.claims import INCARNATION, outcome_of, renewed

# --- turns ---------------------------------------------------------------------------------------------------------


async def claim(call: Call) -> Response:
    """Lease a turn for `ack_ms`; it is released unless a heartbeat or settlement comes in time."""
    body = call.body
    if "limits" in body:
        check_limits(schemas.TURN_CLAIM["properties"]["limits"], body["limits"], "limits")
        if "session" in body:
            raise errors.InvalidInput("limits", "belongs to a claim of any session; give limit")
    options = _entry_options(call)
    options |= {name: body[name] for name in ("worker", "lease_token") if name in body}
    options["incarnation"] = body.get("incarnation", INCARNATION)
    lanes = access.scoped_names(body.get("lanes"), call.grants.lanes, "lanes")
    tenant = access.tenant_for(call.grants, body.get("tenant"))
    owned = body.get("session_lease")
    ack_ms = validation.integer(
        body.get("ack_ms", schemas.ACK_MS_DEFAULT), "ack_ms", schemas.ACK_MS_MIN, schemas.ACK_MS_MAX
    )
    if owned is None:
        options |= {"lease": ack_ms / 1000, "acknowledged": False}
    elif "session" not in body:
        raise errors.InvalidInput("session", "is missing; a session_lease belongs to one")
    sessions = call.queue.sessions
    if "session" in body:
        if owned is not None:
            options["session_lease"] = _session_lease(body["session"], call.tenant_of_body, owned)
        claiming = sessions.claim(body["session"], tenant=call.tenant_of_body, lanes=lanes, **options)
    else:
        if "limits" in body:
            for limit in body["limits"].values():
                access.check_claim_size(call.grants, limit)
            options["limit"] = body["limits"]
        claiming = sessions.claim_next(tenant=tenant, lanes=lanes or (routing.DEFAULT_NAME,), **options)
    # Undone if the client leaves while it waits. Otherwise it is released unless acknowledged: the client may have
    # sent the call again, and have the turn, before its first connection is known to be lost.
    found = await (call.wait_for(claiming, None) if body.get("wait") else claiming)
    return reply({"turn": None if found is None else json_view.turn(found)})


async def heartbeat(call: Call) -> Response:
    """Extend the lease of a turn, and acknowledge it."""
    turn = await _held(call)
    return renewed(await call.queue.sessions.heartbeat(turn, lease=call.body.get("lease")))


async def checkpoint(call: Call) -> Response:
    """Lease more entries for a running turn."""
    options = _entry_options(call)
    turn = replace(
        await _held(call), lease_ms=claims.lease_ms(call.body.get("lease", limits.LEASE_MS_DEFAULT / 1000))
    )
    extending = call.queue.sessions.checkpoint(turn, **options)
    more = await (call.wait_for(extending, None) if call.body.get("wait") else extending)
    return reply({"turn": None if more is None else json_view.turn(more)})


async def settle(call: Call) -> Response:
    """Record the outcome of a turn, one for all entries or one for each."""
    outcome = _outcomes(call)
    turn = await _held(call)
    try:
        settled = await call.queue.sessions.settle(turn, outcome)
    except errors.InvalidInput as error:
        # The library's argument is `outcome` in both cases.
        name = "outcomes" if isinstance(outcome, list) else "outcome"
        raise errors.InvalidInput(error.field.replace("outcome", name, 1), error.problem, error.limit) from None
    return reply_text(f'{{"entries":[{",".join(map(json_view.job_text, settled))}]}}')


def _entry_options(call: Call) -> dict[str, Any]:
    body, ceiling = call.body, call.grants.claim_max
    options = {name: body[name] for name in ("only", "capabilities") if name in body}
    options["kinds"] = access.scoped_names(body.get("kinds"), call.grants.kinds, "kinds")
    if ceiling is not None and "limit" not in body:
        options["limit"] = min(limits.SESSION_CLAIM_DEFAULT, ceiling)
    elif "limit" in body:
        access.check_claim_size(call.grants, body["limit"])
        options["limit"] = body["limit"]
    seconds = validation.number(body.get("wait", 0), "wait", 0, schemas.WAIT_SECONDS_MAX)
    options["wait"] = min(seconds, call.service.settings.wait_seconds_max)
    return options


async def _held(call: Call) -> session_claims.SessionClaim:
    """Return the turn that the caller says it holds. The operation checks epochs and token in its transaction."""
    body, session = call.body, call.path["session"]
    entries = [(one["id"], one["epoch"]) for one in body["entries"]]
    for index, (job_id, epoch) in enumerate(entries):
        validation.name(job_id, f"entries[{index}].id", limits.JOB_ID_CHARS_MAX)
        validation.integer(epoch, f"entries[{index}].epoch", 0, schemas.EPOCH_MAX)
    validation.name(body["lease_token"], "lease_token", limits.LEASE_TOKEN_CHARS_MAX)
    lease = session_claims.TurnLease(session, body["lease_token"], entries, call.tenant_of_body)
    turn = await call.service.runner.read(lease_operations.claim_of_turn, lease)
    for job in turn.entries:
        if not access.covers(call.grants, job.lane, job.kind):
            raise errors.JobNotFound(job.id)
    return turn


def _outcomes(call: Call) -> outcomes.Outcome | list[outcomes.Outcome]:
    body = call.body
    if "outcomes" not in body:
        if "outcome" not in body:
            raise errors.InvalidInput("outcome", "is missing; give outcome, or outcomes with one for each entry")
        return outcome_of(call, body, "")
    if surplus := body.keys() - {"outcomes", "tenant", "entries", "lease_token"}:
        raise errors.InvalidInput(min(surplus), "cannot be combined with outcomes")
    return [outcome_of(call, one, f"outcomes[{index}].") for index, one in enumerate(body["outcomes"])]


# --- sessions ------------------------------------------------------------------------------------------------------


async def list_sessions(call: Call) -> Response:
    """Return a page of sessions."""
    query = {name: value for name, value in call.query.items() if name != "tenant"}
    page = await call.queue.sessions.list(tenant=call.tenant, **query)
    return reply({"sessions": [json_view.session(one) for one in page], "cursor": page.cursor})


async def get(call: Call) -> Response:
    """Return one session."""
    return reply(
        json_view.session(await call.queue.sessions.get(_session(call), tenant=call.tenant or routing.DEFAULT_NAME))
    )


async def cancel(call: Call) -> Response:
    """Cancel the waiting entries of a session."""
    session, tenant = _session(call), call.tenant_of_body
    await call.queue.sessions.get(session, tenant=tenant)
    await call.audit("sessions.cancel", session, tenant=tenant)
    return reply({"cancelled": await call.queue.sessions.cancel(session, tenant=tenant)})


async def open_session(call: Call) -> Response:
    """Make a worker the owner of a session."""
    options = {name: call.body[name] for name in ("worker", "lease", "take_over", "lease_token") if name in call.body}
    options["incarnation"] = call.body.get("incarnation", INCARNATION)
    lease = await call.queue.sessions.open(call.path["session"], tenant=call.tenant_of_body, **options)
    return reply(json_view.session_lease(lease))


async def renew(call: Call) -> Response:
    """Extend the lease of a session's owner."""
    lease = _session_lease(_session(call), call.tenant_of_body, call.body)
    length = call.body.get("lease", limits.LEASE_MS_DEFAULT / 1000)
    return reply(json_view.session_lease(await call.queue.sessions.renew(lease, length=length)))


async def close(call: Call) -> Response:
    """End the lease of a session's owner and release the entries held under it."""
    session, tenant = _session(call), call.tenant_of_body
    await call.queue.sessions.close(_session_lease(session, tenant, call.body))
    return reply(json_view.session(await call.queue.sessions.get(session, tenant=tenant)))


def _session(call: Call) -> str:
    """Return the session of the path; one with an impossible name is not found."""
    session = call.path["session"]
    try:
        return validation.name(session, "session")
    except errors.InvalidInput:
        raise errors.SessionNotFound(session) from None


def _session_lease(session: str, tenant: str, given: dict[str, Any]) -> session_claims.SessionLease:
    """Return the session lease that the caller says it holds; the operation checks generation and token."""
    token = validation.name(given["lease_token"], "lease_token", limits.LEASE_TOKEN_CHARS_MAX)
    generation = validation.integer(given["generation"], "generation", 1, schemas.EPOCH_MAX)
    until = validation.datetime_of(0)
    return session_claims.SessionLease(session, tenant, generation, "", token, limits.LEASE_MS_DEFAULT, until)
