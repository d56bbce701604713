"""How a worker is doing, for those who watch it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from holdfast.worker.attempt import RunningAttempt


_SUMMARY_CHARS_MAX: Final = 300


class RunningJob(NamedTuple):
    """One job in a worker's hands."""

    job_id: str
    kind: str
    attempt: int
    seconds: float | None
    """For how long its handler has run; none while it waits for a slot."""
    entries: int = 1
    """How many entries a turn of a session has; the job is the first of them."""
    job_number: int = 0
    phase: str | None = None
    """What its handler last said that it is doing."""
    percent: float | None = None
    """How far its handler last said that it is."""


def running_jobs(attempts: Iterable[RunningAttempt], now: float) -> tuple[RunningJob, ...]:
    """Return what is in a worker's hands at *now* of its timer, the longest first."""
    jobs = [
        RunningJob(
            attempt.claim.job.id,
            attempt.claim.job.kind,
            attempt.claim.job.attempt,
            None if attempt.started_at is None else now - attempt.started_at,
            len(attempt.claims),
            attempt.claim.job.seq,
            *attempt.context.newest_progress,
        )
        for attempt in attempts
    ]
    return tuple(sorted(jobs, key=lambda job: -(job.seconds or 0.0)))


class FailedAttempt(NamedTuple):
    """An attempt that failed in a worker."""

    job_number: int
    job_id: str
    kind: str
    attempt: int
    max_attempts: int
    reason: str
    message: str
    next_attempt_at_ms: int | None
    """The wall time of the store's clock at which the job may run again; none if it has failed for good."""
    session: str | None = None
    """The session whose turn it was, if it was one; the job is the first of the turn."""

    @property
    def retried(self) -> bool:
        """Whether the job will be tried again."""
        return self.next_attempt_at_ms is not None

    def text(self, now_ms: float) -> str:
        """Return the failure as one sentence; *now_ms* is the wall time now."""
        of_session = "" if self.session is None else f" of session {self.session}"
        if self.next_attempt_at_ms is None:
            failed, following = "failed for good", ""
        else:
            seconds = max(self.next_attempt_at_ms - now_ms, 0) / 1000
            failed, following = "failed", f"; retrying in {seconds:.0f} s" if seconds >= 0.5 else "; retrying at once"
        return (
            f"job #{self.job_number} ({self.job_id}) {self.kind}{of_session} {failed}"
            f" (attempt {self.attempt} of {self.max_attempts}): {self.reason}: {self.summary}{following}"
        )

    @property
    def summary(self) -> str:
        """The first line of the message, shortened if it is very long."""
        first = next((line.strip() for line in self.message.splitlines() if line.strip()), "")
        return first if len(first) <= _SUMMARY_CHARS_MAX else f"{first[: _SUMMARY_CHARS_MAX - 1]}…"


class WorkerStatus(NamedTuple):
    """What a worker has done and is doing."""

    worker: str
    running: tuple[RunningJob, ...]
    ended: dict[str, int]
    """How many attempts ended, by outcome; a turn counts as one.

    `done`, `retried` (failed, and the job will be tried again), `failed` (the job failed for good), `deferred`,
    `released`, `lost`.
    """
    stopping: bool
    abandoned: int = 0
    """Handlers that run on without a slot, though they were told to stop."""
    loaded: tuple[str, ...] = ()
    """The affinities it has at hand."""
    switches: int = 0
    """How often one of them had to make room for another."""
    loading: tuple[str, ...] = ()
    """Those on their way in."""
    failures: tuple[FailedAttempt, ...] = ()
    """The attempts that failed last, the newest first."""
