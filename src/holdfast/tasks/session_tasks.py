"""Session tasks: a function with a kind that answers the turns of sessions, one call for each.

It is given its context and the messages of all entries that were joined. What is enqueued is one message at a time,
or several as one entry, typed by what the function's list holds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Never, Protocol, TypeAlias, TypeVar, Unpack, cast, overload

from holdfast.domain import limits, validation
from holdfast.domain.errors import InvalidInput, Misconfigured
from holdfast.domain.new_job import JobOptions, NewJob, check_job, with_defaults
from holdfast.domain.results import Enqueued
from holdfast.domain.strict_json import Json
from holdfast.tasks.policy import TaskOptions
from holdfast.tasks.session_context import AsyncSessionContext, BaseSessionContext, SessionContext
from holdfast.tasks.session_messages import Messages
from holdfast.tasks.task import BaseTask

if TYPE_CHECKING:
    from holdfast.client.async_queue import AsyncQueue
    from holdfast.client.queue import Queue
    from holdfast.tasks.decorators import Home

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)
R = TypeVar("R", covariant=True)  # noqa: PLC0105  # one letter, as in tasks
Result = TypeVar("Result")


class SessionTaskOptions(TaskOptions, total=False):
    """The words of `session_task`: those of `task`, and how much one turn may take in."""

    limit: int
    """How many entries a turn may have, with those that join at checkpoints; default 100."""


class BaseSessionTask(BaseTask[..., R], Generic[M_contra, R]):
    """What session tasks of both colours have."""

    takes_context = True
    limit: int
    """How many entries a turn of it may have."""
    messages: Messages
    """How its messages are written and read."""

    def __init__(self, function: Callable[..., R], kind: str, words: SessionTaskOptions, home: Home[Any]) -> None:
        told: Any = {word: value for word, value in words.items() if word != "limit"}
        for word in ("isolate", "memory_limit"):
            if told.get(word) is not None:
                raise InvalidInput(word, "means nothing in a session: its turns run in the worker's own process")
        self.messages = Messages(function)
        super().__init__(function, kind, told, home)
        options: Any = {"session": "checked", **self.options}
        check_job(NewJob(kind, **options), fresh_id="checked")
        self.limit = validation.integer(
            words.get("limit", limits.SESSION_CLAIM_DEFAULT), "limit", 1, limits.CLAIM_MAX
        )
        _refuse_other_colour(function)

    def __call__(self, context: BaseSessionContext, messages: Any = (), /) -> R:
        """Run the function, here and now, as if it were no task."""
        return self.function(context, messages) if self.messages.given else self.function(context)

    def new(self, *messages: M_contra, **options: Unpack[JobOptions]) -> NewJob:
        """Return an entry of one message, or of several, to be enqueued: for `enqueue_many` or a follow-up."""
        words: Any = {**self.options, **options}
        if words.get("session") is None:
            raise InvalidInput("session", "must be named: enqueue(…, session='chat-42')")
        written = self.messages.write(messages)
        if len(messages) > 1:
            return NewJob(self.kind, None, **{**words, "items": written})
        return NewJob(self.kind, written[0], **words)

    def completed(self, payload: Json, options: JobOptions) -> NewJob:
        """Return an entry that a caller describes by name: with the task's options, its messages checked."""
        merged = with_defaults(options, self.options)
        if merged.get("session") is None:
            raise InvalidInput("session", f"must be named: {self.kind!r} is a session task")
        items: Any = merged.get("items")
        if items is None:
            self.messages.check(payload, "payload")
        elif isinstance(items, Sequence):
            for index, item in enumerate(items):
                self.messages.check(item, f"items[{index}]")
        return NewJob(self.kind, payload, **merged)


class SessionTask(BaseSessionTask[M_contra, R]):
    """A session task of a `Queue`: `enqueue` blocks until the entry is durable."""

    _home: Home[Queue]

    def enqueue(self, *messages: M_contra, **options: Unpack[JobOptions]) -> Enqueued:
        """Store a message, or several, as one entry of the session that the words or `using` name."""
        new = self.new(*messages, **options)
        return self._home.queue.enqueue(new.kind, new.payload, **new.options)

    def enqueue_many(self, jobs: Iterable[NewJob]) -> list[Enqueued]:
        """Store many entries in one commit, each made by `new` of this task; see `Queue.enqueue_many`."""
        return self._home.queue.enqueue_many(self._own(jobs))


class AsyncSessionTask(BaseSessionTask[M_contra, R]):
    """A session task of an `AsyncQueue`: `enqueue` is awaited."""

    _home: Home[AsyncQueue]

    async def enqueue(self, *messages: M_contra, **options: Unpack[JobOptions]) -> Enqueued:
        """Store a message, or several, as one entry of the session that the words or `using` name."""
        new = self.new(*messages, **options)
        return await self._home.queue.enqueue(new.kind, new.payload, **new.options)

    async def enqueue_many(self, jobs: Iterable[NewJob]) -> list[Enqueued]:
        """Store many entries in one commit, each made by `new` of this task; see `AsyncQueue.enqueue_many`."""
        return await self._home.queue.enqueue_many(self._own(jobs))


AnySessionTask: TypeAlias = BaseSessionTask[Any, Any]


class DeclaresSession(Protocol):
    """What `queue.session_task("kind", …)` returns: it makes a session task of a function."""

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


class DeclaresAsyncSession(Protocol):
    """The same for an `AsyncQueue`."""

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


def context_of(task: AnySessionTask) -> type[BaseSessionContext]:
    """Return the class of the context that the function of *task* is given."""
    # Generic classes are no types of their own; what they hold is the type checker's alone.
    return cast(type[BaseSessionContext], AsyncSessionContext if task.is_async else SessionContext)


def _refuse_other_colour(function: Callable[..., Any]) -> None:
    """Raise `Misconfigured` if the function names a context whose checkpoints it could not make."""
    first = next(iter(inspect.signature(function).parameters.values()))
    named = first.annotation if isinstance(first.annotation, str) else getattr(first.annotation, "__name__", "")
    wanted, other = "SessionContext", "AsyncSessionContext"
    if inspect.iscoroutinefunction(function):
        wanted, other = other, wanted
    if named.partition("[")[0].rpartition(".")[2].strip("'\" ") == other:
        raise Misconfigured(f"{function.__qualname__} must take {wanted}, not {other}, as `def` and `async def` say")
