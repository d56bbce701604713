"""A job that is enqueued by name, on the queue that declares a task of that kind, is a job of that task."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Done, NewJob, Queue, SessionContext, Tasks
from holdfast.testing import drain, run_job
from tests.support.assertions import refused
from tests.support.kinds import publish
from tests.support.stores import CHEAPEST_ENGINE, Harness


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    # The checks happen before any store call, so one engine is enough.
    harness = Harness(CHEAPEST_ENGINE, tmp_path)
    yield harness.open()
    harness.close()


def declare(queue: Queue, **options: Any) -> None:
    @queue.task("doc.chunk", **options)
    def chunk(document: str, size: int = 100) -> None: ...


def test_the_options_of_the_task_hold_for_a_job_enqueued_by_name(queue: Queue) -> None:
    declare(queue, lane="documents", max_attempts=2, priority=7)

    job = queue.enqueue("doc.chunk", {"document": "a"}).job

    assert (job.lane, job.max_attempts, job.priority) == ("documents", 2, 7)


def test_the_options_of_the_call_come_before_those_of_the_task(queue: Queue) -> None:
    declare(queue, lane="documents", max_attempts=2, delay=60)

    job = queue.enqueue("doc.chunk", {"document": "a"}, lane="urgent", run_at=datetime(2020, 1, 1, tzinfo=UTC)).job

    assert (job.lane, job.max_attempts, job.state) == ("urgent", 2, "ready")


def test_jobs_of_a_list_and_of_a_transaction_have_the_options_of_their_task_too(queue: Queue) -> None:
    declare(queue, lane="documents")
    payload: Any = {"document": "a"}

    listed = queue.enqueue_many([NewJob("doc.chunk", payload), {"kind": "doc.chunk", "payload": payload}])
    with queue.transaction() as transaction:
        joined = transaction.enqueue("doc.chunk", payload)

    assert [result.job.lane for result in (*listed, joined)] == ["documents"] * 3


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ({}, "payload.document"),
        ({"document": "a", "pages": 2}, "payload.pages"),
        ({"document": "a", "size": "big"}, "payload.size"),
        (["a"], "payload"),
        (None, "payload.document"),
        ({"document": object()}, "payload.document"),
    ],
)
def test_a_payload_that_does_not_fit_the_signature_is_refused(queue: Queue, payload: Any, field: str) -> None:
    declare(queue)

    with refused(queue, field):
        queue.enqueue("doc.chunk", payload)
    with refused(queue, f"jobs[1].{field}"):
        queue.enqueue_many([NewJob("other"), NewJob("doc.chunk", payload)])


def test_a_payload_that_fits_once_it_is_stored_is_taken(queue: Queue) -> None:
    @queue.task("sum")
    def add(numbers: list[int]) -> None: ...

    assert queue.enqueue("sum", {"numbers": (1, 2)}).job.payload == {"numbers": [1, 2]}


def test_a_kind_that_the_queue_does_not_declare_takes_any_payload(queue: Queue) -> None:
    declare(queue, lane="documents")

    assert queue.enqueue("doc.embed", [1, 2]).job.lane == "default"


def test_follow_ups_of_a_declared_task_ignore_the_catalog_of_kinds(queue: Queue) -> None:
    published = Tasks()
    published.task("doc.chunk", lane="published")(lambda other: None)
    publish(queue, published)
    chunk = queue.task("doc.chunk")(lambda document: None)

    @queue.task("doc.parse")
    def parse(context: Context) -> Done:
        context.follow_up("doc.chunk", {"document": "a"})
        return Done(follow_ups=[chunk.new(document="b")])

    parse.enqueue()

    assert [job.lane for job in drain(queue).jobs] == ["default"] * 3


def test_follow_ups_by_name_have_the_options_of_their_task(queue: Queue) -> None:
    declare(queue, lane="documents")

    @queue.task("doc.load")
    def load(context: Context) -> Done:
        context.follow_up("doc.chunk", {"document": "a"})
        return Done(None, follow_ups=[NewJob("doc.chunk", {"document": "b"})])

    run_job(queue, load.new())

    assert [job.lane for job in queue.jobs(kind="doc.chunk").jobs] == ["documents"] * 2


def test_a_follow_up_by_name_with_a_payload_that_does_not_fit_fails_its_job(queue: Queue) -> None:
    declare(queue)

    @queue.task("doc.load")
    def load() -> Done:
        return Done(None, follow_ups=[NewJob("doc.chunk", {"size": 3})])

    job = run_job(queue, load.new(), raises=False)

    assert job.failure is not None
    assert (job.failure.reason, job.failure.message) == (
        "result_invalid",
        "follow_ups[0].payload.document: is missing",
    )


def test_callbacks_by_name_are_jobs_of_their_task(queue: Queue) -> None:
    declare(queue, lane="documents", max_attempts=2)
    callback: Any = {"kind": "doc.chunk", "payload": {"document": "a"}}

    queue.enqueue("other", on_end=callback)
    queue.enqueue_many([NewJob("other", on_end=NewJob(**callback)), NewJob(**callback, on_end=callback)])
    with queue.group("g", on_end=callback):
        pass
    drain(queue)

    jobs = queue.jobs(kind="doc.chunk").jobs
    assert len(jobs) == 5
    assert {(job.lane, job.max_attempts) for job in jobs} == {("documents", 2)}


@pytest.mark.parametrize(
    ("callback", "field"),
    [({"kind": "doc.chunk"}, ".payload.document"), ({"payload": 1}, ".kind"), ("doc.chunk", "")],
)
def test_a_callback_that_does_not_fit_is_refused_by_its_name(queue: Queue, callback: Any, field: str) -> None:
    declare(queue)

    with refused(queue, f"on_end{field}"):
        queue.enqueue("other", on_end=callback)
    with refused(queue, f"on_success{field}"):
        queue.group("g", on_success=callback)


def test_a_message_by_name_joins_its_session_as_the_session_task_says(queue: Queue) -> None:
    @queue.session_task("chat.message", lane="chats", join=True)
    def answer(context: SessionContext[dict[str, str]], messages: list[dict[str, str]]) -> None: ...

    job = queue.enqueue("chat.message", {"text": "hi"}, session="one").job

    assert (job.lane, job.entry is not None and job.entry.join) == ("chats", True)
    with refused(queue, "session"):
        queue.enqueue("chat.message", {"text": "hi"})
    with refused(queue, "payload"):
        queue.enqueue("chat.message", "hi", session="one")
    with refused(queue, "messages[1].text"):
        queue.enqueue("chat.message", messages=[{"text": "a"}, {"text": 1}], session="one")
