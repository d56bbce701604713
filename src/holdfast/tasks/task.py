"""Tasks: a function with a kind. Calling one runs the function; enqueueing one stores the call as a job."""

from __future__ import annotations

import difflib
import inspect
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import update_wrapper
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, ParamSpec, TypeAlias, TypeVar, Unpack

from holdfast.domain import validation
from holdfast.domain.errors import InvalidInput, Misconfigured, UnknownKind
from holdfast.domain.new_job import JobLike, JobOptions, NewJob, parts_of, with_defaults
from holdfast.domain.results import Enqueued
from holdfast.domain.routing import DEFAULT_NAME
from holdfast.domain.strict_json import Json
from holdfast.tasks.arguments import Arguments
from holdfast.tasks.context import Context
from holdfast.tasks.policy import Policy, TaskOptions, split

if TYPE_CHECKING:
    from typing import Self

    from holdfast.client.async_queue import AsyncQueue
    from holdfast.client.queue import Queue
    from holdfast.tasks.decorators import Home

P = ParamSpec("P")
R = TypeVar("R", covariant=True)  # noqa: PLC0105  # one letter, as is usual beside a ParamSpec

_KINDS_SHOWN: Final = 8


class BaseTask(Generic[P, R]):
    """What tasks of both colours have: a kind, a function, options for its jobs and a policy for its attempts."""

    kind: str
    """Under which name its jobs are stored."""
    function: Callable[..., R]
    options: JobOptions
    """The words of `enqueue` that hold for its jobs."""
    policy: Policy
    arguments: Arguments
    is_async: bool
    """Whether the function is to be awaited."""
    declared_in: str | None = None
    """The module that declares it, where that is known: importing it elsewhere declares it there."""
    takes_context: bool = False
    """Whether the worker hands the function its `Context` as first argument."""

    def __init__(self, function: Callable[..., R], kind: str, words: TaskOptions, home: Home[Any]) -> None:
        self.kind = validation.name(kind, "kind")
        self.function = function
        self.options, self.policy = split(kind, words)
        self.arguments = Arguments(function, without_first=self.takes_context)
        self.is_async = inspect.iscoroutinefunction(function)
        self._home = home
        update_wrapper(self, function, updated=())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.kind}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function, here and now, as if it were no task."""
        return self.function(*args, **kwargs)

    def new(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Return the call as a job to be enqueued: for `enqueue_many`, a transaction or a follow-up."""
        return NewJob(self.kind, self.arguments.payload(args, kwargs), **self.options)

    def completed(self, payload: Json, options: JobOptions) -> NewJob:
        """Return a job of this kind that a caller describes by name: with the task's options, its payload checked."""
        self.arguments.check(payload)
        return NewJob(self.kind, payload, **with_defaults(options, self.options))

    @property
    def registry(self) -> TaskRegistry | None:
        """The tasks of the queue that its jobs go to, if that is known."""
        queue = self._home.known
        return None if queue is None else queue.tasks

    def _own(self, jobs: Iterable[NewJob]) -> list[NewJob]:
        """Return *jobs* if each is a call of this task."""
        listed = list(jobs)
        for index, job in enumerate(listed):
            if getattr(job, "kind", None) != self.kind:
                raise InvalidInput(f"jobs[{index}]", f"must be made by `new` of the task {self.kind!r}")
        return listed

    def using(self, **options: Unpack[JobOptions]) -> Self:
        """Return the same task with other options for its jobs; this one stays as it is."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, options=with_defaults(options, self.options))
        return other


class Task(BaseTask[P, R]):
    """A task of a `Queue`: `enqueue` blocks until the job is durable."""

    _home: Home[Queue]

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Store the call as a job, typed by the function's own parameters; see `Queue.enqueue`."""
        payload = self.arguments.unread_payload(args, kwargs)
        try:
            return self._home.queue.enqueue(self.kind, payload, **self.options)
        except InvalidInput as error:
            raise _of_arguments(error) from None

    def enqueue_many(self, jobs: Iterable[NewJob]) -> list[Enqueued]:
        """Store many calls in one commit, each made by `new` of this task; see `Queue.enqueue_many`."""
        return self._home.queue.enqueue_many(self._own(jobs))


class AsyncTask(BaseTask[P, R]):
    """A task of an `AsyncQueue`: `enqueue` is awaited."""

    _home: Home[AsyncQueue]

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Store the call as a job, typed by the function's own parameters; see `AsyncQueue.enqueue`."""
        payload = self.arguments.unread_payload(args, kwargs)
        try:
            return await self._home.queue.enqueue(self.kind, payload, **self.options)
        except InvalidInput as error:
            raise _of_arguments(error) from None

    async def enqueue_many(self, jobs: Iterable[NewJob]) -> list[Enqueued]:
        """Store many calls in one commit, each made by `new` of this task; see `AsyncQueue.enqueue_many`."""
        return await self._home.queue.enqueue_many(self._own(jobs))


