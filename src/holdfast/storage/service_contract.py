"""The part of the storage contract for the HTTP service and operators: tokens, audit log, shared readers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from holdfast.domain.access import AuditEntry, StoredToken
from holdfast.domain.clock import Now
from holdfast.domain.job import JobRow
from holdfast.domain.strict_json import Json


class ServiceTransaction(ABC):
    """Methods of an open transaction that concern tokens, the audit log, event streams and requests that wait."""

    __slots__ = ()

    @abstractmethod
    async def insert_token(self, stored: StoredToken) -> None:
        """Store a new token."""

    @abstractmethod
    async def newest_tokens(self, limit: int) -> list[StoredToken]:
        """Return the tokens that were created last."""

    @abstractmethod
    async def tokens_by_id(self, ids: Sequence[str]) -> list[StoredToken]:
        """Return the tokens with these ids, in any order."""

    @abstractmethod
    async def expire_token(self, token_id: str, at_ms: int) -> None:
        """Let a token expire at a time, unless it expires earlier."""

    @abstractmethod
    async def revoke_token(self, token_id: str, now: Now) -> None:
        """Revoke a token; an earlier revocation remains."""

    @abstractmethod
    async def touch_token(self, token_id: str, now: Now, before_ms: int) -> None:
        """Store that a token was used, unless that was stored after *before_ms*."""

    @abstractmethod
    async def append_audit(self, actor: str, action: str, target: str, detail: dict[str, Json], now: Now) -> None:
        """Append an action to the audit log."""

    @abstractmethod
    async def audit_entries(self, before: int, limit: int) -> list[AuditEntry]:
        """Return entries of the audit log below one, newest first."""

    @abstractmethod
    async def newest_event(self) -> tuple[int, int] | None:
        """Return the position of the newest event that can be read."""

    @abstractmethod
    async def finished_jobs(self, job_ids: Sequence[str], now: Now) -> list[JobRow]:
        """Return those of these jobs that have finished, or wait although their deadline has passed."""
