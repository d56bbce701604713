"""Which sessions are on offer, in the order of claiming any: the tenant whose turn it is, then the oldest head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.domain.claim_order import fair_order_key
from holdfast.domain.session_claims import SessionRequest
from holdfast.storage.contract import Transaction

# How many heads of one fair_key are looked at: as many workers may have one of them in hand.
_WINDOW = 16
_WIDER = 4


class SessionOffer(NamedTuple):
    """Sessions of one fair_key, those with the oldest heads first."""

    numbers: list[int]
    scope: str | None
    fair_key: str | None
    last_fair_key: str | None


@dataclass
class _Offers:
    """Goes from turn to fair_key, once round, and then round again with a wider window if all were in other hands."""

    request: SessionRequest
    places: list[tuple[int, str]]
    scope: str | None
    last_fair_key: str | None = None
    at: str | None = None
    visited: set[str] = field(default_factory=set)
    """The fair_keys of this round so far."""
    window: int = _WINDOW
    known: set[int] = field(default_factory=set)
    """Sessions that turned out to have nothing for this claim."""
    busy: bool = False

    async def first(self, tx: Transaction) -> SessionOffer | None:
        """Return the sessions of the fair_key that comes first."""
        if self.scope is not None:
            self.last_fair_key = self.at = await tx.last_fair_key(self.scope)
        return await self._offer(tx)

    def passed(self, number: int) -> None:
        """Leave this session out from here on."""
        self.known.add(number)

    async def next(self, tx: Transaction, *, took: bool) -> SessionOffer | None:
        """Return what comes after an offer that led to nothing: *took* tells whether one of its sessions was free."""
        self.busy |= not took
        return await self._offer(tx, again=took)

    async def _offer(self, tx: Transaction, *, again: bool = False) -> SessionOffer | None:
        if self.scope is None:
            return await self._offer_of_tenant(tx, again=again)
        while True:
            fair_key = self.at if again and self.at is not None else (await self._next_fair_key(tx))
            if fair_key is None:
                return None
            if not again and fair_key in self.visited and not self._widen():
                return None
            self.visited.add(fair_key)
            self.at, again = fair_key, False
            heads = await tx.session_heads(self.places, fair_key, self.window + len(self.known))
            if numbers := self._numbers(heads):
                return SessionOffer(numbers, self.scope, fair_key, self.last_fair_key)

    async def _next_fair_key(self, tx: Transaction) -> str | None:
        fair_keys = await tx.next_session_fair_keys(self.places, self.at or "")
        return min(fair_keys, key=lambda fair_key: fair_order_key(fair_key, self.at), default=None)

    async def _offer_of_tenant(self, tx: Transaction, *, again: bool) -> SessionOffer | None:
        tenant = self.request.tenant or ""
        if tenant in self.visited and not again and not self._widen():
            return None
        self.visited.add(tenant)
        limit = self.window + len(self.known)
        fair = await tx.session_heads(self.places, tenant, limit)
        strict = await tx.session_heads_of_tenant(self.places, tenant, limit)
        numbers = self._numbers([*fair, *strict])
        return SessionOffer(numbers, None, None, None) if numbers else None

    def _widen(self) -> bool:
        """Begin another round with more heads of each fair_key, if others had those in hand that were looked at."""
        if not self.busy or self.window > _WINDOW * _WIDER:
            return False
        self.window, self.busy = self.window * _WIDER, False
        self.visited.clear()
        return True

    def _numbers(self, rows: Sequence[tuple[int, int]]) -> list[int]:
        return [number for _, number in sorted(rows) if number not in self.known][: self.window]


def offered_sessions(request: SessionRequest, routes: Sequence[int]) -> _Offers:
    """Return the sessions on offer to a claim that may take from these routes."""
    places = [(route, work_class) for route in routes for work_class in request.classes]
    return _Offers(request, places, None if request.tenant is not None else request.fair_scope)


async def remember_session_fair_key(tx: Transaction, offer: SessionOffer) -> None:
    """Remember whose turn it was, if there is a round and it has moved."""
    if offer.scope is not None and offer.fair_key is not None and offer.fair_key != offer.last_fair_key:
        now = await tx.now()
        await tx.set_last_fair_key(offer.scope, offer.fair_key, now, first=offer.last_fair_key is None)
