# Generated from client/async_api/namespace.py by scripts/make-sync; do not edit.
"""The base class of namespaces such as `queue.admin`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.client.queue_state import QueueState
from holdfast.storage.runners import SyncRunner

if TYPE_CHECKING:
    from holdfast.client.sync_api.queue import JobMethods


class Namespace:
    """Methods of a queue or transaction under one name."""

    def __init__(self, queue: JobMethods) -> None:
        # Not its runner: a test may redirect the queue to another store.
        self._queue = queue

    @property
    def _runner(self) -> SyncRunner:
        return self._queue._runner

    @property
    def _state(self) -> QueueState:
        return self._queue._state
