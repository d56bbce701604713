"""Log records for attempts: one when an attempt is claimed and one when it ends.

They go to the logger `holdfast.job`. A failure that will be retried is a warning, and a failure that ends the job is
an error with its traceback: a program that does not configure logging shows both. All other records have a lower
level. Message and traceback are shortened as in the store.
"""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime

from holdfast.domain import limits, outcomes
from holdfast.domain.job import Job
from holdfast.worker.attempt import RunningAttempt
from holdfast.worker.status import FailedAttempt

_log = logging.getLogger("holdfast.job")


def log_started(attempts: Sequence[RunningAttempt]) -> None:
    """Log claimed attempts."""
    if attempts and _log.isEnabledFor(logging.DEBUG):
        for attempt in attempts:
            _log.debug("job %s claimed", attempt.claim.job.id, extra=_fields(attempt, "claimed"))


def logs_success() -> bool:
    """Return whether the end of an attempt that has not failed is logged."""
    return _log.isEnabledFor(logging.INFO)


def failure_of(attempt: RunningAttempt, settled: Job | None) -> FailedAttempt | None:
    """Return the report of a failed attempt; None if it did not fail or its job was cancelled.

    *settled* is the job after the settlement, if the worker knows it.
    """
    failed = attempt.outcome
    if (
        settled is None
        or not isinstance(failed, outcomes.Failed)
        or settled.state in {"done", "cancelled", "retired"}
    ):
        return None
    return FailedAttempt(
        settled.number,
        settled.id,
        settled.kind,
        attempt.claim.job.attempt,
        settled.max_attempts,
        failed.reason,
        outcomes.shortened(failed.message, limits.FAILURE_MESSAGE_CHARS_MAX),
        None if settled.state == "failed" else settled.due_at,
        None if attempt.session_claim is None else attempt.session_claim.session,
    )


def log_ended(attempt: RunningAttempt, outcome: str, failure: FailedAttempt | None = None) -> None:
    """Log how an attempt ended; *failure* is the result of `failure_of` for it."""
    level = logging.INFO if failure is None else logging.WARNING if failure.retried else logging.ERROR
    if not _log.isEnabledFor(level):
        return
    extra = {**_fields(attempt, "ended"), "outcome": outcome, "seconds": _seconds(attempt)}
    attempt_outcome = attempt.outcome
    if isinstance(attempt_outcome, outcomes.Failed):
        extra["reason"] = attempt_outcome.reason
    if failure is None:
        _log.info("job %s ended: %s", attempt.claim.job.id, outcome, extra=extra)
        return
    extra |= {"job_number": failure.job_number, "max_attempts": failure.max_attempts, "failure": failure.message}
    if failure.next_attempt_at is not None:
        extra["next_attempt_at"] = failure.next_attempt_at.isoformat(timespec="milliseconds")
    trace = None
    if isinstance(attempt_outcome, outcomes.Failed) and attempt_outcome.traceback and not failure.retried:
        trace = outcomes.shortened(attempt_outcome.traceback, limits.TRACEBACK_CHARS_MAX)
    _log_with_trace(level, failure.text(datetime.now(UTC)), trace, extra)


def _log_with_trace(level: int, message: str, trace: str | None, extra: dict[str, object]) -> None:
    """Log *message* with a traceback in text form, such as one from another process."""
    record = _log.makeRecord(_log.name, level, __file__, 0, message, (), None, "log_ended", extra)
    # Formatters print `exc_text` after the message, like the traceback of `exc_info`.
    record.exc_text = None if trace is None else trace.rstrip()
    _log.handle(record)


def _fields(attempt: RunningAttempt, event: str) -> dict[str, object]:
    job = attempt.claim.job
    fields: dict[str, object] = {
        "event": event,
        "job_id": job.id,
        "kind": job.kind,
        "lane": job.lane,
        "tenant": job.tenant,
        "attempt": job.attempt,
        "epoch": job.epoch,
        "worker": job.worker,
    }
    session_claim = attempt.session_claim
    if session_claim is not None:
        fields |= {
            "session": session_claim.session,
            "fencing_token": session_claim.fencing_token,
            "entries": len(session_claim.entries),
        }
    return fields


def _seconds(attempt: RunningAttempt) -> float | None:
    """Return how long the handler ran; None if it never started."""
    if attempt.started_at is None:
        return None
    return round((attempt.ended_at or attempt.timer.monotonic()) - attempt.started_at, 6)
