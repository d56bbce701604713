"""Plain forms of the storage contract: the common case of a call in one or two guarded statements.

If the guard of a form fails, it has written nothing and its full form runs. An engine where each statement costs a
round trip may run a form as the whole transaction if it is the first call of the operation; if it then returns a
result, the operation makes no other call.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from holdfast.domain import new_job, outcomes
from holdfast.domain.claims import Claim, ClaimRequest, JobFence, Note
from holdfast.domain.clock import Now
from holdfast.domain.job import Job, JobRow
from holdfast.domain.routing import RoutingTable
from holdfast.domain.session_claims import SessionClaim, SessionFence, SessionRequest

Form: TypeAlias = Literal["enqueue plain", "enqueue full", "claim plain", "claim full", "settle plain", "settle full"]
"""What is counted by form: jobs that were enqueued and settled, and calls that have claimed."""


class ClaimedJobs(NamedTuple):
    """Jobs that a plain form has claimed, by a routing that is current, and how the fairness position moves."""

    routing: RoutingTable
    claims: list[Claim]
    fair_scope: str | None = None
    """None if there are no more jobs for the claim than these, and the fairness position is stored."""
    last_fair_key: str | None = None
    """The fairness key served last before the claim."""
    fair_key: str = ""
    """The fairness key of the last of the jobs."""


class FinishedJobs(NamedTuple):
    """Jobs that a plain form has finished."""

    at: Now
    jobs: dict[int, tuple[Any, ...]]
    """By number: priority, phase, percentage, request to cancel, event count, and whether the job has a dedupe key or
    is a session entry."""


class ClaimedEntries(NamedTuple):
    """Entries of a session that a plain form has claimed; without entries, it has found none to claim."""

    session: str
    tenant: str
    fence: SessionFence
    jobs: list[JobRow]


class PlainForms(ABC):
    """The plain forms of a transaction."""

    __slots__ = ()

    resent: bool = False
    """Whether an earlier run of the operation may have committed; only an engine that can lose a reply sets it."""
    fuses_max: int = 0
    """How many jobs the engine's plain form that settles and claims takes at most; 0 if it has none."""
    forms: Counter[Form]
    """What this process has done with this store, by form; operations add to it."""

    def compose(self) -> None:
        """Record that the operation is followed by another in this transaction: no form may be the whole of it."""
        return

    async def insert_plain(self, new: new_job.CheckedJob) -> Job | None:
        """Store one job in a plain form and notify its lane; return None, with nothing written, if there is none."""
        return None

    async def insert_alike(self, jobs: Sequence[new_job.CheckedJob]) -> Sequence[Job] | None:
        """Store jobs that differ only in id and payload, all or none, in a plain form; None if there is none."""
        return None

    async def claim_plain(self, request: ClaimRequest) -> ClaimedJobs | None:
        """Select and lease the first jobs in claim order, in a plain form.

        Return None, with nothing written, if there is none for the request or maintenance is due.
        """
        return None

    async def settle_and_claim_plain(
        self,
        settlements: Sequence[tuple[Claim, outcomes.CheckedOutcome]],
        started: Sequence[JobFence],
        request: ClaimRequest,
    ) -> tuple[FinishedJobs, list[Claim] | None] | None:
        """Finish jobs as `finish_held` does, all of them, acknowledge *started*, and claim, in one plain form.

        Return None, with nothing written, if there is none. An engine may finish the jobs and leave the claim to
        other forms: then the claims are None.
        """
        return None

    async def claim_session_plain(self, request: SessionRequest) -> ClaimedEntries | None:
        """Lease the next entries of any ready session, in a plain form.

        Return None, with nothing written, if there is none for the request or maintenance is due.
        """
        return None

    async def settle_session_plain(
        self, claim: SessionClaim, settlements: Sequence[tuple[Claim, outcomes.CheckedOutcome]]
    ) -> FinishedJobs | None:
        """Finish all entries of a turn as done and write the session's next head, in a plain form.

        Return None, with nothing written, if there is none, a lease is lost or the head is not plain.
        """
        return None

    @abstractmethod
    async def finish_held(self, settlements: Sequence[tuple[Claim, outcomes.CheckedOutcome]]) -> FinishedJobs:
        """Finish jobs whose lease is held as done, with their events, in a plain form.

        The full form settles the jobs that are missing in the result. An engine may finish none.
        """

    async def renew_plain(
        self, held: Sequence[tuple[JobFence, int]], notes: Mapping[int, Note], started: Collection[int]
    ) -> dict[int, tuple[int, bool]] | None:
        """Extend leases, write notes and acknowledge the jobs with numbers in *started*, in a plain form.

        Return, by number, when each lease expires and whether the job is to be cancelled; None, with nothing written,
        if not all leases are held or there is no plain form.
        """
        return None
