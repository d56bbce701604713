"""Uploads: large artifacts that arrive in chunks and short commits, and are linked by another call."""

from __future__ import annotations

import asyncio
import hashlib
import io
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from holdfast import (
    Artifact,
    Conflict,
    Done,
    InvalidInput,
    LeaseLost,
    NewJob,
    Queue,
)
from holdfast.domain import limits
from holdfast.errors import ArtifactNotFound, UploadNotFound
from holdfast.types import Upload, UploadedArtifact
from tests.support.assertions import refused
from tests.support.clock import ManualClock
from tests.support.faults import AnswerLost, Crashed
from tests.support.job_states import rolled_back, start
from tests.support.stores import Harness, statements_of

CHUNK = limits.ARTIFACT_CHUNK_BYTES
LARGE = bytes(range(256)) * (2 * CHUNK // 256) + b"the rest"
DAY = 86_400


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def chunks_stored(queue: Queue) -> int:
    """Return how many chunks of how many uploads `prune` still has to delete, by deleting them."""
    before = statements_of(queue).count("upload_chunks_delete")
    queue.admin.prune(older_than=DAY)
    return statements_of(queue).count("upload_chunks_delete") - before


class TestUploading:
    @pytest.mark.parametrize(
        "data", [b"", b"small", LARGE[:CHUNK], LARGE[: CHUNK + 1], LARGE], ids=["0", "5", "256K", "256K+1", "512K+8"]
    )
    def test_bytes_come_back_as_they_went_in(self, queue: Queue, data: bytes) -> None:
        upload = queue.uploads.send(data)
        job = queue.enqueue("work", artifacts=[upload.artifact("in", "image/png")]).job

        assert (upload.size, upload.digest) == (len(data), sha256(data))
        artifact = queue.artifact(job.id, "in")
        assert (artifact.name, artifact.data, artifact.media_type) == ("in", data, "image/png")

    def test_a_file_and_an_iterable_of_odd_pieces_are_cut_into_chunks(self, queue: Queue) -> None:
        pieces = [LARGE[start : start + 100_003] for start in range(0, len(LARGE), 100_003)]

        uploads = [
            queue.uploads.send(io.BytesIO(LARGE)),
            queue.uploads.send(pieces),
            queue.uploads.send(iter([b"", LARGE, b""])),
        ]

        assert {(upload.digest, upload.chunks, upload.size) for upload in uploads} == {(sha256(LARGE), 3, len(LARGE))}

    def test_each_chunk_is_its_own_commit_and_reports_the_progress(self, queue: Queue, clock: ManualClock) -> None:
        upload = queue.uploads.begin(tenant="a", expires=60)
        assert (upload.chunks, upload.size, upload.digest, upload.tenant) == (0, 0, None, "a")
        assert upload.expires_at == clock.time + timedelta(seconds=60)

        first = queue.uploads.append(upload.id, 0, LARGE[:CHUNK])
        second = queue.uploads.append(upload.id, 1, b"end")
        finished = queue.uploads.finish(upload.id)

        assert [(one.chunks, one.size) for one in (first, second)] == [(1, CHUNK), (2, CHUNK + 3)]
        assert finished.digest == sha256(LARGE[:CHUNK] + b"end")

    def test_the_same_chunk_and_the_same_end_may_be_sent_again(self, queue: Queue) -> None:
        upload = queue.uploads.begin()
        queue.uploads.append(upload.id, 0, b"x")
        assert queue.uploads.append(upload.id, 0, b"x").chunks == 1
        finished = queue.uploads.finish(upload.id, size=1, digest=sha256(b"x"))

        assert queue.uploads.finish(upload.id, size=1, digest=sha256(b"x")) == finished
        assert queue.uploads.append(upload.id, 0, b"x") == finished

    def test_a_chunk_with_other_bytes_or_a_gap_is_a_conflict(self, queue: Queue) -> None:
        upload = queue.uploads.begin()
        queue.uploads.append(upload.id, 0, b"x" * CHUNK)

        with pytest.raises(Conflict, match="other bytes"):
            queue.uploads.append(upload.id, 0, b"y" * CHUNK)
        with pytest.raises(Conflict, match="has 1 chunks"):
            queue.uploads.append(upload.id, 2, b"z")

    def test_only_the_last_chunk_may_be_small(self, queue: Queue) -> None:
        upload = queue.uploads.begin()
        queue.uploads.append(upload.id, 0, b"small")

        with pytest.raises(InvalidInput) as refusal:
            queue.uploads.append(upload.id, 1, b"more")
        assert refusal.value.field == "data"

    def test_a_finished_upload_takes_no_more(self, queue: Queue) -> None:
        upload = queue.uploads.send(LARGE[:CHUNK])

        with pytest.raises(Conflict, match="finished"):
            queue.uploads.append(upload.id, 1, b"more")

    def test_it_is_limited(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits, "ARTIFACT_BYTES_MAX", CHUNK + 1)
        upload = queue.uploads.begin()
        queue.uploads.append(upload.id, 0, LARGE[:CHUNK])

        with pytest.raises(InvalidInput) as refusal:
            queue.uploads.append(upload.id, 1, b"12")
        assert refusal.value.field == "data"
        assert str(CHUNK + 1) in str(refusal.value)
        assert queue.uploads.append(upload.id, 1, b"1").chunks == 2

    @pytest.mark.parametrize(
        ("field", "expected"),
        [("size", {"size": 4}), ("digest", {"digest": sha256(b"other")})],
        ids=["size", "digest"],
    )
    def test_bytes_that_are_not_those_the_caller_sent_are_refused(
        self, queue: Queue, field: str, expected: Any
    ) -> None:
        upload = queue.uploads.begin()
        queue.uploads.append(upload.id, 0, b"bytes")

        with pytest.raises(InvalidInput) as refusal:
            queue.uploads.finish(upload.id, **expected)

        assert refusal.value.field == field
        assert queue.uploads.finish(upload.id, size=5).digest == sha256(b"bytes")

    def test_the_async_methods_are_the_same(self, harness: Harness) -> None:
        async def send() -> bytes:
            queue = harness.open_async()
            try:
                upload = await queue.uploads.send(LARGE)
                job = (await queue.enqueue("work", artifacts=[upload.artifact("in")])).job
                return b"".join([chunk async for chunk in queue.artifact_chunks(job.id, "in")])
            finally:
                await queue.close()

        assert asyncio.run(send()) == LARGE


def test_an_upload_survives_a_crash_before_any_statement_and_lost_answers(durable_harness: Harness) -> None:
    harness, queue = durable_harness, durable_harness.open()
    upload = queue.uploads.begin()
    calls: list[Callable[[Queue], Upload]] = [
        lambda queue: queue.uploads.append(upload.id, 0, LARGE[:CHUNK]),
        lambda queue: queue.uploads.append(upload.id, 1, b"end"),
        lambda queue: queue.uploads.finish(upload.id),
    ]
    for call in calls:
        for statement in count(1):
            harness.faults.crash_before(statement)
            try:
                call(queue)
            except Crashed:
                queue = harness.reopen()
            else:
                harness.faults.calm()
                assert statement > 3
                break
        harness.faults.lose_reply()
        with suppress(AnswerLost):
            call(queue)
        queue = harness.reopen()

    finished = queue.uploads.finish(upload.id)
    assert (finished.chunks, finished.digest) == (2, sha256(LARGE[:CHUNK] + b"end"))
    job = queue.enqueue("work", artifacts=[finished.artifact("in")]).job
    assert queue.artifact(job.id, "in").data == LARGE[:CHUNK] + b"end"


class TestExpiry:
    def test_an_expired_upload_is_not_found_and_is_deleted(self, queue: Queue, clock: ManualClock) -> None:
        upload, kept = queue.uploads.send(b"bytes", expires=60), queue.uploads.send(b"kept", expires=600)
        clock.advance(60)

        for call in (
            lambda: queue.uploads.append(upload.id, 0, b"bytes"),
            lambda: queue.uploads.finish(upload.id),
            lambda: queue.enqueue("work", artifacts=[upload.artifact("in")]),
        ):
            with pytest.raises(UploadNotFound) as refusal:
                call()
            assert refusal.value.upload_id == upload.id
        assert queue.counts() == {}
        assert chunks_stored(queue) == 1
        assert chunks_stored(queue) == 0
        assert queue.enqueue("work", artifacts=[kept.artifact("in")]).created

    def test_a_linked_upload_does_not_expire(self, queue: Queue, clock: ManualClock) -> None:
        job = queue.enqueue("work", artifacts=[queue.uploads.send(LARGE, expires=60).artifact("in")]).job
        clock.advance(10 * DAY)

        assert chunks_stored(queue) == 0
        assert queue.artifact(job.id, "in").data == LARGE

    def test_the_bytes_go_with_the_job(self, queue: Queue, clock: ManualClock) -> None:
        job = queue.enqueue("work", artifacts=[queue.uploads.send(LARGE).artifact("in")]).job
        queue.settle(start(queue, job), Done(artifacts=[Artifact("out", b"x")]))
        clock.advance(1)

        queue.admin.prune(older_than=0)

        assert statements_of(queue).count("uploads_delete") == 1
        assert chunks_stored(queue) == 0

    def test_the_bytes_of_a_replaced_artifact_are_deleted(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("work").job)
        queue.attach(claim, [Artifact("out", b"first")])
        queue.attach(claim, [Artifact("out", b"second")])

        assert chunks_stored(queue) == 1
        assert chunks_stored(queue) == 0
        assert queue.artifact(claim.job.id, "out").data == b"second"

    def test_a_large_upload_is_deleted_in_several_commits(
        self, queue: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "UPLOAD_BYTES_DELETED", CHUNK)
        queue.uploads.send(LARGE, expires=60)
        queue.uploads.send(b"small", expires=61)
        clock.advance(61)

        assert chunks_stored(queue) == 5
        assert chunks_stored(queue) == 0


class TestLinking:
    def test_a_settlement_and_a_running_attempt_link_uploads(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("work").job)
        queue.attach(claim, [queue.uploads.send(b"attached").artifact("a", "text/plain")])
        queue.settle(claim, Done(artifacts=[queue.uploads.send(LARGE).artifact("b"), Artifact("c", b"direct")]))

        found = {info.name: (info.size, info.digest, info.input) for info in queue.artifacts(claim.job.id)}
        assert found == {
            "a": (8, sha256(b"attached"), False),
            "b": (len(LARGE), sha256(LARGE), False),
            "c": (6, sha256(b"direct"), False),
        }
        assert queue.artifact(claim.job.id, "b").data == LARGE

    def test_it_is_linked_once(self, queue: Queue) -> None:
        upload = queue.uploads.send(b"bytes")
        queue.enqueue("work", artifacts=[upload.artifact("in")])

        with pytest.raises(Conflict, match="already linked"):
            queue.enqueue("work", artifacts=[upload.artifact("in")])
        assert len(queue.jobs()) == 1

    def test_an_attempt_may_attach_it_again_after_a_lost_answer(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("work").job)
        attached = queue.uploads.send(b"x").artifact("out")
        for _ in range(2):
            queue.attach(claim, [attached])
        assert [info.name for info in queue.artifacts(claim.job.id)] == ["out"]
        with pytest.raises(Conflict, match="already linked"):
            queue.attach(claim, [UploadedArtifact("other", attached.upload_id, attached.digest)])

    def test_it_cannot_be_two_artifacts_of_one_call(self, queue: Queue) -> None:
        upload = queue.uploads.send(b"bytes")

        with pytest.raises(Conflict, match="two artifacts"):
            queue.enqueue("work", artifacts=[upload.artifact("a"), upload.artifact("b")])
        with pytest.raises(Conflict, match="already linked") as refusal:
            queue.enqueue_many([NewJob("work", artifacts=[upload.artifact("a")]) for _ in range(2)])
        assert refusal.value.path == "jobs[1]"
        assert queue.counts() == {}
        assert queue.enqueue("work", artifacts=[upload.artifact("a")]).created

    def test_an_unfinished_one_is_not_linked(self, queue: Queue) -> None:
        upload = queue.uploads.begin()
        queue.uploads.append(upload.id, 0, b"bytes")

        with pytest.raises(InvalidInput, match="not finished"):
            upload.artifact("in")
        with pytest.raises(Conflict, match="not finished"):
            queue.enqueue("work", artifacts=[UploadedArtifact("in", upload.id, sha256(b"bytes"))])

    def test_the_digest_must_be_that_of_the_bytes(self, queue: Queue) -> None:
        upload = queue.uploads.send(b"bytes")
        wrong = UploadedArtifact("in", upload.id, sha256(b"other"))

        with pytest.raises(InvalidInput) as refusal:
            queue.enqueue("work", artifacts=[Artifact("fine", b""), wrong])
        assert refusal.value.field == "artifacts[1].digest"
        with pytest.raises(InvalidInput) as refusal:
            queue.enqueue_many([NewJob("work"), NewJob("work", artifacts=[wrong])])
        assert refusal.value.field == "jobs[1].artifacts[0].digest"
        assert queue.counts() == {}

    def test_another_tenants_upload_is_not_found(self, queue: Queue) -> None:
        upload = queue.uploads.send(b"bytes", tenant="a")

        with pytest.raises(UploadNotFound):
            queue.enqueue("work", tenant="b", artifacts=[upload.artifact("in")])
        with pytest.raises(UploadNotFound):
            queue.uploads.append(upload.id, 0, b"bytes", tenant="b")
        with pytest.raises(UploadNotFound):
            queue.uploads.finish(upload.id, tenant="b")
        assert queue.enqueue("work", tenant="a", artifacts=[upload.artifact("in")]).created

    def test_a_stale_holder_links_nothing(self, queue: Queue, clock: ManualClock) -> None:
        claim = start(queue, queue.enqueue("work").job)
        upload = queue.uploads.send(b"bytes")
        clock.advance(31)

        with pytest.raises(LeaseLost):
            queue.settle(claim, Done(artifacts=[upload.artifact("out")]))
        assert queue.enqueue("other", artifacts=[upload.artifact("in")]).created

    def test_a_settlement_whose_upload_is_refused_changes_nothing(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("work").job)

        with pytest.raises(UploadNotFound):
            queue.settle(claim, Done(artifacts=[UploadedArtifact("out", "missing", sha256(b""))]))
        assert queue.get(claim.job.id).state == "running"

    def test_a_rolled_back_link_can_be_made_again(self, queue: Queue) -> None:
        upload = queue.uploads.send(b"bytes")
        with rolled_back(queue) as transaction:
            transaction.enqueue("work", artifacts=[upload.artifact("in")])

        with queue.transaction() as transaction:
            job = transaction.enqueue("work", artifacts=[upload.artifact("in")]).job
        assert queue.artifact(job.id, "in").data == b"bytes"

    def test_the_same_settlement_may_be_sent_again_also_with_the_bytes_uploaded_again(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("work").job)
        outcome = Done(artifacts=[queue.uploads.send(b"bytes").artifact("out")])
        job = queue.settle(claim, outcome)

        assert queue.settle(claim, outcome) == job
        assert queue.settle(claim, Done(artifacts=[queue.uploads.send(b"bytes").artifact("out")])) == job
        with pytest.raises(LeaseLost):
            queue.settle(claim, Done(artifacts=[queue.uploads.send(b"other").artifact("out")]))


RANGES = [
    (0, None),
    (0, 10),
    (CHUNK - 3, 6),
    (CHUNK, CHUNK),
    (CHUNK + 1, None),
    (len(LARGE) - 2, 100),
    (len(LARGE), None),
    (10 * len(LARGE), 5),
    (5, 0),
]


class TestReading:
    @pytest.mark.parametrize(("offset", "size"), RANGES)
    def test_a_range_is_what_a_slice_is(self, queue: Queue, offset: int, size: int | None) -> None:
        job = queue.enqueue("work", artifacts=[Artifact("in", LARGE)]).job

        chunks = list(queue.artifact_chunks(job.id, "in", offset=offset, size=size))

        assert b"".join(chunks) == LARGE[offset:][:size]
        assert all(0 < len(chunk) <= CHUNK for chunk in chunks)

    def test_a_missing_artifact_is_not_found(self, queue: Queue) -> None:
        job = queue.enqueue("work", tenant="a", artifacts=[Artifact("in", b"x")]).job

        with pytest.raises(ArtifactNotFound):
            list(queue.artifact_chunks(job.id, "out"))

    def test_an_artifact_that_is_replaced_while_it_is_read_stays_the_same_or_ends_with_an_error(
        self, queue: Queue
    ) -> None:
        claim = start(queue, queue.enqueue("work").job)
        queue.attach(claim, [Artifact("out", LARGE)])
        first, second = (queue.artifact_chunks(claim.job.id, "out") for _ in range(2))
        read = [next(first), next(second)]
        queue.attach(claim, [Artifact("out", b"other")])
        assert b"".join([read[0], *first]) == LARGE

        queue.admin.prune(older_than=DAY)

        with pytest.raises(ArtifactNotFound):
            list(second)


class TestRefusals:
    @pytest.mark.validation
    @pytest.mark.parametrize(
        ("field", "call"),
        [
            ("tenant", lambda queue, _: queue.uploads.begin(tenant="")),
            ("expires", lambda queue, _: queue.uploads.begin(expires=0)),
            ("expires", lambda queue, _: queue.uploads.begin(expires=8 * DAY)),
            ("upload_id", lambda queue, _: queue.uploads.append("", 0, b"x")),
            ("number", lambda queue, upload: queue.uploads.append(upload.id, -1, b"x")),
            ("data", lambda queue, upload: queue.uploads.append(upload.id, 0, b"")),
            ("data", lambda queue, upload: queue.uploads.append(upload.id, 0, "text")),
            ("data", lambda queue, upload: queue.uploads.append(upload.id, 0, bytes(CHUNK + 1))),
            ("size", lambda queue, upload: queue.uploads.finish(upload.id, size=-1)),
            ("digest", lambda queue, upload: queue.uploads.finish(upload.id, digest="abc")),
            ("source", lambda queue, _: queue.uploads.send("text")),
            ("source", lambda queue, _: queue.uploads.send(7)),
            ("offset", lambda queue, _: list(queue.artifact_chunks("job", "a", offset=-1))),
            ("size", lambda queue, _: list(queue.artifact_chunks("job", "a", size=-1))),
            ("name", lambda queue, _: list(queue.artifact_chunks("job", ""))),
        ],
    )
    def test_a_wrong_argument_is_refused(self, queue: Queue, field: str, call: Callable[[Queue, Any], Any]) -> None:
        upload = queue.uploads.begin()

        with refused(queue, field):
            call(queue, upload)

    @pytest.mark.validation
    @pytest.mark.parametrize(
        ("field", "artifact"),
        [
            ("artifacts[0].upload_id", UploadedArtifact("a", "", "0" * 64)),
            ("artifacts[0].digest", UploadedArtifact("a", "u", "0" * 63)),
            ("artifacts[0].digest", UploadedArtifact("a", "u", "G" * 64)),
            ("artifacts[0].name", UploadedArtifact("../a", "u", "0" * 64)),
            ("artifacts[0].data", Artifact("a", bytes(16 * 1024 * 1024 + 1))),
            ("artifacts[0]", Upload("u", "t", 0, 0, None, None)),
        ],
    )
    def test_an_input_that_cannot_be_stored_is_refused(self, queue: Queue, field: str, artifact: Any) -> None:
        with refused(queue, field):
            queue.enqueue("work", artifacts=[artifact])

    def test_pieces_that_are_no_bytes_are_refused_and_what_was_sent_expires(self, queue: Queue) -> None:
        with pytest.raises(InvalidInput) as refusal:
            queue.uploads.send([LARGE, "text"])  # type: ignore[list-item]
        assert refusal.value.field == "source"

    def test_an_unknown_upload_is_not_found(self, queue: Queue) -> None:
        with pytest.raises(UploadNotFound):
            queue.uploads.append("missing", 0, b"x")
        with pytest.raises(UploadNotFound):
            queue.uploads.finish("missing")
