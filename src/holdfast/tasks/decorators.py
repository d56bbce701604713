"""How tasks are declared: on a queue, or on a collection that a queue includes later."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from holdfast.domain.errors import Misconfigured
from holdfast.tasks.context_parameter import takes_context
from holdfast.tasks.policy import TaskOptions
from holdfast.tasks.session_tasks import (
    AsyncSessionTask,
    DeclaresAsyncSession,
    DeclaresSession,
    SessionTask,
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
    from holdfast.client.async_queue import AsyncQueue
    from holdfast.client.queue import Queue
    from holdfast.tasks.context import Context

P = ParamSpec("P")
R = TypeVar("R")
Q = TypeVar("Q")


class Home(Generic[Q]):
    """Where the jobs of some tasks go: a queue, once one is known."""

    def __init__(self, queue: Q | None = None) -> None:
        self.known = queue

    @property
    def queue(self) -> Q:
        """The queue, or `Misconfigured` if there is none yet."""
        if self.known is None:
            raise Misconfigured(
                "this task is in a collection that no queue includes; call queue.include(tasks) first"
            )
        return self.known

    def refuse_other(self, queue: Q) -> None:
        """Raise `Misconfigured` if the jobs go to another queue than *queue* already."""
        if self.known not in {None, queue}:
            raise Misconfigured("this collection is included in another queue already; say again=True to move it")


class _Anything:
    """What no function asks for, so that one which takes it takes anything as its first argument."""


class Declares(Protocol):
    """What `queue.task("kind", …)` returns: it makes a task of a function."""

    # A function that takes anything cannot be told from one that takes a context; its calls are not checked.
    @overload
    def __call__(self, function: Callable[Concatenate[_Anything, P], R], /) -> Task[..., R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> ContextTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class DeclaresAsync(Protocol):
    """The same for an `AsyncQueue`."""

    @overload
    def __call__(self, function: Callable[Concatenate[_Anything, P], R], /) -> AsyncTask[..., R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> AsyncContextTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> AsyncTask[P, R]: ...


class _HasTasks:
    """Something on which tasks are declared."""

    tasks: TaskRegistry
    """The tasks declared here, by kind."""
    _plain: type[AnyTask]
    _with_context: type[AnyTask]

    def __init__(self, home: Home[Any]) -> None:
        self._home = home
        self.tasks = TaskRegistry()

    def _declare(self, kind: Any, words: Any, session_task: type[AnyTask] | None = None) -> Any:
        # Not the function's own module, which may be a library that knows nothing of tasks.
        declared_in = sys._getframe(2).f_globals.get("__name__")

        def declare(function: Any) -> AnyTask:
            checked = check_function(function)
            with_context = takes_context(checked, in_session=session_task is not None)
            chosen = session_task or (self._with_context if with_context else self._plain)
            task = chosen(checked, kind_of(checked) if kind is None else kind, words, self._home)
            task.declared_in = declared_in
            self.tasks.add(task)
            if self._home.known is not None:
                self._home.known.tasks.add(task)
            return task

        if not callable(kind):
            return declare
        # Without parentheses the function itself stands where a kind would.
        function, kind = kind, None
        return declare(function)


class SyncTaskMethods(_HasTasks):
    """Something on which tasks of a `Queue` are declared."""

    _plain = Task
    _with_context = ContextTask

    @overload
    def task(self, function: Callable[Concatenate[_Anything, P], R], /) -> Task[..., R]: ...
    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> ContextTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, kind: str | None = None, /, **options: Unpack[TaskOptions]) -> Declares: ...
    def task(self, kind: Any = None, /, **options: Unpack[TaskOptions]) -> Any:
        """Make a task of a function: `@queue.task`, or `@queue.task("email.send", max_attempts=3, timeout=30)`.

        Without a kind the name of the function with its module serves. `TaskOptions` has the words.
        """
        return self._declare(kind, options)

    def session_task(self, kind: str | None = None, /, **options: Unpack[SessionTaskOptions]) -> DeclaresSession:
        """Make a function answer the turns of sessions: `@queue.session_task("chat.message", slot="join")`.

        It takes a `SessionContext` and the list of messages that were joined. `SessionTaskOptions` has the words.
        """
        declares: DeclaresSession = self._declare(kind, options, SessionTask)
        return declares


class AsyncTaskMethods(_HasTasks):
    """Something on which tasks of an `AsyncQueue` are declared."""

    _plain = AsyncTask
    _with_context = AsyncContextTask

    @overload
    def task(self, function: Callable[Concatenate[_Anything, P], R], /) -> AsyncTask[..., R]: ...
    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> AsyncContextTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> AsyncTask[P, R]: ...
    @overload
    def task(self, kind: str | None = None, /, **options: Unpack[TaskOptions]) -> DeclaresAsync: ...
    def task(self, kind: Any = None, /, **options: Unpack[TaskOptions]) -> Any:
        """Make a task of a function: `@queue.task`, or `@queue.task("email.send", max_attempts=3, timeout=30)`.

        Without a kind the name of the function with its module serves. `TaskOptions` has the words.
        """
        return self._declare(kind, options)

    def session_task(self, kind: str | None = None, /, **options: Unpack[SessionTaskOptions]) -> DeclaresAsyncSession:
        """Make a function answer the turns of sessions: `@queue.session_task("chat.message", slot="join")`.

        It takes a context and the list of messages that were joined. `SessionTaskOptions` has the words.
        """
        declares: DeclaresAsyncSession = self._declare(kind, options, AsyncSessionTask)
        return declares


class Tasks(SyncTaskMethods):
    """Tasks declared in a module that need not know the queue: `queue.include(tasks)` brings the two together."""

    _home: Home[Queue]

    def __init__(self) -> None:
        super().__init__(Home())


class AsyncTasks(AsyncTaskMethods):
    """The same for an `AsyncQueue`."""

    _home: Home[AsyncQueue]

    def __init__(self) -> None:
        super().__init__(Home())


class SyncTaskHost(SyncTaskMethods):
    """What makes a `Queue` the place where tasks are declared, and where their jobs go."""

    def __init__(self) -> None:
        super().__init__(Home(self))

    def include(self, tasks: Tasks, *, again: bool = False) -> None:
        """Know the tasks of a collection, and be where their jobs go.

        A collection has one queue. With *again* one that has another already is moved here, as tests may want.
        """
        _include(self, tasks, again=again)


class AsyncTaskHost(AsyncTaskMethods):
    """The same for an `AsyncQueue`."""

    def __init__(self) -> None:
        super().__init__(Home(self))

    def include(self, tasks: AsyncTasks, *, again: bool = False) -> None:
        """Know the tasks of a collection, and be where their jobs go.

        A collection has one queue. With *again* one that has another already is moved here, as tests may want.
        """
        _include(self, tasks, again=again)


def _include(queue: _HasTasks, collection: _HasTasks, *, again: bool) -> None:
    if not again:
        collection._home.refuse_other(queue)
    queue.tasks.add(*collection.tasks)
    collection._home.known = queue
