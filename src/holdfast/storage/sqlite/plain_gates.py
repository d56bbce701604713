"""Plain claims of jobs with limits: one statement for each limit reads its gates, which must all have room."""

from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from holdfast.domain import gates, limits, strict_json
from holdfast.domain.clock import Now
from holdfast.domain.gates import LimitRow
from holdfast.domain.routing import RoutingTable
from holdfast.storage.sql_queries import Row
from holdfast.storage.sql_transaction import SqlTransaction
from holdfast.storage.sqlite.narrow_rows import PACKED, seldom

_SEQ, _TENANT, _ROUTE = 1, 3, 8
"""The places of columns in a row of a plain claim."""
_route_of: Final = itemgetter(_ROUTE)
_tenant_of: Final = itemgetter(_TENANT)


async def admit(tx: SqlTransaction, routing: RoutingTable, rows: Sequence[Row], now: Now) -> list[int | None] | None:
    """Take room for all jobs of *rows*; return the gate that counts each, if one does.

    The list is empty if no gate counts any. Return None if the full form has to decide.
    """
    by_limit = _by_limit(routing, rows)
    if routing.has_weights and any(limit.weight is not None for limit, _ in by_limit):
        return None
    counting: list[int | None] = [None] * len(rows)
    offering = {
        place: gate
        for place, row in enumerate(rows)
        if row[PACKED] is not None and (gate := seldom(row).gate) is not None
    }
    counts = bool(offering) or any(limit.concurrency is not None for limit, _ in by_limit)
    used: list[tuple[LimitRow, int, list[int]]] = []
    for limit, places in by_limit:
        keys = await _keys(tx, limit, [rows[place] for place in places])
        found = await _take(tx, limit, Counter(keys), used, now)
        if found is None:
            return None
        mine = list(map(found.get, keys))
        if len(places) == len(rows) and limit.concurrency is not None and len(by_limit) == 1:
            counting = mine
        elif limit.concurrency is not None:
            for place, gate in zip(places, mine, strict=True):
                counting[place] = counting[place] if gate is None else gate
        if offering:
            gates_of = dict(zip(places, mine, strict=True))
            offering = {place: gate for place, gate in offering.items() if gates_of.get(place) != gate}
    if offering:
        # Another gate has offered one of the jobs room, and others may wait there.
        return None
    for limit, starts, started in used:
        values = {"now_us": now.wall_ms * 1000, "cost_us": starts * limit.cost_us(1), "gates": started}
        await tx.query("gates_start", values)
    return counting if counts else []


def _by_limit(routing: RoutingTable, rows: Sequence[Row]) -> list[tuple[LimitRow, list[int]]]:
    """Return the limits of jobs by number, each with the places of its jobs, in order."""
    routes: dict[int, list[int]] = {}
    for place, route in enumerate(map(_route_of, rows)):
        routes.setdefault(route, []).append(place)
    found: dict[int, list[int]] = {}
    for route, places in routes.items():
        key = routing.by_number[route].key
        for limit in routing.limits_of(key.lane, key.kind):
            found[limit.number] = found.get(limit.number, []) + places
    return [(routing.limits[number], sorted(places)) for number, places in sorted(found.items())]


async def _keys(tx: SqlTransaction, limit: LimitRow, rows: Sequence[Row]) -> list[str | None]:
    source = limit.key_source
    if source == gates.ALL:
        return [gates.ALL] * len(rows)
    if source == "tenant":
        return list(map(_tenant_of, rows))
    given: dict[int, str | None] = {}
    if "given" in source:
        given = {seq: at.given for seq, at in (await tx.jobs_at_gates([row[_SEQ] for row in rows])).items()}
        if source == "given":
            return [given[row[_SEQ]] for row in rows]
    return [_key(limit, row, given.get(row[_SEQ])) for row in rows]


def _key(limit: LimitRow, row: Row, given: str | None) -> str | None:
    few, tags = seldom(row), "{}"
    if few.extra is not None and gates.TAG in limit.key_source:
        tags = strict_json.decode(few.extra).get("tags_json", tags)
    return limit.key_among(row[_TENANT], few.affinity, tags, given)


async def _take(
    tx: SqlTransaction,
    limit: LimitRow,
    wanted: Counter[str | None],
    used: list[tuple[LimitRow, int, list[int]]],
    now: Now,
) -> dict[str | None, int] | None:
    """Return the gates of keys, of which so many jobs start; None if one has no room.

    Add to *used* what starts use up of a rate: the limit, how many of each gate, and the gates.
    """
    del wanted[None]
    numbers: dict[str | None, int] = {}
    now_us = now.wall_ms * 1000
    by_starts: dict[int, list[int]] = {starts: [] for starts in wanted.values()} if limit.rate is not None else {}
    latest_us = {starts: gates.used_at_most_us(limit, starts, now.wall_ms) for starts in by_starts}
    maximum = limits.CLAIM_MAX if limit.concurrency is None else limit.concurrency
    for key, gate, until_us, closed_until_ms, running in await _read(tx, limit, list(wanted)):  # type: ignore[arg-type]
        numbers[key], starts = gate, wanted[key]
        if closed_until_ms or running + starts > maximum:
            return None
        if by_starts:
            if max(until_us, now_us) > latest_us[starts]:
                return None
            by_starts[starts].append(gate)
    used += [(limit, starts, started) for starts, started in by_starts.items()]
    return numbers


async def _read(tx: SqlTransaction, limit: LimitRow, keys: Sequence[str]) -> list[Row]:
    """Return what decides on the room at gates; missing ones are made."""
    # Without a limit on how many run, it does not matter how many do.
    values = {"keys": keys, "number": limit.number, "counts": limit.concurrency is not None}
    found = await tx.query("gates_read", values) if keys else []
    if len(found) < len(keys):
        await tx.gate_numbers({(limit.number, key) for key in keys})
        found = await tx.query("gates_read", values)
    return found
