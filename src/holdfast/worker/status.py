"""The status of a worker: running jobs, counters and recent failures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from holdfast.client.middleware import Middleware

if TYPE_CHECKING:
    from holdfast.worker.attempt import RunningAttempt


_SUMMARY_CHARS_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class RunningJob:
    """One job that a worker holds."""

    job_id: str
    """The id of the job."""
    kind: str
    """Its kind."""
    attempt: int
    """The number of the attempt."""
    seconds: float | None
    """How long its handler has run; None while it waits for a slot."""
    entries: int = 1
    """The number of entries of a session's turn; the job is the first of them."""
    job_number: int = 0
    """The number of the job."""
    phase: str | None = None
    """The phase that its handler reported last."""
    percent: float | None = None
    """The percentage that its handler reported last."""


def running_jobs(attempts: Iterable[RunningAttempt], now: float) -> tuple[RunningJob, ...]:
    """Return the jobs of *attempts* at the time *now* of the worker's timer, longest running first."""
    jobs = [
        RunningJob(
            attempt.claim.job.id,
            attempt.claim.job.kind,
            attempt.claim.job.attempt,
            None if attempt.started_at is None else now - attempt.started_at,
            len(attempt.claims),
            attempt.claim.job.number,
            *attempt.latest_progress,
        )
        for attempt in attempts
    ]
    return tuple(sorted(jobs, key=lambda job: -(job.seconds or 0.0)))


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """An attempt that failed in a worker."""

    job_number: int
    """The number of the job."""
    job_id: str
    """The id of the job."""
    kind: str
    """Its kind."""
    attempt: int
    """The number of the attempt."""
    max_attempts: int
    """How many attempts the job may use."""
    reason: str
    """The short code of the failure."""
    message: str
    """The message of the failure."""
    next_attempt_at: datetime | None
    """When the job may run again, by the store's wall clock; None if it has failed permanently."""
    session: str | None = None
    """The session, if the attempt was a turn of one; the job is the first entry of the turn."""

    @property
    def retried(self) -> bool:
        """Whether the job will be retried."""
        return self.next_attempt_at is not None

    def text(self, now: datetime) -> str:
        """Return one line that describes the failure; *now* is the current wall-clock time."""
        of_session = "" if self.session is None else f" of session {self.session}"
        if self.next_attempt_at is None:
            failed, following = "failed for good", ""
        else:
            seconds = max((self.next_attempt_at - now).total_seconds(), 0)
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


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The status of a worker, as `Worker.status` returns it."""

    worker: str
    """The worker's name."""
    running: tuple[RunningJob, ...]
    """The jobs that it holds, longest running first."""
    ended: dict[str, int]
    """The number of ended attempts by outcome; a turn counts as one.

    `done`, `retried` (failed, the job will be retried), `failed` (the job failed permanently), `deferred`,
    `released`, `lost`.
    """
    stopping: bool
    """Whether it shuts down."""
    abandoned: int = 0
    """The number of handlers that keep running without a slot after the request to stop."""
    loaded: tuple[str, ...] = ()
    """The loaded affinities."""
    switches: int = 0
    """How often an affinity was unloaded to make room for another."""
    loading: tuple[str, ...] = ()
    """The affinities that are being loaded."""
    failures: tuple[FailedAttempt, ...] = ()
    """The latest failed attempts, newest first."""
    load_seconds: float = 0.0
    """How long loads and unloads of affinities took in total, in seconds."""
    draining: bool = False
    """Whether it claims no more jobs, but keeps running."""


class WorkerMetrics(Middleware):
    """Middleware that measures one worker."""

    def start(self, concurrency: int, status: Callable[[], WorkerStatus]) -> None:
        """Start measuring a worker with *concurrency* slots; *status* returns its status."""

    def stop(self) -> None:
        """Stop measuring: the worker has stopped."""
