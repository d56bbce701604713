"""Reading jobs, attempts, counts, events and the health report."""

import difflib
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from holdfast.domain import (
    clock,
    errors,
    limits,
    new_job,
    results,
    schedules,
    serving,
    strict_json,
    transitions,
    validation,
)
from holdfast.domain.events import EventPage
from holdfast.domain.job import FINISHED, Attempt, Job, JobRow, attempt_of, job_of
from holdfast.domain.overview import late_findings
from holdfast.domain.routing import DEFAULT_NAME
from holdfast.operations import flow_limits, rollups, webhook_events
from holdfast.storage import contract, notifications
from holdfast.storage.plain_contract import Form

_BEYOND = 1 << 62

ReadyRow: TypeAlias = tuple[str, str, str, int]
"""Lane, kind, requirements and number of the ready jobs of a route."""


async def get(tx: contract.StoreTransaction, job_id: str | int, tenant: str | None) -> Job:
    """Return the job with this id or number, or raise `JobNotFound`."""
    return job_of(await get_row(tx, job_id, tenant))


async def get_row(tx: contract.StoreTransaction, job_id: str | int, tenant: str | None) -> JobRow:
    """Return the job with this id or number, locked if the transaction writes; raise `JobNotFound` if none."""
    job: JobRow | None
    if isinstance(job_id, int):
        job = next(iter(await tx.jobs_by_seq([job_id])), None)
    else:
        job = await tx.job_by_id(job_id)
    if job is None or tenant not in {None, job.tenant}:
        raise errors.JobNotFound(str(job_id))
    return job


async def get_overdue(
    tx: contract.StoreTransaction,
    job_id: str,
    tenant: str | None,
    wait_seconds: float = 0.0,  # noqa: ARG001  # a transaction does not wait
) -> tuple[Job, bool]:
    """Return the job and whether it is waiting although its deadline has passed.

    A store behind a server may wait up to *wait_seconds* for the end of the job.
    """
    job = await get_row(tx, job_id, tenant)
    now = await tx.now()
    return job_of(job), not job.finished and transitions.overdue(job, now)


async def attempts(tx: contract.StoreTransaction, job_id: str, tenant: str | None) -> list[Attempt]:
    """Return the stored attempts and the current one, which is part of the job's row."""
    job = await get_row(tx, job_id, tenant)
    rows = await tx.attempts(job.seq)
    if job.epoch and not (rows and rows[-1].epoch == job.epoch):
        rows = [*rows, transitions.newest_attempt(job)]
    return list(map(attempt_of, rows))


async def counts(tx: contract.StoreTransaction, by: results.CountBy, tenant: str | None) -> dict[str, int]:
    """Count jobs by one column."""
    return await tx.count_jobs(by, tenant)


async def tally(tx: contract.StoreTransaction, job_filter: results.JobFilter) -> list[results.Tally]:
    """Count the matching jobs by lane, kind and state."""
    return await tx.tally_jobs(job_filter, await tx.now())


async def jobs(
    tx: contract.StoreTransaction, job_filter: results.JobFilter, after: str | None, limit: int
) -> results.JobPage:
    """Return a page of jobs, newest first."""
    by_finish = _is_by_finish(job_filter)
    job_filter = _with_tenant(job_filter)
    before = _position(after, by_finish=by_finish)
    found = await tx.list_jobs(job_filter, before, limit + 1, await tx.now(), by_finish=by_finish)
    page = found[:limit]
    cursor = _cursor(page[-1], by_finish=by_finish) if len(found) > limit else None
    return results.JobPage(tuple(map(job_of, page)), cursor)


async def search(
    tx: contract.StoreTransaction, job_filter: results.JobFilter, after: str | None, limit: int, examined: int
) -> results.JobPage:
    """Return a page of jobs as `jobs` does, but examine at most so many jobs; of one tree or group all.

    If the search has stopped before the page was full, the page has fewer jobs and a cursor.
    """
    job_filter = _with_tenant(job_filter)
    in_tree = job_filter.root is not None and job_filter.session is None
    if (in_tree or job_filter.group is not None) and job_filter.fingerprint is None:
        return await jobs(tx, job_filter, after, limit)
    by_finish = _is_by_finish(job_filter)
    before = _position(after, by_finish=by_finish)
    floor = await tx.jobs_floor(job_filter, before, examined, by_finish=by_finish)
    now = await tx.now()
    if floor is None:
        return await jobs(tx, job_filter, after, limit)
    found = await tx.list_jobs(job_filter, before, limit, now, by_finish=by_finish, floor=floor)
    if len(found) == limit:
        return results.JobPage(tuple(map(job_of, found)), _cursor(found[-1], by_finish=by_finish))
    stopped = f"f1-{floor[0]}-{floor[1]}" if by_finish else f"o1-{floor[1]}"
    return results.JobPage(tuple(map(job_of, found)), stopped)


