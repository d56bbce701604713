"""Transitions of jobs: total, pure functions from a job to its successor.

Every function takes the job as locked in the store and the store's clock, and returns a `Transition` or raises a
`Refused`. No function reads a clock, draws random numbers or accesses a store.
"""

from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple

from holdfast.domain import backoff as backoffs, errors, events, failures, limits, outcomes
from holdfast.domain.claims import Claim, ClaimRequest, JobFence
from holdfast.domain.clock import Now
from holdfast.domain.job import (
    WAITING,
    AttemptOutcome,
    AttemptRow,
    Job,
    JobRow,
    State,
    columns_of,
    job_of,
    row_of,
)
from holdfast.domain.lazy_rows import LazyRow, UsualColumns


class Transition(NamedTuple):
    """One transition: the job before, the job after, and its event."""

    before: JobRow
    after: JobRow
    event: events.EventName

    @property
    def finishes(self) -> bool:
        """Whether the transition finishes the job."""
        return self.after.finished and not self.before.finished


# --- lease check ---------------------------------------------------------------------------------------------------


def holds(job: JobRow, fence: JobFence, now: Now) -> bool:
    """Return whether *fence* is that of the current lease of *job*: the only check of epoch, token and time."""
    return (
        job.state == "running"
        and job.epoch == fence.epoch
        and job.lease_token == fence.lease_token
        and job.lease_until_ms is not None
        and job.lease_until_ms > now.lease_ms
    )


def check_fence(job: JobRow, fence: JobFence, now: Now) -> None:
    """Raise `LeaseLost` unless *fence* is that of the current lease of *job*."""
    if holds(job, fence, now):
        return
    if job.epoch != fence.epoch:
        why = f"it was claimed again, now at epoch {job.epoch}"
    elif job.state != "running":
        why = f"the job is {job.state}"
    elif job.lease_token != fence.lease_token:
        why = "the lease token does not match"
    else:
        why = "it expired"
    raise errors.LeaseLost(job.id, fence.epoch, why)


# --- claim and lease -----------------------------------------------------------------------------------------------


def claim(job: JobRow, request: ClaimRequest, index: int, now: Now) -> Transition:
    """Return *job* running under a new lease, at *index* within the claim.

    The attempt counts from here, so that a crash cannot hide it. Jobs beyond the number that the caller starts at
    once are acknowledged only when their handler starts.
    """
    after = job.attempted(
        worker=request.worker,
        incarnation=request.incarnation,
        lease_token=request.lease_token,
        lease_until_ms=now.lease_ms + request.lease_ms,
        claim_index=index,
        now_ms=now.wall_ms,
        acknowledged=index < request.acknowledged,
    )
    return Transition(job, after, "claimed")


def heartbeat(job: JobRow, fence: JobFence, lease_ms: int, now: Now, *, acknowledges: bool = False) -> JobRow:
    """Return *job* with its lease extended, and acknowledged if requested; a lease is never shortened."""
    check_fence(job, fence, now)
    return job._replace(
        lease_until_ms=max(job.lease_until_ms or 0, now.lease_ms + lease_ms),
        unacknowledged=0 if acknowledges else job.unacknowledged,
    )


def progress(job: JobRow, fence: JobFence, phase: str | None, percent: float | None, now: Now) -> JobRow:
    """Return *job* with its progress; a value that is None stays unchanged."""
    check_fence(job, fence, now)
    return job._replace(
        phase=job.phase if phase is None else phase, percent=job.percent if percent is None else percent
    )


def withdraw(job: JobRow, leased: JobRow, now: Now) -> Transition | None:
    """Return *job* as before a claim, which *leased* it to a caller that was gone; None if the claim has ended.

    No attempt is used up and no release counted. The epoch stays incremented, as after any claim.
    """
    if (job.state, job.epoch, job.lease_token) != ("running", leased.epoch, leased.lease_token):
        return None
    if job.unacknowledged < leased.unacknowledged:
        # The same claim was sent again, and its caller has acknowledged the job.
        return None
    return _not_started(job, max(job.unacknowledged - 1, 0), now)


