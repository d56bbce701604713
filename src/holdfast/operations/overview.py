"""The overview: everything that the first screen shows, read on one snapshot."""

from collections.abc import Sequence
from dataclasses import replace

from holdfast.domain import limits, new_job, overview as decisions, rollups, validation
from holdfast.domain.overview import AffinityFlow, FlowMinute, Overview
from holdfast.domain.results import Backlog, WorkerInfo
from holdfast.operations import failures, jobs
from holdfast.storage.contract import StoreTransaction

_FAILURES = 100
_WORKERS = 100
_GATES = 20_000
_AFFINITIES = 50
# Screens read it again every few seconds, so the oldest job is that of fewer tenants than in `admin.backlog`.
_TENANTS = 200
_HEADS = 1_000
_MERGING_MS = limits.ROLLUP_KEPT_MS + limits.ROLLUP_MINUTE_MS


async def overview(tx: StoreTransaction) -> Overview:
    """Return what needs an operator, how jobs flow, lanes and workers; all counts have a bound."""
    now = await tx.now()
    now_ms = now.wall_ms
    routing = await tx.routing()
    workers = await jobs.newest_workers(tx, _WORKERS)
    counted = await tx.ready_counts(limits.BACKLOG_COUNTED_MAX)
    backlog = _without_deliveries(await jobs.backlog_of(tx, counted, _TENANTS, _HEADS))
    rows = [
        # Those of past minutes stay as they are.
        (row.at_ms, rollups.lanes(row.data) if row.at_ms > now_ms - _MERGING_MS else rollups.kept_lanes(row.data))
        for row in await tx.newest_rollups(decisions.flow_since_ms(now_ms), limits.ROLLUPS_READ_MAX)
    ]
    unserved = await jobs.unserved_of(tx, counted)
    # A queue without limits reads nothing for them, as one without affinities does below.
    gates = await tx.waiting_gates(now, _GATES, limits.BACKLOG_COUNTED_MAX) if routing.limits else []
    found = decisions.needs(
        await failures.patterns(tx, None, None, None, _FAILURES),
        backlog,
        routing.lanes,
        unserved,
        workers,
        await jobs.problems_beside(tx, unserved),
        decisions.of_gates(gates, routing.limits, now_ms),
    )
    ready = sum(one.jobs for one in backlog.ready)
    activity = decisions.activity(ready, backlog.running, workers)
    flows = await affinities(tx, workers)
    at = validation.datetime_of(now_ms)
    return Overview(
        at=at,
        activity=activity,
        sentence=decisions.sentence(activity, len(found)),
        needs=decisions.first(found),
        needs_total=len(found),
        flow=tuple(_minute(*minute) for minute in decisions.minutes(rows, now_ms)),
        oldest_age_seconds=max((one.oldest_age_seconds for one in backlog.ready), default=0.0),
        ready=ready,
        running=backlog.running,
        scheduled=backlog.scheduled,
        blocked=backlog.blocked,
        lanes=tuple(decisions.lane_flows(backlog, routing.lanes, rows, now_ms)),
        workers=tuple(workers),
        models=tuple(decisions.models(workers, flows, at)),
        dependent=backlog.dependent,
        parked=backlog.parked,
        affinities=tuple(flows),
    )


async def backlog(tx: StoreTransaction) -> Backlog:
    """Return the backlog as the overview reads it."""
    return await jobs.backlog_of(tx, await tx.ready_counts(limits.BACKLOG_COUNTED_MAX), _TENANTS, _HEADS)


async def affinities(tx: StoreTransaction, workers: Sequence[WorkerInfo]) -> list[AffinityFlow]:
    """Return the affinities that *workers* have loaded or that ready jobs name."""
    is_used = any(key.has_affinity for key in (await tx.routing()).routes)
    ready = await tx.ready_affinities(_AFFINITIES, limits.BACKLOG_COUNTED_MAX) if is_used else []
    return decisions.affinities(ready, workers)


def _without_deliveries(backlog: Backlog) -> Backlog:
    ready = tuple(one for one in backlog.ready if one.lane != new_job.SYSTEM_LANE)
    return replace(backlog, ready=ready)


def _minute(at_ms: int, totals: dict[rollups.Outcome, int], waited_seconds: float | None) -> FlowMinute:
    return FlowMinute(
        validation.datetime_of(at_ms),
        totals["arrived"],
        totals["done"],
        totals["failed"],
        totals["cancelled"] + totals["retired"],
        totals["retried"],
        waited_seconds,
    )
