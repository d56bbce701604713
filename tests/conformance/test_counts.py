"""Counting jobs by state, kind, lane, tenant and failure class."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Done, Failed, Queue
from tests.support.assertions import refused
from tests.support.clock import ManualClock
from tests.support.job_states import FINISHED, UNFINISHED, enqueue_and_run, job_in, nonzero, run


class TestCounts:
    def test_an_empty_store_counts_nothing(self, queue: Queue) -> None:
        for by in ("state", "kind", "lane", "tenant", "failure_class"):
            assert nonzero(queue.counts(by=by)) == {}

    def test_every_state_is_counted_by_its_name(self, queue: Queue) -> None:
        for state in (*UNFINISHED, *FINISHED):
            job_in(queue, state, kind=f"kind.{state}")

        # The blocked job has a running predecessor.
        assert nonzero(queue.counts()) == dict.fromkeys((*UNFINISHED, *FINISHED), 1) | {"running": 2}

    def test_kinds_lanes_and_tenants_are_counted_over_all_states(self, queue: Queue) -> None:
        for kind, lane, tenant, delay in (("a", "x", "t", 0), ("a", "y", "t", 60), ("b", "x", "u", 0)):
            queue.enqueue(kind, lane=lane, tenant=tenant, delay=delay)
        job_in(queue, "done", kind="c", lane="x", tenant="t")

        assert queue.counts(by="kind") == {"a": 2, "b": 1, "c": 1}
        assert queue.counts(by="lane") == {"x": 3, "y": 1}
        assert queue.counts(by="tenant") == {"t": 3, "u": 1}

    def test_failed_jobs_are_counted_by_the_class_of_their_failure(self, queue: Queue, clock: ManualClock) -> None:
        job_in(queue, "failed", kind="a")
        for kind in ("b", "c"):
            enqueue_and_run(queue, kind, Failed("x"), max_attempts=1)
        queue.enqueue("late", deadline=5, delay=60)
        clock.advance(6)
        assert queue.claim() is None
        job_in(queue, "done", kind="d")

        assert nonzero(queue.counts(by="failure_class")) == {"permanent": 2, "transient": 2}

    def test_a_job_that_failed_once_and_then_succeeded_is_no_failure(self, queue: Queue) -> None:
        job = enqueue_and_run(queue, "a", Failed("x", retry_after=0))
        run(queue, job, Done())

        assert nonzero(queue.counts(by="failure_class")) == {}

    def test_one_tenants_counts_leave_out_all_others(self, queue: Queue) -> None:
        for tenant, kind in (("t", "a"), ("t", "b"), ("u", "c")):
            queue.enqueue(kind, tenant=tenant)
        job_in(queue, "failed", kind="d", tenant="u")

        assert nonzero(queue.counts(tenant="t")) == {"ready": 2}
        assert nonzero(queue.counts(by="kind", tenant="t")) == {"a": 1, "b": 1}
        assert nonzero(queue.counts(by="tenant", tenant="t")) == {"t": 2}
        assert nonzero(queue.counts(by="failure_class", tenant="t")) == {}
        assert nonzero(queue.counts(tenant="missing")) == {}

    def test_deleted_jobs_are_not_counted(self, queue: Queue, clock: ManualClock) -> None:
        job_in(queue, "done")
        clock.advance(10)
        queue.admin.prune(older_than=5)

        assert nonzero(queue.counts()) == {}

    @pytest.mark.validation
    @pytest.mark.parametrize("by", ["color", "", None, 3])
    def test_an_unknown_property_is_refused(self, queue: Queue, by: Any) -> None:
        with refused(queue, "by"):
            queue.counts(by=by)