# --- the end of an attempt -----------------------------------------------------------------------------------------


def settled_before(
    job: JobRow, earlier: tuple[str | None, str | None] | None, fence: JobFence, checked: outcomes.CheckedOutcome
) -> bool:
    """Return whether this settlement was accepted before, so that repeating it is harmless.

    *earlier* is the token and digest of the attempt that *fence* names, if it is no longer the newest.
    """
    if checked.digest is None:
        # A plain success: no attempt follows it, so the job's own row identifies it.
        settled = (job.epoch, job.lease_token, job.outcome, job.settle_digest, job.result_json)
        return settled == (fence.epoch, fence.lease_token, "done", None, checked.result_json)
    token, digest = (job.lease_token, job.settle_digest) if job.epoch == fence.epoch else (earlier or (None, None))
    return digest == checked.digest and token == fence.lease_token


def settle(job: JobRow, fence: JobFence, checked: outcomes.CheckedOutcome, now: Now, chance: float) -> Transition:
    """Return *job* settled with the outcome, or raise `LeaseLost`."""
    check_fence(job, fence, now)
    if type(checked.outcome) is outcomes.Done:
        return Transition(job, _done(job, checked, now), "done")
    job_ended = job._replace(settle_digest=checked.digest, suspect=0, unacknowledged=0)
    match checked.outcome:
        case outcomes.Failed():
            transition = _settle_failed(job_ended, checked, now, chance)
        case outcomes.Deferred():
            transition = _settle_deferred(job_ended, checked, now)
        case outcomes.Released():
            transition = _settle_released(job_ended, now, chance)
    return transition._replace(before=job)


_STATE, _RESULT, _FINISHED_AT, _LEASE_UNTIL, _OUTCOME, _DIGEST, _UNACKNOWLEDGED, _SUSPECT = map(
    JobRow._fields.index,
    (
        *("state", "result_json", "finished_at_ms", "lease_until_ms", "outcome", "settle_digest"),
        *("unacknowledged", "suspect"),
    ),
)


def _done(job: JobRow, checked: outcomes.CheckedOutcome, now: Now, events_counted: int = 0) -> JobRow:
    """Return *job* done, with as many events more as are counted already."""
    # By index, because this runs once for every job that is done. The event count is the last field.
    fields: list[Any] = list(job)
    fields[_STATE] = fields[_OUTCOME] = "done"
    fields[_RESULT], fields[_DIGEST] = checked.result_json, checked.digest
    fields[_FINISHED_AT], fields[_LEASE_UNTIL] = now.wall_ms, None
    fields[_SUSPECT] = fields[_UNACKNOWLEDGED] = 0
    fields[-1] += events_counted
    after = tuple.__new__(JobRow, fields)
    # Clear the failure of an earlier attempt, which would be counted among the failures.
    return after if job.failure_class is None else _with_failure(after, None)


# The fields that may change while an attempt runs; the event count is the last.
_CURRENT: Final = ("priority", "phase", "percent", "cancel_requested", "event_count")
_current: Final = attrgetter(*_CURRENT)


def succeeded(claimed: JobRow, current: tuple[Any, ...], checked: outcomes.CheckedOutcome, now: Now) -> Transition:
    """Return the transition of a job that the store has already finished, and whose event it has counted.

    *claimed* is the job as it was claimed, *current* its priority, phase, percentage, request to cancel and event
    count after that.
    """
    claimed = _changed(claimed, current)
    return Transition(claimed, _done(claimed, checked, now, 1), "done")


def _changed(claimed: JobRow, current: tuple[Any, ...]) -> JobRow:
    before = (*current[:-1], current[-1] - 1)
    return claimed if before == _current(claimed) else claimed._replace(**dict(zip(_CURRENT, before, strict=True)))


