"""Jobs taken ahead: claimed before there is a slot for them, and acknowledged once their handlers have started."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.domain import limits
from holdfast.runtime.attempt import Attempt


class JobsAhead:
    """The attempts in a worker's hands whose claims are not acknowledged yet."""

    def __init__(self) -> None:
        self._attempts: dict[tuple[int, int], Attempt] = {}

    def take_in(self, attempts: Iterable[Attempt]) -> None:
        """Keep those of *attempts* that were not acknowledged by the claim itself."""
        self._attempts.update((attempt.key, attempt) for attempt in attempts if attempt.claim.job.unacknowledged)

    def started(self) -> list[Attempt]:
        """Return those that run, as many as one call can acknowledge; one that has ended is settled instead."""
        running = [one for one in self._attempts.values() if one.started_at is not None and not one.decided]
        return running[: limits.SETTLE_MANY_MAX]

    def let_go(self, attempts: Iterable[Attempt]) -> None:
        """Forget attempts that were acknowledged or have ended."""
        for attempt in attempts:
            self._attempts.pop(attempt.key, None)
