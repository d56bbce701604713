"""What a process has counted and not yet written: arrivals and ends of jobs."""

import os
import time
from typing import Any, Final

from holdfast.domain import rollups
from holdfast.domain.new_job import SYSTEM_LANE
from holdfast.domain.rollups import CountedEnd, Rollup

WRITE_SECONDS = 10.0
"""How often a process that writes also writes what it has counted."""
_MERGED_AT: Final = 50


class RollupBuffer:
    """Counts in memory. Thread-safe; counts of a process that is killed are lost.

    Operations append when they run, each by one call on a list: what is rolled back or run again is counted too.
    """

    LONG: Final = 2_000
    """The length of a list from which on an operation folds the lists."""

    def __init__(self) -> None:
        self.ended: list[CountedEnd] = []
        """Ends of jobs and attempts, to which operations append."""
        self.arrived: list[tuple[Any, ...]] = []
        """The routes of new jobs, or their lanes and kinds."""
        self._folded: list[Rollup] = []
        self._process = os.getpid()
        self.due_at = time.monotonic() + WRITE_SECONDS
        """From when on the next write of this process also writes what it has counted."""

    def is_empty(self) -> bool:
        """Return whether there is nothing to write."""
        return not (self.ended or self.arrived or self._folded)

    def take(self) -> Rollup:
        """Return what was counted since the last call, and count from zero."""
        self.due_at = time.monotonic() + WRITE_SECONDS
        if self._process != os.getpid():
            # A child process inherited counts that its parent writes.
            self._process = os.getpid()
            self.ended, self.arrived, self._folded = [], [], []
            return {}
        self.fold()
        folded, self._folded = self._folded, []
        return rollups.merge(folded)

    def give_back(self, rollup: Rollup) -> None:
        """Count again what could not be written."""
        self._folded.append(rollup)

    def fold(self) -> None:
        """Add up the lists."""
        # Other threads append to the lists until they are replaced, and what they append then is folded too.
        ended, self.ended = self.ended, []
        arrived, self.arrived = self.arrived, []
        sums = rollups.fold(ended, arrived)
        if folded := {key: counted for key, counted in sums.items() if key[0] != SYSTEM_LANE}:
            self._folded.append(folded)
        if len(self._folded) > _MERGED_AT:
            parts, self._folded = self._folded, []
            self._folded.append(rollups.merge(parts))
