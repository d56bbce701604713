"""Tokens, the audit log and shared waiting, by named queries."""

from collections.abc import Sequence

from holdfast.domain import access, clock, job, strict_json, validation
from holdfast.storage.sql_queries import Row, SqlQueries


class SqlAccess(SqlQueries):
    """Tokens, the audit log, and jobs that requests wait for."""

    __slots__ = ()

    async def insert_token(self, stored: access.StoredToken) -> None:
        """Store a new token."""
        token = stored.token
        roles, scopes, ceilings = access.grants_to_json(token.grants)
        values = {
            "id": token.id,
            "name": token.name,
            "hash": stored.hash,
            "tenant": token.grants.tenant,
            "roles": roles,
            "scopes": scopes,
            "ceilings": ceilings,
            "now": validation.milliseconds_of(token.created_at),
            "expires_at_ms": None if token.expires_at is None else validation.milliseconds_of(token.expires_at),
        }
        await self.query("token_insert", values)

    async def newest_tokens(self, limit: int) -> list[access.StoredToken]:
        """Return the tokens that were created last."""
        return [_stored(row) for row in await self.query("tokens_newest", {"limit": limit})]

    async def tokens_by_id(self, ids: Sequence[str]) -> list[access.StoredToken]:
        """Return the tokens with these ids."""
        return [_stored(row) for row in await self.query("tokens_by_id", {"ids": list(ids)})]

    async def expire_token(self, token_id: str, at_ms: int) -> None:
        """Let a token expire at a time, unless it expires earlier."""
        await self.query("token_expire", {"id": token_id, "at_ms": at_ms})

    async def revoke_token(self, token_id: str, now: clock.Now) -> None:
        """Revoke a token."""
        await self.query("token_revoke", {"id": token_id, "now": now.wall_ms})

    async def touch_token(self, token_id: str, now: clock.Now, before_ms: int) -> None:
        """Store that a token was used."""
        await self.query("token_touch", {"id": token_id, "now": now.wall_ms, "before": before_ms})

    async def append_audit(
        self, actor: str, action: str, target: str, detail: dict[str, strict_json.Json], now: clock.Now
    ) -> None:
        """Append an action to the audit log."""
        values = {"actor": actor, "action": action, "target": target, "detail": strict_json.compact(detail)}
        await self.query("audit_append", {**values, "now": now.wall_ms})

    async def audit_entries(self, before: int, limit: int) -> list[access.AuditEntry]:
        """Return entries of the audit log, newest first."""
        rows = await self.query("audit_read", {"before": before, "limit": limit})
        return [
            access.AuditEntry(
                number, validation.datetime_of(at_ms), actor, action, target, strict_json.decode(detail)
            )
            for number, at_ms, actor, action, target, detail in rows
        ]

    async def newest_event(self) -> tuple[int, int] | None:
        """Return the position of the newest event that can be read."""
        rows = await self.query("event_last")
        return (rows[0][0], rows[0][1]) if rows else None

    async def finished_jobs(self, job_ids: Sequence[str], now: clock.Now) -> list[job.JobRow]:
        """Return finished and late jobs."""
        return await self._jobs("jobs_finished", {"ids": list(job_ids), "now": now.wall_ms})


def _stored(row: Row) -> access.StoredToken:
    token_id, name, secret_hash, tenant, roles, scopes, ceilings, created, expires, used, revoked = row
    grants = access.grants_from_json(tenant, roles, scopes, ceilings)
    times = map(validation.optional_datetime_of, (expires, used, revoked))
    return access.StoredToken(
        access.Token(token_id, name, grants, validation.datetime_of(created), *times), secret_hash
    )
