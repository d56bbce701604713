"""Log records for attempts: one for each that starts and one for each that ends.

They go to the logger `holdfast.job`. A failure that will be retried is a warning, and one that ends the job is an
error with its traceback, so that a program that has not configured logging shows both. All others are below that
level and cost nothing unless a logging handler takes them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from holdfast.domain.job import Job
from holdfast.domain.outcomes import Failed
from holdfast.worker.attempt import RunningAttempt
from holdfast.worker.session_turn import Turn
from holdfast.worker.status import FailedAttempt

_log = logging.getLogger("holdfast.job")


def log_started(attempts: Sequence[RunningAttempt]) -> None:
    """Log attempts that were claimed and will run as slots become free."""
    if attempts and _log.isEnabledFor(logging.DEBUG):
        for attempt in attempts:
            _log.debug("job %s claimed", attempt.claim.job.id, extra=_about(attempt, "claimed"))


def failure_of(attempt: RunningAttempt, settled: Job | None) -> FailedAttempt | None:
    """Return what is to be told of an attempt that failed; none if it did not, or if its job was cancelled.

    *settled* is the job as the settlement left it, if the worker knows.
    """
    failed = attempt.outcome
    if settled is None or not isinstance(failed, Failed) or settled.state in {"done", "cancelled", "retired"}:
        return None
    return FailedAttempt(
        settled.seq,
        settled.id,
        settled.kind,
        attempt.claim.job.attempt,
        settled.max_attempts,
        failed.reason,
        failed.message,
        None if settled.state == "failed" else settled.due_at_ms,
        attempt.whole.session if isinstance(attempt, Turn) else None,
    )


def log_ended(attempt: RunningAttempt, outcome: str, failure: FailedAttempt | None = None) -> None:
    """Log how an attempt ended; *failure* is what `failure_of` returned for it."""
    level = logging.INFO if failure is None else logging.WARNING if failure.retried else logging.ERROR
    if not _log.isEnabledFor(level):
        return
    extra = {**_about(attempt, "ended"), "outcome": outcome, "seconds": _seconds(attempt)}
    decided = attempt.outcome
    if isinstance(decided, Failed):
        extra["reason"] = decided.reason
    if failure is None:
        _log.info("job %s ended: %s", attempt.claim.job.id, outcome, extra=extra)
        return
    extra |= {"job_number": failure.job_number, "max_attempts": failure.max_attempts, "failure": failure.message}
    if failure.next_attempt_at_ms is not None:
        moment = datetime.fromtimestamp(failure.next_attempt_at_ms / 1000, UTC)
        extra["next_attempt_at"] = moment.isoformat(timespec="milliseconds")
    trace = decided.traceback if isinstance(decided, Failed) and not failure.retried else None
    _log_with_trace(level, failure.text(time.time() * 1000), trace, extra)


def _log_with_trace(level: int, message: str, trace: str | None, extra: dict[str, object]) -> None:
    """Log *message* with a traceback that exists only as text, as one from another process does."""
    record = _log.makeRecord(_log.name, level, __file__, 0, message, (), None, "log_ended", extra)
    # Formatters print this after the message, as they do with the traceback of `exc_info`.
    record.exc_text = None if trace is None else trace.rstrip()
    _log.handle(record)


def _about(attempt: RunningAttempt, event: str) -> dict[str, object]:
    job = attempt.claim.job
    about: dict[str, object] = {
        "event": event,
        "job_id": job.id,
        "kind": job.kind,
        "lane": job.lane,
        "tenant": job.tenant,
        "attempt": job.attempt,
        "epoch": job.epoch,
        "worker": job.worker,
    }
    if isinstance(attempt, Turn):
        whole = attempt.whole
        about |= {"session": whole.session, "fencing_token": whole.fencing_token, "entries": len(whole.entries)}
    return about


def _seconds(attempt: RunningAttempt) -> float | None:
    """Return for how long its handler ran; none if it was given back before any slot took it."""
    if attempt.started_at is None:
        return None
    return round((attempt.ended_at or attempt.timer.monotonic()) - attempt.started_at, 6)
