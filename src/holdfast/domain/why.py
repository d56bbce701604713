"""Why a job is in its state: what it waits for, as typed reasons and one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from holdfast.domain import groups, schedules, strict_json, validation
from holdfast.domain.clock import Now
from holdfast.domain.gates import Gate, LimitRow, Room
from holdfast.domain.job import FINISHED, JobRow, State
from holdfast.domain.results import WorkerInfo
from holdfast.domain.routing import Lane
from holdfast.domain.strict_json import Json

ReasonCode: TypeAlias = Literal[
    "finished",
    "running",
    "lease_expired",
    "cancel_requested",
    "deadline_passed",
    "lane_paused",
    "lane_draining",
    "no_worker",
    "served",
    "not_due",
    "predecessor",
    "parents",
    "limit",
    "session_order",
    "position",
    "tenant_turn",
    "estimate",
    "deadline",
    "schedule",
    "group",
]
"""What a reason is about."""

COUNTED_MAX: Final = 1_000
"""Up to how many jobs before another are counted."""
SAMPLES_MIN: Final = 5
"""From how many recent jobs of the same kind a time is estimated."""
_NAMED_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Reason:
    """One fact about why a job is in its state."""

    code: ReasonCode
    """What it is about."""
    text: str
    """The fact as a sentence, for people."""
    blocks: bool = False
    """Whether the job cannot start while it holds."""
    until: datetime | None = None
    """When it ends, if time alone decides."""
    detail: Mapping[str, Json] = field(default_factory=dict, hash=False)
    """Its values, for programs."""


@dataclass(frozen=True, slots=True)
class Why:
    """Why a job is in its state."""

    job_id: str
    """The id of the job."""
    state: State
    """Its state."""
    summary: str
    """The most important reason, as one sentence."""
    reasons: tuple[Reason, ...]
    """All reasons, the most important first."""


class GateFacts(NamedTuple):
    """A limit that concerns a job, and its use by the key of the job."""

    limit: LimitRow
    gate: Gate
    room: Room
    running: int
    parked: int
    weight: int
    """What a start of the job counts."""


class Facts(NamedTuple):
    """What is known about a job and about what it may wait for."""

    job: JobRow
    now: Now
    lane: Lane
    takers: Sequence[WorkerInfo]
    """The live workers that take it."""
    before: int = 0
    """How many ready jobs of its lane are claimed before it, up to `COUNTED_MAX`."""
    tenants: int = 1
    """How many tenants have ready jobs of its kind and priority."""
    predecessor: tuple[str, State] | None = None
    parents: Sequence[tuple[str, State]] = ()
    """The jobs on which it depends whose ends were not counted."""
    gates: Sequence[GateFacts] = ()
    """The limits that concern it; further kinds of gates are added here."""
    entries_before: int | None = None
    """How many unfinished entries of its session are before it; None if it is no entry."""
    groups: Sequence[str] = ()
    durations_ms: Sequence[int] = ()
    """How long recent jobs of its kind have run."""


def explain(facts: Facts) -> Why:
    """Return why a job is in its state."""
    reasons = tuple(_reasons(facts))
    first = next((one for one in reasons if one.blocks), reasons[0])
    job = facts.job
    return Why(job.id, job.state, f"{job.id} is {job.state}: {first.text}.", reasons)


def _reasons(facts: Facts) -> Iterator[Reason]:
    job = facts.job
    if job.finished:
        yield _finished(job)
    elif job.state == "running":
        yield from _running(facts)
    else:
        if job.deadline_at_ms is not None and job.deadline_at_ms <= facts.now.wall_ms:
            yield Reason("deadline_passed", "its deadline has passed, and the next claim fails it", blocks=True)
        yield from _waits_for(facts)
        yield from _order(facts)
    yield from _origin(facts)


# --- finished and running ------------------------------------------------------------------------------------------


def _finished(job: JobRow) -> Reason:
    at = validation.optional_datetime_of(job.finished_at_ms)
    text = "it has a result" if job.state == "done" else "it does not run unless it is requeued"
    if job.state == "retired":
        text = "its kind was retired while it waited"
    elif job.failure is not None and job.state != "done":
        text = f"{job.failure.reason}: {job.failure.message}"
    attempts: Json = job.attempt
    return Reason("finished", text, detail={"attempts": attempts, "finished_at": None if at is None else str(at)})


def _running(facts: Facts) -> Iterator[Reason]:
    job, lease_ms = facts.job, facts.now.lease_ms
    left_ms = (job.lease_until_ms or 0) - lease_ms
    detail: dict[str, Json] = {"worker": job.worker, "incarnation": job.incarnation, "attempt": job.attempt}
    if left_ms <= 0:
        text = f"the lease of worker {job.worker} has expired, and the next claim takes it back"
        yield Reason("lease_expired", text, detail=detail)
    else:
        text = f"worker {job.worker} holds it, attempt {job.attempt} of {job.max_attempts}"
        until = validation.datetime_of(facts.now.wall_ms + left_ms)
        yield Reason("running", f"{text}; its lease ends in {_duration(left_ms)}", until=until, detail=detail)
    if job.cancel_requested:
        yield Reason("cancel_requested", "its worker was asked to stop it")


# --- waiting -------------------------------------------------------------------------------------------------------


def _waits_for(facts: Facts) -> Iterator[Reason]:
    """Yield what must happen before the job may start."""
    job, now_ms = facts.job, facts.now.wall_ms
    if job.state == "dependent":
        yield _parents(facts.parents)
    if facts.predecessor is not None:
        job_id, state = facts.predecessor
        text = f"it runs after job {job_id}, which has the same dedupe key and is {state}"
        yield Reason("predecessor", text, blocks=True, detail={"job_id": job_id, "state": state})
    if job.due_at_ms > now_ms:
        at = validation.datetime_of(job.due_at_ms)
        again = f"; attempt {job.attempt} ended as {job.outcome}" if job.attempt and job.outcome else ""
        text = f"it is due in {_duration(job.due_at_ms - now_ms)}{again}"
        yield Reason("not_due", text, blocks=True, until=at, detail={"attempt": job.attempt})
    elif job.state == "scheduled":
        yield Reason("not_due", "it is due, and the next claim makes it ready")
    if facts.lane.state == "paused":
        yield Reason("lane_paused", f"lane {job.lane} is paused", blocks=True, detail={"lane": job.lane})
    elif facts.lane.state == "draining":
        yield Reason("lane_draining", f"lane {job.lane} is draining: it takes no new jobs, and serves those it has")
    yield from map(_limit, facts.gates)
    if facts.entries_before:
        entries = _number(facts.entries_before, "earlier entry", "earlier entries")
        text = f"its session has {entries}, which {'comes' if facts.entries_before == 1 else 'come'} first"
        yield Reason("session_order", text, blocks=True, detail={"entries": facts.entries_before})
    yield _served(facts)


def _parents(pending: Sequence[tuple[str, State]]) -> Reason:
    unfinished = [(job_id, state) for job_id, state in pending if state not in FINISHED]
    if not unfinished:
        return Reason("parents", "the jobs on which it depends have ended, and the next claim counts them")
    named = ", ".join(f"{job_id} ({state})" for job_id, state in unfinished[:_NAMED_MAX])
    more = f" and {len(unfinished) - _NAMED_MAX:,} more" if len(unfinished) > _NAMED_MAX else ""
    ids: Any = [job_id for job_id, _ in unfinished[:100]]
    text = f"it depends on {_number(len(unfinished), 'unfinished job')}: {named}{more}"
    return Reason("parents", text, blocks=True, detail={"count": len(unfinished), "job_ids": ids})


def _limit(facts: GateFacts) -> Reason:
    limit, gate, room = facts.limit, facts.gate, facts.room
    opens_at = validation.optional_datetime_of(room.opens_at_ms(facts.weight))
    detail: dict[str, Json] = {
        "limit": limit.name,
        "key": gate.key,
        "running": facts.running if limit.counts_running else None,
        "parked": facts.parked,
        "concurrency": limit.concurrency,
        "rate": limit.rate,
        "weight": limit.weight,
    }
    if limit.weight is not None:
        detail |= {"needs": facts.weight, "left": room.left}
    used = f"{facts.running} of {limit.concurrency} running" if limit.concurrency else f"{facts.running} running"
    if not limit.counts_running:
        used = f"{room.left:,} of {limit.burst:,} starts left"
    if limit.weight is not None:
        used = f"{used}, {room.left:,} {limit.weight} left, {facts.weight:,} needed"
    where = f"limit {limit.name} for key {gate.key}"
    if room.admits(facts.weight):
        return Reason("limit", f"{where} has room: {used}", detail=detail)
    state = "is closed" if gate.closed_until_ms else "is full"
    opens = "" if opens_at is None else f"; it opens at {opens_at:%H:%M:%S} UTC"
    if gate.closed_until_ms and opens_at is None:
        opens = "; it opens when what runs now has ended"
    return Reason("limit", f"{where} {state}: {used}, {facts.parked:,} parked{opens}", True, opens_at, detail)  # noqa: FBT003


def _served(facts: Facts) -> Reason:
    job = facts.job
    if not facts.takers:
        required = f" and has {', '.join(job.requires)}" if job.requires else ""
        text = f"no live worker takes kind {job.kind} from lane {job.lane}{required}"
        return Reason("no_worker", text, blocks=True, detail={"kind": job.kind, "lane": job.lane})
    names = sorted({worker.worker for worker in facts.takers})
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    workers: Any = names[:100]
    return Reason("served", f"served by {', '.join(names[:_NAMED_MAX])}{more}", detail={"workers": workers})


def _order(facts: Facts) -> Iterator[Reason]:
    """Yield its place among ready jobs, and an estimate."""
    job = facts.job
    if job.deadline_at_ms is not None and job.deadline_at_ms > facts.now.wall_ms:
        at = validation.datetime_of(job.deadline_at_ms)
        left = _duration(job.deadline_at_ms - facts.now.wall_ms)
        yield Reason("deadline", f"it fails unless it is started within {left}", until=at)
    if job.state != "ready" or facts.entries_before is not None:
        return
    before = facts.before
    come = "comes" if before == 1 else "come"
    text = f"{_number(before, 'ready job')} of its lane {come} first" if before else "it is the next of its lane"
    if before >= COUNTED_MAX:
        text = f"{COUNTED_MAX:,}+ ready jobs of its lane come first"
    yield Reason("position", text, detail={"before": before})
    if facts.tenants > 1 and facts.lane.order == "fair":
        text = f"{facts.tenants} tenants wait and take turns; its tenant is {job.tenant}"
        yield Reason("tenant_turn", text, detail={"tenants": facts.tenants, "tenant": job.tenant})
    slots = sum(worker.concurrency for worker in facts.takers)
    if slots and len(facts.durations_ms) >= SAMPLES_MIN and before < COUNTED_MAX:
        middle = sorted(facts.durations_ms)[len(facts.durations_ms) // 2]
        wait_ms = before * max(facts.tenants, 1) * middle // slots
        text = f"by recent jobs of its kind it starts in about {_duration(wait_ms)} and runs {_duration(middle)}"
        yield Reason("estimate", text, detail={"starts_in_ms": wait_ms, "runs_ms": middle})


def _origin(facts: Facts) -> Iterator[Reason]:
    headers: dict[str, str] = strict_json.decode(facts.job.headers_json)
    if (schedule := headers.get(schedules.SCHEDULE_HEADER)) is not None:
        tick = headers.get(schedules.TICK_HEADER)
        yield Reason("schedule", f"schedule {schedule} enqueued it for {tick}", detail={"schedule": schedule})
    for name in facts.groups:
        yield Reason("group", f"it is a member of group {name}", detail={"group": name})
    if (name := headers.get(groups.GROUP_HEADER, "")) and facts.job.id.startswith(validation.RESERVED_PREFIX):
        yield Reason("group", f"it is a callback of group {name}", detail={"group": name})


def _number(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _duration(milliseconds: int) -> str:
    seconds = max(milliseconds, 0) / 1000
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = seconds / 60
    if minutes < 120:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.0f} h" if minutes < 2880 else f"{minutes / 1440:.0f} days"
