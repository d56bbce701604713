"""What the operations on sessions do over HTTP."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.domain import claims, errors, limits, results, session_claims, validation
from holdfast.domain.job import Job, job_of, row_of
from holdfast.domain.outcomes import CheckedOutcome
from holdfast.operations import (
    session_claim as claim_operations,
    session_lease as lease_operations,
    sessions as session_operations,
)
from holdfast.remote import calls, connection, decode, encode

# --- turns ---------------------------------------------------------------------------------------------------------


@calls.over_http(claim_operations.claim_session)
async def claim_session(
    http: connection.Http, request: session_claims.SessionRequest
) -> session_claims.SessionClaim | None:
    """Claim a turn of one session, or more entries for a running one; the server waits for an entry."""
    if request.turn is None:
        return await claim_any_session(http, request)
    wait = min(request.wait_ms / 1000, connection.WAIT_SECONDS)
    body = {**_proof(request.turn), **_entry_options(request, wait), "lease": request.lease_ms / 1000}
    try:
        reply = await http.post(connection.path("turns", request.turn.session, "checkpoint"), body, wait=wait)
    except errors.JobNotFound as error:
        raise _lost(request.turn, error) from None
    return None if reply["turn"] is None else _turn(reply["turn"], request.lease_ms)


@calls.over_http(claim_operations.claim_any_session)
async def claim_any_session(
    http: connection.Http, request: session_claims.SessionRequest
) -> session_claims.SessionClaim | None:
    """Claim a turn; the server waits for one."""
    wait = min(request.wait_ms / 1000, connection.WAIT_SECONDS)
    body = {
        "session": request.session,
        "tenant": request.tenant,
        "lanes": None if request.lanes is None else list(request.lanes),
        "worker": request.worker,
        "incarnation": request.incarnation,
        "lease_token": request.lease_token,
        "limits": dict(request.limits) or None,
        "ack_ms": encode.ack_ms(request.lease_ms, acknowledged=request.acknowledged),
        **_entry_options(request, wait),
    }
    owner = request.session_lease
    if owner is not None:
        body["session_lease"] = {"generation": owner.generation, "lease_token": owner.lease_token}
        del body["ack_ms"]
    try:
        reply = await http.post(connection.path("turns"), _given(body), wait=wait)
    except (errors.HoldfastError, GeneratorExit):
        raise
    except BaseException:  # cancelled or interrupted
        if owner is not None and not request.resent:
            # Without an acknowledgement to miss, the turn would be held as long as the session.
            await http.undo(_release_owned(http, _given(body), request.lease_ms))
        raise
    if reply["turn"] is None:
        return None
    turn = _turn(reply["turn"], request.lease_ms)
    if owner is not None or not request.acknowledged or reply["turn"]["acknowledged"]:
        return turn
    try:
        renewal = await heartbeat_session(http, turn, turn.lease_ms)
    except errors.Unavailable as error:
        # The same claim, sent again with its token, returns the same turn.
        raise errors.OutcomeUnknown(f"the turn could not be acknowledged: {error}") from None
    except (errors.HoldfastError, GeneratorExit):
        raise
    except BaseException:  # cancelled or interrupted
        if not request.resent:
            await http.undo(_release(http, turn))
        raise
    return _extended(turn, renewal)


async def _release_owned(http: connection.Http, body: dict[str, Any], lease_ms: int) -> None:
    """Release the turn of a claim whose response was lost: the same claim returns it."""
    body.pop("wait", None)
    reply = await http.post(connection.path("turns"), body)
    if reply["turn"] is not None:
        await _release(http, _turn(reply["turn"], lease_ms))


async def _release(http: connection.Http, turn: session_claims.SessionClaim) -> None:
    """Release a turn that no caller has received; an acknowledgement that arrives later finds it ended."""
    body = {**_proof(turn), "outcome": "released"}
    await http.post(connection.path("turns", turn.session, "settle"), body)


def _entry_options(request: session_claims.SessionRequest, wait: float) -> dict[str, Any]:
    options = {
        "only": request.criteria.only,
        "kinds": None if request.kinds is None else list(request.kinds),
        "capabilities": sorted(request.capabilities),
        "limit": request.criteria.limit,
        "wait": wait or None,
    }
    return _given(options)


def _given(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value is not None}


def _proof(turn: session_claims.SessionClaim) -> dict[str, Any]:
    entries = [{"id": job.id, "epoch": job.epoch} for job in turn.entries]
    return {"tenant": turn.tenant, "lease_token": turn.lease_token, "entries": entries}


def _turn(one: Mapping[str, Any], lease_ms: int) -> session_claims.SessionClaim:
    return session_claims.SessionClaim(
        one["session"],
        one["tenant"],
        one["entry_type"],
        one["claim_id"],
        one["fencing_token"],
        tuple(decode.job(entry, one["lease_token"]) for entry in one["entries"]),
        lease_ms,
        one["generation"],
    )


def _extended(turn: session_claims.SessionClaim, renewal: claims.Renewal) -> session_claims.SessionClaim:
    until_ms = round(renewal.lease_until.timestamp() * 1000)
    entries = (job_of(row_of(job)._replace(lease_until_ms=until_ms)) for job in turn.entries)
    return replace(turn, entries=tuple(entries))


def _lost(turn: session_claims.SessionClaim, error: errors.JobNotFound) -> errors.HoldfastError:
    """Return the error for the holder of a turn: a lost lease if an entry is missing, not a parent."""
    epochs = {job.id: job.epoch for job in turn.entries}
    if error.job_id not in epochs or error.path is not None:
        return error
    return errors.LeaseLost(error.job_id, epochs[error.job_id], "the job was deleted")


@calls.over_http(claim_operations.seconds_to_session)
async def seconds_to_session(http: connection.Http) -> float:
    """Return a short time: the server has waited."""
    return calls.PAUSE_SECONDS


@calls.over_http(lease_operations.heartbeat_session)
async def heartbeat_session(
    http: connection.Http, claim: session_claims.SessionClaim, lease_ms: int
) -> claims.Renewal:
    """Extend the lease of a turn."""
    body = {**_proof(claim), "lease": lease_ms / 1000}
    try:
        return decode.renewal(await http.post(connection.path("turns", claim.session, "heartbeat"), body))
    except errors.JobNotFound as error:
        raise _lost(claim, error) from None


@calls.over_http(lease_operations.settle_session)
async def settle_session(
    http: connection.Http, claim: session_claims.SessionClaim, outcomes: Sequence[CheckedOutcome]
) -> list[Job]:
    """Settle the entries of a turn, all or none."""
    body = {**_proof(claim), "outcomes": [encode.outcome(one, claim.tenant) for one in outcomes]}
    try:
        reply = await http.post(connection.path("turns", claim.session, "settle"), body)
    except errors.JobNotFound as error:
        raise _lost(claim, error) from None
    return [decode.job(entry) for entry in reply["entries"]]


@calls.over_http(lease_operations.claim_of_turn)
async def claim_of_turn(http: connection.Http, lease: session_claims.TurnLease) -> session_claims.SessionClaim:
    """Return the turn that *lease* proves; the write that follows checks it."""
    held: list[Job] = []
    for job_id, epoch in lease.entries:
        row = row_of(await calls.get(http, job_id, lease.tenant))
        if row.session != lease.session:
            raise errors.JobNotFound(job_id)
        held.append(job_of(row._replace(epoch=epoch, lease_token=lease.lease_token)))
    session = await get_session(http, lease.tenant, lease.session)
    entry = held[0].entry
    if entry is None:
        raise errors.JobNotFound(held[0].id)
    about = (lease.session, lease.tenant, entry.entry_type, "", session.fencing_token)
    return session_claims.SessionClaim(*about, tuple(held), limits.LEASE_MS_DEFAULT)


# --- sessions ------------------------------------------------------------------------------------------------------


@calls.over_http(session_operations.get_session)
async def get_session(http: connection.Http, tenant: str, name: str) -> results.SessionInfo:
    """Return one session."""
    return _session(await http.get(connection.path("sessions", name), {"tenant": tenant}))


@calls.over_http(session_operations.list_sessions)
async def list_sessions(
    http: connection.Http, tenant: str | None, after: str | None, limit: int
) -> results.SessionPage:
    """Return a page of sessions."""
    reply = await http.get(connection.path("sessions"), {"tenant": tenant, "after": after, "limit": limit})
    return results.SessionPage(tuple(_session(one) for one in reply["sessions"]), reply["cursor"])


def _session(one: Mapping[str, Any]) -> results.SessionInfo:
    known = {name: value for name, value in one.items() if name != "lease_until_ms"}
    return results.SessionInfo(**known, lease_until=validation.optional_datetime_of(one["lease_until_ms"]))


@calls.over_http(lease_operations.cancel_waiting)
async def cancel_waiting(http: connection.Http, tenant: str, name: str, after: int) -> tuple[list[str], int | None]:
    """Cancel all waiting entries of a session."""
    try:
        reply = await http.post(connection.path("sessions", name, "cancel"), {"tenant": tenant}, repeatable=False)
    except errors.SessionNotFound:
        return [], None
    return reply["cancelled"], None


@calls.over_http(lease_operations.open_session)
async def open_session(http: connection.Http, opening: session_claims.Opening) -> session_claims.SessionLease:
    """Become the owner of a session."""
    body = {
        "tenant": opening.tenant,
        "worker": opening.worker,
        "incarnation": opening.incarnation,
        "lease": opening.lease_ms / 1000,
        "take_over": opening.take_over,
        "lease_token": opening.lease_token,
    }
    route = connection.path("sessions", opening.session, "open")
    try:
        return _lease(await http.post(route, body), opening.lease_ms)
    except (errors.HoldfastError, GeneratorExit):
        raise
    except BaseException:  # cancelled or interrupted
        if not opening.resent:
            await http.undo(_close_opened(http, route, {**body, "take_over": False}, opening.lease_ms))
        raise


async def _close_opened(http: connection.Http, route: str, body: dict[str, Any], lease_ms: int) -> None:
    """Close a session whose lease no caller has received: the same call returns it."""
    with contextlib.suppress(errors.Conflict):  # it was not opened, and another worker owns it
        await close_session(http, _lease(await http.post(route, body), lease_ms))


@calls.over_http(lease_operations.renew_session)
async def renew_session(
    http: connection.Http, lease: session_claims.SessionLease, lease_ms: int
) -> session_claims.SessionLease:
    """Extend a session lease."""
    body = {**_owner(lease), "lease": lease_ms / 1000}
    return _lease(await http.post(connection.path("sessions", lease.session, "renew"), body), lease_ms)


@calls.over_http(lease_operations.close_session)
async def close_session(http: connection.Http, lease: session_claims.SessionLease) -> None:
    """End a session lease."""
    await http.post(connection.path("sessions", lease.session, "close"), _owner(lease))


def _owner(lease: session_claims.SessionLease) -> dict[str, Any]:
    return {"tenant": lease.tenant, "generation": lease.generation, "lease_token": lease.lease_token}


def _lease(one: Mapping[str, Any], lease_ms: int) -> session_claims.SessionLease:
    about = (one["session"], one["tenant"], one["generation"], one["worker"], one["lease_token"])
    return session_claims.SessionLease(*about, lease_ms, validation.datetime_of(one["lease_until_ms"]))
