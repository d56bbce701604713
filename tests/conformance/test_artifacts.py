"""Artifacts: named, typed bytes that belong to a job and are returned unchanged."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Artifact, Conflict, Done, Failed, JobNotFound, LeaseLost, Queue
from holdfast.errors import ArtifactNotFound
from tests.support.assertions import refused
from tests.support.clock import ManualClock
from tests.support.job_states import rolled_back, run, start

BODIES = {
    "empty": b"",
    "every byte": bytes(range(256)),
    "not text": b"\xff\xfe\x00\x80",
    "zeros": b"\0" * 1_000,
    "a megabyte": bytes(range(256)) * 4_096,
}


class TestRoundTrip:
    @pytest.mark.parametrize("data", BODIES.values(), ids=BODIES.keys())
    def test_bytes_come_back_as_they_went_in(self, queue: Queue, data: bytes) -> None:
        job = run(queue, queue.enqueue("a").job, Done(artifacts=[Artifact("out", data, "image/png")]))

        artifact = queue.artifact(job.id, "out")

        assert (artifact.name, artifact.data, artifact.media_type) == ("out", data, "image/png")

    @pytest.mark.parametrize("data", BODIES.values(), ids=BODIES.keys())
    def test_artifacts_of_a_running_job_are_readable_at_once(self, queue: Queue, data: bytes) -> None:
        claim = start(queue, queue.enqueue("a").job)

        queue.attach(claim, [Artifact("out", data)])

        assert queue.artifact(claim.job.id, "out").data == data

    def test_names_in_all_scripts_are_distinct(self, queue: Queue) -> None:
        names = ["log", "Log", "протокол", "日誌", "🗒 notes", "..hidden", "'; drop table x; --"]
        job = run(queue, queue.enqueue("a").job, Done(artifacts=[Artifact(name, name.encode()) for name in names]))

        assert {name: queue.artifact(job.id, name).data.decode() for name in names} == {name: name for name in names}


class TestList:
    def test_it_returns_all_properties_except_the_bytes_by_name(self, queue: Queue, clock: ManualClock) -> None:
        claim = start(queue, queue.enqueue("a").job)
        queue.attach(claim, [Artifact("b", b"12345", "text/plain"), Artifact("a", b"")])

        found = queue.artifacts(claim.job.id)

        assert [(each.name, each.media_type, each.size, each.epoch) for each in found] == [
            ("a", "application/octet-stream", 0, 1),
            ("b", "text/plain", 5, 1),
        ]
        assert {each.created_at for each in found} == {clock.time}

    def test_a_job_without_any_lists_none(self, queue: Queue) -> None:
        assert queue.artifacts(queue.enqueue("a").id) == []

    def test_two_jobs_do_not_share_artifacts(self, queue: Queue) -> None:
        one = run(queue, queue.enqueue("a").job, Done(artifacts=[Artifact("log", b"one")]))
        two = run(queue, queue.enqueue("a").job, Done(artifacts=[Artifact("log", b"two")]))

        assert [queue.artifact(job.id, "log").data for job in (one, two)] == [b"one", b"two"]

    def test_a_missing_artifact_is_not_found(self, queue: Queue) -> None:
        job = queue.enqueue("a").job

        with pytest.raises(ArtifactNotFound) as refusal:
            queue.artifact(job.id, "log")
        assert (refusal.value.job_id, refusal.value.name) == (job.id, "log")
        with pytest.raises(JobNotFound):
            queue.artifact("missing", "log")
        with pytest.raises(JobNotFound):
            queue.artifacts("missing")


class TestReplacing:
    def test_an_artifact_of_the_same_name_is_replaced_completely(self, queue: Queue, clock: ManualClock) -> None:
        claim = start(queue, queue.enqueue("a").job)
        queue.attach(claim, [Artifact("out", b"long first", "text/plain"), Artifact("kept", b"k")])
        clock.advance(1)
        queue.attach(claim, [Artifact("out", b"2nd", "text/html")])

        kept, out = queue.artifacts(claim.job.id)

        assert (out.name, out.media_type, out.size, out.created_at) == (
            "out",
            "text/html",
            3,
            clock.time,
        )
        assert (kept.name, kept.size) == ("kept", 1)
        assert queue.artifact(claim.job.id, "out").data == b"2nd"

    def test_the_settlement_replaces_artifacts_of_the_running_job(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("a").job)
        queue.attach(claim, [Artifact("out", b"draft")])

        queue.settle(claim, Done(artifacts=[Artifact("out", b"final")]))

        assert queue.artifact(claim.job.id, "out").data == b"final"

    def test_a_later_attempt_replaces_earlier_artifacts_and_records_its_epoch(self, queue: Queue) -> None:
        job = queue.enqueue("a").job
        first = start(queue, job)
        queue.attach(first, [Artifact("out", b"one"), Artifact("only first", b"1")])
        queue.settle(first, Failed("x", retry_after=0))
        second = start(queue, job)
        queue.attach(second, [Artifact("out", b"two")])

        assert {each.name: each.epoch for each in queue.artifacts(job.id)} == {"only first": 1, "out": 2}
        assert queue.artifact(job.id, "out").data == b"two"


class TestFence:
    def test_a_holder_that_lost_its_lease_stores_nothing(self, queue: Queue, clock: ManualClock) -> None:
        job = queue.enqueue("a").job
        stale = start(queue, job)
        clock.advance(31)
        with pytest.raises(LeaseLost):
            queue.attach(stale, [Artifact("out", b"late")])
        current = start(queue, job)
        queue.attach(current, [Artifact("out", b"good")])

        with pytest.raises(LeaseLost):
            queue.attach(stale, [Artifact("out", b"late")])
        with pytest.raises(LeaseLost):
            queue.settle(stale, Done(artifacts=[Artifact("out", b"late")]))

        assert queue.artifact(job.id, "out").data == b"good"

    def test_artifacts_of_a_rolled_back_settlement_are_not_stored(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("a").job)

        with rolled_back(queue) as transaction:
            transaction.attach(claim, [Artifact("one", b"1")])
            transaction.settle(claim, Done(artifacts=[Artifact("two", b"2")]))

        assert queue.artifacts(claim.job.id) == []

    def test_a_repeated_settlement_does_not_change_them(self, queue: Queue, clock: ManualClock) -> None:
        claim = start(queue, queue.enqueue("a").job)
        outcome = Done(artifacts=[Artifact("out", b"1")])
        queue.settle(claim, outcome)
        stored = queue.artifacts(claim.job.id)
        clock.advance(5)

        queue.settle(claim, outcome)

        assert queue.artifacts(claim.job.id) == stored


class TestRefusals:
    @pytest.mark.validation
    @pytest.mark.parametrize("name", ["", " ", "../up", "/etc/passwd", "a\\b", ".", "..", "nul\0", "x" * 201, 7])
    def test_a_name_that_is_no_label_is_refused(self, queue: Queue, name: Any) -> None:
        claim = start(queue, queue.enqueue("a").job)

        with refused(queue, "artifacts[1].name"):
            queue.attach(claim, [Artifact("fine", b""), Artifact(name, b"")])
        assert queue.artifacts(claim.job.id) == []

    @pytest.mark.validation
    @pytest.mark.parametrize(
        ("field", "artifact"),
        [
            ("artifacts[0].data", Artifact("a", "text")),  # type: ignore[arg-type]
            ("artifacts[0].data", Artifact("a", b"x" * (16 * 1024 * 1024 + 1))),
            ("artifacts[0].media_type", Artifact("a", b"", "")),
            ("artifacts[0]", b"bytes"),
        ],
        ids=["text", "too large", "no type", "no artifact"],
    )
    def test_an_artifact_that_cannot_be_stored_is_refused_and_the_job_keeps_running(
        self, queue: Queue, field: str, artifact: Any
    ) -> None:
        claim = start(queue, queue.enqueue("a").job)

        with refused(queue, field):
            queue.settle(claim, Done(artifacts=[artifact]))
        assert queue.get(claim.job.id).state == "running"

    @pytest.mark.validation
    def test_a_name_given_twice_is_refused(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("a").job)

        with refused(queue, "artifacts[1].name"):
            queue.attach(claim, [Artifact("a", b"1"), Artifact("a", b"2")])


class TestDeletion:
    """The artifacts of a finished job can be deleted before the job is."""

    def test_inputs_and_outputs_are_deleted_and_the_job_stays(self, queue: Queue) -> None:
        inputs = [Artifact("in", b"question")]
        job = run(
            queue, queue.enqueue("a", artifacts=inputs).job, Done("kept", artifacts=[Artifact("out", b"answer")])
        )
        other = run(queue, queue.enqueue("a", artifacts=inputs).job, Done())

        queue.delete_artifacts(job.id)
        queue.delete_artifacts(job.id)

        assert queue.artifacts(job.id) == []
        assert queue.get(job.id).result == "kept"
        assert queue.artifact(other.id, "in").data == b"question"

    def test_those_of_an_unfinished_job_stay(self, queue: Queue) -> None:
        job = queue.enqueue("a", artifacts=[Artifact("in", b"question")]).job
        with pytest.raises(Conflict, match="cancel it first"):
            queue.delete_artifacts(job.id)
        claim = start(queue, job)
        with pytest.raises(Conflict, match="is running"):
            queue.delete_artifacts(job.id)

        assert queue.artifact(claim.job.id, "in").data == b"question"

    def test_those_of_another_tenant_are_not_found(self, queue: Queue) -> None:
        job = run(queue, queue.enqueue("a", tenant="one", artifacts=[Artifact("in", b"question")]).job, Done())
        with pytest.raises(JobNotFound):
            queue.delete_artifacts(job.id, tenant="two")

        assert len(queue.artifacts(job.id)) == 1
