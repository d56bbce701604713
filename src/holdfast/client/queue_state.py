"""What the objects of one queue share: its store, its tasks, and who claims."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from holdfast.client import ids, middleware as middlewares
from holdfast.domain import claims, job, new_job, session_claims
from holdfast.domain.codec import Codec
from holdfast.storage.store import Store
from holdfast.tasks.definition import TaskTable

if TYPE_CHECKING:
    from holdfast.client.async_api.queue import AsyncQueue
    from holdfast.client.sync_api.queue import Queue


def this_process() -> claims.ClaimOptions:
    """Return the worker and incarnation of claims that name none: one start of this process."""
    return {"worker": ids.worker_name(), "incarnation": uuid.uuid4().hex}


@dataclass
class QueueState:
    """The state of a queue, for sync and async callers alike."""

    store: Store
    tasks: TaskTable = field(default_factory=TaskTable)
    """The tasks of the queue; their options and signatures apply to jobs of their kinds."""
    claimer: claims.ClaimOptions = field(default_factory=this_process)
    """The worker and incarnation of claims that do not give them."""
    middleware: tuple[middlewares.Middleware, ...] = ()
    """Runs around each enqueue, claim, run and settle; the first is the outermost."""
    codec: Codec | None = None
    """Encodes payloads and results."""
    parent: job.Job | None = None
    """The job whose handler uses it in its transaction: the parent of the jobs enqueued there."""

    def enqueuing(self, jobs: Sequence[new_job.CheckedJob]) -> middlewares.EnqueueCall:
        """Return a context in which a call stores *jobs*."""
        return middlewares.EnqueueCall(self.middleware, self.codec, jobs)

    def claiming(
        self, request: claims.ClaimRequest | session_claims.SessionRequest
    ) -> middlewares.Around[Sequence[claims.Claim]]:
        """Return a context in which a call leases jobs or entries."""
        called = middlewares.claim_call(request)
        calls = [partial(one.claim, called) for one in middlewares.overriding(self.middleware, "claim")]
        return middlewares.Around(calls, refusing=False)

    def settling(self, outcomes: middlewares.CheckedSettlements) -> middlewares.SettleCall:
        """Return a context in which a call records *outcomes*."""
        return middlewares.SettleCall(self.middleware, self.codec, outcomes)


def state_of(queue: Queue | AsyncQueue) -> QueueState:
    """Return the state of *queue*: the only way in which other packages reach its store and its tasks."""
    return queue._state  # noqa: SLF001


def use_state(queue: Queue | AsyncQueue, state: QueueState) -> None:
    """Make *queue* and its namespaces use *state* from now on, as a test does that redirects a queue."""
    queue._use(state)  # noqa: SLF001
