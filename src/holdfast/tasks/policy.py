"""What a task says of its attempts: how long one may take, and which errors are worth another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from holdfast.domain import limits, validation
from holdfast.domain.backoff import Backoff
from holdfast.domain.errors import InvalidInput
from holdfast.domain.new_job import JobOptions, NewJob, check_job
from holdfast.domain.sessions import joins_session
from holdfast.domain.validation import Duration

Isolation: TypeAlias = Literal["process"]
"""How a handler is kept apart from the others of its worker."""


class TaskOptions(JobOptions, total=False):
    """The words of `task`: those of `enqueue`, for every job of the task, and those that the worker heeds."""

    timeout: Duration
    """How long an attempt may take; default one hour. Past it the handler is stopped and the attempt fails."""
    retry_on: type[BaseException] | Sequence[type[BaseException]]
    """Errors worth another attempt; all others, but for broken connections, then fail the job for good."""
    permanent_on: type[BaseException] | Sequence[type[BaseException]]
    """Errors that fail the job for good."""
    isolate: Isolation | None
    """`process`: the handler runs in a process of its own, which may crash or be killed without harm to others."""
    memory_limit: int | None
    """How many bytes of memory that process may use."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How the worker treats the attempts of one task."""

    timeout_seconds: float = limits.TASK_TIMEOUT_MS_DEFAULT / 1000
    retry_on: tuple[type[BaseException], ...] = ()
    permanent_on: tuple[type[BaseException], ...] = ()
    backoff: Backoff | None = None
    """Pauses between attempts, for jobs that bring none of their own."""
    max_attempts: int = limits.MAX_ATTEMPTS_DEFAULT
    isolate: Isolation | None = None
    memory_limit_bytes: int | None = None


DEFAULT: Final = Policy()
_OWN_WORDS: Final = ("timeout", "retry_on", "permanent_on", "isolate", "memory_limit")


def split(kind: str, words: TaskOptions) -> tuple[JobOptions, Policy]:
    """Return the options of a task's jobs and its policy, or raise `InvalidInput` naming the word that is wrong."""
    if words.get("job_id") is not None:
        raise InvalidInput("job_id", "cannot be one for all jobs of a task; give it with using")
    given: Any = words
    options: Any = {word: value for word, value in given.items() if word not in _OWN_WORDS}
    # Which session an entry joins is said with each; how it joins may be said once for all.
    named: Any = {"session": "checked"} if joins_session(options) else {}
    check_job(NewJob(kind, **named | options), fresh_id="checked")
    policy = Policy(
        timeout_seconds=validation.duration_ms(words.get("timeout", DEFAULT.timeout_seconds), "timeout", 1) / 1000,
        retry_on=_errors(words.get("retry_on", ()), "retry_on"),
        permanent_on=_errors(words.get("permanent_on", ()), "permanent_on"),
        backoff=words.get("backoff"),
        max_attempts=words.get("max_attempts", DEFAULT.max_attempts),
        isolate=check_isolation(words.get("isolate")),
        memory_limit_bytes=check_memory_limit(words.get("memory_limit")),
    )
    if policy.memory_limit_bytes is not None and policy.isolate is None:
        raise InvalidInput("memory_limit", "needs isolate='process': only a process of its own can be limited")
    return options, policy


def check_isolation(value: object) -> Isolation | None:
    """Return how to isolate, or raise `InvalidInput`."""
    isolation: Isolation | None = validation.one_of(value, "isolate", (None, "process"))
    return isolation


def check_memory_limit(value: object) -> int | None:
    """Return a limit of memory in bytes, or raise `InvalidInput`."""
    if value is None:
        return None
    return validation.integer(value, "memory_limit", limits.MEMORY_LIMIT_BYTES_MIN, limits.MEMORY_LIMIT_BYTES_MAX)


def _errors(values: object, field: str) -> tuple[type[BaseException], ...]:
    listed = (values,) if isinstance(values, type) else values
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise InvalidInput(field, f"must be a list of exception classes, not {type(values).__name__}")
    for index, value in enumerate(listed):
        if not isinstance(value, type) or not issubclass(value, BaseException):
            raise InvalidInput(f"{field}[{index}]", f"must be an exception class, not {value!r}")
    return tuple(listed)
