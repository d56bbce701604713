"""What the objects of one queue share: its store, its tasks, and who claims."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.client import ids
from holdfast.client.middleware import Around, AttemptObserver, CheckedSettlements, Middleware
from holdfast.domain.claims import Claim, ClaimOptions, ClaimRequest, Settlement
from holdfast.domain.new_job import CheckedJob
from holdfast.domain.results import StoredJob
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
    """Runs around each enqueue, claim and settle; the first is the outermost."""
    observers: tuple[AttemptObserver, ...] = ()
    """The objects that workers notify of their attempts."""

    def around_enqueue(self, jobs: Sequence[CheckedJob]) -> Around[Sequence[CheckedJob], Sequence[StoredJob]]:
        """Return a context in which a call stores *jobs*."""
        return Around([one.enqueue for one in self.middleware], jobs)

    def around_claim(self, request: ClaimRequest) -> Around[ClaimRequest, Sequence[Claim]]:
        """Return a context in which a call leases jobs."""
        return Around([one.claim for one in self.middleware], request)

    def around_settle(self, outcomes: CheckedSettlements) -> Around[CheckedSettlements, Sequence[Settlement]]:
        """Return a context in which a call records *outcomes*."""
        return Around([one.settle for one in self.middleware], outcomes)
