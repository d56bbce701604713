"""The overview: what needs an operator, how jobs flow, lanes and workers, with the texts of every screen."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, TypeAlias

from holdfast.domain import limits, rollups
from holdfast.domain.gates import LimitRow, WaitingGate
from holdfast.domain.results import Backlog, FailurePattern, Finding, WorkerInfo
from holdfast.domain.rollups import ByLane
from holdfast.domain.routing import Lane, LaneState
from holdfast.domain.serving import Unserved

Subject: TypeAlias = Literal["failure", "lane", "limit", "unserved", "worker", "webhook", "schedule", "finding"]
"""What a row of `needs` is about."""
Activity: TypeAlias = Literal["working", "idle", "stopped"]
"""Whether jobs are running; `stopped` if jobs are ready and no worker is active."""
_NEEDS_MAX: Final = 7
_FLOW_MINUTES: Final = 60
_RECENT_MINUTES: Final = 10
_LANE_OLD_SECONDS: Final = 600.0
# A failure rises if it happened at least twice as often within the last hour as within the hour before.
_RISE: Final = 2
_LANES_MAX: Final = 50
_AFFINITIES_MAX: Final = 50
_KEYS_SHOWN: Final = 3
_ALIKE_MAX: Final = 3
LATE_LANES: Final = "late lanes"
_HOURS_LEAST: Final = 1 / 6


@dataclass(frozen=True, slots=True)
class Need:
    """Something that needs an operator."""

    severity: Literal["problem", "warning"]
    """A `problem` keeps jobs from being done; a `warning` may."""
    about: Subject
    """What kind of thing it is about."""
    subject: str
    """Its name: a fingerprint, a lane, a limit, a kind, a worker, a schedule, a webhook's id, or what was checked."""
    what: str
    """What is the matter, in one sentence."""
    cause: str
    """Why, for people; empty if it is not known."""
    since_at: datetime | None
    """Since when, if it is known."""
    count: int
    """How many jobs, counted up to a limit; 0 if it is not about jobs."""
    whose: tuple[str, ...]
    """The tenants it concerns, if they are known."""
    command: str
    """A command line that shows more or mends it."""


@dataclass(frozen=True, slots=True)
class FlowMinute:
    """What arrived and ended within one minute, in all lanes except that of webhook deliveries."""

    at: datetime
    """When the minute begins."""
    arrived: int
    """Jobs that were enqueued."""
    done: int
    """Jobs that are done."""
    failed: int
    """Jobs that failed."""
    cancelled: int
    """Jobs that were cancelled or retired."""
    retried: int
    """Attempts that failed and are retried."""
    waited_seconds: float | None = None
    """How long attempts that ended had waited until they started, for 19 of 20 of them; None if there were none."""


@dataclass(frozen=True, slots=True)
class LaneFlow:
    """One lane: what waits in it, and what ended in it within the last ten minutes."""

    lane: str
    """The lane."""
    state: LaneState
    """Whether workers take its jobs."""
    ready: int
    """Ready jobs, counted up to 10,000 for each kind."""
    oldest_age_seconds: float
    """For how long the oldest of them has been due."""
    arrived: int
    """Jobs that were enqueued."""
    done: int
    """Jobs that are done."""
    failed: int
    """Jobs that failed."""
    waited_seconds: float | None
    """How long an attempt waited until it started, for 19 of 20 of them; None if there were none."""
    ran_seconds: float | None
    """How long an attempt ran, for 19 of 20 of them."""
    target_age: float | None = None
    """For how many seconds the oldest ready job should be due at most; None if there is no target."""


@dataclass(frozen=True, slots=True)
class WorkerModels:
    """What one worker has loaded."""

    worker: str
    """The worker's name."""
    loaded: tuple[str, ...]
    """The affinities it has loaded."""
    switches: int
    """How often one of these was replaced by another since the worker started."""
    running: int
    """Handlers that were running at the last report."""
    started_at: datetime
    """When the worker started."""
    waiting: int = 0
    """Ready jobs that name one of the affinities it has loaded."""
    hold_left: float | None = None
    """For how many more seconds it prefers jobs of these affinities; None if as long as there are any."""
    switches_saved: int = 0
    """How many more switches it would have made if it had run its jobs in the order in which they were enqueued."""
    switches_per_hour: float | None = None
    """Switches for each hour; None in the first ten minutes."""


