"""Publishing tasks in the catalog of kinds without running a worker."""

from __future__ import annotations

from typing import Any

from holdfast import Queue, Tasks
from holdfast.client.queue_state import state_of
from holdfast.client.sync_api.worker_calls import WorkerCalls
from holdfast.tasks.task import definition_of


def publish(queue: Queue, tasks: Tasks, worker: str = "w1") -> None:
    """Publish *tasks*, which *queue* does not declare itself, as a worker of another process does at its start."""
    publications: dict[str, Any] = {task.kind: definition_of(task).publication() for task in tasks.tasks}
    WorkerCalls(state_of(queue).store).publish_kinds(publications, worker)
