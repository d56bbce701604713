"""What `doctor` says about schedules."""

from holdfast.domain import limits, results, schedules, validation
from holdfast.storage.contract import StoreTransaction


async def findings(tx: StoreTransaction) -> list[results.Finding]:
    """Return findings about schedules; none if there are no schedules."""
    found = []
    stored = await tx.schedules(None, limits.PAGE_MAX)
    now_ms = (await tx.now()).wall_ms
    for one in stored:
        name = one.definition.name
        for problem, remedy in _problems(one, now_ms):
            found.append(results.Finding("schedules", "warning", f"{name}: {problem}", remedy, name))
    if not stored or found:
        return found
    return [results.Finding("schedules", "ok", f"{len(stored)} declared or set, all as expected")]


def _problems(stored: schedules.StoredSchedule, now_ms: int) -> list[tuple[str, str]]:
    name, found = stored.definition.name, []
    if stored.problem is not None:
        found.append((f"its newest tick enqueued no job: {stored.problem}", "its next tick tries again"))
    if stored.paused:
        return found
    if stored.declared_at_ms is not None and now_ms - stored.declared_at_ms > limits.DAY_MS:
        since = validation.datetime_of(stored.declared_at_ms)
        detail = f"no worker has declared it since {since:%Y-%m-%d %H:%M} UTC (module {stored.owner})"
        found.append((detail, f"`holdfast schedules remove {name}` if it is no longer wanted"))
    if schedules.is_silenced(stored, now_ms):
        until = validation.datetime_of(stored.last_at_ms)
        detail = f"its last tick was at {until:%Y-%m-%d %H:%M} UTC, when the clock was ahead"
        found.append((detail, f"`holdfast schedules pause {name}`, then `holdfast schedules resume {name}`"))
    if stored.next_at_ms is None:
        found.append(("it has no next tick", "this process may have no time zone data; install tzdata"))
    elif now_ms - stored.next_at_ms > 60_000:
        found.append(("its next tick is overdue", "start a worker or `holdfast serve`"))
    return found
