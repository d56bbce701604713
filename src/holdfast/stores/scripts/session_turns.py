"""Which sessions are on offer, in the order of claiming any: the tenant whose turn it is, then the oldest head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.domain.ordering import turn_key
from holdfast.domain.session_claim import SessionRequest
from holdfast.stores import script
from holdfast.stores.script import Script, Statement
from holdfast.stores.scripts.turns import read_turn, write_turn

# How many heads of one turn are looked at: as many workers may have one of them in hand.
_WINDOW = 16
_WIDER = 4


class Offer(NamedTuple):
    """Sessions of one turn, those with the oldest heads first."""

    numbers: list[int]
    scope: str | None
    turn: str | None
    last_turn: str | None


@dataclass
class _Offers:
    """Goes from turn to turn, once round, and then round again with a wider window if all were in other hands."""

    request: SessionRequest
    places: list[list[Any]]
    scope: str | None
    last_turn: str | None = None
    at: str | None = None
    visited: set[str] = field(default_factory=set)
    """The turns of this round so far."""
    window: int = _WINDOW
    known: set[int] = field(default_factory=set)
    """Sessions that turned out to have nothing for this claim."""
    busy: bool = False

    def first(self) -> Script[Offer | None]:
        """Return the sessions of the turn that comes first."""
        if self.scope is not None:
            self.last_turn = self.at = yield from read_turn(self.scope)
        return (yield from self._offer())

    def passed(self, number: int) -> None:
        """Leave this session out from here on."""
        self.known.add(number)

    def next(self, *, took: bool) -> Script[Offer | None]:
        """Return what comes after an offer that led to nothing: *took* tells whether one of its sessions was free."""
        self.busy |= not took
        return (yield from self._offer(again=took))

    def _offer(self, *, again: bool = False) -> Script[Offer | None]:
        if self.scope is None:
            return (yield from self._offer_of_tenant(again=again))
        while True:
            turn = self.at if again and self.at is not None else (yield from self._next_turn())
            if turn is None:
                return None
            if not again and turn in self.visited and not self._widen():
                return None
            self.visited.add(turn)
            self.at, again = turn, False
            values = {"places": [[*place, turn] for place in self.places], "limit": self.window + len(self.known)}
            rows = yield Statement("session_heads", values)
            if numbers := self._numbers(rows):
                return Offer(numbers, self.scope, turn, self.last_turn)

    def _next_turn(self) -> Script[str | None]:
        rows = yield Statement("session_turns", {"places": self.places, "last_turn": self.at or ""})
        turns = {turn for row in rows for turn in row if turn is not None}
        return min(turns, key=lambda turn: turn_key(turn, self.at), default=None)

    def _offer_of_tenant(self, *, again: bool) -> Script[Offer | None]:
        tenant = self.request.tenant or ""
        if tenant in self.visited and not again and not self._widen():
            return None
        self.visited.add(tenant)
        limit = self.window + len(self.known)
        fair = yield Statement(
            "session_heads", {"places": [[*place, tenant] for place in self.places], "limit": limit}
        )
        strict = yield Statement("session_heads_of_tenant", {"places": self.places, "tenant": tenant, "limit": limit})
        numbers = self._numbers([*fair, *strict])
        return Offer(numbers, None, None, None) if numbers else None

    def _widen(self) -> bool:
        """Begin another round with more heads of each turn, if others had those in hand that were looked at."""
        if not self.busy or self.window > _WINDOW * _WIDER:
            return False
        self.window, self.busy = self.window * _WIDER, False
        self.visited.clear()
        return True

    def _numbers(self, rows: Sequence[tuple[Any, ...]]) -> list[int]:
        return [number for _, number in sorted(rows) if number not in self.known][: self.window]


def offered_sessions(request: SessionRequest, routes: Sequence[int]) -> _Offers:
    """Return the sessions on offer to a claim that may take from these routes."""
    places = [[route, work_class] for route in routes for work_class in request.classes]
    return _Offers(request, places, None if request.tenant is not None else request.turn_scope)


def serve_turn(offer: Offer) -> Script[None]:
    """Remember whose turn it was, if there is a round and it has moved."""
    if offer.scope is not None and offer.turn is not None and offer.turn != offer.last_turn:
        now = yield from script.now()
        yield from write_turn(offer.scope, offer.turn, first=offer.last_turn is None, now=now)
