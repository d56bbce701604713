"""Tasks: a function with a kind. Calling one runs the function; enqueueing one stores the call as a job."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeAlias, TypeVar, Unpack, overload

from holdfast.domain import errors
from holdfast.domain.job_options import JobOptions
from holdfast.domain.new_job import NewJob, TaskJob
from holdfast.tasks.context import Context
from holdfast.tasks.definition import QueueReference, TaskDefinition, TaskTable
from holdfast.tasks.policy import Policy, with_defaults

if TYPE_CHECKING:
    from typing import Self

    from holdfast.client.async_api.enqueued import AsyncEnqueued
    from holdfast.client.async_api.queue import AsyncQueue
    from holdfast.client.sync_api.enqueued import Enqueued
    from holdfast.client.sync_api.queue import Queue

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", covariant=True)  # noqa: PLC0105  # one letter, as is usual beside a ParamSpec


class BaseTask(Generic[P, R]):
    """Base class of tasks: a kind, a function, options for its jobs and a policy for its attempts."""

    kind: str
    """The name under which its jobs are stored."""
    function: Callable[..., R]
    """The function itself."""
    options: JobOptions
    """Default `enqueue` options for its jobs."""
    policy: Policy
    """How the worker runs its attempts."""

    def __init__(self, definition: TaskDefinition) -> None:
        self._definition = definition
        self._queue_reference: QueueReference[Any] = definition.queue_reference
        self.kind = definition.kind
        self.function = definition.function
        self.options = definition.options
        self.policy = definition.policy
        update_wrapper(self, definition.function, updated=())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.kind}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly, without enqueueing a job."""
        return self.function(*args, **kwargs)

    def new(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Return the call as a `NewJob`, for `enqueue_many`, a transaction or a follow-up.

        It takes the parameters of the function.
        """
        return TaskJob(self.kind, self._definition.arguments.payload(args, kwargs), **self.options)

    def _check_own(self, jobs: Iterable[NewJob]) -> list[NewJob]:
        """Return *jobs* as a list; raise `InvalidInput` if one is not a call of this task."""
        checked = list(jobs)
        for index, job in enumerate(checked):
            if getattr(job, "kind", None) != self.kind:
                raise errors.InvalidInput(f"jobs[{index}]", f"must be created by `new` of the task {self.kind!r}")
        return checked

    def using(self, **options: Unpack[JobOptions]) -> Self:
        """Return a copy of this task with *options* as additional defaults for its jobs.

        `task.using(priority=5).enqueue(…)` enqueues one call with other options; see `JobOptions`.
        """
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, options=with_defaults(options, self.options))
        return other


class Task(BaseTask[P, R]):
    """A task of a `Queue`, declared by `@queue.task`: `enqueue` blocks until the job is durable."""

    _queue_reference: QueueReference[Queue]

    @overload
    def enqueue(self: Task[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> Enqueued[T]: ...
    @overload
    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued[R]: ...
    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued[Any]:
        """Enqueue a call of the function, with the function's own parameters; see `Queue.enqueue`.

        `enqueue(…).result(timeout=…)` waits for the call and returns its result. To set options such as the priority,
        write `task.using(priority=5).enqueue(…)`.
        """
        payload = self._definition.arguments.unchecked_payload(args, kwargs)
        try:
            return self._queue_reference.queue.enqueue(NewJob(self.kind, payload, **self.options))
        except errors.InvalidInput as error:
            raise _as_argument_error(error) from None

    def enqueue_many(self, jobs: Iterable[NewJob]) -> list[Enqueued[Any]]:
        """Enqueue many calls in one commit, each created by `new` of this task; see `Queue.enqueue_many`."""
        return self._queue_reference.queue.enqueue_many(self._check_own(jobs))


class AsyncTask(BaseTask[P, R]):
    """A task of an `AsyncQueue`, declared by `@queue.task`: `enqueue` is a coroutine."""

    _queue_reference: QueueReference[AsyncQueue]

    @overload
    async def enqueue(
        self: AsyncTask[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncEnqueued[T]: ...
    @overload
    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> AsyncEnqueued[R]: ...
    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> AsyncEnqueued[Any]:
        """Enqueue a call of the function, with the function's own parameters; see `AsyncQueue.enqueue`.

        `await (await task.enqueue(…)).result(timeout=…)` waits for the call and returns its result. To set options
        such as the priority, write `await task.using(priority=5).enqueue(…)`.
        """
        payload = self._definition.arguments.unchecked_payload(args, kwargs)
        try:
            return await self._queue_reference.queue.enqueue(NewJob(self.kind, payload, **self.options))
        except errors.InvalidInput as error:
            raise _as_argument_error(error) from None

    async def enqueue_many(self, jobs: Iterable[NewJob]) -> list[AsyncEnqueued[Any]]:
        """Enqueue many calls in one commit, each created by `new` of this task; see `AsyncQueue.enqueue_many`."""
        return await self._queue_reference.queue.enqueue_many(self._check_own(jobs))


class ContextTask(Task[P, R]):
    """A task whose function takes a `Context` first; the worker passes it, `enqueue` does not take it."""

    def __call__(  # type: ignore[override]  # a direct call must pass the context too
        self, context: Context, /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call the function directly, without enqueueing a job."""
        return self.function(context, *args, **kwargs)


class AsyncContextTask(AsyncTask[P, R]):
    """A task of an `AsyncQueue` whose function takes a `Context` first; the worker passes it."""

    def __call__(  # type: ignore[override]  # a direct call must pass the context too
        self, context: Context, /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call the function directly, without enqueueing a job."""
        return self.function(context, *args, **kwargs)


AnyTask: TypeAlias = BaseTask[Any, Any]
"""A task of any kind: `Task`, `ContextTask`, `SessionTask`, or their async forms."""

MAIN_MODULES: Final = ("__main__", "__mp_main__")
"""The names of a program's main module: in the program itself, and in processes that it starts."""


class TaskRegistry:
    """The tasks of a queue, by kind: `queue.tasks`. Supports `in`, `len` and iteration. Thread-safe."""

    __slots__ = ("_table",)

    def __init__(self, table: TaskTable) -> None:
        self._table = table

    def get(self, kind: str) -> AnyTask:
        """Return the task of *kind*, or raise `UnknownKind`."""
        return self._table.get(kind).task

    def kinds(self) -> tuple[str, ...]:
        """Return every kind in order of declaration."""
        return self._table.kinds()

    def __contains__(self, kind: object) -> bool:
        return kind in self._table

    def __iter__(self) -> Iterator[AnyTask]:
        return iter([definition.task for definition in self._table])

    def __len__(self) -> int:
        return len(self._table)


def definition_of(task: AnyTask) -> TaskDefinition:
    """Return the definition of *task*: the only way in which internal code reads what is not public."""
    return task._definition  # noqa: SLF001


def _as_argument_error(error: errors.InvalidInput) -> errors.InvalidInput:
    """Return *error* with `arguments` instead of `payload` in its field, because the caller passed arguments."""
    prefix, dot, rest = error.field.partition("payload")
    return errors.InvalidInput(f"arguments{rest}", error.problem, error.limit) if dot and not prefix else error


def check_function(function: object) -> Callable[..., Any]:
    """Return *function*; raise `InvalidInput` if it cannot be a task."""
    if not callable(function) or isinstance(function, type | BaseTask):
        raise errors.InvalidInput("function", f"must be a function, not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise errors.InvalidInput("function", "is a generator function: calling it would not run its body")
    return function


def kind_of(function: Callable[..., Any]) -> str:
    """Return the default kind of a task: the module and qualified name of its function."""
    return f"{module_of(function)}.{getattr(function, '__qualname__', type(function).__name__)}"


def module_of(function: Callable[..., Any]) -> str:
    """Return the module of *function*; of the main module the name under which others import it."""
    if function.__module__ not in MAIN_MODULES:
        return function.__module__
    # A worker that imports the main module knows it under its real name.
    spec = getattr(sys.modules.get(function.__module__), "__spec__", None)
    path = inspect.unwrap(function).__code__.co_filename
    return spec.name if spec is not None and spec.origin == path else Path(path).stem
