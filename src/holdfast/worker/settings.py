"""What the parts of one worker share: the queue's objects, the worker's options and its time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from holdfast.client.async_api.queue import AsyncQueue
from holdfast.client.queue_state import QueueState
from holdfast.storage.store import Store
from holdfast.tasks import definition
from holdfast.worker.subscription import Subscription
from holdfast.worker.timers import Timer

if TYPE_CHECKING:
    from holdfast.worker.warm_resources import WarmResources


class IsolationSettings(NamedTuple):
    """The worker's options for isolation."""

    isolate_all: bool
    memory_limit_bytes: int | None
    recycle_after: int
    kill_after_seconds: float

    def isolates(self, task: definition.TaskDefinition) -> bool:
        """Return whether *task* always runs isolated; session tasks never do, as they need the worker's store."""
        chosen = task.policy.isolate
        return (chosen == "process" or (self.isolate_all and chosen is None)) and not task.is_session_task


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What the parts of one worker share."""

    name: str
    queue: AsyncQueue
    queue_state: QueueState
    subscription: Subscription
    concurrency: int
    lease_seconds: float
    grace_seconds: float
    retention_seconds: float | None
    isolation: IsolationSettings
    warm: WarmResources | None
    timer: Timer

    @property
    def store(self) -> Store:
        """The store of the queue."""
        return self.queue_state.store

    @property
    def tasks(self) -> definition.TaskTable:
        """The tasks of the queue."""
        return self.queue_state.tasks

    def tasks_served(self) -> list[definition.TaskDefinition]:
        """Return the tasks whose jobs the worker claims."""
        return [self.tasks.get(kind) for kind in self.subscription.options.get("kinds") or ()]
