"""Bounded lanes: refuse new jobs of a tenant that has too many waiting jobs in a lane."""

from collections.abc import Iterable

from holdfast.domain import errors, limits, validation
from holdfast.domain.clock import Now
from holdfast.domain.new_job import SYSTEM_LANE, CheckedJob
from holdfast.domain.results import StoredJob
from holdfast.domain.routing import RoutingTable
from holdfast.storage.contract import StoreTransaction

_COUNTED_MS = 100
"""For how long a process uses what it has counted."""
_REMEMBERED_MAX = 1_000


async def check_room(
    tx: StoreTransaction,
    routing: RoutingTable,
    jobs: Iterable[tuple[CheckedJob, StoredJob]],
    now: Now,
    field: str,
) -> None:
    """Raise `QueueFull`, which names the first job that a bounded lane has no room for.

    The number of waiting jobs is approximate: other processes may have enqueued since it was counted. Duplicates need
    no room.
    """
    arriving: dict[tuple[str, str], int] = {}
    for index, (new, stored) in enumerate(jobs):
        lane = routing.lane(new.settings.route.lane)
        if not stored.created or lane.max_waiting is None or not _needs_room(new):
            continue
        key = (lane.name, new.settings.tenant)
        arriving[key] = arriving.get(key, 0) + 1
        waiting = await _waiting(tx, routing, key, lane.max_waiting, now)
        if waiting + arriving[key] > lane.max_waiting:
            full = errors.QueueFull(*key, lane.max_waiting)
            full.path = f"{field}[{index}]" if field else None
            raise full
    for key, more in arriving.items():
        counted_at_ms, waiting = routing.waiting[key]
        routing.waiting[key] = (counted_at_ms, waiting + more)


def _needs_room(new: CheckedJob) -> bool:
    """Return whether a full lane refuses *new*: not if a job, a group, a schedule or Holdfast itself enqueues it."""
    by_holdfast = new.id.startswith(validation.RESERVED_PREFIX) or new.settings.route.lane == SYSTEM_LANE
    return new.lineage[0] is None and not by_holdfast


async def _waiting(tx: StoreTransaction, routing: RoutingTable, key: tuple[str, str], maximum: int, now: Now) -> int:
    """Return how many jobs of a tenant wait in a lane, as counted a moment ago."""
    counted_at_ms, waiting = routing.waiting.get(key, (None, 0))
    if counted_at_ms is None or not 0 <= now.wall_ms - counted_at_ms < _COUNTED_MS:
        lane, tenant = key
        waiting = await tx.count_waiting(routing.routes_of(lane), tenant, limits.BACKLOG_PRIORITIES_MAX, maximum)
        if len(routing.waiting) >= _REMEMBERED_MAX:
            routing.waiting.clear()
        routing.waiting[key] = (now.wall_ms, waiting)
    return waiting