class SucceededRow(LazyRow):
    """The row of such a job after the transition."""

    __slots__ = ("_checked", "_claimed", "_current", "_now")

    def __init__(self, claimed: Job, current: tuple[Any, ...], checked: outcomes.CheckedOutcome, now: Now) -> None:
        self._claimed = claimed
        self._current = current
        self._checked = checked
        self._now = now

    seq = property(lambda self: self._claimed.number)
    id = property(lambda self: self._claimed.id)
    kind = property(lambda self: self._claimed.kind)
    lane = property(lambda self: self._claimed.lane)
    tenant = property(lambda self: self._claimed.tenant)
    payload_json = property(lambda self: columns_of(self._claimed).payload_json)

    finished = True

    def make(self) -> JobRow:
        """Return the row."""
        return _done(_changed(row_of(self._claimed), self._current), self._checked, self._now, 1)

    def usual(self) -> UsualColumns | None:
        """Return the columns if the job has had none of the values that few jobs have, and has not changed since."""
        columns = columns_of(self._claimed)
        held = columns.usual() if isinstance(columns, LazyRow) else None
        if held is None or self._current[:4] != (held.priority, None, None, 0):
            return None
        head, started_at_ms, result_json = held[:2], held.started_at_ms, self._checked.result_json
        attempt = (started_at_ms, self._now.wall_ms, None, *held[14:17], "done")
        return tuple.__new__(UsualColumns, (*head, "done", *held[3:9], result_json, held.enqueued_at_ms, *attempt))


def succeeded_job(current: tuple[Any, ...], checked: outcomes.CheckedOutcome, now: Now, claim: Claim) -> Job:
    """Return such a job after the transition."""
    return job_of(SucceededRow(claim.job, current, checked, now))


def _settle_failed(job: JobRow, checked: outcomes.CheckedOutcome, now: Now, chance: float) -> Transition:
    assert isinstance(checked.outcome, outcomes.Failed) and checked.failure is not None  # noqa: S101, PT018
    failed = _with_failure(_reset_streaks(job), checked.failure)
    if checked.failure.failure_class == "permanent":
        return _finish(failed, "failed", "failed", now)
    backoff = checked.outcome.backoff or job.backoff
    pause_ms = checked.pause_ms if checked.pause_ms is not None else backoffs.pause_ms(backoff, job.attempt, chance)
    return _retry(failed, now.wall_ms + pause_ms, "failed", now)


def _retry(failed: JobRow, due_at_ms: int, outcome: AttemptOutcome, now: Now) -> Transition:
    """Return the failed job waiting for its next attempt, or finished if there is none."""
    if failed.attempt >= failed.max_attempts and not failed.cancel_requested:
        return _finish(failed, "failed", outcome, now)
    if ended := _end_if_barred(failed, outcome, now):
        return ended
    return _wait(failed, due_at_ms, outcome, "expired" if outcome == "expired" else "retrying", now)


def _settle_deferred(job: JobRow, checked: outcomes.CheckedOutcome, now: Now) -> Transition:
    if ended := _end_if_barred(job, "deferred", now):
        return ended
    since_ms = job.deferred_since_ms if job.deferred_since_ms is not None else now.wall_ms
    if now.wall_ms - since_ms > limits.DEFERRED_MS_MAX:
        failure = failures.Failure(
            "transient", failures.DEFERRED_TOO_LONG, f"deferred {job.deferrals} times in a row for more than 7 days"
        )
        return _finish(_with_failure(job, failure), "failed", "deferred", now)
    # A deferral is not a failure, so it refunds the attempt.
    deferred = job._replace(
        attempt=job.attempt - 1, deferrals=job.deferrals + 1, deferred_since_ms=since_ms, releases=0
    )
    due_at_ms = checked.until_ms if checked.until_ms is not None else now.wall_ms + (checked.pause_ms or 0)
    return _wait(deferred, due_at_ms, "deferred", "deferred", now)


def _settle_released(job: JobRow, now: Now, chance: float, event: events.EventName = "released") -> Transition:
    if ended := _end_if_barred(job, "released", now):
        return ended
    if job.releases >= limits.RELEASES_MAX:
        failure = failures.Failure(
            "transient", failures.RELEASED_TOO_OFTEN, f"released {job.releases} times in a row, never settled"
        )
        failed = _with_failure(_reset_streaks(job), failure)
        return _retry(failed, now.wall_ms + backoffs.pause_ms(job.backoff, job.attempt, chance), "released", now)
    return _wait(_refund_attempt(job), now.wall_ms, "released", event, now)


