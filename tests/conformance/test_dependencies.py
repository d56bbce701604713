"""Jobs that run after others have ended."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from holdfast import Conflict, Deferred, Done, Failed, InvalidInput, Job, JobNotFound, NewJob, Queue
from holdfast.domain import limits
from holdfast.errors import KindRetired, LaneDraining
from holdfast.types import Enqueued
from tests.support.assertions import refused
from tests.support.clock import ManualClock
from tests.support.job_states import start
from tests.support.stores import Harness


def state(queue: Queue, job: Enqueued[Any] | Job | str) -> str:
    """Claim, which looks at dependencies, and return the state of a job."""
    queue.claim_many(kinds=["none"])
    return queue.get(job if isinstance(job, str) else job.id).state


def finish(queue: Queue, job: Enqueued[Any] | Job, result: Any = None) -> Job:
    return queue.settle(start(queue, queue.get(job.id)), Done(result))


def fail(queue: Queue, job: Enqueued[Any]) -> Job:
    return queue.settle(start(queue, queue.get(job.id)), Failed("no", permanent=True))


class TestRelease:
    def test_a_job_waits_for_all_its_parents(self, queue: Queue) -> None:
        first, second = queue.enqueue("a"), queue.enqueue("b")
        child = queue.enqueue("c", after=[first.id, second.id])

        assert child.job.state == "dependent"
        assert state(queue, child) == "dependent"
        finish(queue, first)
        assert state(queue, child) == "dependent"
        finish(queue, second)
        assert state(queue, child) == "ready"

    def test_the_claim_after_the_last_end_takes_it(self, queue: Queue) -> None:
        parent = queue.enqueue("a")
        child = queue.enqueue("c", after=[parent.id])
        claim = start(queue, queue.get(parent.id))
        both = queue.settle_and_claim([(claim, Done())])

        assert [one.job.id for one in both.claims] == [child.id]

    def test_a_parent_that_has_ended_counts_at_once(self, queue: Queue) -> None:
        parent = queue.enqueue("a")
        finish(queue, parent)
        child = queue.enqueue("c", after=[parent.id])

        assert state(queue, child) == "ready"

    def test_parents_of_the_same_call_are_given_by_position_or_id(self, queue: Queue) -> None:
        first, second, child = queue.enqueue_many(
            [{"kind": "a"}, {"kind": "b", "job_id": "second"}, {"kind": "c", "after": [0, "second"]}]
        )
        finish(queue, first)
        assert state(queue, child) == "dependent"
        finish(queue, second)
        assert state(queue, child) == "ready"
        assert [job.id for job in queue.parents(child.id)] == [first.id, "second"]

    def test_a_delay_still_applies(self, queue: Queue, clock: ManualClock) -> None:
        parent = queue.enqueue("a")
        child = queue.enqueue("c", after=[parent.id], delay=60)
        finish(queue, parent)
        assert state(queue, child) == "scheduled"
        clock.advance(60)
        assert state(queue, child) == "ready"

    def test_a_retry_of_a_parent_is_no_end(self, queue: Queue, clock: ManualClock) -> None:
        parent = queue.enqueue("a")
        child = queue.enqueue("c", after=[parent.id])
        queue.settle(start(queue, parent.job), Failed("no", retry_after=5))
        assert state(queue, child) == "dependent"
        clock.advance(5)
        queue.settle(start(queue, queue.get(parent.id)), Deferred(after=5))
        assert state(queue, child) == "dependent"
        clock.advance(5)
        finish(queue, parent)
        assert state(queue, child) == "ready"

    def test_many_children_of_one_parent_are_released_by_its_end(self, queue: Queue) -> None:
        parent = queue.enqueue("a")
        queue.enqueue_many([{"kind": "c", "after": [parent.id]} for _ in range(1_500)])
        state(queue, parent)
        finish(queue, parent)
        for _ in range(20):
            queue.claim_many(kinds=["none"])

        assert queue.counts() == {"done": 1, "ready": 1_500}

    def test_many_parents_of_one_child(self, queue: Queue) -> None:
        jobs: list[Any] = [{"kind": "a"} for _ in range(1_000)]
        child = queue.enqueue_many([*jobs, {"kind": "c", "after": list(range(1_000))}])[-1]
        claims = queue.claim_many(kinds=["a"], limit=1_000)
        queue.settle_many([(claim, Done()) for claim in claims[:-1]])
        for _ in range(10):
            assert state(queue, child) == "dependent"
        queue.settle(claims[-1], Done())
        assert state(queue, child) == "ready"

    @pytest.mark.slow("it stores 10,000 jobs")
    def test_one_settle_fans_out_to_9_999_jobs_and_the_one_that_joins_them(self, queue: Queue) -> None:
        claim = start(queue, queue.enqueue("split").job)
        parts: list[Any] = [{"kind": "part", "payload": {"n": n}} for n in range(9_999)]
        queue.settle(
            claim, Done(follow_ups=[*parts, {"kind": "join", "job_id": "join", "after": list(range(9_999))}])
        )

        assert queue.counts() == {"dependent": 1, "done": 1, "ready": 9_999}
        claims = queue.claim_many(kinds=["part"], limit=300)
        assert [one.job.payload["n"] for one in claims] == list(range(300))
        queue.settle_many([(one, Done()) for one in claims])
        assert state(queue, "join") == "dependent"

    def test_a_chain_and_a_diamond(self, queue: Queue) -> None:
        top, left, right, bottom = queue.enqueue_many(
            [
                {"kind": "top"},
                {"kind": "left", "after": [0]},
                {"kind": "right", "after": [0]},
                {"kind": "bottom", "after": [1, 2]},
            ]
        )
        for job in (top, left, right, bottom):
            assert state(queue, job) == "ready"
            finish(queue, job)
        assert queue.counts() == {"done": 4}

    def test_handlers_read_the_results_of_parents(self, queue: Queue) -> None:
        first, second = queue.enqueue("a"), queue.enqueue("b")
        child = queue.enqueue("c", after=[second.id, first.id])
        finish(queue, first, {"n": 1})
        finish(queue, second, {"n": 2})

        assert [job.result for job in queue.parents(child.id)] == [{"n": 2}, {"n": 1}]
        assert queue.parents(first.id) == []

    def test_a_follow_up_may_depend_on_others(self, queue: Queue) -> None:
        other, parent = queue.enqueue("other"), queue.enqueue("a")
        claim = start(queue, parent.job)
        follow_ups: list[dict[str, Any]] = [
            {"kind": "x", "job_id": "x"},
            {"kind": "y", "job_id": "y", "after": [0, other.id]},
        ]
        queue.settle(claim, Done(follow_ups=follow_ups))
        assert state(queue, "y") == "dependent"
        finish(queue, other)
        finish(queue, queue.get("x"))
        assert state(queue, "y") == "ready"


class TestFailure:
    @pytest.mark.parametrize("end", ["failed", "cancelled", "forced", "retired", "late"])
    def test_a_parent_that_is_not_done_cancels_its_children_step_by_step(
        self, queue: Queue, clock: ManualClock, end: str
    ) -> None:
        parent = queue.enqueue("a", deadline=10)
        child = queue.enqueue("c", after=[parent.id])
        grandchild = queue.enqueue("d", after=[child.id])
        self.end(queue, clock, parent, end)

        assert [state(queue, child), state(queue, grandchild)] == ["cancelled", "cancelled"]
        failure = queue.get(child.id).failure
        assert failure is not None
        assert (failure.reason, parent.id in failure.message) == ("dependency_failed", True)

    @pytest.mark.parametrize("end", ["failed", "cancelled", "forced", "retired", "late"])
    def test_or_runs_them_all_the_same(self, queue: Queue, clock: ManualClock, end: str) -> None:
        parent = queue.enqueue("a", deadline=10)
        child = queue.enqueue("c", after=[parent.id], on_failed="run")
        self.end(queue, clock, parent, end)

        assert state(queue, child) == "ready"

    @staticmethod
    def end(queue: Queue, clock: ManualClock, job: Enqueued[Any], end: str) -> None:
        """End a job in a way other than success."""
        if end == "failed":
            fail(queue, job)
        elif end == "cancelled":
            queue.cancel(job.id)
        elif end == "forced":
            start(queue, job.job)
            queue.cancel(job.id, force=True)
        elif end == "retired":
            queue.kinds.retire("a")
        elif end == "late":
            clock.advance(10)
            queue.claim_many(kinds=["none"])

    def test_an_expired_lease_without_attempts_is_an_end(self, queue: Queue, clock: ManualClock) -> None:
        parent = queue.enqueue("a", max_attempts=1)
        child = queue.enqueue("c", after=[parent.id], on_failed="run")
        start(queue, parent.job)
        clock.advance(24 * 3600)
        state(queue, child)

        assert queue.get(parent.id).state == "failed"
        assert state(queue, child) == "ready"

    def test_a_failure_is_final_even_if_others_still_run(self, queue: Queue) -> None:
        first, second = queue.enqueue("a"), queue.enqueue("b")
        child = queue.enqueue("c", after=[first.id, second.id])
        fail(queue, first)
        assert state(queue, child) == "cancelled"
        finish(queue, second)
        assert state(queue, child) == "cancelled"

    def test_a_long_chain_is_cancelled_by_some_claims(self, queue: Queue) -> None:
        jobs: list[dict[str, Any]] = [{"kind": "a"}, *({"kind": "a", "after": [n]} for n in range(30))]
        first, *_ = queue.enqueue_many(jobs)
        queue.cancel(first.id)
        for _ in range(31):
            queue.claim_many(kinds=["none"])

        assert queue.counts() == {"cancelled": 31}


class TestOperating:
    def test_a_dependent_job_can_be_cancelled_and_requeued(self, queue: Queue) -> None:
        parent = queue.enqueue("a")
        child = queue.enqueue("c", after=[parent.id])
        assert queue.cancel(child.id).state == "cancelled"
        finish(queue, parent)
        assert state(queue, child) == "cancelled"
        assert queue.requeue(child.id).state == "ready"

    def test_a_requeued_parent_is_waited_for_again(self, queue: Queue) -> None:
        parent = queue.enqueue("a")
        child = queue.enqueue("c", after=[parent.id])
        state(queue, child)
        fail(queue, parent)
        # Nobody has claimed since: the child was not told.
        queue.requeue(parent.id)
        assert state(queue, child) == "dependent"
        finish(queue, parent)
        assert state(queue, child) == "ready"

    def test_a_child_that_its_parents_failure_has_cancelled_can_be_requeued(self, queue: Queue) -> None:
        parent = queue.enqueue("a")
        child = queue.enqueue("c", after=[parent.id])
        fail(queue, parent)
        assert state(queue, child) == "cancelled"
        queue.requeue(parent.id)
        finish(queue, parent)
        assert state(queue, child) == "cancelled"
        queue.requeue(child.id)
        assert finish(queue, child).state == "done"

    def test_it_is_retired_with_its_kind_and_fails_after_its_deadline(self, queue: Queue, clock: ManualClock) -> None:
        parent = queue.enqueue("a")
        retired = queue.enqueue("old", after=[parent.id])
        late = queue.enqueue("c", after=[parent.id], deadline=10)
        queue.kinds.retire("old")
        clock.advance(10)

        assert [state(queue, retired), state(queue, late)] == ["retired", "failed"]
        with pytest.raises(KindRetired):
            queue.enqueue("old", after=[parent.id])

    def test_it_holds_its_dedupe_key(self, queue: Queue) -> None:
        parent = queue.enqueue("a")
        child = queue.enqueue("c", after=[parent.id], dedupe_key="k")
        again = queue.enqueue("c", dedupe_key="k")

        assert (again.id, again.created) == (child.id, False)
        replaced = queue.enqueue("c", {"n": 1}, dedupe_key="k", on_duplicate="replace")
        assert (replaced.job.payload, replaced.job.state) == ({"n": 1}, "dependent")

    def test_the_same_id_with_other_parents_is_a_conflict(self, queue: Queue) -> None:
        parent, other = queue.enqueue("a"), queue.enqueue("a")
        queue.enqueue("c", job_id="x", after=[parent.id])
        assert not queue.enqueue("c", job_id="x", after=[parent.id]).created
        with pytest.raises(Conflict):
            queue.enqueue("c", job_id="x", after=[other.id])

    def test_retention_keeps_parents_while_children_are_unfinished(self, queue: Queue, clock: ManualClock) -> None:
        parent = queue.enqueue("a")
        child = queue.enqueue("c", after=[parent.id])
        finish(queue, parent, "text")
        clock.advance(3600)
        assert queue.admin.prune(older_than=60).jobs == 0
        assert state(queue, child) == "ready"
        assert queue.admin.prune(older_than=60).jobs == 0
        assert [job.result for job in queue.parents(child.id)] == ["text"]
        finish(queue, child)
        clock.advance(3600)
        assert queue.admin.prune(older_than=60).jobs == 2

    def test_retention_keeps_a_parent_that_had_ended_before(self, queue: Queue, clock: ManualClock) -> None:
        """Also if no claim has looked at the child yet, which would otherwise depend on a job that is gone."""
        parent = queue.enqueue("a")
        finish(queue, parent, "text")
        clock.advance(3600)
        child = queue.enqueue("c", after=[parent.id])
        assert queue.admin.prune(older_than=60).jobs == 0
        assert state(queue, child) == "ready"
        assert queue.admin.prune(older_than=60).jobs == 0
        assert [job.result for job in queue.parents(child.id)] == ["text"]

    def test_a_duplicate_of_a_deleted_job_is_no_parent(self, queue: Queue, clock: ManualClock) -> None:
        first = NewJob("a", dedupe_key="key", dedupe_for=7200)
        deleted = queue.enqueue(first)
        finish(queue, deleted)
        clock.advance(3600)
        assert queue.admin.prune(older_than=60).jobs == 1
        with pytest.raises(JobNotFound) as caught:
            queue.enqueue_many([first, NewJob("c", after=[0])])
        assert caught.value.job_id == deleted.id
        assert queue.counts() == {}

    def test_it_is_listed_and_counted(self, queue: Queue) -> None:
        parent = queue.enqueue("a")
        child = queue.enqueue("c", after=[parent.id])

        assert [job.id for job in queue.jobs(state="dependent")] == [child.id]
        assert queue.counts() == {"dependent": 1, "ready": 1}
        assert queue.admin.cancel_many([child.id]).cancelled == [child.id]

    def test_a_rolled_back_enqueue_leaves_nothing(self, queue: Queue) -> None:
        parent = queue.enqueue("a")

        def roll_back() -> None:
            with queue.transaction() as transaction:
                transaction.enqueue("c", after=[parent.id])
                raise RuntimeError

        with pytest.raises(RuntimeError):
            roll_back()
        finish(queue, parent)
        assert queue.counts() == {"done": 1}


class TestOnEnd:
    @pytest.mark.parametrize("end", ["done", "failed", "cancelled", "forced", "retired", "late", "expired"])
    def test_it_runs_however_the_job_ends(self, queue: Queue, clock: ManualClock, end: str) -> None:
        on_end = {"kind": "undo", "payload": {"n": 1}, "lane": "late", "priority": 3}
        job = queue.enqueue("a", deadline=100_000, max_attempts=1, on_end=on_end, tenant="acme")
        callback = queue.get(f"holdfast:on_end:{job.job.number}")
        assert (callback.state, callback.tenant, callback.lane, callback.priority) == ("dependent", "acme", "late", 3)
        if end == "done":
            finish(queue, job)
        elif end == "expired":
            start(queue, job.job)
            clock.advance(100_000)
            queue.claim_many(kinds=["none"])
        else:
            TestFailure.end(queue, clock, job, "none" if end == "late" else end)
            clock.advance(100_000 if end == "late" else 0)
        queue.claim_many(kinds=["none"])

        assert state(queue, callback) == "ready"
        assert [parent.id for parent in queue.parents(callback.id)] == [job.id]
        assert queue.get(job.id).finished

    def test_a_duplicate_and_a_rolled_back_job_have_none(self, queue: Queue) -> None:
        first = queue.enqueue("a", dedupe_key="k", on_end={"kind": "undo"})
        queue.enqueue("a", dedupe_key="k", on_end={"kind": "undo"})
        queue.lanes.set("shut", state="draining")
        with pytest.raises(LaneDraining):
            queue.enqueue("b", on_end={"kind": "undo", "lane": "shut"})
        assert queue.counts() == {"ready": 1, "dependent": 1}
        finish(queue, first)
        assert queue.admin.backlog().dependent == 1
        assert state(queue, f"holdfast:on_end:{first.job.number}") == "ready"
        assert queue.admin.backlog().dependent == 0

    def test_it_is_part_of_what_identifies_a_job(self, queue: Queue) -> None:
        queue.enqueue("a", job_id="x", on_end={"kind": "undo"})
        assert not queue.enqueue("a", job_id="x", on_end={"kind": "undo"}).created
        with pytest.raises(Conflict):
            queue.enqueue("a", job_id="x", on_end={"kind": "other"})

    @pytest.mark.validation
    @pytest.mark.parametrize(
        ("on_end", "field"), [({}, "on_end.kind"), ({"kind": "a", "job_id": "x"}, "on_end.job_id"), (3, "on_end")]
    )
    def test_bad_callbacks_are_refused(self, queue: Queue, on_end: Any, field: str) -> None:
        with refused(queue, field):
            queue.enqueue("c", on_end=on_end)


class TestTrees:
    def test_a_whole_tree_is_cancelled(self, queue: Queue) -> None:
        root = queue.enqueue("a", on_end={"kind": "undo"})
        claim = start(queue, root.job)
        follow_ups: list[dict[str, Any]] = [{"kind": "b", "job_id": "b"}, {"kind": "c", "job_id": "c", "after": [0]}]
        queue.settle(claim, Done(follow_ups=follow_ups))
        held = start(queue, queue.get("b"))
        queue.settle(held, Done(follow_ups=[{"kind": "d", "job_id": f"d{number}"} for number in range(450)]))
        other, running = queue.enqueue("other"), start(queue, queue.get("d0"))
        report = queue.cancel(root=root.id)

        assert (len(report.cancelled), report.stop_requested, report.skipped) == (450, [running.job.id], [])
        assert (queue.get("c").state, state(queue, other)) == ("cancelled", "ready")
        assert state(queue, f"holdfast:on_end:{root.job.number}") == "ready"
        assert queue.cancel(root=root.id, force=True).cancelled == [running.job.id]
        with pytest.raises(Conflict, match="first of its tree"):
            queue.cancel(root="c")
        with pytest.raises(JobNotFound):
            queue.cancel(root=root.id, tenant="acme")

    def test_a_requeue_brings_back_what_the_failure_has_cancelled(self, queue: Queue) -> None:
        first, second, other = queue.enqueue("a"), queue.enqueue("b"), queue.enqueue("x")
        child = queue.enqueue("c", after=[first.id, second.id])
        grandchild = queue.enqueue("d", after=[child.id])
        both = queue.enqueue("e", after=[first.id, other.id])
        by_hand = queue.enqueue("f", after=[first.id])
        queue.cancel(by_hand.id)
        fail(queue, first)
        fail(queue, other)
        finish(queue, second)
        for job in (child, grandchild, both):
            assert state(queue, job) == "cancelled"
        queue.requeue(first.id, with_children=True)
        found = [state(queue, job) for job in (child, grandchild, both, by_hand)]
        assert found == ["dependent", "dependent", "cancelled", "cancelled"]
        finish(queue, first)
        assert (state(queue, child), state(queue, grandchild)) == ("ready", "dependent")
        finish(queue, child)
        assert state(queue, grandchild) == "ready"

    def test_a_large_number_of_children_is_brought_back_in_chunks(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        parent = queue.enqueue("a")
        children = queue.enqueue_many([NewJob("c", after=[parent.id]) for _ in range(7)])
        queue.enqueue_many([NewJob("d", after=[child.id]) for child in children])
        fail(queue, parent)
        while "dependent" in queue.counts():
            queue.claim_many(kinds=["none"])
        monkeypatch.setattr(limits, "REQUEUE_CHILDREN_MAX", 2)
        monkeypatch.setattr(limits, "CHUNK", 2)
        queue.requeue(parent.id, with_children=True)
        assert queue.counts() == {"ready": 1, "dependent": 2, "cancelled": 12}
        for _ in range(20):
            queue.claim_many(kinds=["none"])
        assert queue.counts() == {"ready": 1, "dependent": 14}
        monkeypatch.undo()
        finish(queue, parent)
        while claims := queue.claim_many(limit=20):
            queue.settle_many([(claim, Done()) for claim in claims])
        assert queue.counts() == {"done": 15}

    def test_a_child_that_came_after_the_failure_waits_for_the_requeued_parent(self, queue: Queue) -> None:
        """Its parent does not know of it: only its own wake row asks to look."""
        parent = queue.enqueue("a")
        fail(queue, parent)
        child = queue.enqueue("c", after=[parent.id])
        assert state(queue, child) == "cancelled"
        queue.requeue(parent.id, with_children=True)
        assert state(queue, child) == "dependent"
        finish(queue, parent)
        assert state(queue, child) == "ready"

    def test_children_whose_kind_is_retired_stay_cancelled(self, queue: Queue) -> None:
        parent = queue.enqueue("a")
        child = queue.enqueue("old", after=[parent.id])
        fail(queue, parent)
        assert state(queue, child) == "cancelled"
        queue.kinds.retire("old")
        queue.requeue(parent.id, with_children=True)
        assert state(queue, child) == "cancelled"


class TestRefusals:
    @pytest.mark.validation
    @pytest.mark.parametrize(
        ("options", "field"),
        [
            ({"after": "id"}, "after"),
            ({"after": [""]}, "after[0]"),
            ({"after": [-1]}, "after[0]"),
            ({"after": [True]}, "after[0]"),
            ({"after": ["a"], "on_failed": "hold"}, "on_failed"),
            ({"on_failed": "run"}, "on_failed"),
            ({"after": ["a"], "session": "s"}, "after"),
            ({"after": ["a"], "dedupe_key": "k", "on_duplicate": "run_again"}, "after"),
            ({"after": [str(n) for n in range(10_001)]}, "after"),
        ],
    )
    def test_bad_options_are_refused(self, queue: Queue, options: dict[str, Any], field: str) -> None:
        with refused(queue, field):
            queue.enqueue("c", **options)

    def test_an_unknown_parent_is_refused_and_nothing_stored(self, queue: Queue) -> None:
        queue.enqueue("a", tenant="other", job_id="others")
        for parent in ("none", "others"):
            with pytest.raises(JobNotFound, match=parent):
                queue.enqueue("c", after=[parent])
        assert queue.counts() == {"ready": 1}

    @pytest.mark.parametrize("after", [[0], [1], ["self"], ["later"]])
    def test_a_job_depends_on_earlier_ones_only(self, queue: Queue, after: list[Any]) -> None:
        jobs: list[dict[str, Any]] = [
            {"kind": "c", "job_id": "self", "after": after},
            {"kind": "d", "job_id": "later"},
        ]
        with pytest.raises(InvalidInput, match=r"after\[0\]"):
            queue.enqueue_many(jobs)
        assert queue.counts() == {}

    def test_a_job_depends_on_jobs_of_its_tenant_only(self, queue: Queue) -> None:
        with pytest.raises(InvalidInput, match=r"jobs\[1\].after\[0\]: is 0, a job of tenant 'red', not 'blue'"):
            queue.enqueue_many([NewJob("a", tenant="red"), NewJob("c", tenant="blue", after=[0])])
        other = queue.enqueue("a", tenant="red")
        with pytest.raises(JobNotFound):
            queue.enqueue("c", tenant="blue", after=[other.id])
        assert queue.counts() == {"ready": 1}


def two_clients(harness: Harness) -> tuple[Queue, Queue]:
    return harness.open(), harness.open()


def test_parents_that_end_together_release_their_child_once(durable_harness: Harness) -> None:
    """Two settlements whose transactions are open at the same time, where the engine has several writers."""
    one, two = two_clients(durable_harness)
    for _ in range(10):
        first, second = one.enqueue("a"), one.enqueue("a")
        child = one.enqueue("c", after=[first.id, second.id])
        claims = [start(one, first.job), start(one, second.job)]
        barrier = threading.Barrier(2, timeout=60)

        def settle(queue: Queue, claim: Any, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            queue.settle_and_claim([(claim, Done())], kinds=["none"])

        threads = [threading.Thread(target=settle, args=pair) for pair in zip((one, two), claims, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # A fold that meets the other one leaves the rest for later.
        durable_harness.clock.advance(1)
        assert state(one, child) == "ready"
        one.cancel(child.id)


def test_an_end_in_a_long_transaction_is_not_missed(durable_harness: Harness) -> None:
    """The child is stored, and looked at, while the transaction that ends its parent is open, if the engine can."""
    one, two = two_clients(durable_harness)
    parent = one.enqueue("a")
    claim = start(one, parent.job)
    with one.transaction() as transaction:
        transaction.settle(claim, Done())
        stored = threading.Thread(target=lambda: two.enqueue("c", job_id="child", after=[parent.id]))
        looked = threading.Thread(target=lambda: two.claim_many(kinds=["none"]))
        stored.start()
        stored.join(0.3)
        if not stored.is_alive():
            looked.start()
            looked.join(0.3)
    stored.join()
    if looked.ident is not None:
        looked.join()
    durable_harness.clock.advance(1)
    assert state(one, "child") == "ready"


def test_a_child_locked_by_another_transaction_is_told_later(durable_harness: Harness) -> None:
    one, two = two_clients(durable_harness)
    parent = one.enqueue("a")
    child = one.enqueue("c", after=[parent.id])
    state(one, child)
    with one.transaction() as transaction:
        transaction.reprioritize(child.id, 5)
        settled = threading.Thread(target=lambda: finish(two, parent))
        settled.start()
        settled.join(0.3)
    settled.join()
    durable_harness.clock.advance(1)
    assert state(one, child) == "ready"


def test_retention_keeps_the_parent_of_a_job_that_is_not_yet_committed(durable_harness: Harness) -> None:
    one, two = two_clients(durable_harness)
    parent = one.enqueue("a")
    finish(one, parent, "text")
    durable_harness.clock.advance(3600)
    with one.transaction() as transaction:
        child = transaction.enqueue("c", after=[parent.id])
        pruned = threading.Thread(target=lambda: two.admin.prune(older_than=60))
        pruned.start()
        # One engine waits for the transaction, the other does not.
        pruned.join(0.3)
    pruned.join()
    assert state(one, child.id) == "ready"
    assert [job.result for job in one.parents(child.id)] == ["text"]