@dataclass(frozen=True, slots=True)
class AffinityFlow:
    """One affinity, such as a model: what waits for it, and which workers have loaded it."""

    affinity: str
    """The affinity."""
    ready: int
    """Ready jobs that name it; those of all affinities are counted up to 10,000."""
    workers: tuple[str, ...]
    """The live workers that have loaded it."""


@dataclass(frozen=True, slots=True)
class Overview:
    """What the first screen shows. All counts have a bound."""

    at: datetime
    """The store's time of this overview."""
    activity: Activity
    """Whether jobs are running."""
    sentence: str
    """The overview in one sentence: `Working. 3 things need you.`"""
    needs: tuple[Need, ...]
    """What needs an operator, the worst first, seven at most."""
    needs_total: int
    """How many there are in total."""
    flow: tuple[FlowMinute, ...]
    """The last sixty minutes, the current one last; processes write what they counted every ten seconds."""
    oldest_age_seconds: float
    """For how long the oldest ready job has been due; 0 if there is none."""
    ready: int
    """Ready jobs."""
    running: int
    """Running jobs."""
    scheduled: int
    """Scheduled jobs."""
    blocked: int
    """Blocked jobs."""
    lanes: tuple[LaneFlow, ...]
    """The lanes with jobs, those with the oldest job first."""
    workers: tuple[WorkerInfo, ...]
    """The workers that were active last."""
    models: tuple[WorkerModels, ...]
    """The workers that have loaded an affinity, or have switched one."""
    dependent: int = 0
    """Jobs that wait for others to end."""
    affinities: tuple[AffinityFlow, ...] = ()
    """The affinities that are loaded or that ready jobs name, those with the most jobs first."""
    parked: int = 0
    """Jobs that wait for room at a limit."""


# --- what needs an operator ----------------------------------------------------------------------------------------


def needs(
    failures: Iterable[FailurePattern],
    backlog: Backlog,
    lanes: Mapping[str, Lane],
    unserved: Sequence[Unserved],
    workers: Iterable[WorkerInfo],
    findings: Iterable[Finding],
    gates: Iterable[Need] = (),
) -> list[Need]:
    """Return everything that needs an operator, the worst first."""
    ranked: list[tuple[int, Need]] = [(0, _of_finding(one)) for one in findings if one.status == "problem"]
    without_worker = [one for one in unserved if one.reason == "no_worker"]
    if len(without_worker) > _ALIKE_MAX:
        ranked.append((1, _of_many_unserved(without_worker)))
    else:
        ranked += [(1, _of_unserved(one)) for one in without_worker]
    ranked += [(7, _of_unserved(one)) for one in unserved if one.reason != "no_worker"]
    ranked += [(2, _of_silent(one)) for one in workers if one.state == "silent" and one.held]
    ranked += [(3 if rises(one) else 6, _of_failure(one)) for one in failures if one.this_hour]
    ranked += [(4, one) for one in (*_old_lanes(backlog, lanes), *gates)]
    shown = {"unserved jobs", LATE_LANES}
    ranked += [(5, _of_finding(one)) for one in findings if one.status == "warning" and one.name not in shown]
    return [need for _, need in sorted(ranked, key=lambda one: (one[0], -one[1].count))]


def rises(pattern: FailurePattern) -> bool:
    """Return whether a failure happens more often than before."""
    return pattern.this_hour >= max(_RISE * pattern.hour_before, 1)


def _of_failure(one: FailurePattern) -> Need:
    is_new = not one.hour_before and one.count == one.this_hour
    rise = "new" if is_new else f"{_many(one.hour_before)} in the hour before"
    return Need(
        "problem" if rises(one) else "warning",
        "failure",
        one.fingerprint,
        f"{one.kind} failed {_times(one.this_hour)} within the last hour ({rise})",
        f"{one.error}: {one.message}",
        one.first_at,
        one.this_hour,
        one.tenants,
        f"holdfast failures show {one.fingerprint}",
    )


