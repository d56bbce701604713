"""Task definitions: what queues and workers know of a task, and the table of the tasks of a queue.

A program has `Task` objects, which wrap a definition.
"""

from __future__ import annotations

import difflib
import inspect
import logging
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, reduce
from operator import or_
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar, Union, get_args, get_origin

from holdfast.domain import (
    errors,
    job_options,
    limits,
    new_job,
    outcomes,
    publications,
    routing,
    schedules,
    strict_json,
    validation,
)
from holdfast.domain.job import Job
from holdfast.domain.kinds import Publication
from holdfast.tasks import arguments, control_flow, json_decode, json_encode, policy

if TYPE_CHECKING:
    from holdfast.tasks.task import AnyTask

# A handler that returns one of these chooses its outcome; the annotation does not tell the type of the result.
_OUTCOMES: Final = (outcomes.Done, outcomes.Failed, outcomes.Deferred, outcomes.Released, control_flow.OutcomeRequest)


def result_decoder(function: Callable[..., Any]) -> json_decode.Decoder:
    """Return the function that decodes stored results of *function*; it raises `InvalidInput` if one is invalid."""
    decode = json_decode.decoder_for(_result_type(function))

    def decode_result(result: strict_json.Json) -> Any:
        try:
            return decode(result)
        except json_encode.InvalidValue as error:
            raise errors.InvalidInput(f"result{error.path}", error.problem) from None

    return decode_result


def _result_type(function: Callable[..., Any]) -> Any:
    annotation = inspect.signature(function).return_annotation
    annotation = arguments.evaluate_annotations(function, {"return": annotation}).get("return", Any)
    union = get_origin(annotation) in {Union, types.UnionType}
    members = get_args(annotation) if union else (annotation,)
    if any(isinstance(member, type) and issubclass(member, outcomes.Done) for member in members):
        return Any
    results = [member for member in members if not (isinstance(member, type) and issubclass(member, _OUTCOMES))]
    return reduce(or_, results) if results else Any


Q = TypeVar("Q")

log = logging.getLogger("holdfast")

_KINDS_SHOWN: Final = 8


class QueueReference(Generic[Q]):
    """A reference to the queue of some tasks; empty until a queue includes them."""

    def __init__(self) -> None:
        self.known: Q | None = None
        self.tasks: TaskTable | None = None
        """The tasks of the queue; None if no queue is known yet."""
        self.included_in: str | None = None
        """The module that includes a collection in its queue, if known; isolated processes import this module."""

    @property
    def queue(self) -> Q:
        """The queue; raises `Misconfigured` if there is none yet."""
        if self.known is None:
            raise errors.Misconfigured(
                "this task is in a collection that no queue includes; call queue.include(tasks) first"
            )
        return self.known

    def bind(self, queue: Q, tasks: TaskTable) -> None:
        """Refer to *queue*, which has *tasks*, from now on."""
        self.known, self.tasks = queue, tasks

    def check_unbound(self, queue: Q) -> None:
        """Raise `Misconfigured` if the reference is already bound to another queue than *queue*."""
        if self.known not in {None, queue}:
            raise errors.Misconfigured(
                "this collection is already included in another queue; pass again=True to move it"
            )


class TaskDefinition:
    """The definition of one task: its function, the encoding of its calls, and the policy for its attempts."""

    is_session_task = False
    """Whether the function handles the turns of sessions."""
    task: AnyTask
    """The object that the program has."""
    declared_in: str | None = None
    """The module that declares it, if known, which isolated processes import."""

    def __init__(
        self,
        function: Callable[..., Any],
        kind: str,
        options: policy.TaskOptions,
        queue_reference: QueueReference[Any],
        *,
        takes_context: bool,
    ) -> None:
        self.kind = validation.name(kind, "kind")
        self.function = function
        self.options, self.policy = policy.split(kind, options)
        self.arguments = arguments.Arguments(function, without_first=takes_context)
        self.is_async = inspect.iscoroutinefunction(function)
        self.takes_context = takes_context
        """Whether the worker passes the function its `Context` as first argument."""
        self.queue_reference = queue_reference

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.kind}>"

    def complete(self, payload: strict_json.Json, options: job_options.JobOptions) -> new_job.NewJob:
        """Return a job with the task's options as defaults; raise if the payload is invalid."""
        self.arguments.check(payload)
        return new_job.TaskJob(self.kind, payload, **policy.with_defaults(options, self.options))

    @cached_property
    def decode_result(self) -> json_decode.Decoder:
        """The function that decodes a stored result by the return annotation."""
        return result_decoder(self.function)

    def publication(self) -> Publication:
        """Return what a worker publishes about this task; without a schema if it has none."""
        try:
            schema_json = strict_json.encode(self._schema(), "schema", limits.KIND_SCHEMA_BYTES_MAX)
        except Exception as error:  # annotations are the user's code
            log.warning("kind %s is published without a schema, so payloads are not checked: %s", self.kind, error)
            schema_json = None
        timeout_ms = round(self.policy.timeout_seconds * 1000)
        return Publication(
            publications.published_options(self.options), timeout_ms, self.is_session_task, schema_json
        )

    def _schema(self) -> strict_json.Json:
        return self.arguments.schema()


