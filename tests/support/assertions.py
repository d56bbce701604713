"""Expect a refusal: the error names its field, and no statement was sent to the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast import InvalidInput, Job, Queue
from holdfast.types import AsyncEnqueued, Attempt, Enqueued, Failure
from tests.support.stores import statements_of


@contextmanager
def refused(queue: Queue, field: str) -> Iterator[None]:
    """Expect `InvalidInput` that names *field*, raised before any statement was sent.

    *queue* was opened by a `Harness`.
    """
    before = list(statements_of(queue))
    with pytest.raises(InvalidInput) as caught:
        yield
    assert caught.value.field == field
    assert statements_of(queue) == before


def duplicate(enqueued: Enqueued[Any] | AsyncEnqueued[Any]) -> Job:
    """Return the job that an enqueue found; fail if it created one."""
    assert not enqueued.created
    return enqueued.job


def label(value: object) -> str:
    """Return a test id of limited length."""
    return str(value)[:40]


def failure_of(one: Job | Attempt) -> Failure:
    """Return why the job or attempt failed; fail if it did not."""
    assert one.failure is not None
    return one.failure
