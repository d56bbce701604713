"""The base class of namespaces such as `queue.admin`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.client.queue_state import QueueState
from holdfast.storage.runners import AsyncRunner

if TYPE_CHECKING:
    from holdfast.client.async_api.queue import AsyncJobMethods


class AsyncNamespace:
    """Methods of a queue or transaction under one name."""

    def __init__(self, queue: AsyncJobMethods) -> None:
        # Not its runner: a test may redirect the queue to another store.
        self._queue = queue

    @property
    def _runner(self) -> AsyncRunner:
        return self._queue._runner

    @property
    def _state(self) -> QueueState:
        return self._queue._state
