"""Input artifacts: bytes that are enqueued with a job, for its handler."""

from __future__ import annotations

import hashlib

import pytest

from holdfast import Artifact, Conflict, Done, Failed, InvalidInput, NewJob, Queue
from holdfast.domain import limits
from holdfast.types import UploadedArtifact
from tests.support.clock import ManualClock
from tests.support.job_states import rolled_back, start

PHOTO = Artifact("photo", b"\x00\xff" * 1000, "image/png")


def names(queue: Queue, job_id: str) -> list[tuple[str, bool]]:
    return [(info.name, info.input) for info in queue.artifacts(job_id)]


def test_they_are_listed_with_size_type_digest_and_time(queue: Queue, clock: ManualClock) -> None:
    # A store that has the route may enqueue a plain job in one statement.
    queue.enqueue("resize")
    job = queue.enqueue("resize", artifacts=[PHOTO, Artifact("empty", b"")]).job

    empty, photo = queue.artifacts(job.id)

    assert (photo.name, photo.media_type, photo.size, photo.input, photo.epoch) == (
        "photo",
        "image/png",
        2000,
        True,
        0,
    )
    assert photo.digest == hashlib.sha256(PHOTO.data).hexdigest()
    assert (empty.size, photo.created_at) == (0, clock.time)
    assert queue.artifact(job.id, "photo") == PHOTO


def test_many_jobs_have_their_own(queue: Queue) -> None:
    enqueued = queue.enqueue_many(
        [NewJob("resize", artifacts=[Artifact("n", str(n).encode())]) for n in range(40)] + [NewJob("plain")]
    )

    assert [queue.artifact(one.id, "n").data for one in enqueued[:40]] == [str(n).encode() for n in range(40)]
    assert queue.artifacts(enqueued[40].id) == []


def test_they_stay_through_retries_and_until_the_job_is_deleted(queue: Queue, clock: ManualClock) -> None:
    job = queue.enqueue("resize", artifacts=[PHOTO]).job
    queue.settle(start(queue, job), Failed("x", retry_after=0))
    queue.settle(start(queue, job), Failed("x", permanent=True))
    queue.requeue(job.id)
    queue.settle(start(queue, job), Done(artifacts=[Artifact("thumbnail", b"small")]))
    clock.advance(100)
    queue.admin.prune(older_than=200)

    assert names(queue, job.id) == [("photo", True), ("thumbnail", False)]
    assert queue.artifact(job.id, "photo") == PHOTO


def test_an_output_does_not_replace_an_input(queue: Queue) -> None:
    job = queue.enqueue("resize", artifacts=[PHOTO]).job
    claim = start(queue, job)

    with pytest.raises(Conflict, match="'photo' is an input"):
        queue.attach(claim, [Artifact("photo", b"other")])
    with pytest.raises(Conflict, match="'photo' is an input"):
        queue.settle(claim, Done(artifacts=[Artifact("photo", b"other")]))

    assert queue.get(job.id).state == "running"
    assert queue.artifact(job.id, "photo") == PHOTO


def test_inputs_and_outputs_count_together(queue: Queue) -> None:
    inputs = [Artifact(str(n), b"") for n in range(limits.ARTIFACTS_MAX)]
    claim = start(queue, queue.enqueue("resize", artifacts=inputs).job)

    with pytest.raises(InvalidInput) as refusal:
        queue.attach(claim, [Artifact("one more", b"")])
    assert refusal.value.field == "artifacts"


