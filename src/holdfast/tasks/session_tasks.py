"""Session tasks: functions that handle the turns of sessions, one call for each turn.

The function takes its context and the messages of all entries of the turn. `enqueue` takes one message, or several
that form one entry; their type is the element type of the function's list parameter.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Never, Protocol, TypeVar, Unpack, overload

from holdfast.domain import errors, limits, new_job, validation
from holdfast.domain.job_options import JobOptions
from holdfast.domain.new_job import NewJob, TaskJob
from holdfast.domain.strict_json import Json
from holdfast.tasks import policy
from holdfast.tasks.definition import QueueReference, TaskDefinition
from holdfast.tasks.policy import TaskOptions
from holdfast.tasks.session_context import AsyncSessionContext, BaseSessionContext, SessionContext
from holdfast.tasks.session_messages import Messages
from holdfast.tasks.task import BaseTask

if TYPE_CHECKING:
    from holdfast.client.async_api.enqueued import AsyncEnqueued
    from holdfast.client.async_api.queue import AsyncQueue
    from holdfast.client.sync_api.enqueued import Enqueued
    from holdfast.client.sync_api.queue import Queue

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)
R = TypeVar("R", covariant=True)  # noqa: PLC0105  # one letter, as in tasks
Result = TypeVar("Result")


class SessionTaskOptions(TaskOptions, total=False):
    """The options of `session_task`: those of `task`, and the limit of a turn."""

    limit: int
    """The maximum number of entries of a turn, including those added at checkpoints; default 100."""


class SessionTaskDefinition(TaskDefinition):
    """The definition of a session task, whose calls are turns."""

    is_session_task = True

    def __init__(
        self,
        function: Callable[..., Any],
        kind: str,
        options: SessionTaskOptions,
        queue_reference: QueueReference[Any],
    ) -> None:
        plain_options: Any = {name: value for name, value in options.items() if name != "limit"}
        for name in ("isolate", "memory_limit"):
            if plain_options.get(name) is not None:
                raise errors.InvalidInput(
                    name, "is not supported for session tasks, which run in the worker's process"
                )
        self.messages = Messages(function)
        super().__init__(function, kind, plain_options, queue_reference, takes_context=True)
        checked: Any = {"session": "checked", **self.options}
        new_job.check_job(NewJob(kind, **checked), fresh_id="checked")
        self.limit = validation.integer(
            options.get("limit", limits.SESSION_CLAIM_DEFAULT), "limit", 1, limits.CLAIM_MAX
        )
        """The maximum number of entries of a turn."""
        _check_context_type(function)

    def complete(self, payload: Json, options: JobOptions) -> NewJob:
        """Return an entry with the task's options as defaults; raise if a message is invalid."""
        merged = policy.with_defaults(options, self.options)
        if merged.get("session") is None:
            raise errors.InvalidInput("session", f"must be named: {self.kind!r} is a session task")
        messages: Any = merged.get("messages")
        if messages is None:
            self.messages.check(payload, "payload")
        elif isinstance(messages, Sequence):
            for index, message in enumerate(messages):
                self.messages.check(message, f"messages[{index}]")
        return TaskJob(self.kind, payload, **merged)

    def _schema(self) -> Json:
        return self.messages.schema()


class BaseSessionTask(BaseTask[..., R], Generic[M_contra, R]):
    """Base class of session tasks."""

    _definition: SessionTaskDefinition
    limit: int
    """The maximum number of entries of a turn."""

    def __init__(self, definition: SessionTaskDefinition) -> None:
        super().__init__(definition)
        self.limit = definition.limit

    def __call__(self, context: BaseSessionContext, messages: Any = (), /) -> R:
        """Call the function directly, without enqueueing an entry."""
        takes_messages = self._definition.messages.takes_messages
        return self.function(context, messages) if takes_messages else self.function(context)

    def new(self, *message: M_contra, **options: Unpack[JobOptions]) -> NewJob:
        """Return an entry of one or several messages as a `NewJob`, for `enqueue_many` or a follow-up.

        *options* or `using` name its session; see `JobOptions`.
        """
        task_options: Any = {**self.options, **options}
        if task_options.get("session") is None:
            raise errors.InvalidInput("session", "must be named: enqueue(…, session='chat-42')")
        encoded = self._definition.messages.encode(message)
        if len(encoded) > 1:
            return TaskJob(self.kind, None, **{**task_options, "messages": encoded})
        return TaskJob(self.kind, encoded[0], **task_options)


