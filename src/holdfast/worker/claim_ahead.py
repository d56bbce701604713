"""How many jobs a worker claims before it has free slots for them, from how long its handlers run."""

from collections.abc import Sequence
from typing import Final

HORIZON_SECONDS: Final = 0.02
"""If handlers take less time than this on average, the worker claims enough jobs ahead to cover this time."""
BATCH_MAX: Final = 500
"""How many jobs one call claims, unless there are more slots."""
# After how many handlers jobs are claimed ahead, and how many for each of them. Fewer jobs than that are claimed one
# slot at a time, and so exactly in claim order.
_SEEN_MIN = 80
_GROWTH = 4
_AVERAGE_WEIGHT = 0.05


class ClaimAhead:
    """Knows how long the handlers of one worker run; used in its event loop.

    A worker whose handlers turn out to be short reaches the limit within a few claims. A handler of half a second
    ends claiming ahead until others have been short again. At most one batch runs while one is claimed by each of
    the calls that may be in flight.
    """

    def __init__(self, calls: int = 1) -> None:
        self.jobs_max = (calls + 1) * BATCH_MAX
        """How many jobs are claimed ahead at most."""
        self._average_seconds = 0.0
        self._seen = 0
        """How many handlers have ended since the start, or since jobs waited behind long ones."""

    def ended(self, seconds: Sequence[float]) -> None:
        """Record how long handlers ran that have ended since the last call."""
        if not seconds:
            return
        # The moving average of a weight for each handler, as if all of these had taken their mean.
        weight = 1 - (1 - _AVERAGE_WEIGHT) ** len(seconds) if self._seen else 1.0
        self._average_seconds += (sum(seconds) / len(seconds) - self._average_seconds) * weight
        self._seen += len(seconds)

    def start_over(self) -> None:
        """Claim nothing ahead until handlers have been short again, because jobs wait behind long ones."""
        self._seen = 0

    def count(self, slots: int) -> int:
        """Return how many jobs to claim ahead for this number of slots."""
        if self._seen < _SEEN_MIN or self._average_seconds >= HORIZON_SECONDS:
            return 0
        covering = int(slots * HORIZON_SECONDS / max(self._average_seconds, 1e-5))
        return min(covering, _GROWTH * self._seen, self.jobs_max)