def expired(job: JobRow, now: Now) -> bool:
    """Return whether *job* runs under a lease that has expired."""
    return job.state == "running" and job.lease_until_ms is not None and job.lease_until_ms <= now.lease_ms


def expire(job: JobRow, now: Now, *, was_alive: bool = False) -> Transition:
    """Return *job* after its lease expired: ready at once and suspect, or failed if no attempts are left.

    A claim that was never acknowledged did not start: it is released without using up the attempt. The third time in
    a row it counts as expired, so that a job which kills its worker at once still fails eventually. With *was_alive*
    the holder was alive but could not reach the store, so the job is not suspect.
    """
    if 0 < job.unacknowledged < limits.UNACKNOWLEDGED_MAX:
        return _not_started(job, job.unacknowledged, now)
    if was_alive:
        failure = _cut_off(job)
    else:
        message = f"worker {job.worker} stopped renewing its lease in attempt {job.attempt}"
        repeated = f" without acknowledging it, {job.unacknowledged} times in a row"
        failure = failures.Failure(
            "transient", failures.LEASE_EXPIRED, message + repeated if job.unacknowledged else message
        )
    expired = _with_failure(_reset_streaks(job), failure)._replace(
        suspect=job.suspect if was_alive else 1, unacknowledged=0
    )
    return _retry(expired, now.wall_ms, "expired", now)._replace(before=job)


def clear_suspicion(job: JobRow, worker: str, incarnation: str) -> JobRow | None:
    """Return *job* without the suspicion left by its expired lease, after its holder reported that it was alive.

    None if the job is not suspect, is running or finished, or was held by another start of the worker.
    """
    held_by = (job.worker, job.incarnation)
    if not job.suspect or job.outcome != "expired" or job.state not in WAITING or held_by != (worker, incarnation):
        return None
    return _with_failure(job, _cut_off(job))._replace(suspect=0)


def _cut_off(job: JobRow) -> failures.Failure:
    message = f"worker {job.worker} could not reach the store in attempt {job.attempt}"
    return failures.Failure("transient", failures.WORKER_CUT_OFF, message)


def release_for_holder(job: JobRow, now: Now, chance: float) -> Transition:
    """Return the running *job* released on behalf of its holder by the session's owner."""
    return _settle_released(job._replace(unacknowledged=0), now, chance)._replace(before=job)


def revoke(job: JobRow, now: Now, chance: float) -> Transition:
    """Return *job* revoked from an earlier start of an exclusive worker, without using up the attempt.

    That start ended without releasing it, perhaps because of it: the job is suspect, and the limit of consecutive
    releases applies. A job that was not acknowledged did not start, as when its lease expires.
    """
    if 0 < job.unacknowledged < limits.UNACKNOWLEDGED_MAX:
        return _not_started(job, job.unacknowledged, now, "taken_back")
    suspect = job._replace(suspect=1, unacknowledged=0)
    return _settle_released(suspect, now, chance, "taken_back")._replace(before=job)


# --- waiting jobs --------------------------------------------------------------------------------------------------


def promote(job: JobRow) -> Transition:
    """Return the scheduled *job*, which is due, ready."""
    return Transition(job, job._replace(state="ready"), "promoted")


def unblock(job: JobRow, now: Now) -> Transition:
    """Return *job*, which no longer waits for another one, ready, or scheduled if it is due later."""
    if ended := _end_if_barred(job, job.outcome, now):
        return ended
    freed = job._replace(predecessor=None)
    # One that was due when it was enqueued is due now, also if the clock was set back since.
    due_at_ms = now.wall_ms if job.due_at_ms <= job.enqueued_at_ms else max(job.due_at_ms, now.wall_ms)
    return _wait(freed, due_at_ms, job.outcome, "unblocked", now)._replace(before=job)


def fail_dependency(job: JobRow, parent_id: str, parent_state: State, now: Now) -> Transition:
    """Return the dependent *job* cancelled because a job on which it depends was not done."""
    message = f"job {parent_id!r}, on which it depends, is {parent_state}"
    failure = failures.Failure("permanent", failures.DEPENDENCY_FAILED, message)
    return _finish(_with_failure(job, failure), "cancelled", job.outcome, now)._replace(before=job)


