"""Handlers read the input artifacts of their job and attach outputs, also uploaded ones."""

from __future__ import annotations

import pytest

from holdfast import Artifact, Backoff, Context, InvalidInput, Misconfigured, Queue
from holdfast.errors import ArtifactNotFound
from holdfast.testing import drain
from tests.chaos.threads import wait_until
from tests.support.claims import claim_one
from tests.support.stores import Harness, statements_of
from tests.worker.workers import Time, running_worker, wait_finished

PHOTO = Artifact("photo", b"\x00\xff", "image/png")


@pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaited"])
def test_a_handler_reads_its_inputs_in_every_attempt(queue: Queue, awaited: bool) -> None:
    if awaited:

        @queue.task("resize", backoff=Backoff(base=0))
        async def resize_awaited(context: Context) -> int:
            artifact = await context.artifact_async("photo")
            assert artifact == PHOTO
            with pytest.raises(ArtifactNotFound):
                await context.artifact_async("missing")
            if context.attempt == 1:
                raise ValueError("once")
            context.attach("thumbnail", artifact.data[:1])
            return len(artifact.data)
    else:

        @queue.task("resize", backoff=Backoff(base=0))
        def resize(context: Context) -> int:
            artifact = context.artifact("photo")
            assert artifact == PHOTO
            with pytest.raises(ArtifactNotFound):
                context.artifact("missing")
            if context.attempt == 1:
                raise ValueError("once")
            context.attach("thumbnail", artifact.data[:1])
            return len(artifact.data)

    enqueued = queue.enqueue("resize", {}, artifacts=[PHOTO])
    with running_worker(queue):
        job = wait_finished(queue, enqueued.id)

    assert (job.state, job.result, job.attempt) == ("done", 2, 2)
    assert queue.artifact(job.id, "thumbnail").data == b"\x00"


@pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaited"])
def test_a_handler_reads_the_jobs_on_which_it_depends(queue: Queue, awaited: bool) -> None:
    queue.task("part")(lambda: 7)
    if awaited:

        @queue.task("sum")
        async def add_awaited(context: Context) -> list[int | None]:
            return [job.result if job.state == "done" else None for job in await context.parents_async()]
    else:

        @queue.task("sum")
        def add(context: Context) -> list[int | None]:
            return [job.result if job.state == "done" else None for job in context.parents()]

    *parts, lost, total = queue.enqueue_many(
        [
            *({"kind": "part", "payload": {}} for _ in range(2)),
            {"kind": "lost"},
            {"kind": "sum", "payload": {}, "after": [2, 0, 1], "on_failed": "run"},
        ]
    )
    queue.cancel(lost.id)
    with running_worker(queue):
        assert wait_finished(queue, total.id).result == [None, 7, 7]
    assert len(parts) == 2


def test_a_handler_attaches_an_upload(queue: Queue) -> None:
    @queue.task("render")
    def render(context: Context) -> None:
        context.attach("film", queue.uploads.send(b"x" * 300_000), "video/mp4")

    enqueued = render.enqueue()
    drain(queue)

    [film] = queue.artifacts(enqueued.id)
    assert (film.name, film.size, film.media_type) == ("film", 300_000, "video/mp4")


def test_an_output_with_the_name_of_an_input_fails_the_job_and_says_why(queue: Queue) -> None:
    @queue.task("resize")
    def resize(context: Context) -> None:
        context.attach("photo", b"other")

    enqueued = queue.enqueue("resize", {}, artifacts=[PHOTO])
    with running_worker(queue):
        job = wait_finished(queue, enqueued.id)

    assert job.failure is not None
    assert (job.state, job.failure.reason) == ("failed", "conflict")
    assert "'photo' is an input" in job.failure.message
    assert queue.artifact(job.id, "photo") == PHOTO


def test_bytes_that_are_too_large_together_are_refused_where_they_are_attached(local_queue: Queue) -> None:
    local_queue.enqueue("render")
    context = Context(claim_one(local_queue))
    context.attach("a", bytes(16 << 20))
    context.attach("a", bytes(16 << 20))

    with pytest.raises(InvalidInput) as refusal:
        context.attach("b", b"x")
    assert refusal.value.field == "data"
    context.attach("a", b"")
    context.attach("b", b"x")
    assert [one.name for one in context.artifacts] == ["a", "b"]


def test_a_context_without_a_worker_says_that_it_cannot_read(local_queue: Queue) -> None:
    local_queue.enqueue("render")
    context = Context(claim_one(local_queue))

    with pytest.raises(Misconfigured):
        context.artifact("in")
    with pytest.raises(Misconfigured, match="parents"):
        context.parents()


def test_a_worker_deletes_expired_uploads_and_dedupe_keys(harness: Harness) -> None:
    moving, queue = Time(harness), harness.open()

    @queue.task("idle")
    def idle() -> None: ...

    queue.uploads.send(b"bytes", expires=60)
    with running_worker(queue, timer=moving.timer):
        wait_until(lambda: "worker_write" in statements_of(queue))
        moving.advance(200)
        wait_until(lambda: "uploads_delete" in statements_of(queue))
        wait_until(lambda: "kept_keys_delete" in statements_of(queue))
