"""Expect a refusal: the error names its field, and no statement was sent to the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
    assert caught.value.field == field, f"the error names {caught.value.field!r}, not {field!r}"
    assert statements_of(queue) == before


def all_refused(queue: Queue, calls: Iterable[tuple[object, str, Callable[[], object]]]) -> None:
    """Expect that each call is refused; list those that are not. A call has a label and the field to be named."""
    wrong, count = [], 0
    for case, field, call in calls:
        count += 1
        try:
            with refused(queue, field):
                call()
        except (AssertionError, pytest.fail.Exception) as error:
            wrong.append(f"{label(case)}: {error}")
    assert count, "there is no call"
    assert not wrong, "\n".join(wrong)


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
