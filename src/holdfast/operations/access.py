"""Tokens of the HTTP service and the audit log."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.domain import limits, transitions
from holdfast.domain.access import AuditEntry, Grants, StoredToken, Token
from holdfast.domain.clock import Now
from holdfast.domain.errors import Conflict, TokenNotFound
from holdfast.domain.job import Job
from holdfast.domain.strict_json import Json
from holdfast.domain.validation import datetime_of
from holdfast.storage.contract import StoreTransaction


async def create_token(
    tx: StoreTransaction,
    token_id: str,
    secret_hash: str,
    name: str,
    grants: Grants,
    expires_ms: int | None,
    actor: str,
) -> Token:
    """Store a new token that expires after *expires_ms*, and record that."""
    now = await tx.now()
    created_at = datetime_of(now.wall_ms)
    expires_at = None if expires_ms is None else datetime_of(now.wall_ms + expires_ms)
    token = Token(token_id, name, grants, created_at, expires_at)
    await tx.insert_token(StoredToken(token, secret_hash))
    detail: dict[str, Json] = {"name": name, "roles": list(grants.roles), "tenant": grants.tenant}
    await tx.append_audit(actor, "token.create", token_id, detail, now)
    return token


async def rotate_token(
    tx: StoreTransaction, token_id: str, new_id: str, secret_hash: str, overlap_ms: int, actor: str
) -> Token:
    """Store a token with the grants of another, which expires after *overlap_ms*; the new one lasts as long as it."""
    old = await _token(tx, token_id)
    now = await tx.now()
    created_at = datetime_of(now.wall_ms)
    if (state := old.state(created_at)) != "active":
        raise Conflict(f"token {token_id!r} is {state}; create a new one")
    expires_at = None if old.expires_at is None else created_at + (old.expires_at - old.created_at)
    token = Token(new_id, old.name, old.grants, created_at, expires_at)
    await tx.insert_token(StoredToken(token, secret_hash))
    await tx.expire_token(token_id, now.wall_ms + overlap_ms)
    await tx.append_audit(actor, "token.rotate", token_id, {"new": new_id, "overlap_ms": overlap_ms}, now)
    return token


async def revoke_token(tx: StoreTransaction, token_id: str, actor: str) -> Token:
    """Revoke a token at once, and record that."""
    await _token(tx, token_id)
    now = await tx.now()
    await tx.revoke_token(token_id, now)
    await tx.append_audit(actor, "token.revoke", token_id, {}, now)
    return await _token(tx, token_id)


async def _token(tx: StoreTransaction, token_id: str) -> Token:
    found = await tx.tokens_by_id([token_id])
    if not found:
        raise TokenNotFound(token_id)
    return found[0].token


async def tokens(tx: StoreTransaction, limit: int) -> list[Token]:
    """Return the tokens that were created last."""
    return [stored.token for stored in await tx.newest_tokens(limit)]


async def stored_tokens(tx: StoreTransaction, ids: Sequence[str]) -> tuple[dict[str, StoredToken], Now]:
    """Return the tokens with these ids by id, with the hashes of their secrets, and the store's time."""
    return {stored.token.id: stored for stored in await tx.tokens_by_id(ids)}, await tx.now()


async def touch_token(tx: StoreTransaction, token_id: str) -> None:
    """Store that a token was used, once a minute at most."""
    now = await tx.now()
    await tx.touch_token(token_id, now, now.wall_ms - limits.TOKEN_USE_MS)


async def record(tx: StoreTransaction, actor: str, action: str, target: str, detail: dict[str, Json]) -> None:
    """Append an action to the audit log."""
    await tx.append_audit(actor, action, target, detail, await tx.now())


async def audit_log(tx: StoreTransaction, before: int, limit: int) -> list[AuditEntry]:
    """Return entries of the audit log, newest first."""
    return await tx.audit_entries(before, limit)


async def finished_jobs(tx: StoreTransaction, job_ids: Sequence[str]) -> tuple[list[Job], bool]:
    """Return those of these jobs that have finished, and whether others wait although their deadline has passed."""
    now = await tx.now()
    found = await tx.finished_jobs(job_ids, now)
    late = any(not job.finished and transitions.overdue(job, now) for job in found)
    return [Job(job) for job in found if job.finished], late


async def jobs_by_id(tx: StoreTransaction, job_ids: Sequence[str]) -> list[Job]:
    """Return those of the jobs that exist."""
    return [Job(row) for row in await tx.jobs_by_id(list(dict.fromkeys(job_ids)))]
