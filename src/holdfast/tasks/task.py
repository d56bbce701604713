"""Tasks: a function with a kind. Calling one runs the function; enqueueing one stores the call as a job."""

from __future__ import annotations

import difflib
import inspect
import logging
import sys
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import cached_property, update_wrapper
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, ParamSpec, TypeAlias, TypeVar, Unpack, overload

from holdfast.domain import limits, strict_json, validation
from holdfast.domain.errors import InvalidInput, Misconfigured, UnknownKind
from holdfast.domain.job import Job
from holdfast.domain.kinds import Publication
from holdfast.domain.new_job import JobLike, JobOptions, NewJob, TaskJob, parts_of, published_options, with_defaults
from holdfast.domain.routing import DEFAULT_NAME
from holdfast.domain.strict_json import Json
from holdfast.tasks.arguments import Arguments
from holdfast.tasks.context import Context
from holdfast.tasks.json_decode import Decoder
from holdfast.tasks.policy import Policy, TaskOptions, split
from holdfast.tasks.results import result_decoder

if TYPE_CHECKING:
    from typing import Self

    from holdfast.client.async_api.enqueued import AsyncEnqueued
    from holdfast.client.async_api.queue import AsyncQueue
    from holdfast.client.sync_api.enqueued import Enqueued
    from holdfast.client.sync_api.queue import Queue
    from holdfast.tasks.decorators import QueueReference

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", covariant=True)  # noqa: PLC0105  # one letter, as is usual beside a ParamSpec

log = logging.getLogger("holdfast")

_KINDS_SHOWN: Final = 8


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
    arguments: Arguments
    """Encodes and decodes calls. For internal use."""
    is_async: bool
    """Whether the function is a coroutine function. For internal use."""
    declared_in: str | None = None
    """The module that declares it, if known, which isolated processes import. For internal use."""
    takes_context: bool = False
    """Whether the worker passes the function its `Context` as first argument. For internal use."""
    is_session_task: bool = False
    """Whether the function handles the turns of sessions. For internal use."""

    def __init__(
        self, function: Callable[..., R], kind: str, task_options: TaskOptions, queue_reference: QueueReference[Any]
    ) -> None:
        self.kind = validation.name(kind, "kind")
        self.function = function
        self.options, self.policy = split(kind, task_options)
        self.arguments = Arguments(function, without_first=self.takes_context)
        self.is_async = inspect.iscoroutinefunction(function)
        self._queue_reference = queue_reference
        update_wrapper(self, function, updated=())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.kind}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly, without enqueueing a job."""
        return self.function(*args, **kwargs)

    def new(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Return the call as a `NewJob`, for `enqueue_many`, a transaction or a follow-up."""
        return TaskJob(self.kind, self.arguments.payload(args, kwargs), **self.options)

    def completed(self, payload: Json, options: JobOptions) -> NewJob:
        """Return a job with the task's options as defaults; raise if the payload is invalid. For internal use."""
        self.arguments.check(payload)
        return TaskJob(self.kind, payload, **with_defaults(options, self.options))

    @cached_property
    def decode_result(self) -> Decoder:
        """The function that decodes a stored result by the return annotation. For internal use."""
        return result_decoder(self.function)

    def publication(self) -> Publication:
        """Return what a worker publishes about this task; without a schema if it has none. For internal use."""
        try:
            schema_json = strict_json.encode(self._schema(), "schema", limits.KIND_SCHEMA_BYTES_MAX)
        except Exception as error:  # annotations are the user's code
            log.warning("kind %s is published without a schema, so payloads are not checked: %s", self.kind, error)
            schema_json = None
        timeout_ms = round(self.policy.timeout_seconds * 1000)
        return Publication(published_options(self.options), timeout_ms, self.is_session_task, schema_json)

    def _schema(self) -> Json:
        return self.arguments.schema()

    @property
    def registry(self) -> TaskRegistry | None:
        """The task registry of its queue; None if no queue is known yet. For internal use."""
        queue = self._queue_reference.known
        return None if queue is None else queue.tasks

    def _check_own(self, jobs: Iterable[NewJob]) -> list[NewJob]:
        """Return *jobs* as a list; raise `InvalidInput` if one is not a call of this task."""
        checked = list(jobs)
        for index, job in enumerate(checked):
            if getattr(job, "kind", None) != self.kind:
                raise InvalidInput(f"jobs[{index}]", f"must be created by `new` of the task {self.kind!r}")
        return checked

    def using(self, **options: Unpack[JobOptions]) -> Self:
        """Return a copy of this task with *options* as additional defaults for its jobs."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, options=with_defaults(options, self.options))
        return other


class Task(BaseTask[P, R]):
    """A task of a `Queue`: `enqueue` blocks until the job is durable."""

    _queue_reference: QueueReference[Queue]

    @overload
    def enqueue(self: Task[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> Enqueued[T]: ...
    @overload
    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued[R]: ...
    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued[Any]:
        """Enqueue a call of the function, with the function's own parameters; see `Queue.enqueue`.

        `enqueue(…).result(timeout=…)` waits for the call and returns its result.
        """
        payload = self.arguments.unchecked_payload(args, kwargs)
        try:
            return self._queue_reference.queue.enqueue(NewJob(self.kind, payload, **self.options))
        except InvalidInput as error:
            raise _as_argument_error(error) from None

    def enqueue_many(self, jobs: Iterable[NewJob]) -> list[Enqueued[Any]]:
        """Enqueue many calls in one commit, each created by `new` of this task; see `Queue.enqueue_many`."""
        return self._queue_reference.queue.enqueue_many(self._check_own(jobs))


class AsyncTask(BaseTask[P, R]):
    """A task of an `AsyncQueue`: `enqueue` is a coroutine."""

    _queue_reference: QueueReference[AsyncQueue]

    @overload
    async def enqueue(
        self: AsyncTask[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncEnqueued[T]: ...
    @overload
    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> AsyncEnqueued[R]: ...
    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> AsyncEnqueued[Any]:
        """Enqueue a call of the function, with the function's own parameters; see `AsyncQueue.enqueue`.

        `(await enqueue(…)).result(timeout=…)` waits for the call and returns its result.
        """
        payload = self.arguments.unchecked_payload(args, kwargs)
        try:
            return await self._queue_reference.queue.enqueue(NewJob(self.kind, payload, **self.options))
        except InvalidInput as error:
            raise _as_argument_error(error) from None

    async def enqueue_many(self, jobs: Iterable[NewJob]) -> list[AsyncEnqueued[Any]]:
        """Enqueue many calls in one commit, each created by `new` of this task; see `AsyncQueue.enqueue_many`."""
        return await self._queue_reference.queue.enqueue_many(self._check_own(jobs))


class ContextTask(Task[P, R]):
    """A task whose function takes a `Context` first; the worker passes it, `enqueue` does not take it."""

    takes_context = True

    def __call__(  # type: ignore[override]  # a direct call must pass the context too
        self, context: Context, /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call the function directly, without enqueueing a job."""
        return self.function(context, *args, **kwargs)


