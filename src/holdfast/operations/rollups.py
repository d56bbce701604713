"""Rollups: written by each process that settles or enqueues, merged and deleted by maintenance."""

from collections import Counter
from collections.abc import Iterable

from holdfast.domain import clock, limits, rollups
from holdfast.domain.rollups import CountedEnd, Ended
from holdfast.domain.transitions import Transition
from holdfast.storage.contract import StoreTransaction
from holdfast.storage.runners import append_counted


def ended(transitions: Iterable[Transition], now: clock.Now) -> list[CountedEnd]:
    """Return what *transitions* end: jobs, and attempts that are retried."""
    found = []
    for one in transitions:
        before, after, event = one
        if one.finishes or event in {"retrying", "expired"}:
            outcome: rollups.Outcome = after.state if one.finishes else "retried"  # type: ignore[assignment]
            ran = before.state == "running" and before.started_at_ms is not None
            started_at_ms = before.started_at_ms or 0
            waited_ms = started_at_ms - before.due_at_ms if ran else None
            found.append(Ended(after.lane, after.kind, outcome, waited_ms, now.wall_ms - started_at_ms if ran else 0))
    # Those of one call are often equal.
    return list(Counter(found).items())


async def write(tx: StoreTransaction) -> None:
    """Append what this process has counted, if anything."""
    counted = tx.rollups.take()
    if counted:
        try:
            await append_counted(tx, counted)
        except BaseException:
            tx.rollups.give_back(counted)
            raise


async def merge(tx: StoreTransaction, now: clock.Now) -> bool:
    """Merge a chunk of old rollups to minutes and hours, and delete the oldest; return whether there were any."""
    changed = False
    for width_ms, wider_ms, kept_ms in (
        (limits.ROLLUP_MS, limits.ROLLUP_MINUTE_MS, limits.ROLLUP_KEPT_MS),
        (limits.ROLLUP_MINUTE_MS, limits.HOUR_MS, limits.ROLLUP_MINUTES_KEPT_MS),
    ):
        before_ms = (now.wall_ms - kept_ms) // wider_ms * wider_ms
        rows = await tx.old_rollups(width_ms, before_ms, limits.CHUNK)
        if rows:
            changed = True
            await tx.append_rollups(wider_ms, rollups.merged_rows(rows, wider_ms))
            await tx.delete_rollups([row.number for row in rows])
    outdated = await tx.old_rollups(limits.HOUR_MS, now.wall_ms - limits.ROLLUP_HOURS_KEPT_MS, limits.CHUNK)
    if outdated:
        await tx.delete_rollups([row.number for row in outdated])
    return changed or bool(outdated)