def refuse(job: JobRow, reason: str, now: Now) -> Transition:
    """Return the new *job* failed because it could not be enqueued."""
    failure = failures.Failure("permanent", failures.CALLBACK_REFUSED, reason)
    return _finish(_with_failure(job, failure), "failed", None, now)._replace(before=job)


def park(job: JobRow) -> Transition:
    """Return the ready *job* waiting for room at a gate, at the same position."""
    return Transition(job, job._replace(state="parked"), "parked")


def offer(job: JobRow) -> Transition:
    """Return the parked *job* ready, because there may be room for it."""
    return Transition(job, job._replace(state="ready"), "unblocked")


def miss_target_age(job: JobRow) -> Transition:
    """Return the ready *job* as it is: it has waited for longer than its lane should let jobs wait."""
    return Transition(job, job, "late")


def leaves_gate(transition: Transition) -> bool:
    """Return whether the job no longer holds a permit, or no longer waits for one, other than by a claim or offer."""
    before, after, _ = transition
    if before.state == "running":
        return after.state != "running"
    return before.state in _AT_GATES and after.state not in _AT_GATES


_AT_GATES: Final = ("parked", "ready", "running")


def overdue(job: JobRow, now: Now) -> bool:
    """Return whether *job* waits past its deadline and must not be started."""
    return job.deadline_at_ms is not None and job.deadline_at_ms <= now.wall_ms and job.state in WAITING


def miss_deadline(job: JobRow, now: Now) -> Transition:
    """Return the waiting *job* failed because it was not started by its deadline."""
    return _finish(_with_failure(job, _deadline_failure(job)), "failed", job.outcome, now)._replace(before=job)


def retire(job: JobRow, now: Now) -> Transition:
    """Return the waiting *job* retired because its kind was retired."""
    return _finish(job, "retired", job.outcome, now)


# --- operators -----------------------------------------------------------------------------------------------------


def cancel(job: JobRow, *, force: bool, now: Now) -> Transition | None:
    """Return *job* cancelled, or requested to stop if it is running; None if there is nothing to do."""
    if job.state == "cancelled":
        return None
    if job.finished:
        raise errors.Conflict(f"job {job.id!r} is already {job.state} and cannot be cancelled", job_id=job.id)
    if job.state != "running":
        return _finish(job, "cancelled", job.outcome, now)
    if force:
        return _finish(job, "cancelled", "cancelled", now)
    if job.cancel_requested:
        return None
    return Transition(job, job._replace(cancel_requested=1), "cancel_requested")


def requeue(job: JobRow, now: Now) -> Transition:
    """Return the failed or cancelled *job* ready, with all its attempts available again.

    Its deadline is dropped, because a requeue means run now. The epoch stays, so that old leases stay invalid.
    """
    if job.state not in {"failed", "cancelled"}:
        raise errors.Conflict(
            f"job {job.id!r} is {job.state}; only failed or cancelled jobs are requeued", job_id=job.id
        )
    requeued = job._replace(
        state="ready",
        due_at_ms=now.wall_ms,
        deadline_at_ms=None,
        finished_at_ms=None,
        attempt=0,
        cancel_requested=0,
        suspect=0,
        unacknowledged=0,
        deferrals=0,
        deferred_since_ms=None,
        releases=0,
    )
    return Transition(job, requeued, "requeued")


def reprioritize(job: JobRow, priority: int) -> Transition | None:
    """Return the unfinished *job* with another priority, which applies to the next attempt of a running job.

    None if it already has that priority.
    """
    if job.session_number is not None:
        raise errors.Conflict(
            f"job {job.id!r} is an entry of a session, where priority does not apply", job_id=job.id
        )
    if job.finished:
        raise errors.Conflict(f"job {job.id!r} is already {job.state}; its priority has no effect", job_id=job.id)
    return None if job.priority == priority else Transition(job, job._replace(priority=priority), "reprioritized")


# --- history -------------------------------------------------------------------------------------------------------


