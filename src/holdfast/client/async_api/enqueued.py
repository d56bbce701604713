"""`AsyncEnqueued`: an enqueued job, and access to its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import Signature
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from holdfast.domain import errors
from holdfast.domain.job import Job
from holdfast.domain.results import NewJobs, StoredJob
from holdfast.domain.validation import Duration

if TYPE_CHECKING:
    from holdfast.client.async_api.queue import AsyncJobMethods

R_co = TypeVar("R_co", covariant=True)


# Not frozen: properties without setters are read-only, and setting the slots directly makes construction cheaper.
@dataclass(slots=True, repr=False, match_args=False, eq=False)
class AsyncEnqueuedData:
    """What an enqueued job holds, with a generated constructor, which `enqueued_of` and `all_enqueued` call."""

    _queue: AsyncJobMethods
    _jobs: Sequence[Job]
    """Its job, or those of its call, which may be made when they are read."""
    _index: int
    _created: bool

    @property
    def _job(self) -> Job:
        return self._jobs[self._index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AsyncEnqueuedData):
            return NotImplemented
        return (self._job, self._created) == (other._job, other._created)

    def __hash__(self) -> int:
        return hash((self._job, self._created))


class AsyncEnqueued(AsyncEnqueuedData, Generic[R_co]):
    """An enqueued job, as `enqueue` returns it: whether it is new, and access to its result."""

    __slots__ = ()

    # Editors and `help` do not show the arguments of the generated constructor.
    __signature__ = Signature()
    if TYPE_CHECKING:

        def __init__(self) -> None: ...

    def __repr__(self) -> str:
        return f"{type(self).__name__}(job={self._job!r}, created={self._created!r})"

    @property
    def job(self) -> Job:
        """The job as it was stored, or the job that the call found."""
        return self._job

    @property
    def created(self) -> bool:
        """Whether the call created the job; false if it found a duplicate."""
        return self._created

    @property
    def id(self) -> str:
        """The job's id."""
        return self._job.id

    async def result(self, *, timeout: Duration) -> R_co:  # noqa: ASYNC109
        """Wait until the job has finished and return its result.

        If the queue declares a task of the job's kind, the result is decoded by the task's return annotation;
        otherwise it is returned as JSON. Raises `JobFailed` if the job was not done, `WaitTimeout` after *timeout*
        seconds, `InvalidInput` if the result does not match the annotation, and `Conflict` if the job was enqueued in
        a transaction that has not committed: no worker sees the job before that.
        """
        job = await self._queue._wait_committed(self._job.id, timeout)
        if job.state != "done":
            raise errors.JobFailed(job)
        return cast(R_co, self._queue._state.tasks.decode_result(job))


enqueued_of: Callable[[AsyncJobMethods, Sequence[Job], int, bool], AsyncEnqueued[Any]]
enqueued_of = AsyncEnqueued  # type: ignore[assignment]
"""Returns what `enqueue` of a queue or transaction returns for one of some jobs, and whether the call created it."""


def all_enqueued(queue: AsyncJobMethods, stored: Sequence[StoredJob]) -> list[AsyncEnqueued[Any]]:
    """Return what `enqueue_many` returns."""
    if isinstance(stored, NewJobs):
        return [enqueued_of(queue, stored.jobs, index, True) for index in range(len(stored))]  # noqa: FBT003
    return [enqueued_of(queue, (one.job,), 0, one.created) for one in stored]
