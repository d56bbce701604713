# Generated from client/async_api/enqueued.py by scripts/make-sync; do not edit.
"""`Enqueued`: an enqueued job, and access to its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar, cast

from holdfast.domain.errors import JobFailed
from holdfast.domain.job import Job
from holdfast.domain.validation import Duration

if TYPE_CHECKING:
    from holdfast.client.sync_api.queue import JobMethods

R_co = TypeVar("R_co", covariant=True)


class Enqueued(Generic[R_co]):
    """An enqueued job: whether it is new, and access to its result."""

    __slots__ = ("_queue", "created", "job")

    job: Job
    """The job as it was stored, or the job that the call found."""
    created: bool
    """Whether the call created the job; false if it found a duplicate."""

    def __init__(self, queue: JobMethods, job: Job, *, created: bool) -> None:
        self._queue = queue
        self.job = job
        self.created = created

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.job!r}, created={self.created}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Enqueued):
            return NotImplemented
        return (self.job, self.created) == (other.job, other.created)

    def __hash__(self) -> int:
        return hash((self.job, self.created))

    @property
    def id(self) -> str:
        """The job's id."""
        return self.job.id

    def result(self, *, timeout: Duration) -> R_co:
        """Wait until the job has finished and return its result.

        If the queue declares a task of the job's kind, the result is decoded by the task's return annotation;
        otherwise it is returned as JSON. Raises `JobFailed` if the job was not done, `WaitTimeout` after *timeout*
        seconds, `InvalidInput` if the result does not match the annotation, and `Conflict` if the job was enqueued in
        a transaction that has not committed: no worker sees the job before that.
        """
        job = self._queue._wait_committed(self.job.id, timeout)
        if job.state != "done":
            raise JobFailed(job)
        return cast(R_co, self._queue._state.tasks.decode_result(job))
