"""Writing transitions: the one place where a step that the domain decided becomes rows, events and signals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

from holdfast.domain import lifecycle, limits, strict_json
from holdfast.domain.clock import Now
from holdfast.domain.event import TERMINAL, EventName
from holdfast.domain.job import WAITING, Job
from holdfast.domain.lane import Catalog
from holdfast.domain.lifecycle import Step
from holdfast.stores.script import OvertakenError, Row, Script, Signal, Statement, job_topic, lane_topic

# The columns of `job_move`, in its order; `seq` and the epoch the step was decided for follow.
_MOVED = attrgetter(
    "state",
    "turn",
    "due_at_ms",
    "deadline_at_ms",
    "finished_at_ms",
    "attempt",
    "epoch",
    "worker",
    "incarnation",
    "lease_token",
    "lease_until_ms",
    "claim_place",
    "started_at_ms",
    "outcome",
    "settle_digest",
    "phase",
    "percent",
    "cancel_requested",
    "suspect",
    "deferrals",
    "deferred_since_ms",
    "releases",
    "failure_class",
    "failure_reason",
    "failure_message",
    "failure_traceback",
    "predecessor",
    "event_count",
    "result_json",
)


def apply_steps(catalog: Catalog, steps: Sequence[Step], now: Now) -> Script[list[Job]]:
    """Write *steps* with their history and events, free successors, and return the jobs they leave, in order."""
    if not steps:
        return []
    placed = [_in_this_house(catalog, step, now) for step in steps]
    yield from _write_steps(placed)
    yield from _keep_attempts(placed, now)
    yield from record(catalog, [(step.after, step.event) for step in placed], now)
    yield from signal_jobs([step.after for step in placed])
    yield from _free_successors(catalog, placed, now)
    return [step.after for step in placed]


def _write_steps(steps: Sequence[Step]) -> Script[None]:
    """Write what the steps changed. The two that every job goes through have narrower statements of their own."""
    claimed = [step for step in steps if step.event == "claimed"]
    done = [step for step in steps if step.event == "done"]
    others = [step for step in steps if step.event not in {"claimed", "done"}]
    if claimed:
        one = claimed[0].after
        common = {
            "worker": one.worker,
            "incarnation": one.incarnation,
            "lease_token": one.lease_token,
            "lease_until_ms": one.lease_until_ms,
            "started_at_ms": one.started_at_ms,
        }
        yield from _write_set("job_claim", [_claim_row(step) for step in claimed], common)
    if done:
        finished = {"finished_at_ms": done[0].after.finished_at_ms}
        yield from _write_set("job_done", [_done_row(step) for step in done], finished)
    yield from write_rows("job_move", [(*_MOVED(step.after), step.after.seq, step.before.epoch) for step in others])


def _claim_row(step: Step) -> list[object]:
    after = step.after
    return [after.seq, step.before.epoch, after.epoch, after.attempt, after.claim_place, after.event_count]


def _done_row(step: Step) -> list[object]:
    after = step.after
    return [after.seq, step.before.epoch, after.result_json, after.settle_digest, after.event_count]


def _write_set(name: str, rows: list[list[object]], common: Mapping[str, object]) -> Script[None]:
    """Run one statement for all rows together and make sure that each changed exactly one row."""
    [[changed]] = yield Statement(name, {"rows": rows, **common})
    _check_changed(name, changed, len(rows))


def write_rows(name: str, rows: list[Row]) -> Script[None]:
    """Run one statement for each row of values and make sure that each changed exactly one row."""
    if rows:
        [[changed]] = yield Statement(name, many=rows)
        _check_changed(name, changed, len(rows))


def _check_changed(name: str, changed: int, decided: int) -> None:
    if changed != decided:
        raise OvertakenError(f"{name} changed {changed} rows where {decided} were decided")


def _in_this_house(catalog: Catalog, step: Step, now: Now) -> Step:
    """Return *step* as the catalog bends it: no job of a retired kind waits, each stands in its lane's turn."""
    after, event = step.after, step.event
    if after.state in WAITING and after.kind in catalog.retired:
        after, event = lifecycle.retire(after, now)[1:]
    if after.state == "ready" and after.turn != (turn := catalog.lane(after.lane).turn_of(after.tenant)):
        after = after._replace(turn=turn)
    if records(catalog, after, event):
        after = after._replace(event_count=after.event_count + 1)
    return Step(step.before, after, event)


def records(catalog: Catalog, job: Job, event: EventName) -> bool:
    """Whether *event* of *job* belongs into the log."""
    return event in TERMINAL or bool(job.record_all) or catalog.records_all(job.lane)


def record(catalog: Catalog, told: Sequence[tuple[Job, EventName]], now: Now) -> Script[None]:
    """Append to the log those events that belong there; their jobs have counted them already."""
    rows = [_event_row(job, event, now) for job, event in told if records(catalog, job, event)]
    yield from write_rows("event_insert", rows)


def _event_row(job: Job, event: EventName, now: Now) -> Row:
    details: dict[str, object] = {"state": job.state, "attempt": job.attempt, "epoch": job.epoch}
    if job.worker is not None:
        details["worker"] = job.worker
    if job.state in WAITING:
        details["due_at_ms"] = job.due_at_ms
    if job.failure_class is not None:
        details["failure_class"], details["failure_reason"] = job.failure_class, job.failure_reason
    text = strict_json.compact(details)
    return (event, now.wall_ms, job.id, job.event_count, job.kind, job.lane, job.tenant, job.tags_json, text)


def signal_jobs(jobs: Sequence[Job]) -> Script[None]:
    """Wake those who wait for what has finished, and claimers in lanes where something came or will come."""
    for topic in {job_topic(job.id) for job in jobs if job.finished}:
        yield Signal(topic)
    # A scheduled job concerns claimers too: it may fall due before anything they know of.
    for lane in {job.lane for job in jobs if job.state in {"ready", "scheduled"}}:
        yield Signal(lane_topic(lane))


def _keep_attempts(steps: Sequence[Step], now: Now) -> Script[None]:
    kept, trimmed = [], []
    for step in steps:
        if attempt := lifecycle.attempt_ended(step, now):
            kept.append((step.after.seq, step.after.lease_token, step.after.settle_digest, *attempt))
            if attempt.epoch > limits.ATTEMPTS_KEPT:
                trimmed.append((step.after.seq, attempt.epoch - limits.ATTEMPTS_KEPT))
    if kept:
        yield Statement("attempt_insert", many=kept)
    if trimmed:
        yield Statement("attempt_trim", many=trimmed)


def _free_successors(catalog: Catalog, steps: Sequence[Step], now: Now) -> Script[None]:
    # Only a job with a dedupe key can have a successor, so that others do not pay for looking.
    ended = [step.after.seq for step in steps if step.finishes and step.after.dedupe_key is not None]
    if ended:
        rows = yield Statement("jobs_succeeding", {"seqs": ended})
        yield from apply_steps(catalog, [lifecycle.unblock(Job._make(row), now) for row in rows], now)