class SessionTask(BaseSessionTask[M_contra, R]):
    """A session task of a `Queue`, declared by `@queue.session_task`: `enqueue` blocks until the entry is durable."""

    _queue_reference: QueueReference[Queue]

    def enqueue(self, *message: M_contra, **options: Unpack[JobOptions]) -> Enqueued[Any]:
        """Enqueue one or several messages as one entry of the session that *options* or `using` name.

        `task.enqueue(message, session="chat-42")`; see `JobOptions` for the other options.
        """
        return self._queue_reference.queue.enqueue(self.new(*message, **options))

    def enqueue_many(self, jobs: Iterable[NewJob]) -> list[Enqueued[Any]]:
        """Enqueue many entries in one commit, each created by `new` of this task; see `Queue.enqueue_many`."""
        return self._queue_reference.queue.enqueue_many(self._check_own(jobs))


class AsyncSessionTask(BaseSessionTask[M_contra, R]):
    """A session task of an `AsyncQueue`, declared by `@queue.session_task`: `enqueue` is a coroutine."""

    _queue_reference: QueueReference[AsyncQueue]

    async def enqueue(self, *message: M_contra, **options: Unpack[JobOptions]) -> AsyncEnqueued[Any]:
        """Enqueue one or several messages as one entry of the session that *options* or `using` name.

        `task.enqueue(message, session="chat-42")`; see `JobOptions` for the other options.
        """
        return await self._queue_reference.queue.enqueue(self.new(*message, **options))

    async def enqueue_many(self, jobs: Iterable[NewJob]) -> list[AsyncEnqueued[Any]]:
        """Enqueue many entries in one commit, each created by `new` of this task; see `AsyncQueue.enqueue_many`."""
        return await self._queue_reference.queue.enqueue_many(self._check_own(jobs))


class SessionTaskDecorator(Protocol):
    """The type of the decorator that `queue.session_task("kind", …)` returns."""

    @overload
    def __call__(self, function: Callable[[SessionContext[M], list[M]], Result], /) -> SessionTask[M, Result]: ...
    @overload
    def __call__(
        self, function: Callable[[AsyncSessionContext[M], list[M]], Result], /
    ) -> SessionTask[M, Result]: ...
    @overload
    def __call__(self, function: Callable[[SessionContext[Any]], Result], /) -> SessionTask[Never, Result]: ...
    @overload
    def __call__(self, function: Callable[[AsyncSessionContext[Any]], Result], /) -> SessionTask[Never, Result]: ...


class AsyncSessionTaskDecorator(Protocol):
    """The type of the decorator that `queue.session_task("kind", …)` returns, for an `AsyncQueue`."""

    @overload
    def __call__(
        self, function: Callable[[AsyncSessionContext[M], list[M]], Result], /
    ) -> AsyncSessionTask[M, Result]: ...
    @overload
    def __call__(
        self, function: Callable[[SessionContext[M], list[M]], Result], /
    ) -> AsyncSessionTask[M, Result]: ...
    @overload
    def __call__(
        self, function: Callable[[AsyncSessionContext[Any]], Result], /
    ) -> AsyncSessionTask[Never, Result]: ...
    @overload
    def __call__(self, function: Callable[[SessionContext[Any]], Result], /) -> AsyncSessionTask[Never, Result]: ...


def _check_context_type(function: Callable[..., Any]) -> None:
    """Raise `Misconfigured` if a sync function takes an async context, or the reverse."""
    first = next(iter(inspect.signature(function).parameters.values()))
    annotation = first.annotation if isinstance(first.annotation, str) else getattr(first.annotation, "__name__", "")
    expected, other = "SessionContext", "AsyncSessionContext"
    if inspect.iscoroutinefunction(function):
        expected, other = other, expected
    if annotation.partition("[")[0].rpartition(".")[2].strip("'\" ") == other:
        raise errors.Misconfigured(
            f"{function.__qualname__} must take {expected}, not {other}: `async def` takes AsyncSessionContext,"
            " `def` takes SessionContext"
        )
