"""One log record for each attempt that starts and for each that ends, for machines to read.

They go to `holdfast.job`, below the level at which libraries usually speak, and cost nothing while nobody listens.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from holdfast.domain.outcome import Failed
from holdfast.runtime.attempt import Attempt
from holdfast.runtime.turns import Turn

_log = logging.getLogger("holdfast.job")


def log_started(attempts: Sequence[Attempt]) -> None:
    """Tell of attempts that were claimed and will run as slots become free."""
    if attempts and _log.isEnabledFor(logging.DEBUG):
        for attempt in attempts:
            _log.debug("job %s claimed", attempt.claim.job.id, extra=_about(attempt, "claimed"))


def log_ended(attempt: Attempt, outcome: str) -> None:
    """Tell of an attempt that ended here, and how."""
    if not _log.isEnabledFor(logging.INFO):
        return
    extra = {**_about(attempt, "ended"), "outcome": outcome, "seconds": _seconds(attempt)}
    decided = attempt.outcome
    if isinstance(decided, Failed):
        extra["reason"] = decided.reason
    _log.info("job %s ended: %s", attempt.claim.job.id, outcome, extra=extra)


def _about(attempt: Attempt, event: str) -> dict[str, object]:
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
        about |= {"session": whole.session, "fencing_token": whole.fencing_token, "batches": len(whole.batches)}
    return about


def _seconds(attempt: Attempt) -> float | None:
    """Return for how long its handler ran; none if it was given back before any slot took it."""
    if attempt.started_at is None:
        return None
    return round((attempt.ended_at or attempt.timer.monotonic()) - attempt.started_at, 6)
