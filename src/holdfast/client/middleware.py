"""The steps of a job's life that are worth watching, each as one coroutine: enqueue, claim, settle, both fused.

Everything that stores, takes or settles jobs goes through here. Whoever traces a queue puts steps of their own in
this place, once; a queue that nobody traces pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeAlias

from holdfast.domain.claims import Claim, ClaimRequest, Lease, Settlement
from holdfast.domain.job import Job
from holdfast.domain.new_job import CheckedJob
from holdfast.domain.outcomes import CheckedOutcome
from holdfast.domain.results import Enqueued
from holdfast.operations import claim as claim_operations
from holdfast.operations import enqueue as enqueue_operations
from holdfast.operations import settle as settle_operations
from holdfast.storage.runners import Runner
from holdfast.storage.store import Store

Settling: TypeAlias = Sequence[tuple[Claim, CheckedOutcome]]
"""Claims and how their attempts ended, checked."""


class Middleware:
    """The steps as they are."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def enqueue_one(self, runner: Runner, admission: CheckedJob) -> Enqueued:
        """Store one job."""
        again = partial(enqueue_operations.enqueue_job, new=admission, resent=True)
        plain = partial(self.store.plain_enqueue, admission, again)
        return await runner.write_plain(plain, enqueue_operations.enqueue_job, admission)

    async def enqueue(self, runner: Runner, admissions: Sequence[CheckedJob]) -> list[Enqueued]:
        """Store jobs, all or none."""
        return await runner.write(enqueue_operations.enqueue_jobs, admissions)

    async def claim(self, runner: Runner, request: ClaimRequest) -> list[Claim]:
        """Lease what there is now."""
        return await runner.lease(claim_operations.undo_claims, claim_operations.claim_jobs, request)

    async def settle(self, runner: Runner, settling: Settling) -> list[Settlement]:
        """Record outcomes, each with its own answer."""
        settled: list[Settlement] = []
        for part in settle_operations.divide_settlements(settling):
            settled += await runner.write(settle_operations.settle_jobs, part)
        return settled

    async def settle_and_claim(
        self, runner: Runner, settling: Settling, started: Sequence[Lease], request: ClaimRequest
    ) -> tuple[list[Settlement], list[Claim]]:
        """Record outcomes, acknowledge what has started and lease what there is then, in one commit if it can be."""
        *before, last = settle_operations.divide_settlements(settling)
        settled: list[Settlement] = []
        for part in before:
            settled += await runner.write(settle_operations.settle_jobs, part)
        undo = claim_operations.undo_settle_and_claim
        newest, claims = await runner.lease(undo, claim_operations.settle_and_claim, last, started, request)
        return [*settled, *newest], claims


class Watch:
    """Told of every attempt in a worker's hands, in the worker's loop. Each call is short and never raises."""

    running: Callable[[Claim], AbstractContextManager[object]] | None = None
    """Returns a block in which a handler runs, entered and left in its own thread or task; none where not needed."""

    def claimed(self, claims: Sequence[Claim]) -> None:
        """Take note that these jobs were claimed."""

    def ended(self, claim: Claim, outcome: str, job: Job | None, seconds: float | None) -> None:
        """Take note of how an attempt ended.

        *job* is what its settlement left behind, if the worker was told; *seconds* is how long its handler ran, if it
        did.
        """
