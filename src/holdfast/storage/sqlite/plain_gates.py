"""Plain claims of jobs with limits: one statement reads all their gates; the claim is plain if all jobs have room."""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.domain import gates, strict_json
from holdfast.domain.clock import Now
from holdfast.domain.gates import LimitRow
from holdfast.domain.routing import RoutingTable
from holdfast.storage.gates_contract import GateKey
from holdfast.storage.sql_queries import Row
from holdfast.storage.sql_transaction import SqlTransaction
from holdfast.storage.sqlite.narrow_rows import seldom

_SEQ, _TENANT, _ROUTE = 1, 3, 8
"""The places of columns in a row of a plain claim."""


async def admit(tx: SqlTransaction, routing: RoutingTable, rows: Sequence[Row], now: Now) -> list[int | None] | None:
    """Take room for all jobs of *rows*; return the gate that counts each, None if the full form has to decide."""
    if routing.has_weights and any(_has_weight(routing, route) for route in {row[_ROUTE] for row in rows}):
        return None
    groups = await _groups(tx, routing, rows)
    wanted: dict[GateKey, int] = {}
    for keys, indexes in groups:
        for _, key in keys:
            wanted[key] = wanted.get(key, 0) + len(indexes)
    found = await _read(tx, routing, wanted)
    numbers: dict[GateKey, int] = {}
    used: list[tuple[int, int]] = []
    for limit_number, name, gate, until_us, closed_until_ms, running in found:
        key = limit_number, name
        numbers[key], limit, starts = gate, routing.limits[limit_number], wanted[key]
        if closed_until_ms or not gates.have_room(limit, until_us, running, starts, now.wall_ms):
            return None
        if limit.rate is not None:
            used.append((gates.used_until_us(until_us, starts * limit.cost_us(1), now.wall_ms), gate))
    counting: list[int | None] = [None] * len(rows)
    for keys, indexes in groups:
        number = None
        for limit, key in keys:
            # The same choice as in the full form: the gate that limits how many run, or else any.
            if number is None or limit.concurrency is not None:
                number = numbers[key]
        for index in indexes:
            if seldom(rows[index]).gate not in {None, number}:
                # Another gate has offered it room, and others may wait there.
                return None
            counting[index] = number
    if used:
        await tx.query("gates_start", many=used)
    return counting


def _has_weight(routing: RoutingTable, route: int) -> bool:
    key = routing.by_number[route].key
    return any(limit.weight is not None for limit in routing.limits_of(key.lane, key.kind))


_Group = tuple[list[tuple[LimitRow, GateKey]], list[int]]
"""The gates of jobs that have the same ones, and the places of these jobs."""


async def _groups(tx: SqlTransaction, routing: RoutingTable, rows: Sequence[Row]) -> list[_Group]:
    routes = {row[_ROUTE]: routing.by_number[row[_ROUTE]].key for row in rows}
    limits = {route: routing.limits_of(key.lane, key.kind) for route, key in routes.items()}
    sources = {limit.key_source for found in limits.values() for limit in found}
    with_tags = any(gates.TAG in source for source in sources)
    given: dict[int, str | None] = {}
    if any("given" in source for source in sources):
        given = {seq: at.given for seq, at in (await tx.jobs_at_gates([row[_SEQ] for row in rows])).items()}
    places: dict[tuple[Any, ...], list[int]] = {}
    for index, row in enumerate(rows):
        few = seldom(row)
        same = (row[_ROUTE], row[_TENANT], few.affinity, few.extra if with_tags else None, given.get(row[_SEQ]))
        places.setdefault(same, []).append(index)
    groups = []
    for (route, *same_values), indexes in places.items():
        found = ((limit, _key(limit, *same_values)) for limit in limits[route])
        groups.append(([(limit, (limit.number, key)) for limit, key in found if key is not None], indexes))
    return groups


def _key(limit: LimitRow, tenant: str, affinity: str | None, extra: str | None, given: str | None) -> str | None:
    tags = "{}"
    if extra is not None and gates.TAG in limit.key_source:
        tags = strict_json.decode(extra).get("tags_json", tags)
    return limit.key_among(tenant, affinity, tags, given)


async def _read(tx: SqlTransaction, routing: RoutingTable, keys: Mapping[GateKey, int]) -> list[Row]:
    """Return what decides on the room at gates; missing ones are made."""
    # Without a limit on how many run, it does not matter how many do.
    pairs = [(*key, routing.limits[key[0]].concurrency is not None) for key in keys]
    found = await tx.query("gates_read", {"pairs": pairs}) if pairs else []
    if len(found) < len(pairs):
        await tx.gate_numbers(keys)
        found = await tx.query("gates_read", {"pairs": pairs})
    return found
