"""What `drain` and `run_job` share in sync and async tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from holdfast.client.async_api.enqueued import AsyncEnqueued
from holdfast.client.sync_api.enqueued import Enqueued
from holdfast.domain.claims import ClaimOptions
from holdfast.domain.job import Job
from holdfast.domain.new_job import NewJob
from holdfast.testing.clock import ManualClock
from holdfast.testing.inline_worker import Ran
from holdfast.testing.redirect import AnyQueue
from holdfast.worker.subscription import Subscription
from holdfast.worker.worker import Worker

JobReference: TypeAlias = NewJob | Enqueued[Any] | AsyncEnqueued[Any] | Job | str
"""A job to enqueue, an enqueued job, or the id of one."""

ATTEMPTS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Drained:
    """The attempts that a drain has run, in order."""

    ran: tuple[Ran, ...]
    """The attempts; the object itself can be iterated too."""

    @property
    def counts(self) -> dict[str, int]:
        """The number of attempts by outcome."""
        return dict(Counter(ran.outcome for ran in self.ran))

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The job of each attempt, as it was after the attempt."""
        return tuple(ran.job for ran in self.ran)

    def __len__(self) -> int:
        return len(self.ran)

    def __iter__(self) -> Iterator[Ran]:
        return iter(self.ran)


def subscription_of(queue: AnyQueue, options: ClaimOptions) -> Subscription:
    """Return the subscription of a worker with these options."""
    worker = Worker(queue, **options)
    claim_options: ClaimOptions = {**options, "worker": worker.name, "incarnation": worker.incarnation}
    return Subscription(queue.tasks, claim_options)


def job_or_raise(ran: Ran, *, raises: bool) -> Job:
    """Return the job of an attempt; with *raises*, raise its error."""
    if raises:
        ran.raise_defect()
    return ran.job


def unclaimable_reason(job: Job, clock: ManualClock | None) -> str:
    """Return why a job that was to be run cannot be claimed."""
    if job.finished:
        return f"it is already {job.state}"
    if job.state == "scheduled" and clock is None:
        return f"it is due at {job.due_at}; pass clock= to advance the time"
    return f"it is {job.state} in the lane {job.lane!r}; is the lane paused, or the job held by another worker?"
