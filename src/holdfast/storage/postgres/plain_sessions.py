"""The plain forms of session claims and settlements: functions of the schema, each call one message."""

from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final

import psycopg

from holdfast.domain.job import JobRow
from holdfast.domain.routing import RoutingTable
from holdfast.domain.session_claims import SessionClaim, SessionFence, SessionRequest
from holdfast.storage import notifications
from holdfast.storage.plain_contract import ClaimedEntries, FinishedJobs
from holdfast.storage.postgres import plain_forms, sql
from holdfast.storage.postgres.plain_forms import PlainTransaction, Settled, StoreMemory
from holdfast.storage.sql_queries import Row

_NO_ENTRIES: Final = ClaimedEntries("", "", SessionFence("", 0, ""), [])


async def claim(
    tx: PlainTransaction, memory: StoreMemory, request: SessionRequest, *, looks: bool
) -> ClaimedEntries | None:
    """Lease the next entries of any session, if the cached routing is current and no maintenance is due.

    With *looks* a request without a plain form is answered too if there is nothing to claim.
    """
    routing = memory.newest
    if routing is None:
        return None
    routes = routing.serving_sessions(request.lanes, request.kinds, request.capabilities)
    guard = {
        "version": routing.version,
        "worker": request.worker,
        "chosen_token": request.lease_token if request.resent else None,
        "examines": False,
        **memory.due_watermarks.start_times(thorough=True),
    }
    numbers = [route.number for route in routes]
    without_form = request.tenant is not None or len(routes) > plain_forms.ROUTES_MAX
    if without_form or _records(routing, request) or routing.is_gated(routes):
        if not looks:
            return None
        sent: list[plain_forms.Sent] = [("plain_guard", guard), ("plain_session_look", {"routes": numbers})]
        [[[refused, *_]], [[has_head, has_expired]]] = await tx.run_alone(sent)
        return None if refused is not None or has_head or has_expired else _NO_ENTRIES
    limits = [request.led_by(route.key.kind).criteria.limit for route in routes]
    values = {
        "routes": numbers,
        "limits": limits,
        "entry_types": list(request.entry_types),
        "scope": request.fair_scope,
        "worker": request.worker,
        "incarnation": request.incarnation,
        "lease_token": request.lease_token,
        "lease_ms": request.lease_ms,
        "acknowledged": request.acknowledged,
    }
    [_, rows] = await tx.run_alone([("plain_guard", guard), ("plain_session_claim", values)])
    fence, name, result, tenant, claim_id = _claim_of(rows[0])
    if result != "claimed":
        return _NO_ENTRIES if result == "none" else None
    jobs = sorted((_entry_row(row, routing) for row in rows[1:]), key=_by_claim_index)
    return ClaimedEntries(name, tenant, SessionFence(claim_id, fence, request.lease_token), jobs)


_claim_of: Final = itemgetter(*map(sql.STORED.index, ("seq", "id", "state", "tenant", "entry_json")))
_by_claim_index: Final = attrgetter("claim_index")
_KIND, _REQUIRES = map(JobRow._fields.index, ("kind", "requires_json"))


def _entry_row(row: Row, routing: RoutingTable) -> JobRow:
    """Return the row of a job, completed with the kind, the lane and the requirements of its route."""
    number, *columns = row
    lane, kind, requires_json, *_ = routing.by_number[number].key
    before, after = columns[:_KIND], columns[_KIND : _REQUIRES - 2]
    return tuple.__new__(JobRow, (*before, kind, lane, *after, requires_json, *columns[_REQUIRES - 2 :]))


def _records(routing: RoutingTable, request: SessionRequest) -> bool:
    return not routing.recorded_lanes.isdisjoint(request.lanes or ())


async def settle(
    tx: PlainTransaction, memory: StoreMemory, claim: SessionClaim, settlements: Sequence[Settled]
) -> FinishedJobs | None:
    """Finish the entries of a turn and write the next head, if the routing is current and the head is plain."""
    routing = memory.newest
    number = plain_forms.session_of(settlements)
    if routing is None or number is None or claim.generation is not None:
        return None
    head: dict[str, Any] = {"session": number}
    topics = {notifications.session_topic(claim.tenant, claim.session), *plain_forms.job_topics(settlements)}
    try:
        [[[held]], settled, [[is_waiting, lane]]] = await tx.run_alone(
            [
                ("plain_hold", {"version": routing.version}),
                plain_forms.settling(settlements, ()),
                ("plain_session_head", head),
            ],
            topics,
        )
    except psycopg.Error as error:
        if error.sqlstate == plain_forms.UNDONE:
            return None
        raise
    if not held:
        return None
    tx.topics |= topics
    if is_waiting and lane is not None:
        await tx.notify_alone({notifications.sessions_topic(lane)})
    return plain_forms.finished(settled)
