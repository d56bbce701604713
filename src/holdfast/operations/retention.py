"""Deleting old finished jobs, events and source keys, in bounded chunks."""

from __future__ import annotations

from itertools import takewhile

from holdfast.domain import limits
from holdfast.domain.job import State
from holdfast.storage.contract import Transaction


async def prune_jobs(tx: Transaction, state: State, age_ms: int) -> int:
    """Delete a chunk of the jobs that finished in *state* longer ago than *age_ms*, with all their rows."""
    now = await tx.now()
    return await tx.delete_finished(state, now.wall_ms - age_ms, now, limits.CHUNK)


async def count_prunable_events(tx: Transaction, age_ms: int) -> tuple[int, bool]:
    """Count the events that `prune_events` would delete.

    Return how many, and whether an open transaction holds back the next ones.
    """
    now = await tx.now()
    count, ends = await tx.count_old_events(now.wall_ms - age_ms)
    return count, not ends and await tx.events_held_back((0, 0))


async def prune_sources(tx: Transaction, age_ms: int) -> int:
    """Delete a chunk of the source keys whose entries were deleted longer ago than *age_ms*."""
    now = await tx.now()
    return await tx.forget_source_keys(now.wall_ms - age_ms, limits.CHUNK)


async def prune_events(tx: Transaction, age_ms: int) -> tuple[int, bool]:
    """Delete a chunk of the oldest events, up to the first that is younger than *age_ms*.

    Return how many, and whether an open transaction holds back the next ones.
    """
    now = await tx.now()
    before_ms = now.wall_ms - age_ms
    head = await tx.oldest_events(limits.CHUNK)
    old = list(takewhile(lambda event: event[1] < before_ms, head))
    if old:
        await tx.delete_events(old[-1][0])
    if len(old) < len(head) or len(head) == limits.CHUNK:
        return len(old), False
    return len(old), await tx.events_held_back(head[-1][0] if head else (0, 0))
