"""Plain claims of jobs with limits: one statement for each limit reads its gates, which must all have room."""

from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from holdfast.domain import gates, strict_json
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
    """Take room for all jobs of *rows*; return the gate that counts each, None if the full form has to decide."""
    by_limit = _by_limit(routing, rows)
    if routing.has_weights and any(limit.weight is not None for limit, _ in by_limit):
        return None
    counting: list[int | None] = [None] * len(rows)
    used: list[tuple[int, int]] = []
    for limit, places in by_limit:
        keys = await _keys(tx, limit, [rows[place] for place in places])
        found = await _take(tx, limit, Counter(keys), used, now)
        if found is None:
            return None
        # The same choice as in the full form: the gate that limits how many run, or else any.
        if limit.concurrency is not None or len(by_limit) == 1:
            for place, key in zip(places, keys, strict=True):
                if key is not None:
                    counting[place] = found[key]
        else:
            for place, key in zip(places, keys, strict=True):
                if key is not None and counting[place] is None:
                    counting[place] = found[key]
    for row, gate in zip(rows, counting, strict=True):
        if row[PACKED] is not None and seldom(row).gate not in {None, gate}:
            # Another gate has offered it room, and others may wait there.
            return None
    if used:
        await tx.query("gates_start", many=used)
    return counting


def _by_limit(routing: RoutingTable, rows: Sequence[Row]) -> list[tuple[LimitRow, list[int]]]:
    """Return the limits of jobs, each with the places of its jobs."""
    routes: dict[int, list[int]] = {}
    for place, route in enumerate(map(_route_of, rows)):
        routes.setdefault(route, []).append(place)
    found: dict[int, list[int]] = {}
    for route, places in routes.items():
        key = routing.by_number[route].key
        for limit in routing.limits_of(key.lane, key.kind):
            found[limit.number] = found.get(limit.number, []) + places
    return [(routing.limits[number], places) for number, places in found.items()]


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
    tx: SqlTransaction, limit: LimitRow, wanted: Counter[str | None], used: list[tuple[int, int]], now: Now
) -> dict[str, int] | None:
    """Return the gates of keys, of which so many jobs start; None if one has no room. Add what starts have *used*."""
    del wanted[None]
    numbers: dict[str, int] = {}
    for key, gate, until_us, closed_until_ms, running in await _read(tx, limit, list(wanted)):  # type: ignore[arg-type]
        numbers[key], starts = gate, wanted[key]
        if closed_until_ms or not gates.have_room(limit, until_us, running, starts, now.wall_ms):
            return None
        if limit.rate is not None:
            used.append((gates.used_until_us(until_us, starts * limit.cost_us(1), now.wall_ms), gate))
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