def attempt_ended(transition: Transition, now: Now) -> AttemptRow | None:
    """Return the attempt that *transition* ends, if the job continues and its row will hold another attempt."""
    before, after, event = transition
    if event == "requeued" and before.epoch > 0:
        return newest_attempt(before)
    if before.state != "running" or after.state == "running" or after.finished:
        return None
    # The attempt number during the run: a deferral or release has refunded it since.
    return newest_attempt(after)._replace(number=before.attempt, ended_at_ms=now.wall_ms)


def newest_attempt(job: JobRow) -> AttemptRow:
    """Return the attempt in *job*'s row."""
    failure = job.failure if job.outcome in {"failed", "expired"} else None
    return AttemptRow(
        epoch=job.epoch,
        number=job.attempt,
        worker=job.worker or "",
        incarnation=job.incarnation or "",
        started_at_ms=job.started_at_ms or 0,
        ended_at_ms=job.finished_at_ms,
        outcome=job.outcome,
        failure_class=failure.failure_class if failure else None,
        failure_reason=failure.reason if failure else None,
        failure_message=failure.message if failure else None,
        failure_traceback=failure.traceback if failure else None,
    )


# --- helpers -------------------------------------------------------------------------------------------------------


def _finish(
    job: JobRow, state: Literal["failed", "cancelled", "retired"], outcome: AttemptOutcome | None, now: Now
) -> Transition:
    after = job._replace(
        state=state,
        outcome=outcome,
        finished_at_ms=now.wall_ms,
        lease_until_ms=None,
        predecessor=None,
    )
    return Transition(job, after, state)


def _end_if_barred(job: JobRow, outcome: AttemptOutcome | None, now: Now) -> Transition | None:
    """Return *job* finished if it must not wait again: it is to be cancelled, or its deadline has passed."""
    if job.cancel_requested:
        return _finish(job, "cancelled", outcome, now)
    if job.deadline_at_ms is not None and job.deadline_at_ms <= now.wall_ms:
        return _finish(_with_failure(job, _deadline_failure(job)), "failed", outcome, now)._replace(before=job)
    return None


def _wait(
    job: JobRow, due_at_ms: int, outcome: AttemptOutcome | None, event: events.EventName, now: Now
) -> Transition:
    state: State = "scheduled" if due_at_ms > now.wall_ms else "ready"
    after = job._replace(state=state, due_at_ms=due_at_ms, outcome=outcome, lease_until_ms=None)
    return Transition(job, after, event)


def _not_started(job: JobRow, unacknowledged: int, now: Now, event: events.EventName = "released") -> Transition:
    """Return *job* as before its claim, at the same position, because no handler has started."""
    if ended := _end_if_barred(job, "released", now):
        return ended
    waiting = job._replace(attempt=job.attempt - 1, unacknowledged=unacknowledged)
    # It was due when it was claimed; the clock may have been set back since.
    return _wait(waiting, min(job.due_at_ms, now.wall_ms), "released", event, now)._replace(before=job)


def _refund_attempt(job: JobRow) -> JobRow:
    return job._replace(attempt=job.attempt - 1, releases=job.releases + 1, deferrals=0, deferred_since_ms=None)


def _reset_streaks(job: JobRow) -> JobRow:
    """Reset the counts of consecutive deferrals and releases."""
    return job._replace(deferrals=0, deferred_since_ms=None, releases=0)


def _with_failure(job: JobRow, failure: failures.Failure | None) -> JobRow:
    if failure is None:
        return job._replace(failure_class=None, failure_reason=None, failure_message=None, failure_traceback=None)
    return job._replace(
        failure_class=failure.failure_class,
        failure_reason=failure.reason,
        failure_message=failure.message,
        failure_traceback=failure.traceback,
    )


def _deadline_failure(job: JobRow) -> failures.Failure:
    last = f"; the last failure was {job.failure_reason}: {job.failure_message}" if job.failure_class else ""
    return failures.Failure(
        "permanent",
        failures.DEADLINE_PASSED,
        f"not started by its deadline{last}"[: limits.FAILURE_MESSAGE_CHARS_MAX],
    )
