"""The part of the storage contract for what operators look at: failures by fingerprint, and rollups."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.domain.clock import Now
from holdfast.domain.fingerprints import FailureCount, FailurePrint
from holdfast.domain.results import JobFilter
from holdfast.domain.rollups import RollupRow
from holdfast.storage.rollup_buffer import RollupBuffer


class JobFailure(NamedTuple):
    """A job that has failed, and its fingerprint."""

    print: FailurePrint
    tenant: str
    lane: str
    seq: int


class ChartTransaction(ABC):
    """Methods of an open transaction that concern failures and charts."""

    __slots__ = ()

    rollups: RollupBuffer
    """What this process has counted and not yet written."""

    @abstractmethod
    async def record_failures(self, failed: Sequence[JobFailure], now: Now) -> None:
        """Append the failures of jobs, and store the patterns that are new."""

    @abstractmethod
    async def failure_counts(
        self, fingerprint: str | None, tenant: str | None, kind: str | None, limit: int, now: Now
    ) -> list[FailureCount]:
        """Return up to *limit* patterns, those with the newest failures; None matches any value."""

    @abstractmethod
    async def delete_failures(self, before_ms: int, now: Now, limit: int) -> int:
        """Delete some failures before a time and patterns that have none; return how many."""

    @abstractmethod
    async def append_rollups(self, width_ms: int, data: Mapping[int, str]) -> None:
        """Store rollups of one width, each by the beginning of its time."""

    @abstractmethod
    async def old_rollups(self, width_ms: int, before_ms: int, limit: int) -> list[RollupRow]:
        """Return the oldest rollups of one width that began before a time; those that others merge are skipped."""

    @abstractmethod
    async def delete_rollups(self, numbers: Sequence[int]) -> None:
        """Delete rollups."""

    @abstractmethod
    async def newest_rollups(self, since_ms: int, limit: int) -> list[RollupRow]:
        """Return the newest rollups of any width that began since a time."""

    @abstractmethod
    async def jobs_floor(
        self, job_filter: JobFilter, before: tuple[int, int], examined: int, *, by_finish: bool
    ) -> tuple[int, int] | None:
        """Return the position so many entries below another, in the order in which `list_jobs` reads."""
