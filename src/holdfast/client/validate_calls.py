"""Validation of whole calls, before a transaction begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from holdfast.client import ids
from holdfast.domain import limits, validation
from holdfast.domain.claims import Claim
from holdfast.domain.errors import InvalidInput
from holdfast.domain.failures import FailureClass
from holdfast.domain.job import STATES, State
from holdfast.domain.new_job import CheckedJob, JobLike, check_job
from holdfast.domain.outcomes import CheckedOutcome, Outcome, check_outcome
from holdfast.domain.results import JobFilter
from holdfast.domain.validation import Duration
from holdfast.tasks.task import TaskRegistry

Held: TypeAlias = tuple[Claim, Outcome]
"""A claim and its outcome."""


def not_connected(function: str) -> InvalidInput:
    """Return the error for a caller that constructs a queue instead of calling *function*."""
    return InvalidInput("store", f'a queue is opened by path or URL; write holdfast.{function}("jobs.db")')


def jobs(values: Sequence[JobLike], tasks: TaskRegistry) -> list[CheckedJob]:
    """Return the jobs of one call, validated, or raise `InvalidInput` that names the invalid one.

    The options of *tasks* are the defaults for jobs of their kinds.
    """
    count(values, "jobs", limits.ENQUEUE_MANY_MAX)
    checked_jobs: list[CheckedJob] = []
    chars = 0
    for index, new in enumerate(values):
        try:
            checked = check_job(tasks.complete(new), fresh_id=ids.uuid7())
        except InvalidInput as error:
            raise InvalidInput(f"jobs[{index}].{error.field}", error.problem) from None
        checked_jobs.append(checked)
        chars += len(checked.payload_json)
    # A character takes at most four bytes in UTF-8; measure the bytes only if the limit could be exceeded.
    if chars * 4 > limits.ENQUEUE_MANY_BYTES_MAX:
        _refuse_large_payloads(checked_jobs)
    return checked_jobs


def _refuse_large_payloads(checked_jobs: Sequence[CheckedJob]) -> None:
    """Raise `InvalidInput` for the job whose payload exceeds the limit for the payloads of one call."""
    size = 0
    for index, checked in enumerate(checked_jobs):
        size += len(checked.payload_json.encode())
        if size > limits.ENQUEUE_MANY_BYTES_MAX:
            raise InvalidInput(
                f"jobs[{index}].payload",
                f"makes the payloads of this call exceed {limits.ENQUEUE_MANY_BYTES_MAX} bytes; send fewer jobs",
            )


def settlements(values: Sequence[Held]) -> list[tuple[Claim, CheckedOutcome]]:
    """Return the claims of one call with validated outcomes, or raise `InvalidInput` that names the invalid one."""
    count(values, "settlements", limits.SETTLE_MANY_MAX)
    checked = []
    pair: Any
    for index, pair in enumerate(values):
        # isinstance() with an abstract class is slow; check for the usual type first.
        if (type(pair) is not tuple and not isinstance(pair, Sequence)) or len(pair) != 2:
            raise InvalidInput(f"settlements[{index}]", "must be a pair of a claim and an outcome")
        held, outcome = claim(pair[0]), pair[1]
        try:
            checked.append((held, check_outcome(outcome, tenant=held.job.tenant, fresh_id=ids.uuid7)))
        except InvalidInput as error:
            if len(values) == 1:
                raise
            raise InvalidInput(f"settlements[{index}].{error.field}", error.problem) from None
    return checked


def count(values: Sequence[object], field: str, count_max: int) -> None:
    """Raise `InvalidInput` unless *values* is a sequence of at most *count_max* values."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Sequence):
        raise InvalidInput(field, f"must be a list, not {type(values).__name__}")
    if len(values) > count_max:
        raise InvalidInput(field, f"has {len(values)} entries; the limit is {count_max}")


def claim(value: Claim) -> Claim:
    """Return *value*, or raise `InvalidInput` if it is not a claim."""
    if not isinstance(value, Claim):
        raise InvalidInput("claim", f"must be a Claim, not {type(value).__name__}")
    return value


def job_id(value: str) -> str:
    """Return *value*, or raise `InvalidInput` if it is not a valid job id."""
    return validation.name(value, "job_id", limits.JOB_ID_CHARS_MAX)


def job_id_or_number(value: str | int) -> str | int:
    """Return *value*, or raise `InvalidInput` if it is not a valid job id or job number."""
    if isinstance(value, int):
        return validation.integer(value, "job_id", 1, (1 << 63) - 1)
    return job_id(value)


def job_filter(
    *,
    state: State | Sequence[State] | None,
    kind: str | None,
    lane: str | None,
    tenant: str | None,
    failure_class: FailureClass | None,
    session: str | None = None,
    older_than: Duration | None,
) -> JobFilter:
    """Return the filter for these options, or raise `InvalidInput`."""
    return JobFilter(
        states=_states(state),
        kind=validation.optional_name(kind, "kind"),
        lane=validation.optional_name(lane, "lane"),
        tenant=validation.optional_name(tenant, "tenant"),
        failure_class=_failure_class(failure_class),
        session=validation.optional_name(session, "session"),
        age_ms=None if older_than is None else validation.duration_ms(older_than, "older_than"),
    )


def _states(value: State | Sequence[State] | None) -> tuple[State, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (validation.one_of(value, "state", STATES),)
    count(value, "state", len(STATES))
    if not value:
        raise InvalidInput("state", "must contain a state; leave it out for all states")
    return tuple(dict.fromkeys(validation.one_of(one, f"state[{index}]", STATES) for index, one in enumerate(value)))


def tenant(value: str | None) -> str | None:
    """Return *value*, which is None for all tenants, or raise `InvalidInput` if it is not a valid tenant."""
    return validation.optional_name(value, "tenant")


def _failure_class(value: FailureClass | None) -> Literal["transient", "permanent"] | None:
    return None if value is None else validation.one_of(value, "failure_class", ("transient", "permanent"))
