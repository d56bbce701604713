"""Writing transitions: the one place where a step that the domain decided becomes rows, events and signals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from operator import attrgetter
from typing import Final

from holdfast.domain import lifecycle, limits
from holdfast.domain.clock import Now
from holdfast.domain.event import TERMINAL, EventName
from holdfast.domain.job import FINISHED, WAITING, Job
from holdfast.domain.lane import Catalog
from holdfast.domain.lifecycle import Step
from holdfast.stores.script import (
    OvertakenError,
    Row,
    Script,
    Signal,
    Statement,
    job_topic,
    lane_topic,
    session_topic,
    sessions_topic,
)
from holdfast.stores.scripts.sessions import refresh_sessions

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
    "unacknowledged",
)

_FREQUENT: Final = frozenset[EventName](("claimed", "done"))
_TO_CLAIM: Final = ("ready", "scheduled")


def apply_steps(catalog: Catalog, steps: Sequence[Step], now: Now) -> Script[list[Job]]:
    """Write *steps* with their history and events, free successors, and return the jobs they leave, in order."""
    if not steps:
        return []
    placed = [_in_this_house(catalog, step, now) for step in steps]
    others = [step for step in placed if step.event not in _FREQUENT]
    if len(others) < len(placed):
        yield from _write_frequent(placed)
    if others:
        rows = [(*_MOVED(step.after), step.after.seq, step.before.epoch) for step in others]
        yield from write_rows("job_move", rows)
        yield from _keep_attempts(others, now)
    yield from record({step.after.seq: step.event for step in placed if step.after[-1] != step.before[-1]}, now)
    return (yield from conclude_steps(catalog, placed, now))


def conclude_steps(catalog: Catalog, steps: Sequence[Step], now: Now) -> Script[list[Job]]:
    """Do what follows from *steps* that are written and recorded, and return the jobs they leave, in order."""
    after = [step.after for step in steps]
    yield from signal_jobs(after)
    yield from _free_successors(catalog, steps, now)
    # A claim writes its session itself.
    touched = {
        step.after.session_number
        for step in steps
        if step.after.session_number is not None and step.event != "claimed"
    }
    if touched:
        yield from refresh_sessions(catalog, touched, now)
    return after


# --- writing -------------------------------------------------------------------------------------------------------


def _write_frequent(steps: Sequence[Step]) -> Script[None]:
    """Write the two steps that every job goes through, which have narrower statements of their own.

    What differs by job is the place of a claim and the result of a success; all else is the same in the whole batch
    or, as the epoch, goes up by one.
    """
    claimed: dict[int, dict[int, Job]] = {}
    done: dict[int, dict[int, Job]] = {}
    for before, after, event in steps:
        if event in _FREQUENT:
            kept = claimed if event == "claimed" else done
            kept.setdefault(after.event_count - before.event_count, {})[after.seq] = after
    for counted, jobs in claimed.items():
        places = {seq: job.claim_place for seq, job in jobs.items()}
        yield from _write_set("job_claim", places, {"places": places, "counted": counted, **_lease(jobs)})
    for counted, jobs in done.items():
        digests = {seq: job.settle_digest for seq, job in jobs.items() if job.settle_digest is not None}
        values = {
            "results": {seq: job.result_json for seq, job in jobs.items()},
            "counted": counted,
            "finished_at_ms": next(iter(jobs.values())).finished_at_ms,
        }
        yield from _write_set("job_done", jobs, values)
        if digests:
            yield from _write_set("job_digest", digests, {"digests": digests})


def _lease(jobs: Mapping[int, Job]) -> dict[str, object]:
    """Return what all claims of one batch have in common."""
    one = next(iter(jobs.values()))
    acknowledged = [job.claim_place or 0 for job in jobs.values() if not job.unacknowledged]
    return {
        "acknowledged": max(acknowledged, default=-1) + 1,
        "worker": one.worker,
        "incarnation": one.incarnation,
        "lease_token": one.lease_token,
        "lease_until_ms": one.lease_until_ms,
        "started_at_ms": one.started_at_ms,
    }


def _write_set(name: str, decided: Sized, values: dict[str, object]) -> Script[None]:
    """Run one statement for all rows together and make sure that each changed exactly one row."""
    [[changed]] = yield Statement(name, values)
    _check_changed(name, changed, len(decided))


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
    before, after, event = step
    if after.state in WAITING:
        if after.kind in catalog.retired:
            after, event = lifecycle.retire(after, now)[1:]
        elif after.state == "ready" and after.turn != (turn := catalog.lane(after.lane).turn_of(after.tenant)):
            after = after._replace(turn=turn)
    if records(catalog, after, event):
        after = after.counting_event()
    return step if after is step.after else Step(before, after, event)


# --- telling -------------------------------------------------------------------------------------------------------


def records(catalog: Catalog, job: Job, event: EventName) -> bool:
    """Whether *event* of *job* belongs into the log."""
    return event in TERMINAL or bool(job.record_all) or job.lane in catalog.loud


def record(told: Mapping[int, EventName], now: Now) -> Script[None]:
    """Append to the log an event of each of these jobs, by number, in order.

    It tells of the job as its row stands now, which has counted the event already.
    """
    if told:
        yield from _write_set("events_append", told, {"told": dict(told), "at_ms": now.wall_ms})


def signal_jobs(jobs: Sequence[Job]) -> Script[None]:
    """Wake those who wait for what has finished, and claimers in lanes where something came or will come."""
    topics = [job_topic(job.id) for job in jobs if job.state in FINISHED]
    # A scheduled job concerns claimers too: it may fall due before anything they know of.
    waiting = [job for job in jobs if job.state in _TO_CLAIM]
    topics += [lane_topic(lane) for lane in {job.lane for job in waiting if job.batch_json is None}]
    for job in waiting:
        if job.batch_json is not None:
            topics += (sessions_topic(job.lane), session_topic(job.tenant, job.session or ""))
    if topics:
        yield Signal(topics)


# --- what follows --------------------------------------------------------------------------------------------------


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
    ended = [step.after.seq for step in steps if step.after.dedupe_key is not None and step.finishes]
    if ended:
        rows = yield Statement("jobs_succeeding", {"seqs": ended})
        yield from apply_steps(catalog, [lifecycle.unblock(Job._make(row), now) for row in rows], now)
