"""Trees of jobs: follow-ups know their parent and the root of their tree, by which they are listed.

Every store must pass this file unchanged.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Done, Failed, Job, NewJob, Queue
from tests.support.assertions import refused
from tests.support.claims import claim_one
from tests.support.clock import ManualClock


def settle_with(queue: Queue, *follow_ups: NewJob, **options: Any) -> Job:
    """Claim the next job and settle it with follow-ups."""
    return queue.settle(claim_one(queue, **options), Done(follow_ups=follow_ups))


def listed(queue: Queue, root: str, **options: Any) -> list[str]:
    return [job.id for job in queue.jobs(root=root, **options)]


def three_generations(queue: Queue) -> None:
    """Enqueue `a`, whose follow-ups are `b` and `c`; `d` follows `b`."""
    queue.enqueue("start", job_id="a")
    settle_with(queue, NewJob("next", job_id="b"), NewJob("last", job_id="c", priority=-1))
    settle_with(queue, NewJob("next", job_id="d"))


class TestLineage:
    def test_a_job_without_a_parent_is_its_own_root(self, queue: Queue) -> None:
        for job in (queue.enqueue("plain").job, queue.enqueue("keyed", job_id="mine", events="all").job):
            assert (job.parent, job.root) == (None, job.id)
            assert queue.get(job.id) == job
        [job] = [enqueued.job for enqueued in queue.enqueue_many([NewJob("plain")])]
        assert (job.parent, job.root) == (None, job.id)

    def test_follow_ups_know_parent_and_root(self, queue: Queue) -> None:
        three_generations(queue)

        lineage = {job.id: (job.parent, job.root) for job in queue.jobs()}

        assert lineage == {"a": (None, "a"), "b": ("a", "a"), "c": ("a", "a"), "d": ("b", "a")}

    def test_a_job_keeps_them_in_every_state(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue("start", job_id="a")
        settle_with(queue, NewJob("next", job_id="b", max_attempts=2))

        def lineages(job: Job) -> set[tuple[str | None, str]]:
            return {(one.parent, one.root) for one in (job, queue.get("b"))}

        assert lineages(claim_one(queue).job) == {("a", "a")}
        clock.advance(31)  # the lease expires
        claim = claim_one(queue)
        assert lineages(queue.settle(claim, Failed("no", permanent=True))) == {("a", "a")}
        assert lineages(queue.requeue("b")) == {("a", "a")}
        assert lineages(queue.settle(claim_one(queue), Done("ok"))) == {("a", "a")}

    def test_jobs_settled_together_are_parents_of_their_own_follow_ups(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("start", job_id=name) for name in "ab"])
        claims = queue.claim_many()
        queue.settle_many([(claim, Done(follow_ups=[NewJob("next", payload=claim.job.id)])) for claim in claims])

        assert [(job.payload, job.parent, job.root) for job in queue.jobs(kind="next")] == [
            ("b", "b", "b"),
            ("a", "a", "a"),
        ]

    def test_follow_ups_of_session_entries_have_the_entry_as_parent(self, queue: Queue) -> None:
        queue.enqueue("say", session="s", job_id="m1")
        turn = queue.sessions.claim("s")
        assert turn is not None
        queue.sessions.settle(turn, Done(follow_ups=[NewJob("say", session="s", job_id="m2")]))

        assert (queue.get("m2").parent, queue.get("m2").root) == ("m1", "m1")
        assert listed(queue, "m1", session="s") == ["m2", "m1"]
        assert listed(queue, "m2", session="s") == []

    def test_a_follow_up_that_exists_already_keeps_its_own_parent(self, queue: Queue) -> None:
        queue.enqueue("start", job_id="a")
        queue.enqueue("other", job_id="b", dedupe_key="k", dedupe_scope="tenant", priority=-1)
        settle_with(queue, NewJob("next", dedupe_key="k", dedupe_scope="tenant"))

        assert (queue.get("b").parent, queue.get("b").root) == (None, "b")

    def test_a_successor_has_the_job_that_enqueued_it_as_parent(self, queue: Queue) -> None:
        queue.enqueue("index", job_id="first", dedupe_key="k")
        running = claim_one(queue)
        queue.enqueue("start", job_id="a")
        settle_with(queue, NewJob("index", job_id="second", dedupe_key="k", on_duplicate="run_again"))

        assert (queue.get("second").parent, queue.get("second").state) == ("a", "blocked")
        queue.settle(running, Done())
        assert (claim_one(queue).job.id, queue.get("second").root) == ("second", "a")


class TestLists:
    def test_a_tree_is_listed_newest_first(self, queue: Queue) -> None:
        three_generations(queue)
        queue.enqueue("start", job_id="other")

        assert listed(queue, "a") == ["d", "c", "b", "a"]
        assert listed(queue, "other") == ["other"]
        assert listed(queue, "b") == ["b"]
        assert listed(queue, "none") == []

    def test_other_filters_apply(self, queue: Queue) -> None:
        three_generations(queue)

        assert listed(queue, "a", state="done") == ["b", "a"]
        assert listed(queue, "a", state=["ready"], kind="next") == ["d"]
        assert listed(queue, "a", tenant="other") == []
        assert listed(queue, "a", lane="other") == []

    def test_a_tree_is_paged(self, queue: Queue) -> None:
        three_generations(queue)
        first = queue.jobs(root="a", limit=3)
        second = queue.jobs(root="a", limit=3, after=first.cursor)

        assert ([job.id for job in first], [job.id for job in second]) == (["d", "c", "b"], ["a"])
        assert second.cursor is None

    def test_a_tree_whose_root_was_deleted_is_listed(self, queue: Queue, clock: ManualClock) -> None:
        three_generations(queue)
        clock.advance(60)
        assert queue.admin.prune(older_than=30).jobs == 2

        assert listed(queue, "a") == ["d", "c"]
        assert (queue.get("d").parent, queue.get("d").root) == ("b", "a")


@pytest.mark.validation
@pytest.mark.parametrize("root", ["", "x" * 201, 7])
def test_a_root_is_an_id(queue: Queue, root: Any) -> None:
    with refused(queue, "root"):
        queue.jobs(root=root)
