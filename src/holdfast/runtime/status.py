"""How a worker is doing, for those who watch it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from holdfast.runtime.attempt import Attempt


class RunningJob(NamedTuple):
    """One job in a worker's hands."""

    job_id: str
    kind: str
    attempt: int
    seconds: float | None
    """For how long its handler has run; none while it waits for a slot."""
    batches: int = 1
    """How many batches a turn of a session has; the job is the first of them."""


def running_jobs(attempts: Iterable[Attempt], now: float) -> tuple[RunningJob, ...]:
    """Return what is in a worker's hands at *now* of its timer, the longest first."""
    jobs = [
        RunningJob(
            attempt.claim.job.id,
            attempt.claim.job.kind,
            attempt.claim.job.attempt,
            None if attempt.started_at is None else now - attempt.started_at,
            len(attempt.claims),
        )
        for attempt in attempts
    ]
    return tuple(sorted(jobs, key=lambda job: -(job.seconds or 0.0)))


class WorkerStatus(NamedTuple):
    """What a worker has done and is doing."""

    worker: str
    running: tuple[RunningJob, ...]
    ended: dict[str, int]
    """How many attempts ended, by outcome: `done`, `failed`, `deferred`, `released`, `lost`; a turn counts as one."""
    stopping: bool
    abandoned: int = 0
    """Handlers that run on without a slot, though they were told to stop."""
    loaded: tuple[str, ...] = ()
    """The affinities it has at hand."""
    switches: int = 0
    """How often one of them had to make room for another."""
    loading: tuple[str, ...] = ()
    """Those on their way in."""
