"""What waits and runs, counted up to a bound: the same cost however much there is."""

from __future__ import annotations

from holdfast.domain import limits, serving, strict_json
from holdfast.domain.records import Backlog, Waiting
from holdfast.domain.serving import ReadyJobs, Unserved
from holdfast.stores.contract import Transaction
from holdfast.stores.scripts import workers as worker_scripts


async def backlog(tx: Transaction) -> Backlog:
    """Return ready jobs by lane and kind with the age of the oldest, and the other unfinished ones as a whole."""
    now = await tx.now()
    counted = await tx.ready_counts(limits.BACKLOG_COUNTED_MAX)
    heads = await tx.oldest_ready(limits.BACKLOG_PRIORITIES_MAX, limits.BACKLOG_TURNS_MAX)
    rest = await tx.unfinished_counts(now, limits.BACKLOG_COUNTED_MAX)
    return Backlog(_waiting(counted, heads, now.wall_ms), *rest)


async def unserved(tx: Transaction) -> list[Unserved]:
    """Return the ready jobs that no live worker takes."""
    waiting = [
        ReadyJobs(lane, kind, frozenset(strict_json.decode(requires)), count)
        for lane, kind, requires, count in await tx.ready_counts(limits.BACKLOG_COUNTED_MAX)
        if count
    ]
    if not waiting:
        return []
    workers = await worker_scripts.newest(tx, limits.PAGE_MAX)
    catalog = await tx.routing()
    return serving.unserved(
        waiting, workers, {lane.name for lane in catalog.lanes.values() if lane.state == "paused"}
    )


async def seconds_to_due(tx: Transaction) -> float | None:
    """Return in how many seconds the next scheduled job falls due; none if there is no such job."""
    due_at_ms = (await tx.next_moments()).due_at_ms
    now = await tx.now()
    return None if due_at_ms is None else max(0, due_at_ms - now.wall_ms) / 1000


def _waiting(
    counted: list[tuple[str, str, str, int]], heads: list[tuple[str, str, int]], now_ms: int
) -> tuple[Waiting, ...]:
    """Sum up routes, of which a lane and kind may have several."""
    jobs: dict[tuple[str, str], int] = {}
    for lane, kind, _, count in counted:
        if count:
            jobs[lane, kind] = jobs.get((lane, kind), 0) + count
    oldest: dict[tuple[str, str], int] = {}
    for lane, kind, due_at_ms in heads:
        oldest[lane, kind] = min(due_at_ms, oldest.get((lane, kind), due_at_ms))
    return tuple(
        Waiting(lane, kind, count, max(0, now_ms - oldest.get((lane, kind), now_ms)) / 1000)
        for (lane, kind), count in sorted(jobs.items())
    )
