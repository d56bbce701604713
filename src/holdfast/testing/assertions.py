"""Assertions on enqueued jobs; a failure shows the expected fields beside the nearest jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

from holdfast.client import queue_state
from holdfast.client.sync_api.queue import Queue
from holdfast.domain import limits, validation
from holdfast.domain.job import STATES, WAITING, Job, State
from holdfast.domain.validation import Duration
from holdfast.tasks.task import AnyTask, BaseTask
from holdfast.testing.inline_worker import AnyQueue
from holdfast.testing.matchers import Mismatch, mismatches

_SHOWN_MAX = 5
_READ_MAX = 10_000


class Expected(TypedDict, total=False):
    """The fields of a job that a test may check; fields that are not given are ignored."""

    payload: Any
    """The payload: of an object only the given members are compared, at every depth; other values must be equal."""
    headers: Mapping[str, str]
    """The headers: only the given ones are compared."""
    tags: Mapping[str, str]
    """The tags: only the given ones are compared."""
    lane: str
    """The lane."""
    tenant: str
    """The tenant."""
    priority: int
    """The priority."""
    delay: Duration
    """The seconds from its enqueue until it is due."""
    affinity: str | None
    """The affinity."""
    requires: Sequence[str]
    """The required capabilities, in any order."""
    dedupe_key: str | None
    """The dedupe key."""
    max_attempts: int
    """How many attempts it may use."""
    job_id: str
    """The id."""
    states: Sequence[State]
    """The allowed states; by default the waiting ones: `scheduled`, `blocked`, `dependent`, `parked` or `ready`."""


_OPTIONS = frozenset(Expected.__annotations__)


def enqueued(queue: AnyQueue, kind: str | AnyTask | None = None, **expected: Unpack[Expected]) -> list[Job]:
    """Return the matching jobs, oldest first; without options, all waiting jobs.

    *kind* is a kind or a task. *expected* are fields of the job, such as `payload`, `lane`, `tags` and `delay`; of a
    payload, headers and tags only the given members are compared.
    """
    return [job for job, differences in _compare_jobs(queue, kind, expected) if not differences]


def assert_enqueued(
    queue: AnyQueue, kind: str | AnyTask | None = None, *, count: int | None = None, **expected: Unpack[Expected]
) -> Job:
    """Return the oldest matching job; raise `AssertionError` that shows the enqueued jobs if there is none.

    With *count*, exactly *count* jobs must match. *kind* is a kind or a task; *expected* are fields of the job, as
    for `enqueued`.
    """
    compared = _compare_jobs(queue, kind, expected)
    matching = [job for job, differences in compared if not differences]
    if count is not None:
        validation.integer(count, "count", 1, _READ_MAX)
    if not matching or (count is not None and len(matching) != count):
        raise AssertionError(_failure_message(kind, expected, compared, matching, count))
    return matching[0]


def refute_enqueued(queue: AnyQueue, kind: str | AnyTask | None = None, **expected: Unpack[Expected]) -> None:
    """Raise `AssertionError` that shows the matching jobs if there are any.

    *kind* is a kind or a task; *expected* are fields of the job, as for `enqueued`.
    """
    found = enqueued(queue, kind, **expected)
    if found:
        lines = [f"{_jobs(len(found))} like this should not have been enqueued: {_format_expected(kind, expected)}"]
        raise AssertionError("\n".join([*lines, *_format_jobs([(job, []) for job in found])]))


def _compare_jobs(
    queue: AnyQueue, kind: str | AnyTask | None, expected: Expected
) -> list[tuple[Job, list[Mismatch]]]:
    validation.refuse_unknown(expected, _OPTIONS, "an expected job")
    for index, state in enumerate(expected.get("states", ())):
        validation.one_of(state, f"states[{index}]", STATES)
    expected_fields: dict[str, Any] = {"states": WAITING, **expected}
    if kind is not None:
        expected_fields["kind"] = kind.kind if isinstance(kind, BaseTask) else validation.name(kind, "kind")
    return [(job, mismatches(job, expected_fields)) for job in _all_jobs(queue)]


def _all_jobs(queue: AnyQueue) -> list[Job]:
    """Return every job, oldest first."""
    calls = Queue(queue_state.state_of(queue))
    found: list[Job] = []
    after = None
    while True:
        page = calls.jobs(after=after, limit=limits.PAGE_MAX)
        found.extend(page)
        after = page.cursor
        if after is None:
            return found[::-1]
        if len(found) >= _READ_MAX:
            raise AssertionError(f"the store has more than {_READ_MAX} jobs; use a separate store for each test")


# --- messages ------------------------------------------------------------------------------------------------------


def _failure_message(
    kind: str | AnyTask | None,
    expected: Expected,
    compared: list[tuple[Job, list[Mismatch]]],
    matching: list[Job],
    count: int | None,
) -> str:
    if matching:
        lines = [f"{_jobs(len(matching))} like this, not {count}: {_format_expected(kind, expected)}"]
        return "\n".join([*lines, *_format_jobs([(job, []) for job in matching])])
    lines = [f"no job like this was enqueued: {_format_expected(kind, expected)}"]
    if not compared:
        return "\n".join([*lines, "no jobs were enqueued"])
    # The best matches come first; a wrong kind weighs more than all other differences.
    nearest = sorted(compared, key=lambda item: sum(mismatch.weight for mismatch in item[1]))
    return "\n".join([*lines, "enqueued jobs, nearest first:", *_format_jobs(nearest)])


def _format_jobs(compared: Sequence[tuple[Job, list[Mismatch]]]) -> list[str]:
    lines = []
    for job, differences in compared[:_SHOWN_MAX]:
        lines.append(f"  {job.kind} {_short(job.payload)}, {job.state} in lane {job.lane} ({job.id})")
        lines.extend(
            f"    {mismatch.path}: expected {_short(mismatch.expected)}, is {_short(mismatch.found)}"
            for mismatch in differences
        )
    if len(compared) > _SHOWN_MAX:
        lines.append(f"  and {_jobs(len(compared) - _SHOWN_MAX)} more")
    return lines


def _format_expected(kind: str | AnyTask | None, expected: Expected) -> str:
    fields = {"kind": kind.kind if isinstance(kind, BaseTask) else kind, **expected}
    return ", ".join(f"{name} {_short(value)}" for name, value in fields.items() if value is not None) or "any"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


def _jobs(count: int) -> str:
    return f"{count} job{'s' * (count != 1)}"
