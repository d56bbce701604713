"""The catalog of kinds: producers that do not declare a task get its options and the check of its payload."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Backoff, Done, InvalidInput, NewJob, Queue, Tasks
from holdfast.domain.job import row_of
from holdfast.errors import KindRetired, UnknownKind
from tests.support.clock import ManualClock
from tests.support.kinds import publish
from tests.support.stores import Harness, statements_of


def mailing(**options: Any) -> Tasks:
    """Return a collection with one task, `email.send`, with these options."""

    def send(to: str, copies: int = 1) -> None: ...

    tasks = Tasks()
    tasks.task("email.send", **options)(send)
    return tasks


class TestOptions:
    def test_a_job_gets_the_published_options_that_its_caller_did_not_give(self, queue: Queue) -> None:
        backoff = Backoff(base=1.5, factor=3.0, cap=120.0, jitter=0.1)
        options = {"lane": "mail", "max_attempts": 3, "priority": 7, "requires": ["smtp"], "tags": {"team": "a"}}
        publish(queue, mailing(**options, backoff=backoff, timeout=30, delay=60, deadline=3600, events="all"))

        job = queue.enqueue("email.send", {"to": "ada"}, priority=1, tags={}).job

        assert (job.lane, job.max_attempts, job.requires, job.backoff) == ("mail", 3, ("smtp",), backoff)
        assert (job.priority, job.tags, row_of(job).record_all) == (1, {}, 1)
        assert (job.due_at, job.deadline_at) == (
            job.enqueued_at + timedelta(milliseconds=60_000),
            job.enqueued_at + timedelta(milliseconds=3_600_000),
        )
        assert queue.get(job.id) == job

    def test_a_time_given_by_the_caller_replaces_a_published_delay(self, queue: Queue, clock: ManualClock) -> None:
        publish(queue, mailing(delay=3600))
        soon = datetime.fromtimestamp(clock.now().wall_ms / 1000, UTC) + timedelta(seconds=5)

        job = queue.enqueue("email.send", {"to": "ada"}, run_at=soon).job

        assert job.due_at == clock.time + timedelta(milliseconds=5_000)

    def test_other_kinds_are_unaffected(self, queue: Queue) -> None:
        publish(queue, mailing(lane="mail"))

        assert queue.enqueue("other", [1]).job.lane == "default"

    def test_a_task_that_the_queue_declares_itself_wins(self, queue: Queue) -> None:
        publish(queue, mailing(lane="mail", max_attempts=9))

        @queue.task("email.send", lane="own")
        def send(to: int) -> None: ...

        job = send.enqueue(to=3).job
        [other] = queue.enqueue_many([send.new(to=4)])

        assert (job.lane, job.max_attempts, job.payload) == ("own", 5, {"to": 3})
        assert (other.job.lane, other.job.payload) == ("own", {"to": 4})

    def test_a_lane_that_drains_is_refused_though_the_caller_did_not_name_it(self, queue: Queue) -> None:
        publish(queue, mailing(lane="mail"))
        queue.lanes.set("mail", state="draining")

        with pytest.raises(Exception, match="'mail' is draining"):
            queue.enqueue("email.send", {"to": "ada"})


class TestPayloads:
    @pytest.mark.parametrize(
        ("payload", "field", "problem"),
        [
            (None, "payload.to", "is missing"),
            ({"to": 3}, "payload.to", "must be a string, not an integer"),
            ({"to": "ada", "cc": "bob"}, "payload.cc", "is not known; the keys are copies, to"),
            (["ada"], "payload", "must be an object, not a list"),
        ],
    )
    def test_one_that_the_task_would_refuse_is_refused_and_nothing_is_stored(
        self, queue: Queue, payload: object, field: str, problem: str
    ) -> None:
        publish(queue, mailing())

        with pytest.raises(InvalidInput) as caught:
            queue.enqueue("email.send", payload)

        assert (caught.value.field, caught.value.problem) == (field, problem)
        assert list(queue.jobs()) == []

    def test_one_of_many_refuses_the_whole_call_and_is_named(self, queue: Queue) -> None:
        publish(queue, mailing())

        with pytest.raises(InvalidInput) as caught:
            queue.enqueue_many([NewJob("email.send", {"to": "ada"}), NewJob("email.send", {"to": None})])

        assert caught.value.field == "jobs[1].payload.to"
        assert list(queue.jobs()) == []

    def test_a_follow_up_is_completed_and_checked_like_any_job(self, queue: Queue) -> None:
        publish(queue, mailing(lane="mail"))
        queue.enqueue("first")
        claim = queue.claim()
        assert claim is not None

        with pytest.raises(InvalidInput) as caught:
            queue.settle(claim, Done(follow_ups=[NewJob("email.send", {})]))
        queue.settle(claim, Done(follow_ups=[NewJob("email.send", {"to": "ada"})]))

        assert caught.value.field == "follow_ups[0].payload.to"
        assert [job.lane for job in queue.jobs(kind="email.send")] == ["mail"]

    def test_it_is_checked_in_the_transaction_of_the_caller(self, queue: Queue) -> None:
        publish(queue, mailing(lane="mail"))

        with queue.transaction() as tx:
            with pytest.raises(InvalidInput):
                tx.enqueue("email.send", {})
            tx.enqueue("email.send", {"to": "ada"})

        assert [job.lane for job in queue.jobs()] == ["mail"]


class TestRepeatedCalls:
    def test_an_enqueue_with_its_id_may_be_repeated_after_the_task_has_changed(self, queue: Queue) -> None:
        publish(queue, mailing(lane="mail"))
        first = queue.enqueue("email.send", {"to": "ada"}, job_id="one")
        tasks = Tasks()
        tasks.task("email.send", lane="post")(lambda address: None)
        publish(queue, tasks)

        again = queue.enqueue("email.send", {"to": "ada"}, job_id="one")

        assert (again.created, again.job) == (False, first.job)


class TestSessions:
    def test_messages_are_checked_and_a_session_is_required(self, queue: Queue) -> None:
        tasks = Tasks()

        @tasks.session_task("chat.message", lane="chat", join=True)
        def reply(context: object, messages: list[str]) -> None: ...

        publish(queue, tasks)

        problems = []
        for payload, options in ((1, {"session": "s"}), (None, {"session": "s", "messages": ["a", 2]}), ("a", {})):
            with pytest.raises(InvalidInput) as caught:
                queue.enqueue("chat.message", payload, **options)
            problems.append(caught.value.field)
        stored = queue.enqueue("chat.message", "hello", session="s").job

        assert problems == ["payload", "messages[1]", "session"]
        assert stored.lane == "chat"

    def test_options_that_a_session_does_not_support_are_not_applied_to_its_entries(self, queue: Queue) -> None:
        publish(queue, mailing(lane="mail", priority=5, affinity="smtp"))

        entry = queue.enqueue("email.send", {"to": "ada"}, session="s").job

        assert (entry.lane, entry.priority, entry.affinity) == ("mail", 0, None)


class TestPublishing:
    def test_a_publication_applies_to_the_next_enqueue_of_every_client(self, harness: Harness) -> None:
        worker_side, producer = harness.open(), harness.open()
        assert producer.enqueue("email.send", {"to": 1}).job.lane == "default"

        publish(worker_side, mailing(lane="mail"))
        assert producer.enqueue("email.send", {"to": "ada"}).job.lane == "mail"
        with pytest.raises(InvalidInput):
            producer.enqueue("email.send", {"to": 1})

        tasks = Tasks()

        @tasks.task("email.send", lane="post")
        def send(to: int) -> None: ...

        publish(worker_side, tasks)
        # The client has the old schema in its cache, which refuses this payload.
        assert producer.enqueue("email.send", {"to": 1}).job.lane == "post"

    def test_nothing_is_written_if_nothing_has_changed(self, queue: Queue) -> None:
        publish(queue, mailing(lane="mail"), worker="w1")
        before = queue.kinds.get("email.send")
        statements = statements_of(queue)
        statements.clear()

        publish(queue, mailing(lane="mail"), worker="w2")

        assert not {"kind_publish", "routing_lock", "routing_touch"} & set(statements)
        assert queue.kinds.get("email.send") == before

    def test_the_newest_publication_wins(self, queue: Queue, clock: ManualClock) -> None:
        publish(queue, mailing(lane="mail"), worker="w1")
        clock.advance(5)
        publish(queue, mailing(lane="post", timeout=9), worker="w2")

        kind = queue.kinds.get("email.send")

        assert (kind.lane, kind.timeout, kind.published_by) == ("post", 9.0, "w2")
        assert kind.published_at == clock.time

    def test_an_enqueue_of_a_published_kind_sends_no_more_statements_than_another(self, queue: Queue) -> None:
        publish(queue, mailing(lane="mail"))
        statements = statements_of(queue)
        sent = []
        for kind in ("other", "email.send"):
            queue.enqueue(kind, {"to": "ada"}, lane="mail")
            statements.clear()
            queue.enqueue(kind, {"to": "ada"})
            sent.append(list(statements))
            queue.enqueue(kind, {"to": "ada"})

        assert len(sent[1]) <= len(sent[0])


class TestCatalog:
    def test_a_kind_has_its_published_options_and_schema(self, queue: Queue) -> None:
        publish(queue, mailing(lane="mail", timeout=30))

        kind = queue.kinds.get("email.send")

        assert (kind.name, kind.lane, kind.max_attempts, kind.timeout) == ("email.send", "mail", 5, 30.0)
        assert (kind.published_by, kind.retired, kind.session, kind.options) == ("w1", False, False, {"lane": "mail"})
        assert kind.schema["properties"] == {"to": {"type": "string"}, "copies": {"type": "integer", "default": 1}}
        assert (kind.schema["required"], kind.schema["additionalProperties"]) == (["to"], False)
        assert queue.kinds.list() == [kind]

    def test_a_kind_that_was_only_used_or_retired_is_listed_without_a_publication(self, queue: Queue) -> None:
        queue.enqueue("used")
        queue.kinds.retire("old")

        assert [(kind.name, kind.published_by, kind.schema) for kind in queue.kinds.list()] == [
            ("old", None, None),
            ("used", None, None),
        ]
        assert queue.kinds.get("used").lane is None

    def test_an_unknown_kind_is_refused(self, queue: Queue) -> None:
        with pytest.raises(UnknownKind, match="'gone'"):
            queue.kinds.get("gone")

    def test_a_kind_that_was_only_retired_is_unknown_again_when_it_is_restored(self, queue: Queue) -> None:
        queue.kinds.retire("mistyped")
        assert [kind.name for kind in queue.kinds.list()] == ["mistyped"]
        queue.kinds.restore("mistyped")
        assert queue.kinds.list() == []
        with pytest.raises(UnknownKind, match="'mistyped': has no jobs, and is neither published nor retired"):
            queue.kinds.get("mistyped")

    def test_a_retired_kind_stays_published_and_retired_when_a_worker_publishes_it_again(self, queue: Queue) -> None:
        publish(queue, mailing(lane="mail"))
        queue.kinds.retire("email.send")
        publish(queue, mailing(lane="post"))

        assert (queue.kinds.get("email.send").retired, queue.kinds.get("email.send").lane) == (True, "post")
        with pytest.raises(KindRetired):
            queue.enqueue("email.send", {"to": "ada"})
        queue.kinds.restore("email.send")
        assert queue.enqueue("email.send", {"to": "ada"}).job.lane == "post"
        assert not queue.kinds.get("email.send").retired
