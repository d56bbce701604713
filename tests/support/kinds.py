"""Publishing tasks in the catalog of kinds without running a worker."""

from __future__ import annotations

from typing import Any

from holdfast import Queue, Tasks
from holdfast.client.sync_api.worker_calls import WorkerCalls


def publish(queue: Queue, tasks: Tasks, worker: str = "w1") -> None:
    """Publish *tasks*, which *queue* does not declare itself, as a worker of another process does at its start."""
    publications: dict[str, Any] = {task.kind: task.publication() for task in tasks.tasks}
    WorkerCalls(queue.store).publish_kinds(publications, worker)