def _with_tenant(job_filter: results.JobFilter) -> results.JobFilter:
    """Return the filter with the tenant of its session or group: their names are those of one tenant."""
    if job_filter.session is None and job_filter.group is None:
        return job_filter
    return job_filter._replace(tenant=job_filter.tenant or DEFAULT_NAME)


def _is_by_finish(job_filter: results.JobFilter) -> bool:
    """Return whether jobs are listed by their finish time."""
    finished = len(job_filter.states) == 1 and job_filter.states[0] in FINISHED
    other = job_filter.session or job_filter.root or job_filter.group or job_filter.tags
    return (finished and not other) or job_filter.fingerprint is not None


def _cursor(job: JobRow, *, by_finish: bool) -> str:
    return f"f1-{job.finished_at_ms}-{job.seq}" if by_finish else f"o1-{job.seq}"


def _position(after: str | None, *, by_finish: bool) -> tuple[int, int]:
    """Return where a page starts: the finish time and number of the last job of the previous page."""
    if after is None:
        return _BEYOND, _BEYOND
    scheme, *numbers = after.split("-")
    usable = all(number.isascii() and number.isdigit() and len(number) < 19 for number in numbers)
    if usable and by_finish and scheme == "f1" and len(numbers) == 2:
        return int(numbers[0]), int(numbers[1])
    if usable and not by_finish and scheme == "o1" and len(numbers) == 1:
        return _BEYOND, int(numbers[0])
    raise errors.InvalidInput("after", f"{after!r} is not a cursor of this list")


async def report(tx: contract.StoreTransaction) -> results.StoreReport:
    """Return the engine's findings about the store and the findings about jobs."""
    return results.StoreReport([*await tx.health(), *await _form_findings(tx), *await problems(tx)])


async def _form_findings(tx: contract.StoreTransaction) -> list[results.Finding]:
    """Return how often calls of the processes of live workers took their plain form; nothing if they made none."""
    since_ms = (await tx.now()).wall_ms - limits.WORKER_SILENT_MS
    forms = await tx.forms_of_workers(since_ms, limits.PAGE_MAX)
    shares = []
    counted: tuple[tuple[Form, Form, str], ...] = (
        ("enqueue plain", "enqueue full", "jobs enqueued"),
        ("claim plain", "claim full", "claims"),
        ("settle plain", "settle full", "jobs settled"),
    )
    for plain, full, unit in counted:
        total = forms.get(plain, 0) + forms.get(full, 0)
        if total:
            shares.append(f"{forms.get(plain, 0) / total:.0%} of {total} {unit}")
    return [results.Finding("plain forms", "ok", f"in live workers: {', '.join(shares)}")] if shares else []


async def problems(tx: contract.StoreTransaction) -> list[results.Finding]:
    """Return findings about jobs: expired leases, suspect jobs, due jobs, and ready jobs that no worker serves."""
    return await problems_beside(tx, await unserved(tx))


async def problems_beside(
    tx: contract.StoreTransaction, without_worker: Sequence[serving.Unserved]
) -> list[results.Finding]:
    """Return findings about jobs, of which those that no worker serves are known."""
    now = await tx.now()
    expired, suspect, due = await tx.problem_counts(now)
    return [
        _finding(expired, "expired leases", "expired and not yet taken back", "is a worker claiming in their lane?"),
        _finding(
            suspect,
            "suspect jobs",
            "lost their worker in the last attempt",
            "run them isolated, or look at `holdfast jobs show`",
        ),
        _finding(due, "due jobs", "due and not yet promoted", "is a worker claiming at all?"),
        *serving.unserved_findings(without_worker),
        *await _late_lanes(tx),
        *await webhook_events.findings(tx),
        *await _schedule_findings(tx),
        *await flow_limits.findings(tx),
    ]