class AsyncContextTask(AsyncTask[P, R]):
    """A `ContextTask` of an `AsyncQueue`."""

    takes_context = True

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

    _all: ClassVar[weakref.WeakSet[TaskRegistry]] = weakref.WeakSet()

    def __init__(self) -> None:
        self.by_kind: dict[str, AnyTask] = {}
        self._lock = Lock()
        self._all.add(self)

    @classmethod
    def find_in_process(cls, kind: str) -> list[AnyTask]:
        """Return the tasks of *kind* in all registries of this process. For internal use."""
        return [task for registry in cls._all if (task := registry.by_kind.get(kind)) is not None]

    def add(self, *tasks: AnyTask) -> None:
        """Add *tasks*; raise and add none if a kind is registered with another function. For internal use."""
        with self._lock:
            for task in tasks:
                registered = self.by_kind.get(task.kind, task)
                if registered.function is not task.function:
                    raise Misconfigured(
                        f"kind {task.kind!r} is declared twice, as {_source(registered)} and as {_source(task)}"
                    )
            for task in tasks:
                self.by_kind.setdefault(task.kind, task)

    def get(self, kind: str) -> AnyTask:
        """Return the task of *kind*, or raise `UnknownKind`."""
        try:
            return self.by_kind[kind]
        except KeyError:
            raise UnknownKind(kind, f"no task of this kind is declared{self._suggestion(kind)}") from None

    def _suggestion(self, kind: str) -> str:
        close = difflib.get_close_matches(kind, self.by_kind, n=1)
        if close:
            return f"; did you mean {close[0]!r}?"
        kinds = ", ".join(map(repr, list(self.by_kind)[:_KINDS_SHOWN]))
        return f"; declared kinds: {kinds}{', …' if len(self.by_kind) > _KINDS_SHOWN else ''}" if kinds else ""

    def complete(self, new: JobLike) -> JobLike:
        """Return *new* with the options of its kind's task, if any, and its payload checked. For internal use."""
        if not self.by_kind:
            return new
        kind, payload, options = parts_of(new)
        task = self.by_kind.get(kind) if isinstance(kind, str) else None
        return new if task is None else task.completed(payload, options)

    def decode_result(self, job: Job) -> Any:
        """Return the result of *job*, decoded by the return annotation of its task, if any. For internal use."""
        task = self.by_kind.get(job.kind)
        return job.result if task is None else task.decode_result(job.result)

    def kinds(self) -> tuple[str, ...]:
        """Return every kind in order of declaration."""
        return tuple(self.by_kind)

    def lanes(self, kinds: Iterable[str]) -> tuple[str, ...]:
        """Return the default lanes of *kinds*."""
        return tuple(dict.fromkeys(self.get(kind).options.get("lane", DEFAULT_NAME) for kind in kinds))

    def __contains__(self, kind: object) -> bool:
        return kind in self.by_kind

    def __iter__(self) -> Iterator[AnyTask]:
        return iter(tuple(self.by_kind.values()))

    def __len__(self) -> int:
        return len(self.by_kind)


def _source(task: AnyTask) -> str:
    return f"{task.function.__module__}.{getattr(task.function, '__qualname__', task.function)}"


def _as_argument_error(error: InvalidInput) -> InvalidInput:
    """Return *error* with `arguments` instead of `payload` in its field, because the caller passed arguments."""
    prefix, dot, rest = error.field.partition("payload")
    return InvalidInput(f"arguments{rest}", error.problem) if dot and not prefix else error


def check_function(function: object) -> Callable[..., Any]:
    """Return *function*; raise `InvalidInput` if it cannot be a task."""
    if not callable(function) or isinstance(function, type | BaseTask):
        raise InvalidInput("function", f"must be a function, not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput("function", "is a generator function: calling it would not run its body")
    return function


def kind_of(function: Callable[..., Any]) -> str:
    """Return the default kind of a task: the module and qualified name of its function."""
    return f"{_module_of(function)}.{getattr(function, '__qualname__', type(function).__name__)}"


def _module_of(function: Callable[..., Any]) -> str:
    if function.__module__ not in MAIN_MODULES:
        return function.__module__
    # A worker that imports the main module knows it under its real name.
    spec = getattr(sys.modules.get(function.__module__), "__spec__", None)
    path = inspect.unwrap(function).__code__.co_filename
    return spec.name if spec is not None and spec.origin == path else Path(path).stem
