"""The steps of a job's life that are worth watching, each as one procedure: enqueue, claim, settle, both fused.

Everything that stores, takes or settles jobs goes through here. Whoever traces a queue puts steps of their own in
this place, once; a queue that nobody traces pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

from holdfast.domain.admission import Admission
from holdfast.domain.claim import Claim, ClaimRequest, Lease, Settlement
from holdfast.domain.outcome import CheckedOutcome
from holdfast.domain.records import Enqueued
from holdfast.stores.engine import Engine
from holdfast.stores.script import Procedure, write
from holdfast.stores.scripts import claim as claim_scripts
from holdfast.stores.scripts import enqueue as enqueue_scripts
from holdfast.stores.scripts import settle as settle_scripts

Settling: TypeAlias = Sequence[tuple[Claim, CheckedOutcome]]
"""Claims and how their attempts ended, checked."""


class Steps:
    """The steps as they are."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def enqueue_one(self, admission: Admission) -> Procedure[Enqueued]:
        """Store one job."""
        return write(
            partial(enqueue_scripts.enqueue_job, self.engine, admission),
            partial(enqueue_scripts.brief_enqueue, self.engine, admission),
        )

    def enqueue(self, admissions: Sequence[Admission]) -> Procedure[list[Enqueued]]:
        """Store jobs, all or none."""
        return write(partial(enqueue_scripts.enqueue_jobs, self.engine, admissions))

    def claim(self, request: ClaimRequest) -> Procedure[list[Claim]]:
        """Lease what there is now."""
        undo = partial(claim_scripts.undo_claims, self.engine)
        return write(partial(claim_scripts.claim_jobs, self.engine, request), undo=undo)

    def settle(self, settling: Settling) -> Procedure[list[Settlement]]:
        """Record outcomes, each with its own answer."""
        return write(partial(settle_scripts.settle_jobs, self.engine, settling))

    def settle_and_claim(
        self, settling: Settling, started: Sequence[Lease], request: ClaimRequest
    ) -> Procedure[tuple[list[Settlement], list[Claim]]]:
        """Record outcomes, acknowledge what has started and lease what there is then, in one commit."""
        return write(
            partial(claim_scripts.settle_and_claim, self.engine, settling, started, request),
            undo=lambda both: claim_scripts.undo_claims(self.engine, both[1]),
        )