async def _late_lanes(tx: contract.StoreTransaction) -> list[results.Finding]:
    lanes = (await tx.routing()).lanes
    if all(lane.target_age is None for lane in lanes.values()):
        return []
    return late_findings(await backlog(tx), lanes)


def _finding(count: int, name: str, message: str, remedy: str) -> results.Finding:
    if not count:
        return results.Finding(name, "ok", "none")
    return results.Finding(name, "warning", f"{count} {message}", remedy)


async def backlog(tx: contract.StoreTransaction) -> results.Backlog:
    """Return ready jobs by lane and kind with the age of the oldest, and the totals of other unfinished jobs."""
    return await backlog_of(tx, await tx.ready_counts(limits.BACKLOG_COUNTED_MAX))


async def backlog_of(
    tx: contract.StoreTransaction,
    counted: Sequence[ReadyRow],
    tenants: int = limits.BACKLOG_TURNS_MAX,
    heads: int = limits.BACKLOG_HEADS_MAX,
) -> results.Backlog:
    """Return the backlog, of which the ready jobs are counted; the oldest is searched among those of some tenants."""
    now = await tx.now()
    oldest = await tx.oldest_ready(limits.BACKLOG_PRIORITIES_MAX, tenants, heads)
    rest = await tx.unfinished_counts(now, limits.BACKLOG_COUNTED_MAX)
    return results.Backlog(_waiting(counted, oldest, now.wall_ms), *rest)


async def unserved(tx: contract.StoreTransaction) -> list[serving.Unserved]:
    """Return the ready jobs that no live worker serves."""
    return await unserved_of(tx, await tx.ready_counts(limits.BACKLOG_COUNTED_MAX))


async def unserved_of(tx: contract.StoreTransaction, counted: Sequence[ReadyRow]) -> list[serving.Unserved]:
    """Return those of the counted ready jobs that no live worker serves."""
    waiting = [
        serving.ReadyCount(lane, kind, frozenset(strict_json.decode(requires)), count)
        for lane, kind, requires, count in counted
        if count and lane != new_job.SYSTEM_LANE
    ]
    if not waiting:
        return []
    workers = await newest_workers(tx, limits.PAGE_MAX)
    routing = await tx.routing()
    return serving.unserved(
        waiting, workers, {lane.name for lane in routing.lanes.values() if lane.state == "paused"}
    )


async def seconds_to_due(tx: contract.StoreTransaction, *, ticks: bool = False) -> float | None:
    """Return the seconds until a scheduled job, or with *ticks* also a schedule, is due; None if there is none."""
    due_at_ms, _, wake_at_ms = await tx.next_times()
    times = [at_ms for at_ms in (due_at_ms, wake_at_ms if ticks else None) if at_ms is not None]
    now = await tx.now()
    return max(0, min(times) - now.wall_ms) / 1000 if times else None


def _waiting(
    counted: Sequence[ReadyRow], heads: list[tuple[str, str, int]], now_ms: int
) -> tuple[results.Waiting, ...]:
    """Sum the counts of routes by lane and kind; routes also differ by required capabilities."""
    jobs: dict[tuple[str, str], int] = {}
    for lane, kind, _, count in counted:
        if count:
            jobs[lane, kind] = jobs.get((lane, kind), 0) + count
    oldest: dict[tuple[str, str], int] = {}
    for lane, kind, due_at_ms in heads:
        oldest[lane, kind] = min(due_at_ms, oldest.get((lane, kind), due_at_ms))
    return tuple(
        results.Waiting(lane, kind, count, max(0, now_ms - oldest.get((lane, kind), now_ms)) / 1000)
        for (lane, kind), count in sorted(jobs.items())
    )


async def end_of_events(tx: contract.StoreTransaction) -> contract.EventPosition:
    """Return the position of the newest event that can be read, or that up to which the log was pruned."""
    horizon = await tx.event_horizon()
    return max(horizon, await tx.newest_event() or horizon)


def event_position(cursor: str) -> contract.EventPosition:
    """Return the position in the event log that *cursor* names, or raise `InvalidInput`."""
    scheme, *numbers = cursor.split("-")
    if all(number.isascii() and number.isdigit() and len(number) < 19 for number in numbers):
        if scheme == "e1" and len(numbers) == 1:
            return 0, int(numbers[0])
        if scheme == "e2" and len(numbers) == 2:
            return int(numbers[0]), int(numbers[1])
    raise errors.InvalidInput("after", f"{cursor!r} is not a cursor of the event log")