class ContextTask(Task[P, R]):
    """A task whose function has a `Context` as first parameter: the worker's to fill, not part of `enqueue`."""

    takes_context = True

    def __call__(  # type: ignore[override]  # a direct call has to bring the context as well
        self, context: Context, /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run the function, here and now, as if it were no task."""
        return self.function(context, *args, **kwargs)


class AsyncContextTask(AsyncTask[P, R]):
    """A `ContextTask` of an `AsyncQueue`."""

    takes_context = True

    def __call__(  # type: ignore[override]  # a direct call has to bring the context as well
        self, context: Context, /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run the function, here and now, as if it were no task."""
        return self.function(context, *args, **kwargs)


AnyTask: TypeAlias = BaseTask[Any, Any]

MAIN_MODULES: Final = ("__main__", "__mp_main__")
"""What a program's own module is called: in the program, and in the processes it starts."""


class TaskRegistry:
    """The tasks that a queue knows, by kind. Safe to share between threads."""

    _all: ClassVar[weakref.WeakSet[TaskRegistry]] = weakref.WeakSet()

    def __init__(self) -> None:
        self._tasks: dict[str, AnyTask] = {}
        self._lock = Lock()
        self._all.add(self)

    @classmethod
    def everywhere(cls, kind: str) -> list[AnyTask]:
        """Return what goes by *kind* in any registry of this process."""
        return [task for registry in cls._all if (task := registry._tasks.get(kind)) is not None]

    def add(self, *tasks: AnyTask) -> None:
        """Take *tasks* in, or raise `Misconfigured`, and take none, if the kind of one has another function."""
        with self._lock:
            for task in tasks:
                known = self._tasks.get(task.kind, task)
                if known.function is not task.function:
                    raise Misconfigured(
                        f"kind {task.kind!r} is declared twice, for {_shown(known)} and for {_shown(task)}"
                    )
            for task in tasks:
                self._tasks.setdefault(task.kind, task)

    def get(self, kind: str) -> AnyTask:
        """Return the task of *kind*, or raise `UnknownKind`."""
        try:
            return self._tasks[kind]
        except KeyError:
            raise UnknownKind(kind, f"no task of this kind is declared here{self._suggestion(kind)}") from None

    def _suggestion(self, kind: str) -> str:
        close = difflib.get_close_matches(kind, self._tasks, n=1)
        if close:
            return f"; did you mean {close[0]!r}?"
        known = ", ".join(map(repr, list(self._tasks)[:_KINDS_SHOWN]))
        return f"; these are: {known}{', …' if len(self._tasks) > _KINDS_SHOWN else ''}" if known else ""

    def complete(self, new: JobLike) -> JobLike:
        """Return *new* with the options of the task of its kind, its payload checked; as it is if there is none."""
        if not self._tasks:
            return new
        kind, payload, options = parts_of(new)
        task = self._tasks.get(kind) if isinstance(kind, str) else None
        return new if task is None else task.completed(payload, options)

    def kinds(self) -> tuple[str, ...]:
        """Every kind, in order of declaration."""
        return tuple(self._tasks)

    def lanes(self, kinds: Iterable[str]) -> tuple[str, ...]:
        """Return the lanes that jobs of *kinds* go to unless an enqueue names another."""
        return tuple(dict.fromkeys(self.get(kind).options.get("lane", DEFAULT_NAME) for kind in kinds))

    def __contains__(self, kind: object) -> bool:
        return kind in self._tasks

    def __iter__(self) -> Iterator[AnyTask]:
        return iter(tuple(self._tasks.values()))

    def __len__(self) -> int:
        return len(self._tasks)


def _shown(task: AnyTask) -> str:
    return f"{task.function.__module__}.{getattr(task.function, '__qualname__', task.function)}"


def _of_arguments(error: InvalidInput) -> InvalidInput:
    """Return *error* in the words of whoever called the task, who gave arguments and not a payload."""
    place, dot, rest = error.field.partition("payload")
    return InvalidInput(f"arguments{rest}", error.problem) if dot and not place else error


def check_function(function: object) -> Callable[..., Any]:
    """Return *function* if it can be a task."""
    if not callable(function) or isinstance(function, type | BaseTask):
        raise InvalidInput("function", f"must be a function, not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput("function", "is a generator: it would return before it has done anything")
    return function


def kind_of(function: Callable[..., Any]) -> str:
    """Return the kind of a task that was given none: where its function is imported from."""
    return f"{_module_of(function)}.{getattr(function, '__qualname__', type(function).__name__)}"


def _module_of(function: Callable[..., Any]) -> str:
    if function.__module__ not in MAIN_MODULES:
        return function.__module__
    # A program's own module has another name for the worker that imports it.
    spec = getattr(sys.modules.get(function.__module__), "__spec__", None)
    path = inspect.unwrap(function).__code__.co_filename
    return spec.name if spec is not None and spec.origin == path else Path(path).stem
