"""What only the HTTP service needs: tokens, the audit log, and jobs that its callers hold."""

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.domain import access, claims, clock, errors, limits, outcomes, strict_json, transitions, validation
from holdfast.domain.job import Job, JobRow, job_of
from holdfast.operations import jobs, lease as lease_operations, settle as settle_operations
from holdfast.storage.contract import StoreTransaction


async def create_token(
    tx: StoreTransaction,
    token_id: str,
    secret_hash: str,
    name: str,
    grants: access.Grants,
    expires_ms: int | None,
    actor: str,
) -> access.Token:
    """Store a new token that expires after *expires_ms*, and record that; sent again, return the token."""
    if (existing := await _same_token(tx, token_id, secret_hash)) is not None:
        return existing
    now = await tx.now()
    created_at = validation.datetime_of(now.wall_ms)
    expires_at = None if expires_ms is None else validation.datetime_of(now.wall_ms + expires_ms)
    token = access.Token(token_id, name, grants, created_at, expires_at)
    await tx.insert_token(access.StoredToken(token, secret_hash))
    detail: dict[str, strict_json.Json] = {"name": name, "roles": list(grants.roles), "tenant": grants.tenant}
    await tx.append_audit(actor, "token.create", token_id, detail, now)
    return token


async def rotate_token(
    tx: StoreTransaction, token_id: str, new_id: str, secret_hash: str, overlap_ms: int, actor: str
) -> access.Token:
    """Store a token with the grants of another, which expires after *overlap_ms*; the new one lasts as long as it."""
    old = await _token(tx, token_id)
    if (existing := await _same_token(tx, new_id, secret_hash)) is not None:
        return existing
    now = await tx.now()
    created_at = validation.datetime_of(now.wall_ms)
    if (state := old.state(created_at)) != "active":
        raise errors.Conflict(f"token {token_id!r} is {state}; create a new one")
    expires_at = None if old.expires_at is None else created_at + (old.expires_at - old.created_at)
    token = access.Token(new_id, old.name, old.grants, created_at, expires_at)
    await tx.insert_token(access.StoredToken(token, secret_hash))
    await tx.expire_token(token_id, now.wall_ms + overlap_ms)
    await tx.append_audit(actor, "token.rotate", token_id, {"new": new_id, "overlap_ms": overlap_ms}, now)
    return token


async def revoke_token(tx: StoreTransaction, token_id: str, actor: str) -> access.Token:
    """Revoke a token at once, and record that."""
    await _token(tx, token_id)
    now = await tx.now()
    await tx.revoke_token(token_id, now)
    await tx.append_audit(actor, "token.revoke", token_id, {}, now)
    return await _token(tx, token_id)


async def _same_token(tx: StoreTransaction, token_id: str, secret_hash: str) -> access.Token | None:
    """Return the token that an earlier send of the call has stored; raise `Conflict` if the id is another's."""
    for stored in await tx.tokens_by_id([token_id]):
        if stored.hash == secret_hash:
            return stored.token
        raise errors.Conflict("a token with this id exists")
    return None


async def _token(tx: StoreTransaction, token_id: str) -> access.Token:
    found = await tx.tokens_by_id([token_id])
    if not found:
        raise errors.TokenNotFound(token_id)
    return found[0].token


async def tokens(tx: StoreTransaction, limit: int) -> list[access.Token]:
    """Return the tokens that were created last."""
    return [stored.token for stored in await tx.newest_tokens(limit)]


async def stored_tokens(tx: StoreTransaction, ids: Sequence[str]) -> tuple[dict[str, access.StoredToken], clock.Now]:
    """Return the tokens with these ids by id, with the hashes of their secrets, and the store's time."""
    return {stored.token.id: stored for stored in await tx.tokens_by_id(ids)}, await tx.now()


async def touch_token(tx: StoreTransaction, token_id: str) -> None:
    """Store that a token was used, once a minute at most."""
    now = await tx.now()
    await tx.touch_token(token_id, now, now.wall_ms - limits.TOKEN_USE_MS)