def _of_unserved(one: Unserved) -> Need:
    paused = one.reason == "lane_paused"
    return Need(
        "warning" if paused else "problem",
        "lane" if paused else "unserved",
        one.lane if paused else one.kind,
        one.text(),
        f"requires {', '.join(one.requires)}" if one.requires else "",
        None,
        one.jobs,
        (),
        f"holdfast lanes set {shlex.quote(one.lane)} --state active"
        if paused
        else f"holdfast jobs list --state ready --kind {shlex.quote(one.kind)}",
    )


def _of_many_unserved(found: Sequence[Unserved]) -> Need:
    jobs, lanes = sum(one.jobs for one in found), sorted({one.lane for one in found})
    many = any(one.jobs >= limits.BACKLOG_COUNTED_MAX for one in found)
    kinds = len({one.kind for one in found})
    what = (
        f"no live worker takes {jobs:,}{'+' if many else ''} ready jobs of {kinds:,} kind{'' if kinds == 1 else 's'}"
    )
    shown = ", ".join(lanes[:_KEYS_SHOWN]) + (" …" if len(lanes) > _KEYS_SHOWN else "")
    cause = f"in lane{'' if len(lanes) == 1 else 's'} {shown}; start workers that take them"
    return Need("problem", "worker", "unserved", what, cause, None, jobs, (), "holdfast doctor")


def _of_silent(one: WorkerInfo) -> Need:
    return Need(
        "problem",
        "worker",
        one.worker,
        f"worker {one.worker} is silent and holds {one.held:,} job{'' if one.held == 1 else 's'}",
        f"on {one.host}, process {one.process}; other workers take its jobs over when their leases expire",
        one.beat_at,
        one.held,
        (),
        "holdfast workers list",
    )


def _old_lanes(backlog: Backlog, lanes: Mapping[str, Lane]) -> list[Need]:
    found = []
    for lane, (jobs, age_seconds) in sorted(_waiting_by_lane(backlog).items()):
        known = lanes.get(lane) or Lane(lane)
        if age_seconds > (known.target_age or _LANE_OLD_SECONDS) and known.state != "paused":
            what = f"in lane {lane} the oldest of {_many(jobs, limits.BACKLOG_COUNTED_MAX)} ready jobs has waited for"
            command = f"holdfast jobs list --state ready --lane {shlex.quote(lane)}"
            what = f"{what} {_age(age_seconds)}"
            cause = "" if known.target_age is None else f"its target age is {_age(known.target_age)}"
            found.append(Need("warning", "lane", lane, what, cause, None, jobs, (), command))
    return found


def of_gates(gates: Iterable[WaitingGate], limits_by_number: Mapping[int, LimitRow], now_ms: int) -> list[Need]:
    """Return the limits that are closed for a key, and those at which a job has been parked for long."""
    by_limit: dict[int, list[WaitingGate]] = {}
    for gate in gates:
        if gate.limit in limits_by_number:
            by_limit.setdefault(gate.limit, []).append(gate)
    found = []
    for number, waiting in by_limit.items():
        name = limits_by_number[number].name
        closed = [one for one in waiting if one.closed_until_ms > now_ms]
        parked = sum(one.parked for one in waiting)
        oldest_ms = max((now_ms - one.due_at_ms for one in waiting if one.due_at_ms is not None), default=0)
        jobs = f"{_many(parked, limits.BACKLOG_COUNTED_MAX)} parked job{'' if parked == 1 else 's'}"
        first = (closed or waiting)[0].key
        command = f"holdfast limits show {shlex.quote(first)}"
        if closed:
            keys = ", ".join(one.key for one in closed[:_KEYS_SHOWN]) + (" …" if len(closed) > _KEYS_SHOWN else "")
            opens = max(one.closed_until_ms for one in closed) - now_ms
            what = f"limit {name} is closed for {keys}; {jobs}"
            cause = f"a handler has closed it (`closes=True`); it opens in {opens / 1000:,.0f} s"
            found.append(Need("warning", "limit", name, what, cause, None, parked, (), command))
        elif oldest_ms > 1000 * _LANE_OLD_SECONDS:
            what = f"at limit {name} the oldest of {jobs} has waited for {oldest_ms / 60_000:,.0f} minutes"
            found.append(Need("warning", "limit", name, what, "", None, parked, (), command))
    return found


