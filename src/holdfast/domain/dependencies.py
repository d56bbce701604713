"""Dependencies: jobs that run after others have ended."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from holdfast.domain import errors, limits, validation

OnFailed: TypeAlias = Literal["cancel", "run"]
"""What becomes of a job if one on which it depends is not done."""


DEPENDENCY_OPTIONS: Final = frozenset(("after", "on_failed", "on_end"))


class Dependencies(NamedTuple):
    """The jobs after which a new job runs, in stored form."""

    after: tuple[str | int, ...]
    """Ids, and positions of earlier jobs of the same call."""
    on_failed: OnFailed


def check_dependencies(options: Mapping[str, Any], *, in_session: bool) -> Dependencies | None:
    """Return the dependencies of a new job, None if it has none, or raise `InvalidInput`."""
    after = options.get("after")
    if not after:
        if "on_failed" in options:
            raise errors.InvalidInput("on_failed", "requires after")
        return None
    if isinstance(after, str | bytes) or not isinstance(after, Sequence):
        raise errors.InvalidInput("after", f"must be a list of ids, not {type(after).__name__}")
    if in_session:
        raise errors.InvalidInput("after", "cannot be combined with session, which has its own order")
    if options.get("on_duplicate", "keep") == "run_again":
        raise errors.InvalidInput("after", "cannot be combined with on_duplicate='run_again'")
    if len(after) > limits.DEPENDENCIES_MAX:
        raise errors.InvalidInput(
            "after", f"has {len(after)} entries; the limit is {limits.DEPENDENCIES_MAX}", limits.DEPENDENCIES_MAX
        )
    checked = tuple(dict.fromkeys(_reference(one, f"after[{index}]") for index, one in enumerate(after)))
    return Dependencies(
        checked, validation.one_of(options.get("on_failed", "cancel"), "on_failed", ("cancel", "run"))
    )


def _reference(value: object, field: str) -> str | int:
    if isinstance(value, int) and not isinstance(value, bool):
        return validation.integer(value, field, 0, limits.ENQUEUE_MANY_MAX - 1)
    return validation.name(value, field, limits.JOB_ID_CHARS_MAX)


def check_position(position: int, index: int, field: str) -> None:
    """Raise `InvalidInput` unless *position* is that of an earlier job of a call than the one at *index*."""
    if position >= index:
        problem = f"is {position}; it must be the position of an earlier job of the same call"
        raise errors.InvalidInput(field, problem)
