"""What the objects of one queue share: its store, its tasks, and who claims."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from holdfast.client import ids
from holdfast.client.middleware import (
    Around,
    CheckedSettlements,
    EnqueueCall,
    Middleware,
    SettleCall,
    claim_call,
    overriding,
)
from holdfast.domain.claims import Claim, ClaimOptions, ClaimRequest
from holdfast.domain.codec import Codec
from holdfast.domain.new_job import CheckedJob
from holdfast.domain.session_claims import SessionRequest
from holdfast.storage.store import Store
from holdfast.tasks.task import TaskRegistry


def this_process() -> ClaimOptions:
    """Return the worker and incarnation of claims that name none: one start of this process."""
    return {"worker": ids.worker_name(), "incarnation": uuid.uuid4().hex}


@dataclass
class QueueState:
    """The state of a queue, for sync and async callers alike."""

    store: Store
    tasks: TaskRegistry = field(default_factory=TaskRegistry)
    """The tasks of the queue; their options and signatures apply to jobs of their kinds."""
    claimer: ClaimOptions = field(default_factory=this_process)
    """The worker and incarnation of claims that do not give them."""
    middleware: tuple[Middleware, ...] = ()
    """Runs around each enqueue, claim, run and settle; the first is the outermost."""
    codec: Codec | None = None
    """Encodes payloads and results."""

    def enqueuing(self, jobs: Sequence[CheckedJob]) -> EnqueueCall:
        """Return a context in which a call stores *jobs*."""
        return EnqueueCall(self.middleware, self.codec, jobs)

    def claiming(self, request: ClaimRequest | SessionRequest) -> Around[Sequence[Claim]]:
        """Return a context in which a call leases jobs or entries."""
        called = claim_call(request)
        calls = [partial(one.claim, called) for one in overriding(self.middleware, "claim")]
        return Around(calls, refusing=False)

    def settling(self, outcomes: CheckedSettlements) -> SettleCall:
        """Return a context in which a call records *outcomes*."""
        return SettleCall(self.middleware, self.codec, outcomes)