def late_findings(backlog: Backlog, lanes: Mapping[str, Lane]) -> list[Finding]:
    """Return what `doctor` says about lanes with a target age."""
    targets = {one.name: one.target_age for one in lanes.values() if one.target_age and one.state != "paused"}
    if not targets:
        return []
    ages = {lane: age_seconds for lane, (_, age_seconds) in _waiting_by_lane(backlog).items()}
    late = [name for name, target in sorted(targets.items()) if ages.get(name, 0.0) > target]
    return [
        Finding(
            LATE_LANES,
            "warning",
            f"in lane {name} the oldest ready job has waited {_age(ages[name])}; the target is {_age(targets[name])}",
            "start more workers for the lane, or change --target-age",
            name,
        )
        for name in late
    ] or [Finding(LATE_LANES, "ok", "none")]


def _age(seconds: float) -> str:
    return f"{seconds:,.0f} seconds" if seconds < 120 else f"{seconds / 60:,.0f} minutes"


_ABOUT: Final[Mapping[str, Subject]] = {"webhooks": "webhook", "schedules": "schedule"}


def _of_finding(one: Finding) -> Need:
    about = _ABOUT.get(one.name, "finding")
    command = {"webhook": "holdfast webhooks list", "schedule": "holdfast schedules list"}.get(
        about, "holdfast doctor"
    )
    severity: Literal["problem", "warning"] = "problem" if one.status == "problem" else "warning"
    what = f"{one.name}: {one.detail}"
    return Need(severity, about, one.subject or one.name, what, one.remedy, None, 0, (), command)


def _many(number: int, maximum: int = limits.FAILURES_COUNTED_MAX) -> str:
    return f"{number:,}{'+' if number >= maximum else ''}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{_many(number)} times"


def sentence(activity: Activity, count: int) -> str:
    """Return the overview in one sentence."""
    first = {"working": "Working.", "idle": "Idle.", "stopped": "Stopped: jobs are ready and no worker is active."}
    few = {0: "Nothing needs you.", 1: "1 thing needs you."}
    return f"{first[activity]} {few.get(count, f'{count} things need you.')}"


def activity(ready: int, running: int, workers: Iterable[WorkerInfo]) -> Activity:
    """Return whether jobs are running, and if not, whether a worker could run them.

    Jobs of silent workers are not known to be running.
    """
    workers = list(workers)
    if running > sum(one.held for one in workers if one.state == "silent"):
        return "working"
    if ready and not any(one.state == "active" for one in workers):
        return "stopped"
    return "working" if ready else "idle"


# --- flow ----------------------------------------------------------------------------------------------------------


def minutes(
    rows: Iterable[tuple[int, ByLane]], now_ms: int
) -> list[tuple[int, dict[rollups.Outcome, int], float | None]]:
    """Return the totals and the waiting time of each of the last sixty minutes, oldest first."""
    last = now_ms // limits.ROLLUP_MINUTE_MS
    parts: dict[int, list[ByLane]] = {minute: [] for minute in range(last - _FLOW_MINUTES + 1, last + 1)}
    for at_ms, sums in rows:
        minute = at_ms // limits.ROLLUP_MINUTE_MS
        if minute in parts:
            parts[minute].append(sums)
    found = []
    for minute, part in parts.items():
        total = rollups.all_lanes(part)
        found.append((minute * limits.ROLLUP_MINUTE_MS, total.jobs, _most_seconds(total.waited)))
    return found


def _most_seconds(histogram: rollups.Histogram) -> float | None:
    milliseconds = rollups.percentile(histogram, 0.95)
    return None if milliseconds is None else milliseconds / 1000