async def record(
    tx: StoreTransaction, actor: str, action: str, target: str, detail: dict[str, strict_json.Json]
) -> None:
    """Append an action to the audit log."""
    await tx.append_audit(actor, action, target, detail, await tx.now())


async def audit_log(tx: StoreTransaction, before: int, limit: int) -> list[access.AuditEntry]:
    """Return entries of the audit log, newest first."""
    return await tx.audit_entries(before, limit)


async def finished_jobs(tx: StoreTransaction, job_ids: Sequence[str]) -> tuple[list[Job], bool]:
    """Return those of these jobs that have finished, and whether others wait although their deadline has passed."""
    now = await tx.now()
    found = await tx.finished_jobs(job_ids, now)
    late = any(not job.finished and transitions.overdue(job, now) for job in found)
    return [job_of(job) for job in found if job.finished], late


async def jobs_by_id(tx: StoreTransaction, job_ids: Sequence[str]) -> list[Job]:
    """Return those of the jobs that exist."""
    return [job_of(row) for row in await tx.jobs_by_id(list(dict.fromkeys(job_ids)))]


# --- jobs that a caller of the service holds -----------------------------------------------------------------------


async def held_job(tx: StoreTransaction, lease: claims.Lease, grants: access.Grants) -> JobRow:
    """Return the job that the caller says it holds, with its proof, or raise `JobNotFound` if it may not see it."""
    row = await jobs.get_row(tx, lease.job_id, lease.tenant)
    if not access.covers(grants, row.lane, row.kind):
        raise errors.JobNotFound(lease.job_id)
    return row._replace(epoch=lease.epoch, lease_token=lease.lease_token)


async def renew_held(
    tx: StoreTransaction, lease: claims.Lease, lease_ms: int, grants: access.Grants, *, acknowledge: bool
) -> claims.Renewal:
    """Extend a lease, and acknowledge the claim if wanted, or raise `LeaseLost`."""
    row = await held_job(tx, lease, grants)
    claim = claims.Claim(job_of(row), lease_ms)
    [answer] = await lease_operations.heartbeat(
        tx, [(claims.fence_of(claim), lease_ms)], None, (row.seq,) if acknowledge else ()
    )
    if isinstance(answer, errors.HoldfastError):
        raise answer
    return answer


class HeldSettlement(NamedTuple):
    """A plain success of a job that a caller says it holds."""

    held: claims.Claim | claims.Lease
    """The claim, if the caller has it; otherwise its lease, and the job is read first."""
    checked: outcomes.CheckedOutcome
    grants: access.Grants


async def settle_held(
    tx: StoreTransaction, settlements: Sequence[HeldSettlement]
) -> list[Job | errors.HoldfastError]:
    """Record plain successes, each independently; return the settled job, or the error, of each.

    Only plain successes: other outcomes lock dedupe keys before their job.
    """
    unknown = list(dict.fromkeys(one.held.job_id for one in settlements if isinstance(one.held, claims.Lease)))
    rows = {row.id: row for row in await tx.jobs_by_id(unknown)} if unknown else {}
    known: list[tuple[claims.Claim, outcomes.CheckedOutcome]] = []
    answers: list[Job | errors.HoldfastError | None] = []
    for held, checked, grants in settlements:
        claim: claims.Claim | None
        if isinstance(held, claims.Claim):
            claim = held
        elif (claim := _claim_under(held, rows.get(held.job_id), grants)) is None:
            answers.append(errors.JobNotFound(held.job_id))
            continue
        answers.append(None)
        known.append((claim, checked))
    settled = (one.job or one.error for one in await settle_operations.settle_jobs(tx, known))
    return [next(settled) if answer is None else answer for answer in answers]  # type: ignore[misc]


def _claim_under(lease: claims.Lease, row: JobRow | None, grants: access.Grants) -> claims.Claim | None:
    """Return the claim that the caller says it holds, or None if it may not see the job."""
    if row is None or lease.tenant not in {None, row.tenant} or not access.covers(grants, row.lane, row.kind):
        return None
    held = row._replace(epoch=lease.epoch, lease_token=lease.lease_token)
    return claims.Claim(job_of(held), limits.LEASE_MS_DEFAULT)
