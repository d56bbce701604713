"""Target ages of lanes: when a lane becomes late, and when to look at it again."""

from typing import Final, NamedTuple

_LOOK_MS_MIN: Final = 1_000
_LOOK_MS_MAX: Final = 60_000


class Look(NamedTuple):
    """What follows from the age of the oldest ready job of a lane."""

    late: bool
    """Whether the lane is late."""
    next_at_ms: int
    """When to look again."""


def look(target_ms: int, oldest_due_at_ms: int | None, now_ms: int, *, late: bool) -> Look:
    """Decide whether a lane with this target is late, which it was before if *late*.

    A lane that is late stays so until its oldest ready job is younger than half the target: one whose age stays near
    the target is late once. The next look is when the oldest job would miss the target, or soon if the lane is late.
    """
    age_ms = 0 if oldest_due_at_ms is None else now_ms - oldest_due_at_ms
    late = age_ms > (target_ms // 2 if late else target_ms)
    wait_ms = target_ms // 4 if late else target_ms - age_ms + 1
    return Look(late, now_ms + min(max(wait_ms, _LOOK_MS_MIN), _LOOK_MS_MAX))
