"""Tenants: a call that names a job and another tenant finds and changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast import Artifact, Done, JobNotFound, NewJob, Queue
from tests.support.job_states import FAILS, all_events, claimed, job_in, nonzero, run, start

ADDRESSED: dict[str, Callable[[Queue, str, str], object]] = {
    "get": lambda queue, job_id, tenant: queue.get(job_id, tenant=tenant),
    "wait": lambda queue, job_id, tenant: queue.wait(job_id, timeout=0, tenant=tenant),
    "attempts": lambda queue, job_id, tenant: queue.attempts(job_id, tenant=tenant),
    "artifacts": lambda queue, job_id, tenant: queue.artifacts(job_id, tenant=tenant),
    "artifact": lambda queue, job_id, tenant: queue.artifact(job_id, "log", tenant=tenant),
    "cancel": lambda queue, job_id, tenant: queue.cancel(job_id, tenant=tenant),
    "cancel by force": lambda queue, job_id, tenant: queue.cancel(job_id, force=True, tenant=tenant),
    "requeue": lambda queue, job_id, tenant: queue.requeue(job_id, tenant=tenant),
    "reprioritize": lambda queue, job_id, tenant: queue.reprioritize(job_id, 9, tenant=tenant),
}
FINDS_READY = ["get", "attempts", "artifacts", "cancel", "cancel by force", "reprioritize"]
FINDS_FAILED = ["get", "wait", "attempts", "artifacts", "artifact", "requeue"]


class TestAddressedById:
    @pytest.mark.parametrize("state", ["ready", "running", "failed"])
    @pytest.mark.parametrize("operation", ADDRESSED.values(), ids=ADDRESSED.keys())
    def test_another_tenants_job_is_not_found_and_nothing_changes(
        self, queue: Queue, operation: Callable[[Queue, str, str], object], state: str
    ) -> None:
        job = _job_with_artifact(queue, state)
        before = (queue.get(job), queue.attempts(job), queue.artifacts(job), all_events(queue))

        with pytest.raises(JobNotFound) as refusal:
            operation(queue, job, "b")

        assert refusal.value.job_id == job
        assert (queue.get(job), queue.attempts(job), queue.artifacts(job), all_events(queue)) == before

    @pytest.mark.parametrize(
        ("name", "state"),
        [*((name, "ready") for name in FINDS_READY), *((name, "failed") for name in FINDS_FAILED)],
    )
    def test_a_job_of_the_same_tenant_is_found(self, queue: Queue, name: str, state: str) -> None:
        job = _job_with_artifact(queue, state)

        ADDRESSED[name](queue, job, "a")

    def test_the_refusal_is_the_same_as_for_a_missing_job(self, queue: Queue) -> None:
        queue.enqueue("k", tenant="a", job_id="there")
        messages = []
        for job_id in ("there", "nowhere"):
            with pytest.raises(JobNotFound) as refusal:
                queue.get(job_id, tenant="b")
            messages.append(str(refusal.value).replace(job_id, "…"))

        assert messages[0] == messages[1]

    def test_requeueing_many_reports_another_tenants_job_like_a_missing_one(self, queue: Queue) -> None:
        own, other = job_in(queue, "failed", tenant="b"), job_in(queue, "failed", tenant="a")

        report = queue.admin.requeue_many([own.id, other.id, "nowhere"], tenant="b")

        assert report.requeued == [own.id]
        assert [(each.job_id, each.why.replace(each.job_id, "…")) for each in report.skipped] == [
            (other.id, report.skipped[1].why.replace("nowhere", "…")),
            ("nowhere", report.skipped[1].why.replace("nowhere", "…")),
        ]
        assert queue.get(other.id) == other


class TestMany:
    @pytest.fixture(autouse=True)
    def both(self, queue: Queue) -> None:
        """Tenant `a` with one ready and one failed job, tenant `b` with two of each."""
        for tenant in ("a", "b", "b"):
            job_in(queue, "failed", tenant=tenant)
        for tenant in ("a", "b", "b"):
            queue.enqueue("k", tenant=tenant)

    def test_lists_contain_only_jobs_of_the_tenant(self, queue: Queue) -> None:
        assert [job.tenant for job in queue.jobs(tenant="a")] == ["a", "a"]
        assert [job.tenant for job in queue.jobs(state="failed", tenant="b")] == ["b", "b"]

    def test_a_cursor_from_another_tenants_list_shows_only_jobs_of_the_tenant(self, queue: Queue) -> None:
        foreign = queue.jobs(tenant="b", limit=1).cursor

        assert {job.tenant for job in queue.jobs(tenant="a", after=foreign)} == {"a"}

    def test_counts_contain_only_jobs_of_the_tenant(self, queue: Queue) -> None:
        assert nonzero(queue.counts(tenant="a")) == {"ready": 1, "failed": 1}
        assert nonzero(queue.counts(by="tenant", tenant="b")) == {"b": 4}

    def test_events_contain_only_those_of_the_tenant(self, queue: Queue) -> None:
        assert [event.tenant for event in queue.events(tenant="a")] == ["a"]
        assert [event.tenant for event in queue.events(tenant="b")] == ["b", "b"]

    def test_claims_take_only_jobs_of_the_tenant(self, queue: Queue) -> None:
        assert [claim.job.tenant for claim in queue.claim_many(tenant="a")] == ["a"]
        assert queue.claim(tenant="a") is None
        assert queue.claim(tenant="missing") is None

    def test_requeueing_all_failed_takes_only_jobs_of_the_tenant(self, queue: Queue) -> None:
        assert len(queue.admin.requeue_failed(tenant="b").requeued) == 2
        assert [job.tenant for job in queue.jobs(state="failed")] == ["a"]


class TestKeysAndOwnership:
    def test_equal_dedupe_keys_of_two_tenants_are_separate(self, queue: Queue) -> None:
        for scope in ("kind", "tenant"):
            enqueued = [
                queue.enqueue("k", tenant=tenant, dedupe_key="same", dedupe_scope=scope) for tenant in ("a", "b")
            ]
            assert [each.created for each in enqueued] == [True, True]
            assert len({each.id for each in enqueued}) == 2
            for each in enqueued:
                queue.cancel(each.id)

    def test_a_follow_up_belongs_to_its_parents_tenant_unless_it_names_one(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("k", tenant="a").job)

        queue.settle(claim, Done(follow_ups=[NewJob("own"), NewJob("other", tenant="b")]))

        assert queue.counts(by="kind", tenant="a") == {"k": 1, "own": 1}
        assert queue.counts(by="kind", tenant="b") == {"other": 1}

    def test_a_tenant_with_many_jobs_does_not_starve_one_with_few(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("k", tenant="much") for _ in range(50)])
        little = queue.enqueue("k", tenant="little").job

        assert little.id in [claimed(queue).job.id for _ in range(2)]


def _job_with_artifact(queue: Queue, state: str) -> str:
    job = queue.enqueue("k", tenant="a").job
    if state == "ready":
        return job.id
    claim = start(queue, job)
    queue.attach(claim, [Artifact("log", b"x")])
    if state == "failed":
        queue.cancel(job.id, force=True)
        queue.requeue(job.id)
        job = run(queue, job, FAILS)
    return job.id
