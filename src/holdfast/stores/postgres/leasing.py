"""Leasing ready jobs in the statement that locks them, so that each row is visited once and sent once."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from holdfast.domain.claim import ClaimRequest
from holdfast.domain.clock import Now
from holdfast.domain.job import Job
from holdfast.domain.lane import Route
from holdfast.stores.contract import ReadyRequest
from holdfast.stores.sql_queries import Row
from holdfast.stores.sql_transaction import SqlTransaction

# Where the columns stand that the statements return; the job's own order, but for what they leave out.
_ROUTE, _CLAIM_PLACE = 2, 19
_NO_BATCH = (None, None, None)


async def lease(
    tx: SqlTransaction, wanted: ReadyRequest, statement: str, values: dict[str, Any]
) -> tuple[list[Job], Now]:
    """Lease what *statement* finds, up to the limit, in the order of claiming; return the jobs and the moment."""
    request, now = wanted.request, (await tx.now())
    lease_until_ms = now.lease_ms + request.lease_ms
    values |= {
        "limit": wanted.limit,
        "place": wanted.place,
        "loud": [route.number for route in wanted.routes if route.key.lane in wanted.loud],
        "worker": request.worker,
        "incarnation": request.incarnation,
        "lease_token": request.lease_token,
        "lease_until_ms": lease_until_ms,
        "acknowledged": request.acknowledged,
        "now": now.wall_ms,
    }
    rows = await tx.query(statement, values)
    routes = {route.number: route for route in wanted.routes}
    jobs = [_leased(row, routes[row[_ROUTE]], request, lease_until_ms, now) for row in rows]
    return sorted(jobs, key=attrgetter("claim_place")), now


def _leased(row: Row, route: Route, request: ClaimRequest, lease_until_ms: int, now: Now) -> Job:
    """Return the job of *row* with what every claim of the call has in common, and what its route tells."""
    lane, kind, requires_json = route.key[:3]
    holder = (request.worker, request.incarnation, request.lease_token, lease_until_ms)
    # By place, as this is done once for every claim.
    head = (*row[:_ROUTE], "running", kind, lane, *row[_ROUTE + 1 : 7], requires_json, *row[7:_CLAIM_PLACE])
    attempt = (*holder, row[_CLAIM_PLACE], now.wall_ms, None, None, None, None)
    # No plain claim takes a batch of a session, so that what only those have is not sent.
    return tuple.__new__(Job, (*head, *attempt, *row[_CLAIM_PLACE + 1 : -2], *_NO_BATCH, *row[-2:]))