def flow_since_ms(now_ms: int) -> int:
    """Return since when rollups are read for the flow."""
    return (now_ms // limits.ROLLUP_MINUTE_MS - _FLOW_MINUTES + 1) * limits.ROLLUP_MINUTE_MS


def lane_flows(
    backlog: Backlog, lanes: Mapping[str, Lane], rows: Iterable[tuple[int, ByLane]], now_ms: int
) -> list[LaneFlow]:
    """Return the lanes that have ready jobs or had arrivals and ends within the last ten minutes."""
    since_ms = now_ms - _RECENT_MINUTES * limits.ROLLUP_MINUTE_MS
    recent = rollups.merged_lanes(sums for at_ms, sums in rows if at_ms >= since_ms)
    waiting = _waiting_by_lane(backlog)
    names = waiting.keys() | recent.keys() | {one.name for one in lanes.values() if _is_set(one)}
    found = []
    for name in names - {rollups.OTHER}:
        jobs, age_seconds = waiting.get(name, (0, 0.0))
        sums = recent.get(name) or rollups.LaneSums({}, {}, {})
        arrived, done, failed = sums.jobs.get("arrived", 0), sums.jobs.get("done", 0), sums.jobs.get("failed", 0)
        known = lanes.get(name) or Lane(name)
        ages = (_most_seconds(sums.waited), _most_seconds(sums.ran), known.target_age)
        found.append(LaneFlow(name, known.state, jobs, age_seconds, arrived, done, failed, *ages))
    return sorted(found, key=lambda one: (-one.oldest_age_seconds, one.lane))[:_LANES_MAX]


def _is_set(lane: Lane) -> bool:
    return lane.state != "active"


def _waiting_by_lane(backlog: Backlog) -> dict[str, tuple[int, float]]:
    found: dict[str, tuple[int, float]] = {}
    for one in backlog.ready:
        jobs, age_seconds = found.get(one.lane, (0, 0.0))
        found[one.lane] = (jobs + one.jobs, max(age_seconds, one.oldest_age_seconds))
    return found


def models(workers: Sequence[WorkerInfo], flows: Iterable[AffinityFlow], now: datetime) -> list[WorkerModels]:
    """Return the live workers that have loaded an affinity or switched one."""
    ready = {one.affinity: one.ready for one in flows}
    found = []
    for one in workers:
        if not (one.loaded or one.switches) or one.state == "silent":
            continue
        hours = (now - one.started_at).total_seconds() / 3600
        found.append(
            WorkerModels(
                one.worker,
                one.loaded,
                one.switches,
                one.running,
                one.started_at,
                sum(ready.get(name, 0) for name in one.loaded),
                None if one.hold_left is None else max(0.0, one.hold_left - (now - one.beat_at).total_seconds()),
                one.switches_saved,
                one.switches / hours if hours > _HOURS_LEAST else None,
            )
        )
    return found


def models_text(one: WorkerModels) -> str:
    """Return what concerns the affinities of a worker in one line, for every screen."""
    parts = []
    if one.loaded:
        parts.append(f"{_many(one.waiting, limits.BACKLOG_COUNTED_MAX)} waiting")
    if one.loaded and one.hold_left is not None:
        parts.append(f"kept {_age(one.hold_left)} more" if one.hold_left >= 1 else "gives way to others now")
    if one.switches:
        hourly = "" if one.switches_per_hour is None else f" ({one.switches_per_hour:,.1f} an hour)"
        parts.append(f"{one.switches:,} switch{'' if one.switches == 1 else 'es'}{hourly}")
    if one.switches_saved:
        parts.append(f"{one.switches_saved:,} saved")
    return ", ".join(parts)


def affinities(ready: Iterable[tuple[str, int]], workers: Sequence[WorkerInfo]) -> list[AffinityFlow]:
    """Return the affinities that are loaded or that ready jobs name, those with the most jobs first."""
    jobs = dict(ready)
    loaded: dict[str, list[str]] = {}
    for one in workers:
        for name in one.loaded if one.state != "silent" else ():
            loaded.setdefault(name, []).append(one.worker)
    found = [
        AffinityFlow(name, jobs.get(name, 0), tuple(loaded.get(name, ()))) for name in jobs.keys() | loaded.keys()
    ]
    return sorted(found, key=lambda one: (-one.ready, one.affinity))[:_AFFINITIES_MAX]


def first(found: Sequence[Need]) -> tuple[Need, ...]:
    """Return as many as the first screen shows; many things of one kind do not hide the others."""
    seen: Counter[str] = Counter()
    early: list[int] = []
    late: list[int] = []
    for index, one in enumerate(found):
        seen[one.about] += 1
        (early if seen[one.about] <= _ALIKE_MAX else late).append(index)
    return tuple(found[index] for index in sorted([*early, *late][:_NEEDS_MAX]))
