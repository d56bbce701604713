"""When a process without a worker writes what it has counted.

Every store must pass this file unchanged.
"""

from __future__ import annotations

import asyncio
import os

import pytest

import holdfast
from holdfast import Queue
from holdfast.client.queue_state import state_of
from holdfast.storage import rollup_buffer
from tests.support.stores import Harness


def arrived(queue: Queue) -> int:
    return sum(minute.arrived for minute in queue.admin.overview().flow)


def due(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every write write what was counted."""
    monkeypatch.setattr(rollup_buffer, "WRITE_SECONDS", 0.0)
    monkeypatch.setattr(state_of(queue).store.rollups, "due_at", 0.0)  # type: ignore[attr-defined]


def test_a_write_that_is_due_writes_what_was_counted(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.enqueue("mail")
    assert arrived(queue) == 0
    due(queue, monkeypatch)
    queue.enqueue("mail")
    assert arrived(queue) == 2


def test_so_does_an_async_write(harness: Harness, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollup_buffer, "WRITE_SECONDS", 0.0)

    async def enqueue() -> None:
        async with harness.open_async() as client:
            await client.enqueue("mail")

    asyncio.run(enqueue())
    assert arrived(queue) == 1


def test_a_transaction_of_the_caller_is_not_joined(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    due(queue, monkeypatch)
    with queue.transaction() as transaction:
        transaction.enqueue("mail")
    assert arrived(queue) == 0
    queue.enqueue("mail")
    assert arrived(queue) == 2


def test_a_store_that_does_not_answer_loses_counts_and_not_the_call(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    due(queue, monkeypatch)
    store = state_of(queue).store
    write, calls = store.write, []

    def failing(operation: object) -> object:
        calls.append(operation)
        if len(calls) > 1:
            raise holdfast.errors.StoreBusy("another process is writing")
        return write(operation)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "write", failing)
    assert queue.enqueue("mail").created
    assert len(calls) == 2


def test_a_forked_child_does_not_write_what_its_parent_has_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = rollup_buffer.RollupBuffer()
    buffer.arrived.append(("default", "mail"))
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert buffer.take() == {}
    buffer.arrived.append(("default", "mail"))
    assert [sums.jobs for sums in buffer.take().values()] == [1]


def test_what_is_never_written_stays_bounded() -> None:
    buffer = rollup_buffer.RollupBuffer()
    for _ in range(200):
        buffer.arrived.extend([("default", "mail")] * 10)
        buffer.fold()
    assert buffer.arrived == []
    assert len(buffer._folded) <= 51
    assert [sums.jobs for sums in buffer.take().values()] == [2000]
