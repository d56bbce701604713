"""Target ages: look at the oldest ready job of each lane that has one; record when a lane becomes late."""

from holdfast.domain import limits, routing as domain, transitions
from holdfast.domain.clock import Now
from holdfast.domain.routing import Lane, RoutingTable
from holdfast.operations import sessions
from holdfast.operations.apply_transitions import apply_transitions
from holdfast.storage.contract import StoreTransaction

_NUMBER = 0
"""One wake row looks at all lanes."""


async def look_soon(tx: StoreTransaction) -> None:
    """Let the next claim look at all lanes. Lock the routing first."""
    await tx.delete_wakes_of("lanes", _NUMBER)
    await tx.add_wakes("lanes", [_NUMBER])


async def fold(tx: StoreTransaction, routing: RoutingTable, now: Now) -> None:
    """Look at all lanes with a target age, and append the wake row of the next look."""
    late = await tx.late_lanes()
    watched = {lane.name: lane for lane in routing.lanes.values() if lane.target_age and lane.state != "paused"}
    for name in sorted(late - watched.keys()):
        await tx.set_late(name, late=False)
    times = [await _look(tx, routing, lane, now, late=name in late) for name, lane in sorted(watched.items())]
    if times:
        await tx.add_wake("lanes", _NUMBER, min(times))


async def _look(tx: StoreTransaction, routing: RoutingTable, lane: Lane, now: Now, *, late: bool) -> int:
    """Record whether a lane is late; return when to look again."""
    bounds = (limits.BACKLOG_PRIORITIES_MAX, limits.BACKLOG_TURNS_MAX)
    oldest = await tx.oldest_on_routes(routing.routes_of(lane.name), *bounds)
    due_at_ms = None if oldest is None else oldest[1]
    found = domain.look_at_age(round((lane.target_age or 0) * 1000), due_at_ms, now.wall_ms, late=late)
    if found.late and not late and oldest is not None:
        jobs = await sessions.lock_free_sessions(tx, await tx.take_entries([oldest[0]]))
        if not jobs:
            # Another transaction has locked the job, perhaps to claim it.
            return domain.look_at_age(0, None, now.wall_ms, late=False).next_at_ms
        await apply_transitions(tx, routing, [transitions.miss_target_age(job) for job in jobs], now)
    if found.late != late:
        await tx.set_late(lane.name, late=found.late)
    return found.next_at_ms
