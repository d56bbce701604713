"""Decorators that declare tasks on a queue, or on a collection that a queue includes later."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, overload

from holdfast.domain import errors, schedules
from holdfast.domain.schedules import ScheduleOptions
from holdfast.tasks import context_parameter, session_tasks, task as tasks_module
from holdfast.tasks.definition import QueueReference, TaskDefinition, TaskTable
from holdfast.tasks.policy import TaskOptions
from holdfast.tasks.session_tasks import AsyncSessionTaskDecorator, SessionTaskDecorator, SessionTaskOptions
from holdfast.tasks.task import AnyTask, AsyncContextTask, AsyncTask, ContextTask, Task, TaskRegistry

if TYPE_CHECKING:
    from holdfast.tasks.context import Context

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class _Untyped:
    """The type of an untyped first parameter: as no function names it, one that accepts it accepts anything."""


class TaskDecorator(Protocol):
    """The type of the decorator that `queue.task("kind", …)` returns."""

    # A function with an untyped first parameter may or may not take a context; its calls are not type-checked.
    @overload
    def __call__(self, function: Callable[Concatenate[_Untyped, P], R], /) -> Task[..., R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> ContextTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class AsyncTaskDecorator(Protocol):
    """The type of the decorator that `queue.task("kind", …)` returns, for an `AsyncQueue`."""

    @overload
    def __call__(self, function: Callable[Concatenate[_Untyped, P], R], /) -> AsyncTask[..., R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> AsyncContextTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> AsyncTask[P, R]: ...


class Declarations:
    """The tasks declared on one object, and the queue that they belong to."""

    def __init__(self, table: TaskTable) -> None:
        self.table = table
        self.queue_reference: QueueReference[Any] = QueueReference()

    def add(self, definition: TaskDefinition) -> None:
        """Add a task, also to the queue that includes this collection."""
        self.table.add(definition)
        if self.queue_reference.tasks is not None:
            self.queue_reference.tasks.add(definition)

    def add_schedule(self, definition: schedules.Definition, owner: str) -> None:
        """Add a schedule, also to the queue that includes this collection."""
        self.table.add_schedules((definition, owner))
        if self.queue_reference.tasks is not None:
            self.queue_reference.tasks.add_schedules((definition, owner))

    def include(self, collection: Declarations, queue: object, *, again: bool, included_in: str | None) -> None:
        """Add the tasks of *collection* to these, which are those of *queue*; the module *included_in* does it."""
        if not again:
            collection.queue_reference.check_unbound(queue)
        self.table.add(*collection.table)
        self.table.add_schedules(*collection.table.schedules.values())
        collection.queue_reference.bind(queue, self.table)
        collection.queue_reference.included_in = included_in


class _TaskMethods:
    """Base class of objects on which tasks are declared."""

    tasks: TaskRegistry
    """The tasks declared here, by kind."""
    _plain: type[AnyTask]
    _with_context: type[AnyTask]

    def __init__(self, table: TaskTable | None = None) -> None:
        self._declarations = Declarations(TaskTable() if table is None else table)
        self.tasks = TaskRegistry(self._declarations.table)

    def _declare(
        self, kind: Any, options: Any, session_task: type[session_tasks.BaseSessionTask[Any, Any]] | None = None
    ) -> Any:
        # Use the caller's module: the function may come from a library that declares no tasks.
        declared_in = sys._getframe(2).f_globals.get("__name__")

        def decorate(function: Any) -> AnyTask:
            checked = tasks_module.check_function(function)
            with_context = context_parameter.takes_context(checked, in_session=session_task is not None)
            given = (checked, tasks_module.kind_of(checked) if kind is None else kind, options)
            reference = self._declarations.queue_reference
            if session_task is None:
                definition = TaskDefinition(*given, reference, takes_context=with_context)
                definition.task = (self._with_context if with_context else self._plain)(definition)
            else:
                definition = session_tasks.SessionTaskDefinition(*given, reference)
                definition.task = session_task(definition)
            definition.declared_in = declared_in
            self._declarations.add(definition)
            return definition.task

        if not callable(kind):
            return decorate
        # Used without parentheses, the decorator receives the function as its first argument.
        function, kind = kind, None
        return decorate(function)

    # --- declaring tasks -------------------------------------------------------------------------------------------

    def schedule(
        self, name: str, /, *, payload: Mapping[str, Any] | None = None, **options: Unpack[ScheduleOptions]
    ) -> Callable[[T], T]:
        """Declare a schedule of a task: `@queue.schedule("nightly", cron="0 3 * * *")` above `@queue.task`.

        *payload* has the arguments of the task by name. See `ScheduleOptions` for its times and the options of its
        jobs. Workers of this queue set the schedule when they start.
        """

        def declare(task: T) -> T:
            if not isinstance(task, tasks_module.BaseTask) or tasks_module.definition_of(task).is_session_task:
                raise errors.Misconfigured(f"schedule {name!r} must be declared above @queue.task, on a task")
            arguments = tasks_module.definition_of(task).arguments.payload((), payload or {})
            definition = schedules.check_schedule(name, task.kind, arguments, options)
            self._declarations.add_schedule(definition, tasks_module.module_of(task.function))
            return task

        return declare


class SyncTaskMethods(_TaskMethods):
    """Methods that declare tasks of a `Queue`."""

    _plain = Task
    _with_context = ContextTask

    # --- declaring tasks -------------------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[Concatenate[_Untyped, P], R], /) -> Task[..., R]: ...
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
        decorator: SessionTaskDecorator = self._declare(kind, options, session_tasks.SessionTask)
        return decorator


class AsyncTaskMethods(_TaskMethods):
    """Methods that declare tasks of an `AsyncQueue`."""

    _plain = AsyncTask
    _with_context = AsyncContextTask

    # --- declaring tasks -------------------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[Concatenate[_Untyped, P], R], /) -> AsyncTask[..., R]: ...
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
        decorator: AsyncSessionTaskDecorator = self._declare(kind, options, session_tasks.AsyncSessionTask)
        return decorator


class Tasks(SyncTaskMethods):
    """A collection of tasks, declared without a queue; `queue.include(tasks)` adds them to one."""

    def __init__(self) -> None:
        super().__init__()


class AsyncTasks(AsyncTaskMethods):
    """A collection of tasks for an `AsyncQueue`, declared without it; `queue.include(tasks)` adds them."""

    def __init__(self) -> None:
        super().__init__()


class SyncTaskHost(SyncTaskMethods):
    """Makes a `Queue` able to declare tasks and include collections of them."""

    def __init__(self, tasks: TaskTable) -> None:
        super().__init__(tasks)
        self._declarations.queue_reference.bind(self, tasks)

    # --- declaring tasks -------------------------------------------------------------------------------------------

    def include(self, tasks: Tasks, *, again: bool = False) -> None:
        """Add the tasks of a collection to this queue; their jobs are enqueued here.

        A collection has one queue. With *again*, a collection of another queue is moved to this one, such as in
        tests.
        """
        _include(self, tasks, again=again)


class AsyncTaskHost(AsyncTaskMethods):
    """The same for an `AsyncQueue`."""

    def __init__(self, tasks: TaskTable) -> None:
        super().__init__(tasks)
        self._declarations.queue_reference.bind(self, tasks)

    # --- declaring tasks -------------------------------------------------------------------------------------------

    def include(self, tasks: AsyncTasks, *, again: bool = False) -> None:
        """Add the tasks of a collection to this queue; their jobs are enqueued here.

        A collection has one queue. With *again*, a collection of another queue is moved to this one, such as in
        tests.
        """
        _include(self, tasks, again=again)


def _include(queue: _TaskMethods, collection: _TaskMethods, *, again: bool) -> None:
    included_in = sys._getframe(2).f_globals.get("__name__")
    declared, included = queue._declarations, collection._declarations  # noqa: SLF001
    declared.include(included, queue, again=again, included_in=included_in)
