"""Deleting what is finished and old, in bounded bites."""

from __future__ import annotations

from itertools import takewhile

from holdfast.domain import limits
from holdfast.domain.job import State
from holdfast.stores import script
from holdfast.stores.script import Row, Script, Statement


def prune_jobs(state: State, age_ms: int) -> Script[int]:
    """Delete a bite of the jobs that ended in *state* longer ago than *age_ms*, with all that belongs to them."""
    now = yield from script.now()
    values = {"state": state, "before": now.wall_ms - age_ms, "limit": limits.BITE}
    seqs = [seq for (seq,) in (yield Statement("jobs_prunable", values))]
    if seqs:
        yield Statement("sources_bury", {"seqs": seqs, "state": state, "now": now.wall_ms})
        yield Statement("artifacts_delete", {"seqs": seqs})
        yield Statement("attempts_delete", {"seqs": seqs})
        yield Statement("jobs_delete", {"seqs": seqs})
    return len(seqs)


def count_events(age_ms: int) -> Script[int]:
    """Count the events that are older than *age_ms*."""
    now = yield from script.now()
    [[count]] = yield Statement("events_aged", {"before": now.wall_ms - age_ms})
    return int(count)


def prune_sources(age_ms: int) -> Script[int]:
    """Forget a bite of the source keys whose batches were deleted longer ago than *age_ms*."""
    now = yield from script.now()
    [[forgotten]] = yield Statement("sources_forget", {"before": now.wall_ms - age_ms, "limit": limits.BITE})
    return int(forgotten)


def prune_events(age_ms: int) -> Script[tuple[int, bool]]:
    """Delete a bite of the log's oldest events, up to the first that is young enough, and move the horizon.

    Return how many, and whether an open transaction holds back what comes next.
    """
    now = yield from script.now()
    before_ms = now.wall_ms - age_ms
    head = yield Statement("events_head", {"limit": limits.BITE})
    old = list(takewhile(lambda row: row[2] < before_ms, head))
    if old:
        last = _position(old[-1])
        yield Statement("events_delete", last)
        yield Statement("event_horizon_write", last)
    if len(old) < len(head) or len(head) == limits.BITE:
        return len(old), False
    [[held_back]] = yield Statement("events_held_back", _position(head[-1] if head else (0, 0)))
    return len(old), bool(held_back)


def _position(row: Row) -> dict[str, int]:
    return {"transaction": row[0], "event": row[1]}
