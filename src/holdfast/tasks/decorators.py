"""Decorators that declare tasks on a queue, or on a collection that a queue includes later."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from holdfast.domain.errors import Misconfigured
from holdfast.tasks.context_parameter import takes_context
from holdfast.tasks.policy import TaskOptions
from holdfast.tasks.session_tasks import (
    AsyncSessionTask,
    AsyncSessionTaskDecorator,
    SessionTask,
    SessionTaskDecorator,
    SessionTaskOptions,
)
from holdfast.tasks.task import (
    AnyTask,
    AsyncContextTask,
    AsyncTask,
    ContextTask,
    Task,
    TaskRegistry,
    check_function,
    kind_of,
)

if TYPE_CHECKING:
    from holdfast.client.async_api.queue import AsyncQueue
    from holdfast.client.sync_api.queue import Queue
    from holdfast.tasks.context import Context

P = ParamSpec("P")
R = TypeVar("R")
Q = TypeVar("Q")


class QueueReference(Generic[Q]):
    """A reference to the queue of some tasks; empty until a queue includes them."""

    def __init__(self, queue: Q | None = None) -> None:
        self.known = queue
        self.included_in: str | None = None
        """The module that includes a collection in its queue, if known; isolated processes import this module."""

    @property
    def queue(self) -> Q:
        """The queue; raises `Misconfigured` if there is none yet."""
        if self.known is None:
            raise Misconfigured(
                "this task is in a collection that no queue includes; call queue.include(tasks) first"
            )
        return self.known

    def check_unbound(self, queue: Q) -> None:
        """Raise `Misconfigured` if the reference is already bound to another queue than *queue*."""
        if self.known not in {None, queue}:
            raise Misconfigured("this collection is already included in another queue; pass again=True to move it")


class _Anything:
    """A type that no function names: a function that accepts it accepts any first argument."""


class TaskDecorator(Protocol):
    """The type of the decorator that `queue.task("kind", …)` returns."""

    # A function with an untyped first parameter may or may not take a context; its calls are not type-checked.
    @overload
    def __call__(self, function: Callable[Concatenate[_Anything, P], R], /) -> Task[..., R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> ContextTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class AsyncTaskDecorator(Protocol):
    """The type of the decorator that `queue.task("kind", …)` returns, for an `AsyncQueue`."""

    @overload
    def __call__(self, function: Callable[Concatenate[_Anything, P], R], /) -> AsyncTask[..., R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> AsyncContextTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> AsyncTask[P, R]: ...


class _TaskMethods:
    """Base class of objects on which tasks are declared."""

    tasks: TaskRegistry
    """The tasks declared here, by kind."""
    _plain: type[AnyTask]
    _with_context: type[AnyTask]

    def __init__(self, queue_reference: QueueReference[Any], tasks: TaskRegistry | None = None) -> None:
        self._queue_reference = queue_reference
        self.tasks = TaskRegistry() if tasks is None else tasks

    def _declare(self, kind: Any, options: Any, session_task: type[AnyTask] | None = None) -> Any:
        # Use the caller's module: the function may come from a library that declares no tasks.
        declared_in = sys._getframe(2).f_globals.get("__name__")

        def decorate(function: Any) -> AnyTask:
            checked = check_function(function)
            with_context = takes_context(checked, in_session=session_task is not None)
            task_class = session_task or (self._with_context if with_context else self._plain)
            task = task_class(checked, kind_of(checked) if kind is None else kind, options, self._queue_reference)
            task.declared_in = declared_in
            self.tasks.add(task)
            if self._queue_reference.known is not None:
                self._queue_reference.known.tasks.add(task)
            return task

        if not callable(kind):
            return decorate
        # Used without parentheses, the decorator receives the function as its first argument.
        function, kind = kind, None
        return decorate(function)


class SyncTaskMethods(_TaskMethods):
    """Methods that declare tasks of a `Queue`."""

    _plain = Task
    _with_context = ContextTask

    # --- declaring tasks -------------------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[Concatenate[_Anything, P], R], /) -> Task[..., R]: ...
    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> ContextTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, kind: str | None = None, /, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
    def task(
        self, kind: Callable[..., Any] | str | None = None, /, **options: Unpack[TaskOptions]
    ) -> Task[..., Any] | TaskDecorator:
        """Declare a function as a task: `@queue.task` or `@queue.task("email.send", max_attempts=3, timeout=30)`.

        The default kind is the function's module and name. `TaskOptions` lists the options.
        """
        declared: Task[..., Any] | TaskDecorator = self._declare(kind, options)
        return declared

    def session_task(self, kind: str | None = None, /, **options: Unpack[SessionTaskOptions]) -> SessionTaskDecorator:
        """Declare a function that handles the turns of sessions: `@queue.session_task("chat.message", join=True)`.

        The function takes a `SessionContext` and the list of messages. `SessionTaskOptions` lists the options.
        """
        decorator: SessionTaskDecorator = self._declare(kind, options, SessionTask)
        return decorator


class AsyncTaskMethods(_TaskMethods):
    """Methods that declare tasks of an `AsyncQueue`."""

    _plain = AsyncTask
    _with_context = AsyncContextTask

    # --- declaring tasks -------------------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[Concatenate[_Anything, P], R], /) -> AsyncTask[..., R]: ...
    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> AsyncContextTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> AsyncTask[P, R]: ...
    @overload
    def task(self, kind: str | None = None, /, **options: Unpack[TaskOptions]) -> AsyncTaskDecorator: ...
    def task(
        self, kind: Callable[..., Any] | str | None = None, /, **options: Unpack[TaskOptions]
    ) -> AsyncTask[..., Any] | AsyncTaskDecorator:
        """Declare a function as a task: `@queue.task` or `@queue.task("email.send", max_attempts=3, timeout=30)`.

        The default kind is the function's module and name. `TaskOptions` lists the options.
        """
        declared: AsyncTask[..., Any] | AsyncTaskDecorator = self._declare(kind, options)
        return declared

    def session_task(
        self, kind: str | None = None, /, **options: Unpack[SessionTaskOptions]
    ) -> AsyncSessionTaskDecorator:
        """Declare a function that handles the turns of sessions: `@queue.session_task("chat.message", join=True)`.

        The function takes an `AsyncSessionContext` and the list of messages. `SessionTaskOptions` lists the options.
        """
        decorator: AsyncSessionTaskDecorator = self._declare(kind, options, AsyncSessionTask)
        return decorator


class Tasks(SyncTaskMethods):
    """A collection of tasks, declared without a queue; `queue.include(tasks)` adds them to one."""

    _queue_reference: QueueReference[Queue]

    def __init__(self) -> None:
        super().__init__(QueueReference())


class AsyncTasks(AsyncTaskMethods):
    """A collection of tasks for an `AsyncQueue`, declared without it; `queue.include(tasks)` adds them."""

    _queue_reference: QueueReference[AsyncQueue]

    def __init__(self) -> None:
        super().__init__(QueueReference())


class SyncTaskHost(SyncTaskMethods):
    """Makes a `Queue` able to declare tasks and include collections of them."""

    def __init__(self, tasks: TaskRegistry) -> None:
        super().__init__(QueueReference(self), tasks)

    # --- declaring tasks -------------------------------------------------------------------------------------------

    def include(self, tasks: Tasks, *, again: bool = False) -> None:
        """Add the tasks of a collection to this queue; their jobs are enqueued here.

        A collection has one queue. With *again*, a collection of another queue is moved to this one, such as in
        tests.
        """
        _include(self, tasks, again=again)


class AsyncTaskHost(AsyncTaskMethods):
    """The same for an `AsyncQueue`."""

    def __init__(self, tasks: TaskRegistry) -> None:
        super().__init__(QueueReference(self), tasks)

    # --- declaring tasks -------------------------------------------------------------------------------------------

    def include(self, tasks: AsyncTasks, *, again: bool = False) -> None:
        """Add the tasks of a collection to this queue; their jobs are enqueued here.

        A collection has one queue. With *again*, a collection of another queue is moved to this one, such as in
        tests.
        """
        _include(self, tasks, again=again)


def _include(queue: _TaskMethods, collection: _TaskMethods, *, again: bool) -> None:
    if not again:
        collection._queue_reference.check_unbound(queue)
    queue.tasks.add(*collection.tasks)
    collection._queue_reference.known = queue
    collection._queue_reference.included_in = sys._getframe(2).f_globals.get("__name__")
