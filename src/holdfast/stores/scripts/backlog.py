"""What waits and runs, counted up to a bound: the same cost however much there is."""

from __future__ import annotations

from holdfast.domain import limits, serving, strict_json
from holdfast.domain.records import Backlog, Waiting
from holdfast.domain.serving import ReadyJobs, Unserved
from holdfast.stores import script
from holdfast.stores.script import Script, Statement
from holdfast.stores.scripts import workers as worker_scripts


def backlog() -> Script[Backlog]:
    """Return ready jobs by lane and kind with the age of the oldest, and the other unfinished ones as a whole."""
    now = yield from script.now()
    counted = yield Statement("backlog_ready", {"most": limits.BACKLOG_COUNTED_MAX})
    heads = yield Statement(
        "backlog_oldest", {"priorities": limits.BACKLOG_PRIORITIES_MAX, "turns": limits.BACKLOG_TURNS_MAX}
    )
    values = {"lease_now": now.lease_ms, "most": limits.BACKLOG_COUNTED_MAX}
    [rest] = yield Statement("backlog_rest", values)
    return Backlog(_waiting(counted, heads, now.wall_ms), *rest)


def unserved() -> Script[list[Unserved]]:
    """Return the ready jobs that no live worker takes."""
    counted = yield Statement("backlog_ready", {"most": limits.BACKLOG_COUNTED_MAX})
    waiting = [
        ReadyJobs(lane, kind, frozenset(strict_json.decode(requires)), count)
        for lane, kind, requires, count in counted
        if count
    ]
    if not waiting:
        return []
    workers = yield from worker_scripts.newest(limits.PAGE_MAX)
    lanes = yield Statement("catalog_lanes")
    return serving.unserved(waiting, workers, {lane for lane, state, *_ in lanes if state == "paused"})


def seconds_to_due() -> Script[float | None]:
    """Return in how many seconds the next scheduled job falls due; none if there is no such job."""
    [[due_at_ms, _]] = yield Statement("claim_next_moments")
    now = yield from script.now()
    return None if due_at_ms is None else max(0, due_at_ms - now.wall_ms) / 1000


def _waiting(counted: script.Rows, heads: script.Rows, now_ms: int) -> tuple[Waiting, ...]:
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
