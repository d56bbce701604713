"""Expecting a refusal: the error names its field and the store is as it was before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast import InvalidInput, Queue


def snapshot(queue: Queue) -> object:
    """Return all that a refused call could have changed."""
    return queue.counts(), queue.jobs().jobs, queue.lanes(), queue.events().events


@contextmanager
def refused(queue: Queue, field: str) -> Iterator[None]:
    """Expect `InvalidInput` that names *field*, and a store that did not change."""
    before = snapshot(queue)
    with pytest.raises(InvalidInput) as caught:
        yield
    assert caught.value.field == field
    assert snapshot(queue) == before


def label(value: object) -> str:
    """Return a test id of bearable length."""
    return str(value)[:40]
