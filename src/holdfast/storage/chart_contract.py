"""The part of the storage contract for what operators look at: failures by fingerprint."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.domain.clock import Now
from holdfast.domain.fingerprints import FailureCount, FailurePrint


class JobFailure(NamedTuple):
    """A job that has failed, and its fingerprint."""

    print: FailurePrint
    tenant: str
    lane: str
    seq: int


class ChartTransaction(ABC):
    """Methods of an open transaction that concern failures and charts."""

    __slots__ = ()

    @abstractmethod
    async def record_failures(self, failed: Sequence[JobFailure], now: Now) -> None:
        """Append the failures of jobs, and store the groups that are new."""

    @abstractmethod
    async def failure_counts(
        self, fingerprint: str | None, tenant: str | None, kind: str | None, limit: int, now: Now
    ) -> list[FailureCount]:
        """Return up to *limit* groups, those with the newest failures; None matches any value."""

    @abstractmethod
    async def delete_failures(self, before_ms: int, now: Now, limit: int) -> int:
        """Delete some failures before a time and groups that have none; return how many."""
