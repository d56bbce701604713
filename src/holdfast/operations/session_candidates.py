"""Sessions that a claim of any session may take: tenants in turn, then the session with the oldest head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.domain.claim_order import fair_order_key
from holdfast.domain.session_claims import SessionRequest
from holdfast.storage.contract import Transaction

# How many heads of one fairness key are read: other workers may have locked some of them.
_WINDOW = 16
# If sessions were locked, the next round reads this many times more heads, twice at most.
_WIDEN_FACTOR = 4


class CandidateSessions(NamedTuple):
    """Sessions of one fairness key, those with the oldest heads first."""

    numbers: list[int]
    scope: str | None
    fair_key: str | None
    last_fair_key: str | None


@dataclass
class CandidateSearch:
    """Goes through the fairness keys, and again with a wider window if sessions were locked."""

    request: SessionRequest
    heads: list[tuple[int, str]]
    """The routes and work classes that the head of a session may have."""
    scope: str | None
    last_fair_key: str | None = None
    current: str | None = None
    """The fairness key of the last candidates."""
    visited: set[str] = field(default_factory=set)
    """The fairness keys of this round so far."""
    window: int = _WINDOW
    skipped: set[int] = field(default_factory=set)
    """Sessions without entries for this claim."""
    found_locked: bool = False

    async def first(self, tx: Transaction) -> CandidateSessions | None:
        """Return the sessions of the first fairness key, or None."""
        if self.scope is not None:
            self.last_fair_key = self.current = await tx.last_fair_key(self.scope)
        return await self._find(tx)

    def skip(self, number: int) -> None:
        """Leave this session out of further candidates."""
        self.skipped.add(number)

    async def next(self, tx: Transaction, *, locked_one: bool) -> CandidateSessions | None:
        """Return the next candidates; *locked_one* if the claim could lock a session of the last ones."""
        self.found_locked |= not locked_one
        return await self._find(tx, same_key=locked_one)

    async def _find(self, tx: Transaction, *, same_key: bool = False) -> CandidateSessions | None:
        if self.scope is None:
            return await self._find_of_tenant(tx, same_key=same_key)
        while True:
            fair_key = self.current if same_key and self.current is not None else (await self._next_fair_key(tx))
            if fair_key is None:
                return None
            if not same_key and fair_key in self.visited and not self._widen():
                return None
            self.visited.add(fair_key)
            self.current, same_key = fair_key, False
            rows = await tx.session_heads(self.heads, fair_key, self.window + len(self.skipped))
            if numbers := self._numbers(rows):
                return CandidateSessions(numbers, self.scope, fair_key, self.last_fair_key)

    async def _next_fair_key(self, tx: Transaction) -> str | None:
        fair_keys = await tx.next_session_fair_keys(self.heads, self.current or "")
        return min(fair_keys, key=lambda fair_key: fair_order_key(fair_key, self.current), default=None)

    async def _find_of_tenant(self, tx: Transaction, *, same_key: bool) -> CandidateSessions | None:
        tenant = self.request.tenant or ""
        if tenant in self.visited and not same_key and not self._widen():
            return None
        self.visited.add(tenant)
        limit = self.window + len(self.skipped)
        fair = await tx.session_heads(self.heads, tenant, limit)
        strict = await tx.session_heads_of_tenant(self.heads, tenant, limit)
        numbers = self._numbers([*fair, *strict])
        return CandidateSessions(numbers, None, None, None) if numbers else None

    def _widen(self) -> bool:
        """Begin another round with a wider window if sessions were locked in this one; return whether it did."""
        if not self.found_locked or self.window > _WINDOW * _WIDEN_FACTOR:
            return False
        self.window, self.found_locked = self.window * _WIDEN_FACTOR, False
        self.visited.clear()
        return True

    def _numbers(self, rows: Sequence[tuple[int, int]]) -> list[int]:
        return [number for _, number in sorted(rows) if number not in self.skipped][: self.window]


def candidate_sessions(request: SessionRequest, routes: Sequence[int]) -> CandidateSearch:
    """Return the search for sessions that *request* may claim on these routes."""
    heads = [(route, work_class) for route in routes for work_class in request.classes]
    return CandidateSearch(request, heads, None if request.tenant is not None else request.fair_scope)


async def remember_session_fair_key(tx: Transaction, candidates: CandidateSessions) -> None:
    """Store the fairness key served last, if claims take tenants in turn and it has changed."""
    if (
        candidates.scope is not None
        and candidates.fair_key is not None
        and candidates.fair_key != candidates.last_fair_key
    ):
        now = await tx.now()
        await tx.set_last_fair_key(candidates.scope, candidates.fair_key, now, first=candidates.last_fair_key is None)
