"""What was enqueued: found by what a test says of it, and shown beside what it asked for where nothing fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

from holdfast.domain import limits, validation
from holdfast.domain.errors import InvalidInput
from holdfast.domain.job import STATES, WAITING, Job, State
from holdfast.domain.validation import Duration
from holdfast.storage.transaction import run_sync
from holdfast.tasks.task import AnyTask, BaseTask
from holdfast.testing.matchers import Miss, misses
from holdfast.testing.redirect import AnyQueue

_SHOWN_MAX = 5
_READ_MAX = 10_000


class Expected(TypedDict, total=False):
    """What a test may say of a job, declared once for every place that takes it; the rest is not looked at."""

    payload: Any
    """What its payload has: of an object the members named here, at every depth; all else as it is."""
    headers: Mapping[str, str]
    tags: Mapping[str, str]
    lane: str
    tenant: str
    priority: int
    delay: Duration
    """In how many seconds after its enqueue it falls due."""
    affinity: str | None
    requires: Sequence[str]
    dedupe_key: str | None
    max_attempts: int
    job_id: str
    states: Sequence[State]
    """In which states it may be; by default it waits: `scheduled`, `blocked` or `ready`."""


_WORDS = frozenset(Expected.__annotations__)


def enqueued(queue: AnyQueue, kind: str | AnyTask | None = None, **expected: Unpack[Expected]) -> list[Job]:
    """Return the jobs that fit, oldest first; without a word all that wait."""
    return [job for job, missed in _judged(queue, kind, expected) if not missed]


def assert_enqueued(
    queue: AnyQueue, kind: str | AnyTask | None = None, *, count: int | None = None, **expected: Unpack[Expected]
) -> Job:
    """Return the oldest job that fits, or raise `AssertionError` showing what was enqueued instead.

    With *count*, exactly so many must fit.
    """
    judged = _judged(queue, kind, expected)
    fitting = [job for job, missed in judged if not missed]
    if count is not None:
        validation.integer(count, "count", 1, _READ_MAX)
    if not fitting or (count is not None and len(fitting) != count):
        raise AssertionError(_complaint(kind, expected, judged, fitting, count))
    return fitting[0]


def refute_enqueued(queue: AnyQueue, kind: str | AnyTask | None = None, **expected: Unpack[Expected]) -> None:
    """Raise `AssertionError`, showing them, if there are jobs that fit."""
    found = enqueued(queue, kind, **expected)
    if found:
        lines = [f"{_jobs(len(found))} like this should not have been enqueued: {_shown(kind, expected)}"]
        raise AssertionError("\n".join([*lines, *_listed([(job, []) for job in found])]))


def _judged(queue: AnyQueue, kind: str | AnyTask | None, expected: Expected) -> list[tuple[Job, list[Miss]]]:
    unknown = set(expected) - _WORDS
    if unknown:
        raise InvalidInput(min(unknown), f"is nothing to look for; these are: {', '.join(sorted(_WORDS))}")
    for index, state in enumerate(expected.get("states", ())):
        validation.one_of(state, f"states[{index}]", STATES)
    wanted: dict[str, Any] = {"states": WAITING, **expected}
    if kind is not None:
        wanted["kind"] = kind.kind if isinstance(kind, BaseTask) else validation.name(kind, "kind")
    return [(job, misses(job, wanted)) for job in _all_jobs(queue)]


def _all_jobs(queue: AnyQueue) -> list[Job]:
    """Return every job, oldest first."""
    operations = queue.operations.sync_on(queue.store)
    found: list[Job] = []
    after = None
    while True:
        page = run_sync(operations.jobs(after=after, limit=limits.PAGE_MAX))
        found.extend(page)
        after = page.cursor
        if after is None:
            return found[::-1]
        if len(found) >= _READ_MAX:
            raise AssertionError(f"the store has more than {_READ_MAX} jobs; does each test have one of its own?")


# --- complaints ----------------------------------------------------------------------------------------------------


def _complaint(
    kind: str | AnyTask | None,
    expected: Expected,
    judged: list[tuple[Job, list[Miss]]],
    fitting: list[Job],
    count: int | None,
) -> str:
    if fitting:
        lines = [f"{_jobs(len(fitting))} like this, not {count}: {_shown(kind, expected)}"]
        return "\n".join([*lines, *_listed([(job, []) for job in fitting])])
    lines = [f"no job like this was enqueued: {_shown(kind, expected)}"]
    if not judged:
        return "\n".join([*lines, "nothing was enqueued at all"])
    # Those that miss least stand first; what is missed of the kind weighs more than all the rest.
    nearest = sorted(judged, key=lambda one: sum(miss.weight for miss in one[1]))
    return "\n".join([*lines, "what was enqueued, the nearest first:", *_listed(nearest)])


def _listed(judged: Sequence[tuple[Job, list[Miss]]]) -> list[str]:
    lines = []
    for job, missed in judged[:_SHOWN_MAX]:
        lines.append(f"  {job.kind} {_short(job.payload)}, {job.state} in lane {job.lane} ({job.id})")
        lines.extend(f"    {miss.place}: wanted {_short(miss.wanted)}, is {_short(miss.found)}" for miss in missed)
    if len(judged) > _SHOWN_MAX:
        lines.append(f"  and {_jobs(len(judged) - _SHOWN_MAX)} more")
    return lines


def _shown(kind: str | AnyTask | None, expected: Expected) -> str:
    said = {"kind": kind.kind if isinstance(kind, BaseTask) else kind, **expected}
    return ", ".join(f"{word} {_short(value)}" for word, value in said.items() if value is not None) or "any"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


def _jobs(count: int) -> str:
    return f"{count} job{'s' * (count != 1)}"
