"""Message ids, ids, retention: a replay returns the original entry, even after its deletion; tenants are separate.

Every store must pass this file unchanged.
"""

from __future__ import annotations

import pytest

from holdfast import Conflict, Done, Queue
from holdfast.domain.job import row_of
from tests.support.clock import ManualClock
from tests.support.sessions import SESSION, say, states, take, take_any, texts

DAY = 86_400.0


class TestMessageIds:
    def test_a_replay_returns_the_original_regardless_of_its_content(self, queue: Queue) -> None:
        enqueued = queue.enqueue("chat.message", 1, session=SESSION, message_id="m1")
        again = queue.enqueue("chat.note", 2, session=SESSION, message_id="m1", entry_type="command", delay=5)

        assert (again.id, again.created, again.job) == (enqueued.id, False, enqueued.job)
        assert states(queue) == {1: "ready"}

    def test_also_while_it_runs_and_when_it_is_done(self, queue: Queue) -> None:
        [entry] = say(queue, 1, message_id="m1")
        turn = take(queue)
        assert queue.enqueue("chat.message", session=SESSION, message_id="m1").job.state == "running"
        queue.sessions.settle(turn, Done())

        replay = queue.enqueue("chat.message", session=SESSION, message_id="m1")
        assert (replay.id, replay.job.state, replay.created) == (entry, "done", False)

    def test_also_if_new_entries_are_refused(self, queue: Queue) -> None:
        [entry] = say(queue, 1, message_id="m1")
        queue.lanes.set("default", state="draining")
        assert queue.enqueue("chat.message", 2, session=SESSION, message_id="m1").id == entry
        queue.lanes.set("default", state="active")
        queue.kinds.retire("chat.message")

        assert queue.enqueue("chat.message", 2, session=SESSION, message_id="m1").id == entry

    def test_also_within_one_call(self, queue: Queue) -> None:
        options = {"kind": "chat.message", "session": SESSION, "message_id": "m1"}
        first, second, third = queue.enqueue_many(
            [{**options, "payload": 1}, {**options, "payload": 2}, {**options, "payload": 3, "message_id": "m2"}]
        )

        assert (first.id, first.created, second.created) == (second.id, True, False)
        assert third.created
        assert states(queue) == {1: "ready", 3: "ready"}

    def test_another_session_or_tenant_has_its_own_keys(self, queue: Queue) -> None:
        enqueued = [
            queue.enqueue("chat.message", session=session, tenant=tenant, message_id="m1")
            for session in ("a", "b")
            for tenant in ("x", "y")
        ]

        assert all(one.created for one in enqueued)

    def test_positions_have_no_gaps_if_replays_come_between(self, queue: Queue) -> None:
        say(queue, 1, message_id="m1")
        say(queue, 1, message_id="m1")
        say(queue, 2, message_id="m2")

        assert [row_of(job).enqueue_seq for job in take(queue).entries] == [1, 2]

    def test_the_key_is_returned(self, queue: Queue) -> None:
        [entry] = say(queue, 1, message_id="m1")

        found = queue.get(entry).entry
        assert found is not None
        assert found.message_id == "m1"


class TestIds:
    def test_an_id_is_derived_if_none_is_given(self, queue: Queue) -> None:
        ids = say(queue, *range(5)) + say(queue, "keyed", message_id="m1")

        assert len(set(ids)) == 6
        assert all(job_id.startswith("entry-") for job_id in ids)

    def test_a_given_id_is_kept_and_a_replay_returns_the_first(self, queue: Queue) -> None:
        enqueued = queue.enqueue("chat.message", 1, session=SESSION, job_id="mine")

        assert enqueued.id == "mine"
        assert not queue.enqueue("chat.message", 1, session=SESSION, job_id="mine").created
        with pytest.raises(Conflict):
            queue.enqueue("chat.message", 1, session="other", job_id="mine")
        with pytest.raises(Conflict):
            queue.enqueue("chat.message", 1, job_id="mine")


class TestRetention:
    def test_a_message_id_is_kept_after_its_entry_is_deleted(self, queue: Queue, clock: ManualClock) -> None:
        [entry] = say(queue, 1, message_id="m1")
        queue.sessions.settle(take(queue), Done())
        clock.advance(1)
        assert queue.admin.prune(older_than=0).jobs == 1

        replay = queue.enqueue("chat.message", 2, session=SESSION, message_id="m1")

        assert (replay.id, replay.created, replay.job.state, replay.job.payload) == (entry, False, "done", None)
        assert (replay.job.kind, replay.job.session) == ("chat.message", SESSION)
        assert queue.sessions.claim(SESSION) is None

    def test_a_message_id_is_kept_for_a_fixed_time(self, queue: Queue, clock: ManualClock) -> None:
        [entry] = say(queue, 1, message_id="m1")
        queue.sessions.settle(take(queue), Done())
        clock.advance(1)
        queue.admin.prune(older_than=0)
        clock.advance(7 * DAY)
        queue.admin.prune(older_than=0)
        assert not queue.enqueue("chat.message", 2, session=SESSION, message_id="m1").created
        clock.advance(1)
        queue.admin.prune(older_than=0)

        again = queue.enqueue("chat.message", 2, session=SESSION, message_id="m1")
        assert again.created
        assert again.id != entry

    def test_the_retention_of_message_ids_can_be_set(self, queue: Queue, clock: ManualClock) -> None:
        say(queue, 1, message_id="m1")
        queue.sessions.settle(take(queue), Done())
        clock.advance(1)
        queue.admin.prune(older_than=0)
        clock.advance(11)
        queue.admin.prune(older_than=0, message_ids_older_than=10)

        assert queue.enqueue("chat.message", 2, session=SESSION, message_id="m1").created

    def test_the_fencing_token_continues_when_all_entries_are_deleted(self, queue: Queue, clock: ManualClock) -> None:
        say(queue, 1)
        first = take(queue)
        queue.sessions.settle(first, Done())
        clock.advance(1)
        queue.admin.prune(older_than=0)
        say(queue, 2)

        second = take(queue)
        assert second.fencing_token == first.fencing_token + 1
        assert row_of(second.entries[0]).enqueue_seq == 2


class TestTenants:
    def test_sessions_of_two_tenants_with_one_name_are_separate(self, queue: Queue) -> None:
        say(queue, "a", tenant="a")
        say(queue, "b", tenant="b")

        assert queue.sessions.claim(SESSION) is None
        assert texts(take(queue, tenant="a")) == ["a"]
        assert texts(take_any(queue, tenant="b")) == ["b"]
        assert queue.sessions.claim_next(tenant="c") is None

    def test_a_tenant_cannot_cancel_the_session_of_another(self, queue: Queue) -> None:
        say(queue, "a", tenant="a")

        assert queue.sessions.cancel(SESSION, tenant="b") == []
        assert queue.counts() == {"ready": 1}
