"""Redirects the queue of a program to the store of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from holdfast.client.async_queue import AsyncQueue
from holdfast.client.queue import Queue

AnyQueue: TypeAlias = Queue | AsyncQueue


@contextmanager
def redirected(queue: AnyQueue, to: AnyQueue) -> Iterator[None]:
    """Make *queue*, its tasks and its workers use the store of *to* during the block."""
    original = queue.store, queue.operations
    queue._use(to.store, to.operations)
    try:
        yield
    finally:
        queue._use(*original)
