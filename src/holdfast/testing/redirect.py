"""Redirects the queue of a program to the store of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias

from holdfast.client.async_api.queue import AsyncQueue
from holdfast.client.sync_api.queue import Queue

AnyQueue: TypeAlias = Queue | AsyncQueue
"""A sync or an async queue."""


@contextmanager
def redirected(queue: AnyQueue, to: AnyQueue) -> Iterator[None]:
    """Make *queue*, its tasks and its workers use the store of *to* during the block; its middleware stays."""
    original = queue._state
    queue._use(replace(original, store=to.store, claimer=to._state.claimer))
    try:
        yield
    finally:
        queue._use(original)
