"""Lists of jobs by their tags.

Every store must pass this file unchanged.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Done, Job, NewJob, Queue
from tests.support.assertions import refused
from tests.support.claims import claim_one
from tests.support.clock import ManualClock
from tests.support.job_states import FINISHED, UNFINISHED, State, job_in, rolled_back
from tests.support.stores import statements_of


def tagged(queue: Queue, **tags: str) -> list[str]:
    return [job.id for job in queue.jobs(tags=tags)]


def enqueue(queue: Queue, job_id: str, **tags: str) -> Job:
    return queue.enqueue("mail", job_id=job_id, tags=tags).job


class TestFilter:
    def test_jobs_that_have_all_tags_are_listed_newest_first(self, queue: Queue) -> None:
        enqueue(queue, "a", order="42", customer="acme")
        enqueue(queue, "b", order="42")
        enqueue(queue, "c", order="43", customer="acme")
        queue.enqueue("mail", job_id="d")

        assert tagged(queue, order="42") == ["b", "a"]
        assert tagged(queue, customer="acme") == ["c", "a"]
        assert tagged(queue, order="42", customer="acme") == tagged(queue, customer="acme", order="42") == ["a"]
        assert tagged(queue, order="4") == tagged(queue, customer="42") == tagged(queue, Order="42") == []
        assert tagged(queue) == ["d", "c", "b", "a"]

    def test_other_filters_apply(self, queue: Queue) -> None:
        tags = {"order": "42"}
        queue.enqueue("one", job_id="a", lane="slow", tenant="acme", tags=tags)
        queue.enqueue("two", job_id="b", tags=tags)
        queue.settle(claim_one(queue), Done(follow_ups=[NewJob("two", job_id="c", tags=tags)]))

        def listed(**options: Any) -> list[str]:
            return [job.id for job in queue.jobs(tags=tags, **options)]

        assert listed() == ["c", "b", "a"]
        assert (listed(kind="two"), listed(lane="slow"), listed(tenant="acme")) == (["c", "b"], ["a"], ["a"])
        assert (listed(state="done"), listed(state=["ready"])) == (["b"], ["c", "a"])
        assert (listed(root="b"), listed(root="a"), listed(root="b", state="ready")) == (["c", "b"], ["a"], ["c"])
        assert [job.id for job in queue.jobs(root="b", tags={"order": "43"})] == []

    def test_session_entries_are_found_in_their_session_and_outside(self, queue: Queue) -> None:
        queue.enqueue("say", session="s", job_id="a", tags={"order": "42"})
        queue.enqueue("say", session="s", job_id="b")

        assert tagged(queue, order="42") == ["a"]
        assert [job.id for job in queue.jobs(session="s", tags={"order": "42"})] == ["a"]
        assert [job.id for job in queue.jobs(session="s", tags={"order": "43"})] == []

    def test_a_list_is_paged(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("mail", tags={"order": "42"}) for _ in range(5)])
        first = queue.jobs(tags={"order": "42"}, limit=3)
        second = queue.jobs(tags={"order": "42"}, limit=3, after=first.cursor)

        assert [job.number for job in (*first, *second)] == [job.number for job in queue.jobs()]
        assert second.cursor is None

    @pytest.mark.parametrize(
        ("tag", "value"),
        [("k", ""), ("k", "a=b"), ("k y", "é\u0301"), ('"', "\\'"), ("k", '{"a": 1}'), ("k", "%"), ("$.k", "1")],
    )
    def test_values_are_compared_as_they_are(self, queue: Queue, tag: str, value: str) -> None:
        queue.enqueue("mail", job_id="other", tags={"k": "other"})
        queue.enqueue("mail", job_id="mine", tags={tag: value})
        queue.enqueue_many([NewJob("mail", job_id="second", tags={tag: value, "x": "y"})])

        assert tagged(queue, **{tag: value}) == ["second", "mine"]

    @pytest.mark.parametrize("state", [*UNFINISHED, *FINISHED])
    def test_a_job_in_any_state_is_found(self, queue: Queue, state: State) -> None:
        job = job_in(queue, state, tags={"state": state})

        assert job.id in tagged(queue, state=state)


class TestEveryEnqueue:
    def test_many_jobs_at_once_are_found(self, queue: Queue) -> None:
        jobs = [NewJob("mail", tags={"third": str(n % 3)}) if n % 2 else NewJob("mail") for n in range(60)]
        enqueued = [one.id for one in queue.enqueue_many(jobs)]

        assert tagged(queue, third="1") == [enqueued[n] for n in reversed(range(60)) if n % 2 and n % 3 == 1]

    def test_plain_and_other_enqueues_are_found(self, queue: Queue) -> None:
        options: list[dict[str, Any]] = [{}, {"delay": 5}, {"events": "all"}, {"dedupe_key": "k"}, {"deadline": 60}]
        ids = [queue.enqueue("mail", tags={"a": "b"}, **one).id for one in options]

        assert tagged(queue, a="b") == ids[::-1]

    def test_a_replaced_job_is_found_by_its_new_tags_only(self, queue: Queue) -> None:
        for tags in ({"a": "1", "same": "x"}, {"b": "2", "same": "x"}, {}):
            job = queue.enqueue("mail", dedupe_key="k", on_duplicate="replace", tags=tags).job
            for tag, value in (("a", "1"), ("b", "2"), ("same", "x")):
                assert tagged(queue, **{tag: value}) == ([job.id] if tag in tags else [])

    def test_a_rolled_back_enqueue_leaves_nothing(self, queue: Queue) -> None:
        with rolled_back(queue) as transaction:
            transaction.enqueue("mail", tags={"a": "b"})
        queue.enqueue("mail")

        assert tagged(queue, a="b") == []

    def test_a_deleted_job_leaves_nothing(self, queue: Queue, clock: ManualClock) -> None:
        enqueue(queue, "old", order="42")
        queue.settle(claim_one(queue), Done())
        clock.advance(60)
        enqueue(queue, "new", order="42")
        assert queue.admin.prune(older_than=30).jobs == 1

        assert tagged(queue, order="42") == ["new"]

    def test_a_job_without_tags_costs_nothing(self, queue: Queue) -> None:
        queue.enqueue("mail")
        queue.enqueue_many([NewJob("mail"), NewJob("mail", job_id="mine")])
        queue.enqueue("mail", dedupe_key="k")
        queue.enqueue("mail", "other", dedupe_key="k", on_duplicate="replace")

        assert not [name for name in statements_of(queue) if name.startswith("tags")]


@pytest.mark.validation
@pytest.mark.parametrize(
    ("tags", "field"),
    [
        ("order=42", "tags"),
        ({"order": 42}, "tags.order"),
        ({"": "x"}, "tags (a key)"),
        ({"k": "x" * 5_000}, "tags.k"),
    ],
)
def test_tags_are_short_strings(queue: Queue, tags: Any, field: str) -> None:
    with refused(queue, field):
        queue.jobs(tags=tags)
