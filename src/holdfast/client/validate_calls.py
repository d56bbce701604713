"""Checks of whole calls, before any transaction begins."""

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
"""A claim and how its attempt ended."""


def not_connected(function: str) -> InvalidInput:
    """Return the error for a queue that the caller constructs instead of opening it with *function*."""
    return InvalidInput("store", f'a queue is opened by its path or URL; write holdfast.{function}("jobs.db")')


def jobs(values: Sequence[JobLike], tasks: TaskRegistry) -> list[CheckedJob]:
    """Return the jobs of one call in stored form, or raise `InvalidInput` naming the one that is wrong.

    The options of *tasks* hold for jobs of their kinds.
    """
    count(values, "jobs", limits.ENQUEUE_MANY_MAX)
    admissions: list[CheckedJob] = []
    chars = 0
    for index, new in enumerate(values):
        try:
            admission = check_job(tasks.complete(new), fresh_id=ids.uuid7())
        except InvalidInput as error:
            raise InvalidInput(f"jobs[{index}].{error.field}", error.problem) from None
        admissions.append(admission)
        chars += len(admission.payload_json)
    # No character takes more than four bytes, so that few calls have to be measured.
    if chars * 4 > limits.ENQUEUE_MANY_BYTES_MAX:
        _refuse_bulk(admissions)
    return admissions


def _refuse_bulk(admissions: Sequence[CheckedJob]) -> None:
    """Raise `InvalidInput` at the job that brings the payloads of one call beyond their limit."""
    size = 0
    for index, admission in enumerate(admissions):
        size += len(admission.payload_json.encode())
        if size > limits.ENQUEUE_MANY_BYTES_MAX:
            raise InvalidInput(
                f"jobs[{index}].payload",
                f"brings the payloads of this call beyond {limits.ENQUEUE_MANY_BYTES_MAX} bytes; send fewer",
            )


def settlements(values: Sequence[Held]) -> list[tuple[Claim, CheckedOutcome]]:
    """Return the claims of one call with their outcomes in stored form, or raise `InvalidInput` naming one."""
    count(values, "settlements", limits.SETTLE_MANY_MAX)
    checked = []
    pair: Any
    for index, pair in enumerate(values):
        # The exact type first: to ask for any kind of sequence takes as long as all the rest.
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
    """Raise `InvalidInput` unless *values* is a list of at most *count_max*."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Sequence):
        raise InvalidInput(field, f"must be a list, not {type(values).__name__}")
    if len(values) > count_max:
        raise InvalidInput(field, f"has {len(values)} entries; the limit is {count_max}")


def claim(value: Claim) -> Claim:
    """Return *value* if it is a claim."""
    if not isinstance(value, Claim):
        raise InvalidInput("claim", f"must be a Claim, not {type(value).__name__}")
    return value


def job_id(value: str) -> str:
    """Return *value* if it can be a job's id."""
    return validation.name(value, "job_id", limits.JOB_ID_CHARS_MAX)


def job_id_or_number(value: str | int) -> str | int:
    """Return *value* if it can be a job's id, or its number."""
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
    """Return which jobs these options mean, or raise `InvalidInput`."""
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
        raise InvalidInput("state", "must name a state; leave it out for all of them")
    return tuple(dict.fromkeys(validation.one_of(one, f"state[{index}]", STATES) for index, one in enumerate(value)))


def tenant(value: str | None) -> str | None:
    """Return *value* if it can be a tenant, or None for any."""
    return validation.optional_name(value, "tenant")


def _failure_class(value: FailureClass | None) -> Literal["transient", "permanent"] | None:
    """Return *value* if it is a class of failures, or None for any."""
    return None if value is None else validation.one_of(value, "failure_class", ("transient", "permanent"))
