"""`AsyncEnqueued`: an enqueued job, and access to its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import Signature
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from holdfast.domain import errors
from holdfast.domain.job import Job
from holdfast.domain.validation import Duration

if TYPE_CHECKING:
    from holdfast.client.async_api.queue import AsyncJobMethods

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class AsyncEnqueuedData:
    """What an enqueued job holds, with a generated constructor, which `enqueued_of` calls."""

    _queue: AsyncJobMethods = field(repr=False, compare=False)
    job: Job
    """The job as it was stored, or the job that the call found."""
    created: bool
    """Whether the call created the job; false if it found a duplicate."""


class AsyncEnqueued(AsyncEnqueuedData, Generic[R_co]):
    """An enqueued job, as `enqueue` returns it: whether it is new, and access to its result."""

    __slots__ = ()

    # Editors and `help` do not show the arguments of the generated constructor.
    __signature__ = Signature()
    if TYPE_CHECKING:

        def __init__(self) -> None: ...

    @property
    def id(self) -> str:
        """The job's id."""
        return self.job.id

    async def result(self, *, timeout: Duration) -> R_co:  # noqa: ASYNC109
        """Wait until the job has finished and return its result.

        If the queue declares a task of the job's kind, the result is decoded by the task's return annotation;
        otherwise it is returned as JSON. Raises `JobFailed` if the job was not done, `WaitTimeout` after *timeout*
        seconds, `InvalidInput` if the result does not match the annotation, and `Conflict` if the job was enqueued in
        a transaction that has not committed: no worker sees the job before that.
        """
        job = await self._queue._wait_committed(self.job.id, timeout)
        if job.state != "done":
            raise errors.JobFailed(job)
        return cast(R_co, self._queue._state.tasks.decode_result(job))


enqueued_of: Callable[[AsyncJobMethods, Job, bool], AsyncEnqueued[Any]] = AsyncEnqueued  # type: ignore[assignment]
"""Returns what `enqueue` of a queue or transaction returns for a job, and whether the call created the job."""
