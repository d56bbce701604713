"""The policy of a task's attempts: timeout, retried errors, isolation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from holdfast.domain import errors, limits, sessions, validation
from holdfast.domain.backoff import Backoff
from holdfast.domain.job_options import JobOptions
from holdfast.domain.new_job import NewJob, check_job
from holdfast.domain.validation import Duration

Isolation: TypeAlias = Literal["process"]
"""How a handler is isolated from others of its worker."""
TaskIsolation: TypeAlias = Literal["process", "never"]
"""How the handler of a task is isolated; `never` keeps that of a suspect in the worker too."""


class TaskOptions(JobOptions, total=False):
    """The options of `task`: those of `enqueue` as defaults for its jobs, and options for the worker."""

    timeout: Duration
    """How many seconds an attempt may take, default one hour; then the handler is stopped and the attempt fails."""
    retry_on: type[BaseException] | Sequence[type[BaseException]]
    """Errors to retry; all others except connection errors then fail the job permanently."""
    permanent_on: type[BaseException] | Sequence[type[BaseException]]
    """Errors that fail the job permanently."""
    isolate: TaskIsolation | None
    """`process` runs the handler in its own process, which may crash or be killed without harm to others. `never`
    runs it in the worker beside others, even if it is suspect: for handlers that cannot end their process."""
    memory_limit: int | None
    """The memory limit of that process in bytes."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How the worker runs the attempts of one task: the options of `task` that are for the worker."""

    timeout_seconds: float = 3_600.0
    """How many seconds an attempt may take."""
    retry_on: tuple[type[BaseException], ...] = ()
    """The errors to retry; empty means all that are not permanent."""
    permanent_on: tuple[type[BaseException], ...] = ()
    """The errors that fail the job permanently."""
    backoff: Backoff | None = None
    """The backoff between attempts, for jobs that were enqueued without one."""
    max_attempts: int = 5
    """How many attempts a job may use."""
    isolate: TaskIsolation | None = None
    """Whether the handler runs in its own process."""
    memory_limit_bytes: int | None = None
    """The memory limit of that process in bytes."""


DEFAULT: Final = Policy()
_WORKER_OPTIONS: Final = ("timeout", "retry_on", "permanent_on", "isolate", "memory_limit")


def split(kind: str, task_options: TaskOptions) -> tuple[JobOptions, Policy]:
    """Return the options of a task's jobs and its policy; raise `InvalidInput` for an invalid option."""
    if task_options.get("job_id") is not None:
        raise errors.InvalidInput("job_id", "cannot be the same for all jobs of a task; pass it to task.using")
    given: Any = task_options
    options: Any = {name: value for name, value in given.items() if name not in _WORKER_OPTIONS}
    # Each enqueue names its session; the task may set how its entries join one.
    session: Any = {"session": "checked"} if sessions.joins_session(options) else {}
    check_job(NewJob(kind, **session | options), fresh_id="checked")
    policy = Policy(
        timeout_seconds=validation.duration_ms(task_options.get("timeout", DEFAULT.timeout_seconds), "timeout", 1)
        / 1000,
        retry_on=_errors(task_options.get("retry_on", ()), "retry_on"),
        permanent_on=_errors(task_options.get("permanent_on", ()), "permanent_on"),
        backoff=task_options.get("backoff"),
        max_attempts=task_options.get("max_attempts", DEFAULT.max_attempts),
        isolate=validation.one_of(task_options.get("isolate"), "isolate", (None, "process", "never")),
        memory_limit_bytes=check_memory_limit(task_options.get("memory_limit")),
    )
    if policy.memory_limit_bytes is not None and policy.isolate != "process":
        raise errors.InvalidInput(
            "memory_limit", "requires isolate='process': only a separate process can be limited"
        )
    return options, policy


def check_isolation(value: object) -> Isolation | None:
    """Return *value* if it is a valid `isolate` option of a worker; raise `InvalidInput` if not."""
    isolation: Isolation | None = validation.one_of(value, "isolate", (None, "process"))
    return isolation


def check_memory_limit(value: object) -> int | None:
    """Return *value* if it is a valid memory limit in bytes; raise `InvalidInput` if not."""
    if value is None:
        return None
    return validation.integer(value, "memory_limit", limits.MEMORY_LIMIT_BYTES_MIN, limits.MEMORY_LIMIT_BYTES_MAX)


def _errors(values: object, field: str) -> tuple[type[BaseException], ...]:
    classes = (values,) if isinstance(values, type) else values
    if not isinstance(classes, Sequence) or isinstance(classes, str):
        raise errors.InvalidInput(field, f"must be a list of exception classes, not {type(values).__name__}")
    for index, value in enumerate(classes):
        if not isinstance(value, type) or not issubclass(value, BaseException):
            raise errors.InvalidInput(f"{field}[{index}]", f"must be an exception class, not {value!r}")
    return tuple(classes)


def with_defaults(options: Any, defaults: JobOptions) -> JobOptions:
    """Return *options* with those of *defaults* that they neither set nor exclude."""
    merged: Any = {**defaults, **options}
    for option, excluded in (("run_at", "delay"), ("delay", "run_at")):
        if option in options and excluded not in options:
            merged.pop(excluded, None)
    return merged  # type: ignore[no-any-return]  # unknown options are refused when the job is checked