class TaskTable:
    """The definitions of the tasks of a queue, by kind. Supports `in`, `len` and iteration. Thread-safe."""

    _all: ClassVar[weakref.WeakSet[TaskTable]] = weakref.WeakSet()

    def __init__(self) -> None:
        self.by_kind: dict[str, TaskDefinition] = {}
        self.schedules: dict[tuple[str, str], tuple[schedules.Definition, str]] = {}
        """The schedules that are declared with the tasks, by tenant and name, with their modules."""
        self._lock = Lock()
        self._all.add(self)

    @classmethod
    def find_in_process(cls, kind: str) -> list[TaskDefinition]:
        """Return the tasks of *kind* in all tables of this process."""
        return [task for table in cls._all if (task := table.by_kind.get(kind)) is not None]

    def add(self, *tasks: TaskDefinition) -> None:
        """Add *tasks*; raise and add none if a kind is declared with another function."""
        with self._lock:
            for task in tasks:
                known = self.by_kind.get(task.kind, task)
                if known.function is not task.function:
                    raise errors.Misconfigured(
                        f"kind {task.kind!r} is declared twice, as {_source(known)} and as {_source(task)}"
                    )
            for task in tasks:
                self.by_kind.setdefault(task.kind, task)

    def add_schedules(self, *declared: tuple[schedules.Definition, str]) -> None:
        """Add schedules; raise if a name is declared twice."""
        with self._lock:
            for definition, owner in declared:
                key = (definition.tenant, definition.name)
                if self.schedules.setdefault(key, (definition, owner)) != (definition, owner):
                    raise errors.Misconfigured(f"schedule {definition.name!r} is declared twice")

    def get(self, kind: str) -> TaskDefinition:
        """Return the task of *kind*, or raise `UnknownKind`."""
        try:
            return self.by_kind[kind]
        except KeyError:
            raise errors.UnknownKind(kind, f"no task of this kind is declared{self._suggestion(kind)}") from None

    def _suggestion(self, kind: str) -> str:
        close = difflib.get_close_matches(kind, self.by_kind, n=1)
        if close:
            return f"; did you mean {close[0]!r}?"
        kinds = ", ".join(map(repr, list(self.by_kind)[:_KINDS_SHOWN]))
        return f"; declared kinds: {kinds}{', …' if len(self.by_kind) > _KINDS_SHOWN else ''}" if kinds else ""

    def complete(self, new: new_job.JobLike) -> new_job.JobLike:
        """Return *new*, and its `on_end`, with the options of its kind's task, if any, and its payload checked."""
        if not self.by_kind:
            return new
        kind, payload, options = new_job.parts_of(new)
        callback = options.get("on_end")
        if callback is not None:
            options = {**options, "on_end": self.complete_callback(callback, "on_end")}
            new = new_job.NewJob(kind, payload, **options)
        task = self.by_kind.get(kind) if isinstance(kind, str) else None
        return new if task is None else task.complete(payload, options)

    def complete_callback(self, new: new_job.JobLike, field: str) -> new_job.JobLike:
        """As `complete`, for a job that runs after others; errors name what is wrong below *field*."""
        if not isinstance(new, new_job.NewJob | Mapping):
            return new  # refused with the other options
        try:
            return self.complete(new)
        except errors.InvalidInput as error:
            raise errors.InvalidInput(f"{field}.{error.field}", error.problem, error.limit) from None

    def decode_result(self, job: Job) -> Any:
        """Return the result of *job*, decoded by the return annotation of its task, if any."""
        task = self.by_kind.get(job.kind)
        return job.result if task is None else task.decode_result(job.result)

    def kinds(self) -> tuple[str, ...]:
        """Return every kind in order of declaration."""
        return tuple(self.by_kind)

    def lanes(self, kinds: Iterable[str]) -> tuple[str, ...]:
        """Return the default lanes of *kinds*."""
        return tuple(dict.fromkeys(self.get(kind).options.get("lane", routing.DEFAULT_NAME) for kind in kinds))

    def __contains__(self, kind: object) -> bool:
        return kind in self.by_kind

    def __iter__(self) -> Iterator[TaskDefinition]:
        return iter(tuple(self.by_kind.values()))

    def __len__(self) -> int:
        return len(self.by_kind)


def _source(task: TaskDefinition) -> str:
    return f"{task.function.__module__}.{getattr(task.function, '__qualname__', task.function)}"
