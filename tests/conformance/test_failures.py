"""Failed jobs in groups that failed in the same way.

Every store must pass this file unchanged.
"""

from __future__ import annotations

import pytest

from holdfast import Done, Failed, Queue
from holdfast.domain import limits
from tests.support.assertions import refused
from tests.support.claims import claim_one
from tests.support.clock import ManualClock

PERMANENT = True


def fail(queue: Queue, kind: str, message: str, *, lane: str = "default", tenant: str = "default") -> str:
    """Enqueue a job, let it fail and return its id."""
    queue.enqueue(kind, lane=lane, tenant=tenant)
    claim = claim_one(queue, lanes=[lane], kinds=[kind])
    queue.settle(claim, Failed(message, reason="no_answer", permanent=PERMANENT))
    return claim.job.id


class TestGroups:
    def test_the_same_failure_is_one_group_with_its_newest_job(self, queue: Queue) -> None:
        first = fail(queue, "mail", "order 1 refused")
        second = fail(queue, "mail", "order 2 refused")
        other = fail(queue, "sms", "no credit")

        # Both may have failed within one millisecond.
        older, newest = sorted(queue.admin.failures(), key=lambda one: one.kind)

        assert (newest.kind, newest.message, newest.count, newest.example) == ("sms", "no credit", 1, other)
        assert (older.kind, older.error, older.message, older.count) == ("mail", "no_answer", "order # refused", 2)
        assert (older.example, older.this_hour, older.hour_before) == (second, 2, 0)
        assert older.first_at <= older.last_at <= newest.last_at
        assert {job.id for job in queue.jobs(fingerprint=older.fingerprint)} == {first, second}

    def test_those_of_the_same_time_are_in_order_of_their_fingerprints(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        for kind in ("c", "a", "e", "b", "d"):
            fail(queue, kind, "no")
        clock.advance(1)
        last = fail(queue, "last", "no")

        newest, *others = queue.admin.failures()

        assert newest.example == last
        assert [one.fingerprint for one in others] == sorted(one.fingerprint for one in others)
        assert queue.admin.failures(limit=3) == [newest, *others[:2]]

    def test_a_failure_that_is_retried_or_a_success_is_in_no_group(self, queue: Queue) -> None:
        queue.enqueue("mail", max_attempts=2)
        queue.settle(claim_one(queue), Failed("again", retry_after=0))
        queue.settle(claim_one(queue), Done())

        assert queue.admin.failures() == []

    def test_each_filter_selects_groups(self, queue: Queue) -> None:
        fail(queue, "mail", "a", tenant="acme")
        fail(queue, "sms", "b")
        [mail] = queue.admin.failures(kind="mail")

        assert [one.kind for one in queue.admin.failures(tenant="acme")] == ["mail"]
        assert [one.kind for one in queue.admin.failures(fingerprint=mail.fingerprint)] == ["mail"]
        assert queue.admin.failures(tenant="acme", kind="sms") == []
        assert len(queue.admin.failures(limit=1)) == 1

    def test_a_tenant_sees_its_own_failures_only(self, queue: Queue) -> None:
        own = fail(queue, "mail", "no", tenant="acme")
        fail(queue, "mail", "no", tenant="zeta", lane="bulk")
        fail(queue, "mail", "no", tenant="zeta", lane="bulk")

        [both] = queue.admin.failures()
        [one] = queue.admin.failures(tenant="acme")

        assert (both.tenants, both.lanes, both.count) == (("acme", "zeta"), ("bulk", "default"), 3)
        assert (one.tenants, one.lanes, one.count, one.example) == (("acme",), ("default",), 1, own)
        assert [job.id for job in queue.jobs(fingerprint=one.fingerprint, tenant="acme")] == [own]

    def test_a_requeued_job_counts_on_but_is_listed_by_its_newest_failure_only(self, queue: Queue) -> None:
        job_id = fail(queue, "mail", "no")
        [group] = queue.admin.failures()
        queue.requeue(job_id)
        assert queue.jobs(fingerprint=group.fingerprint).jobs == ()

        queue.settle(claim_one(queue), Failed("no", reason="no_answer", permanent=PERMANENT))

        assert [job.id for job in queue.jobs(fingerprint=group.fingerprint)] == [job_id]
        # If both failures fall into one millisecond, they are one.
        assert queue.admin.failures()[0].count in {1, 2}

    def test_bad_fingerprints_are_refused(self, queue: Queue) -> None:
        for call in (queue.jobs, queue.admin.failures):
            with refused(queue, field="fingerprint"):
                call(fingerprint="xyz")
        with refused(queue, field="fingerprint"):
            queue.jobs(fingerprint="0" * 16, session="s")


class TestOverTime:
    def test_this_hour_is_compared_with_the_hour_before(self, queue: Queue, clock: ManualClock) -> None:
        fail(queue, "mail", "no")
        clock.advance(2 * 3600)
        fail(queue, "mail", "no")
        clock.advance(3601)
        fail(queue, "mail", "no")
        fail(queue, "mail", "no")

        [group] = queue.admin.failures()

        assert (group.count, group.this_hour, group.hour_before) == (4, 2, 1)
        assert (group.last_at - group.first_at).total_seconds() == 3 * 3600 + 1

    def test_pages_of_jobs_are_by_finish_time(self, queue: Queue, clock: ManualClock) -> None:
        ids = []
        for _ in range(5):
            ids.append(fail(queue, "mail", "no"))
            clock.advance(1)
        [group] = queue.admin.failures()

        found, after = [], None
        while True:
            page = queue.jobs(fingerprint=group.fingerprint, limit=2, after=after)
            found += [job.id for job in page]
            after = page.cursor
            if after is None:
                break
        assert found == ids[::-1]

    def test_an_expired_job_without_attempts_left_is_in_a_group(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue("mail", max_attempts=1)
        claim_one(queue, lease=10)
        clock.advance(11)
        assert queue.claim() is None

        [group] = queue.admin.failures()
        assert group.error == "lease_expired"

    def test_retention_deletes_failures_and_then_their_groups(self, queue: Queue, clock: ManualClock) -> None:
        fail(queue, "mail", "old")
        clock.advance(3600)
        young = fail(queue, "mail", "young")

        queue.admin.prune(older_than=1800)

        assert [(one.message, one.example) for one in queue.admin.failures()] == [("young", young)]

    def test_failures_stay_as_long_as_failed_jobs_do(self, queue: Queue, clock: ManualClock) -> None:
        job_id = fail(queue, "mail", "no")
        clock.advance(3600)
        queue.admin.prune(older_than=60, states=["done"])

        [group] = queue.admin.failures()
        assert (group.count, group.example) == (1, job_id)

    def test_counting_stops_at_its_bound(
        self, queue: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "FAILURES_COUNTED_MAX", 3)
        for _ in range(5):
            fail(queue, "mail", "no")
            clock.advance(0.001)
        assert queue.admin.failures()[0].count == 3