class TestIdempotency:
    def test_the_same_job_with_the_same_artifacts_is_a_duplicate(self, queue: Queue) -> None:
        two = [PHOTO, Artifact("b", b"b")]
        first = queue.enqueue("resize", job_id="a", artifacts=two)

        again = queue.enqueue("resize", job_id="a", artifacts=two[::-1])
        uploaded: list[Artifact | UploadedArtifact] = [
            queue.uploads.send(PHOTO.data).artifact("photo", "image/png"),
            two[1],
        ]
        uploaded_again = queue.enqueue("resize", job_id="a", artifacts=uploaded)

        assert (first.created, again.created, uploaded_again.created) == (True, False, False)
        assert len(queue.jobs()) == 1

    @pytest.mark.parametrize(
        "artifacts",
        [
            [],
            [Artifact("photo", b"other", "image/png")],
            [Artifact("photo", PHOTO.data, "image/jpeg")],
            [Artifact("picture", PHOTO.data, "image/png")],
            [PHOTO, Artifact("b", b"")],
        ],
        ids=["none", "bytes", "type", "name", "more"],
    )
    def test_the_same_id_with_other_artifacts_is_a_conflict(self, queue: Queue, artifacts: list[Artifact]) -> None:
        queue.enqueue("resize", job_id="a", artifacts=[PHOTO])

        with pytest.raises(Conflict):
            queue.enqueue("resize", job_id="a", artifacts=artifacts)
        assert queue.artifact("a", "photo") == PHOTO

    def test_a_duplicate_by_key_keeps_the_artifacts_of_the_first(self, queue: Queue) -> None:
        job = queue.enqueue("resize", dedupe_key="k", artifacts=[PHOTO]).job

        kept = queue.enqueue("resize", dedupe_key="k", artifacts=[Artifact("other", b"")])

        assert (kept.created, kept.id) == (False, job.id)
        assert names(queue, job.id) == [("photo", True)]

    @pytest.mark.parametrize("artifacts", [[], [Artifact("photo", b"new")], [Artifact("other", b"new")]])
    def test_a_replaced_job_has_the_artifacts_of_the_new_one(self, queue: Queue, artifacts: list[Artifact]) -> None:
        job = queue.enqueue("resize", dedupe_key="k", events="all", artifacts=[PHOTO]).job

        queue.enqueue("resize", dedupe_key="k", on_duplicate="replace", artifacts=artifacts)

        assert [queue.artifact(job.id, info.name) for info in queue.artifacts(job.id)] == artifacts
        assert [event.name for event in queue.events()] == ["enqueued", "replaced"]

    def test_replacing_a_job_by_the_same_changes_nothing(self, queue: Queue) -> None:
        queue.enqueue("resize", dedupe_key="k", events="all", artifacts=[PHOTO])

        queue.enqueue("resize", dedupe_key="k", on_duplicate="replace", artifacts=[PHOTO])

        assert [event.name for event in queue.events()] == ["enqueued"]


def test_a_follow_up_may_have_them(queue: Queue) -> None:
    claim = start(queue, queue.enqueue("cut").job)
    follow_up = NewJob("paste", job_id="next", artifacts=[PHOTO, queue.uploads.send(b"up").artifact("large")])
    outcome = Done(follow_ups=[follow_up])
    job = queue.settle(claim, outcome)

    assert queue.settle(claim, outcome) == job
    assert names(queue, "next") == [("large", True), ("photo", True)]
    assert queue.artifact("next", "large").data == b"up"


def test_a_follow_up_whose_upload_is_missing_refuses_the_settlement(queue: Queue) -> None:
    claim = start(queue, queue.enqueue("cut").job)
    upload = queue.uploads.send(b"up").artifact("large")
    queue.enqueue("other", artifacts=[upload])

    with pytest.raises(Conflict):
        queue.settle(claim, Done(follow_ups=[NewJob("paste", artifacts=[upload])]))
    assert queue.get(claim.job.id).state == "running"


def test_an_entry_of_a_session_may_have_them(queue: Queue) -> None:
    job = queue.enqueue("chat", "look", session="s", artifacts=[PHOTO]).job

    assert queue.artifact(job.id, "photo") == PHOTO


def test_a_rolled_back_enqueue_stores_none(queue: Queue) -> None:
    with rolled_back(queue) as transaction:
        transaction.enqueue("resize", job_id="a", artifacts=[PHOTO])

    assert queue.counts() == {}
    queue.enqueue("resize", job_id="a")
    assert queue.artifacts("a") == []


@pytest.mark.validation
def test_the_bytes_of_one_call_are_limited(queue: Queue) -> None:
    sixteen = Artifact("a", bytes(16 << 20))

    with pytest.raises(InvalidInput) as refusal:
        queue.enqueue_many([NewJob("a", artifacts=[sixteen]) for _ in range(5)])
    assert refusal.value.field == "jobs[3].payload"
    with pytest.raises(InvalidInput) as refusal:
        queue.enqueue("a", artifacts=[sixteen, Artifact("b", b"x")])
    assert refusal.value.field == "artifacts[1].data"
    assert "upload" in str(refusal.value)
