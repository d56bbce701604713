"""`Enqueued.result`: waits for the job and returns its result, decoded by the annotation of its task."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

import holdfast
from holdfast import (
    AsyncQueue,
    Conflict,
    Defer,
    Done,
    Failed,
    InvalidInput,
    JobFailed,
    Misconfigured,
    NewJob,
    Queue,
    Retry,
    WaitTimeout,
    testing,
)
from tests.support.stores import Harness

PATIENCE_SECONDS = 10.0


@dataclass
class Invoice:
    number: int
    due: datetime


def invoice(number: int) -> Invoice:
    return Invoice(number, datetime(2026, 3, 4, tzinfo=UTC))


def maybe(number: int) -> Invoice | Retry | None:
    return None if number == 0 else invoice(number)


def chosen(number: int) -> Done:
    return Done({"number": number})


def wrong(number: int) -> str:
    return number  # type: ignore[return-value]


def undefined(number: int) -> Elsewhere:  # type: ignore[name-defined]  # noqa: F821
    return number


async def later(number: int) -> list[Invoice]:
    await asyncio.sleep(0)
    return [invoice(number)]


def test_the_result_has_the_type_of_the_annotation(queue: Queue) -> None:
    calls = [queue.task(function).enqueue(1) for function in (invoice, maybe, later, chosen)]
    none = queue.task("maybe.none")(maybe).enqueue(0)
    testing.drain(queue)

    results: list[Any] = [call.result(timeout=0) for call in calls]
    assert results == [invoice(1), invoice(1), [invoice(1)], {"number": 1}]
    assert none.result(timeout=0) is None


def test_a_job_enqueued_by_kind_or_as_a_new_job_is_decoded_too(queue: Queue) -> None:
    task = queue.task("invoice")(invoice)
    calls = [
        queue.enqueue("invoice", {"number": 1}),
        queue.enqueue(task.new(1)),
        *queue.enqueue_many([task.new(1)]),
        *task.enqueue_many([task.new(1)]),
    ]
    testing.drain(queue)

    assert [call.result(timeout=0) for call in calls] == [invoice(1)] * 4


def test_without_a_task_the_result_is_json(queue: Queue) -> None:
    enqueued = queue.enqueue("report")
    claim = queue.claim()
    assert claim is not None
    queue.settle(claim, Done({"pages": [1, 2]}))

    assert enqueued.result(timeout=0) == {"pages": [1, 2]}


def test_it_waits_until_the_job_has_finished(queue: Queue) -> None:
    task = queue.task(invoice)

    with holdfast.Worker(queue).running():
        assert task.enqueue(1).result(timeout=PATIENCE_SECONDS) == invoice(1)


def test_an_async_queue_awaits_the_result(harness: Harness) -> None:
    async def main() -> Invoice:
        queue: AsyncQueue = harness.open_async()
        enqueued = await queue.task(invoice).enqueue(1)
        await testing.drain_async(queue)
        return await enqueued.result(timeout=PATIENCE_SECONDS)

    assert asyncio.run(main()) == invoice(1)


def test_a_job_that_was_not_done_raises(queue: Queue) -> None:
    failed, cancelled, retired = (queue.enqueue(kind) for kind in ("a", "b", "c"))
    claim = queue.claim(kinds=["a"])
    assert claim is not None
    queue.settle(claim, Failed("no paper", reason="paper_missing", permanent=True))
    queue.cancel(cancelled.id)
    queue.kinds.retire("c")

    with pytest.raises(JobFailed) as caught:
        failed.result(timeout=0)
    assert str(caught.value) == f"job '{failed.id}' of kind 'a' is failed: paper_missing: no paper"
    assert (caught.value.job, caught.value.failure) == (queue.get(failed.id), queue.get(failed.id).failure)
    for enqueued, state in ((cancelled, "cancelled"), (retired, "retired")):
        with pytest.raises(JobFailed, match=f"is {state}"):
            enqueued.result(timeout=0)


def test_a_job_that_is_retried_or_deferred_is_not_finished(queue: Queue) -> None:
    @queue.task("retried")
    def retried() -> int:
        raise Retry("later", after=60)

    @queue.task("deferred")
    def deferred() -> int:
        raise Defer(after=60)

    calls = [retried.enqueue(), deferred.enqueue()]
    testing.drain(queue)

    for call in calls:
        with pytest.raises(WaitTimeout):
            call.result(timeout=0)


def test_a_result_of_another_type_is_refused(queue: Queue) -> None:
    enqueued, unknown = queue.task(wrong).enqueue(1), queue.task(undefined).enqueue(1)
    testing.drain(queue)

    with pytest.raises(InvalidInput, match="result: must be a string") as caught:
        enqueued.result(timeout=0)
    assert caught.value.field == "result"
    with pytest.raises(Misconfigured, match="Elsewhere"):
        unknown.result(timeout=0)


def test_an_open_transaction_refuses_to_wait(queue: Queue) -> None:
    existing = queue.enqueue("report", dedupe_key="k")
    with queue.transaction() as tx:
        created, found = tx.enqueue("report"), tx.enqueue("report", dedupe_key="k")
        for enqueued in (created, found):
            with pytest.raises(Conflict, match="still open"):
                enqueued.result(timeout=PATIENCE_SECONDS)
    for enqueued in (created, found):
        with pytest.raises(WaitTimeout):
            enqueued.result(timeout=0)
    assert found.id == existing.id


def test_a_job_that_was_rolled_back_is_refused(queue: Queue) -> None:
    with suppress(ZeroDivisionError), queue.transaction() as tx:
        enqueued = tx.enqueue("report")
        raise ZeroDivisionError

    with pytest.raises(Conflict, match="has not committed"):
        enqueued.result(timeout=0)


def test_a_job_in_the_callers_own_transaction_waits_for_the_commit(tmp_path: Any) -> None:
    with holdfast.connect(tmp_path / "jobs.db") as queue:
        queue.migrate()
        connection = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
        connection.execute("begin immediate")
        enqueued = queue.within(connection).enqueue("report")
        with pytest.raises(Conflict, match="has not committed"):
            enqueued.result(timeout=0)
        connection.execute("commit")
        with pytest.raises(WaitTimeout):
            enqueued.result(timeout=0)
        connection.close()


def test_the_transaction_of_a_handler_refuses_to_wait(queue: Queue) -> None:
    @queue.task("outer")
    def outer(context: holdfast.Context) -> None:
        with context.transaction() as tx:
            enqueued = tx.enqueue("inner")
        with pytest.raises(Conflict, match="still open"):
            enqueued.result(timeout=PATIENCE_SECONDS)

    outer.enqueue()

    assert testing.drain(queue).counts == {"done": 1}


class TestNewJobs:
    def test_a_queue_and_a_transaction_take_a_new_job(self, queue: Queue) -> None:
        new = NewJob("report", [1], priority=3, dedupe_key="k")
        first = queue.enqueue(new)
        with queue.transaction() as tx:
            second = tx.enqueue(new)

        assert (first.job.priority, first.job.payload, first.created) == (3, [1], True)
        assert (second.id, second.created) == (first.id, False)

    @pytest.mark.parametrize("more", [{"payload": 1}, {"delay": 1}, {"tags": {}}])
    def test_it_has_its_own_payload_and_options(self, queue: Queue, more: dict[str, Any]) -> None:
        with pytest.raises(InvalidInput, match="cannot be combined with a NewJob") as caught:
            queue.enqueue(NewJob("report"), **more)
        assert [caught.value.field] == list(more)
