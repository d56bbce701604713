"""Deleting what is finished and old, in bounded bites."""

from __future__ import annotations

from itertools import takewhile

from holdfast.domain import limits
from holdfast.domain.job import State
from holdfast.stores import script
from holdfast.stores.script import Script, Statement


def prune_jobs(state: State, age_ms: int) -> Script[int]:
    """Delete a bite of the jobs that ended in *state* longer ago than *age_ms*, with all that belongs to them."""
    now = yield from script.now()
    values = {"state": state, "before": now.wall_ms - age_ms, "limit": limits.BITE}
    seqs = [seq for (seq,) in (yield Statement("jobs_prunable", values))]
    if seqs:
        yield Statement("artifacts_delete", {"seqs": seqs})
        yield Statement("attempts_delete", {"seqs": seqs})
        yield Statement("jobs_delete", {"seqs": seqs})
    return len(seqs)


def prune_events(age_ms: int) -> Script[int]:
    """Delete a bite of the log's oldest events, up to the first that is young enough, and move the horizon."""
    now = yield from script.now()
    before_ms = now.wall_ms - age_ms
    head = yield Statement("events_head", {"limit": limits.BITE})
    old = list(takewhile(lambda row: row[2] < before_ms, head))
    if old:
        transaction, event, _ = old[-1]
        last = {"transaction": transaction, "event": event}
        yield Statement("events_delete", last)
        yield Statement("event_horizon_write", last)
    return len(old)
