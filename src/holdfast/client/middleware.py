"""The calls that store, claim and settle jobs, as one object that tracing can replace.

Every enqueue, claim and settle of a queue goes through its `Middleware`. A queue without tracing uses this class
itself, without extra work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeAlias

from holdfast.domain import limits
from holdfast.domain.claims import Claim, ClaimRequest, Lease, Settlement
from holdfast.domain.errors import InvalidInput
from holdfast.domain.job import Job
from holdfast.domain.new_job import CheckedJob
from holdfast.domain.outcomes import CheckedOutcome
from holdfast.domain.results import Enqueued
from holdfast.operations import claim as claim_operations
from holdfast.operations import enqueue as enqueue_operations
from holdfast.operations import settle as settle_operations
from holdfast.storage.runners import Runner
from holdfast.storage.store import Store

CheckedSettlements: TypeAlias = Sequence[tuple[Claim, CheckedOutcome]]
"""Claims with their validated outcomes."""


class Middleware:
    """Enqueues, claims and settles without tracing."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def enqueue_one(self, runner: Runner, checked: CheckedJob) -> Enqueued:
        """Store one job."""
        again = partial(enqueue_operations.enqueue_job, new=checked, resent=True)
        plain = partial(self.store.plain_enqueue, checked, again)
        return await runner.write_plain(plain, enqueue_operations.enqueue_job, checked)

    async def enqueue(self, runner: Runner, checked: Sequence[CheckedJob]) -> list[Enqueued]:
        """Store jobs, all or none."""
        return await runner.write(enqueue_operations.enqueue_jobs, checked)

    async def claim(self, runner: Runner, request: ClaimRequest) -> list[Claim]:
        """Lease ready jobs; return an empty list if there are none."""
        return await runner.lease(claim_operations.undo_claims, claim_operations.claim_jobs, request)

    async def settle(self, runner: Runner, outcomes: CheckedSettlements) -> list[Settlement]:
        """Record outcomes and return one settlement for each, in order."""
        settled: list[Settlement] = []
        parts = settle_operations.divide_settlements(outcomes)
        if runner.joined and len(parts) > 1:
            # Parts in one transaction would lock their keys in no common order, and two such calls may deadlock.
            raise InvalidInput(
                "settlements",
                f"have follow-ups with more than {limits.KEYS_LOCKED_MAX} dedupe keys and chosen ids, which one"
                " transaction cannot lock; settle them in several transactions",
            )
        for part in parts:
            settled += await runner.write(settle_operations.settle_jobs, part)
        return settled

    async def settle_and_claim(
        self, runner: Runner, outcomes: CheckedSettlements, started: Sequence[Lease], request: ClaimRequest
    ) -> tuple[list[Settlement], list[Claim]]:
        """Record outcomes, acknowledge the *started* leases and lease ready jobs, in one commit if possible."""
        *before, last = settle_operations.divide_settlements(outcomes)
        settled: list[Settlement] = []
        for part in before:
            settled += await runner.write(settle_operations.settle_jobs, part)
        undo = claim_operations.undo_settle_and_claim
        newest, claims = await runner.lease(undo, claim_operations.settle_and_claim, last, started, request)
        return [*settled, *newest], claims


class AttemptObserver:
    """Receives the attempts of a worker, in the worker's event loop. Its methods return quickly and never raise."""

    running: Callable[[Claim], AbstractContextManager[object]] | None = None
    """Returns a context manager in which the handler runs, in the handler's thread or task; None if not needed."""

    def claimed(self, claims: Sequence[Claim]) -> None:
        """Handle newly claimed jobs."""

    def ended(self, claim: Claim, outcome: str, job: Job | None, seconds: float | None) -> None:
        """Handle the end of an attempt.

        *job* is the settled job, or None if the worker does not know it; *seconds* is how long the handler ran, or
        None if it did not run.
        """
