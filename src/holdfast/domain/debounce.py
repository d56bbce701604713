"""Options that decide for how long a dedupe key finds a job: `dedupe_for`, and `debounce` with `max_wait`."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from holdfast.domain import errors, validation
from holdfast.domain.clock import Now
from holdfast.domain.job import JobRow

_EXCLUDED: Final = ("delay", "run_at", "dedupe_for", "after")


class Debounce(NamedTuple):
    """For how long a job waits for another enqueue of its key, in milliseconds."""

    pause_ms: int
    """Since the last enqueue."""
    max_wait_ms: int | None
    """Since the first; None if for as long as more come."""


def check_dedupe_for(options: Mapping[str, Any], key: str | None) -> int | None:
    """Return for how many milliseconds a key is kept, None if only while its job is unfinished."""
    if (period := options.get("dedupe_for")) is None:
        return None
    if key is None:
        raise errors.InvalidInput("dedupe_for", "requires a dedupe_key")
    if options.get("on_duplicate", "keep") != "keep":
        raise errors.InvalidInput("dedupe_for", "cannot be combined with an on_duplicate other than keep")
    return validation.duration_ms(period, "dedupe_for", 1)


def check_debounce(options: Mapping[str, Any], key: str | None) -> Debounce | None:
    """Return for how long a job waits for another enqueue, None if not at all, or raise `InvalidInput`."""
    if (pause := options.get("debounce")) is None:
        if options.get("max_wait") is not None:
            raise errors.InvalidInput("max_wait", "requires debounce")
        return None
    if key is None:
        raise errors.InvalidInput("debounce", "requires a dedupe_key")
    for option in _EXCLUDED:
        if options.get(option):
            raise errors.InvalidInput("debounce", f"cannot be combined with {option}; leave one out")
    if options.get("on_duplicate", "keep") != "keep":
        raise errors.InvalidInput("debounce", "cannot be combined with on_duplicate: it always takes the new content")
    pause_ms = validation.duration_ms(pause, "debounce", 1)
    longest = options.get("max_wait")
    return Debounce(pause_ms, None if longest is None else validation.duration_ms(longest, "max_wait", pause_ms))


def postponed(job: JobRow, debounce: Debounce, now: Now) -> JobRow:
    """Return a job that was never claimed, due later because it was enqueued again at *now*."""
    due_at_ms = now.wall_ms + debounce.pause_ms
    if job.state == "scheduled" and job.enqueued_at_ms > now.wall_ms:
        # The clock was set back: its due time is that much too late.
        return job._replace(due_at_ms=due_at_ms)
    if debounce.max_wait_ms is not None:
        due_at_ms = min(due_at_ms, job.enqueued_at_ms + debounce.max_wait_ms)
    if job.state == "parked" or due_at_ms <= max(job.due_at_ms, now.wall_ms):
        return job
    return job._replace(state="scheduled" if job.state == "ready" else job.state, due_at_ms=due_at_ms)