async def event_page(
    tx: contract.StoreTransaction, after: str | None, limit: int, tenant: str | None
) -> tuple[EventPage, bool]:
    """Return the events after a cursor, or from the oldest stored one, and whether more are held back.

    Events are held back while an open transaction may still add events before them.
    """
    horizon = await tx.event_horizon()
    position = horizon if after is None else event_position(after)
    if position < horizon:
        raise errors.EventsPruned(contract.cursor_of(horizon))
    found = await tx.events_after(position, limit)
    last = found[-1][0] if found else position
    held_back = len(found) < limit and await tx.events_held_back(last)
    events = tuple(
        event for _, event in found if tenant in {None, event.tenant} and event.lane != new_job.SYSTEM_LANE
    )
    return EventPage(events, contract.cursor_of(last)), held_back


# --- workers -------------------------------------------------------------------------------------------------------


async def write_worker(tx: contract.StoreTransaction, worker: results.WorkerInfo) -> results.WorkerRequest | None:
    """Write the row of one start of a worker and what this process has counted; delete a chunk of outdated rows.

    Return what was requested of this start.
    """
    now = await tx.now()
    requested = await tx.write_worker(worker, tx.forms, now)
    await rollups.write(tx)
    await tx.forget_workers(now.wall_ms - limits.WORKERS_FORGOTTEN_MS, limits.CHUNK)
    return requested


async def delete_worker(tx: contract.StoreTransaction, worker: str, incarnation: str) -> None:
    """Delete the row of a worker that stops."""
    await tx.delete_worker(worker, incarnation)


async def newest_workers(tx: contract.StoreTransaction, limit: int) -> list[results.WorkerInfo]:
    """Return the workers that wrote their row last, with the number of jobs that each holds."""
    return _mark_silent(await tx.newest_workers(limit), await tx.now())


async def request_worker(
    tx: contract.StoreTransaction, worker: str, requested: results.WorkerRequest
) -> list[results.WorkerInfo]:
    """Request every start of a worker to drain or stop and return them, newest first, or raise `WorkerNotFound`."""
    await tx.request_worker(worker, requested)
    found = sorted(await tx.workers_of_name(worker), key=lambda start: start.beat_at, reverse=True)
    starts = _mark_silent(found, await tx.now())
    if not starts:
        known = {other.worker: None for other in await tx.newest_workers(limits.PAGE_MAX)}
        raise errors.WorkerNotFound(worker, difflib.get_close_matches(worker, known))
    tx.notify([notifications.worker_request_topic(worker)])
    return starts


def _mark_silent(workers: Sequence[results.WorkerInfo], now: clock.Now) -> list[results.WorkerInfo]:
    silent_since = validation.datetime_of(now.wall_ms - limits.WORKER_SILENT_MS)
    return [replace(worker, state="silent") if worker.beat_at < silent_since else worker for worker in workers]


async def _schedule_findings(tx: contract.StoreTransaction) -> list[results.Finding]:
    """Return findings about schedules; none if there are no schedules."""
    found = []
    stored = await tx.schedules(None, limits.PAGE_MAX)
    now_ms = (await tx.now()).wall_ms
    for one in stored:
        name = one.definition.name
        for problem, remedy in _schedule_problems(one, now_ms):
            found.append(results.Finding("schedules", "warning", f"{name}: {problem}", remedy, name))
    if not stored or found:
        return found
    return [results.Finding("schedules", "ok", f"{len(stored)} declared or set, all as expected")]


def _schedule_problems(stored: schedules.StoredSchedule, now_ms: int) -> list[tuple[str, str]]:
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
        found.append(("it has no next tick", "its workers may have no time zone data; install tzdata"))
    elif now_ms - stored.next_at_ms > 60_000:
        found.append(("its next tick is overdue", "start a worker or `holdfast serve`"))
    elif schedules.runs_low(stored, now_ms):
        remedy = "some workers may have no time zone data; install tzdata there"
        found.append((f"only {len(stored.ticks)} of its ticks are known", remedy))
    return found
