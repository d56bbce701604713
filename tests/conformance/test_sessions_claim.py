"""Claiming entries of a session: in enqueue order, joined if allowed, by one holder at a time.

Every store must pass this file unchanged.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from holdfast import Conflict, Done, Failed, InvalidInput, JobNotFound, LeaseLost, Queue, Released
from holdfast.domain import limits
from holdfast.domain.job import row_of
from tests.chaos.processes import PATIENCE_SECONDS
from tests.support.assertions import refused
from tests.support.clock import ManualClock
from tests.support.sessions import SESSION, say, states, take, take_any, take_more, texts
from tests.support.stores import Harness

LEASE = 30.0
SURPLUS = limits.SESSION_SCAN_SURPLUS


class TestOrderAndJoining:
    def test_entries_that_join_are_claimed_together_in_enqueue_order(self, queue: Queue) -> None:
        say(queue, 1, 2, 3)

        turn = take(queue)

        assert texts(turn) == [1, 2, 3]
        assert turn.entry_type == "message"
        assert [row_of(job).enqueue_seq for job in turn.entries] == [1, 2, 3]
        assert {job.state for job in turn.entries} == {"running"}

    def test_the_limit_bounds_the_number_of_entries(self, queue: Queue) -> None:
        say(queue, *range(5))

        assert texts(take(queue, limit=2)) == [0, 1]

    def test_a_message_that_does_not_join_is_claimed_alone(self, queue: Queue) -> None:
        say(queue, 1, 2, join=False)

        turn = take(queue)
        assert texts(turn) == [1]
        queue.sessions.settle(turn, Done())
        assert texts(take(queue)) == [2]

    def test_another_join_name_or_delivery_ends_the_turn(self, queue: Queue) -> None:
        say(queue, 1)
        say(queue, 2, join="group")
        say(queue, 3, join="group", delivery="next_turn")

        for text in (1, 2, 3):
            turn = take(queue)
            assert texts(turn) == [text]
            queue.sessions.settle(turn, Done())

    def test_a_claim_of_messages_returns_nothing_while_a_command_is_first(self, queue: Queue) -> None:
        say(queue, "stop", entry_type="command")
        say(queue, 1)

        assert queue.sessions.claim(SESSION, only="message") is None
        command = take(queue, only="command")
        assert (texts(command), command.entry_type) == (["stop"], "command")

    def test_a_claim_takes_the_first_entry_of_any_type(self, queue: Queue) -> None:
        say(queue, 1)
        say(queue, "stop", entry_type="command")

        turn = take(queue)
        queue.sessions.settle(turn, Done())
        command = take(queue)

        assert [(turn.entry_type, texts(turn)), (command.entry_type, texts(command))] == [
            ("message", [1]),
            ("command", ["stop"]),
        ]

    def test_an_entry_may_have_several_messages(self, queue: Queue) -> None:
        enqueued = queue.enqueue("chat.message", session=SESSION, messages=["a", "b"])

        assert enqueued.job.messages == ["a", "b"]
        assert take(queue).entries[0].messages == ["a", "b"]
        assert queue.get(say(queue, "one")[0]).messages == ["one"]

    def test_entries_of_one_call_keep_its_order(self, queue: Queue) -> None:
        options = {"kind": "chat.message", "session": SESSION, "join": True}
        queue.enqueue_many([{**options, "payload": n} for n in range(20)])
        say(queue, 20)

        assert texts(take(queue)) == list(range(21))

    def test_plain_claims_never_take_an_entry(self, queue: Queue) -> None:
        say(queue, 1)
        plain = queue.enqueue("chat.message", "plain")

        assert [claim.job.id for claim in queue.claim_many()] == [plain.id]
        assert queue.claim() is None

    def test_session_claims_never_take_a_plain_job(self, queue: Queue) -> None:
        queue.enqueue("chat.message", "plain")

        assert queue.sessions.claim(SESSION) is None
        assert queue.sessions.claim_next() is None

    def test_priority_does_not_apply(self, queue: Queue) -> None:
        [entry] = say(queue, 1)

        with pytest.raises(Conflict):
            queue.reprioritize(entry, 5)

    def test_a_claim_of_an_unused_session_returns_nothing(self, queue: Queue) -> None:
        assert queue.sessions.claim("never") is None
        assert queue.sessions.cancel("never") == []


class TestOneHolder:
    def test_while_a_claim_is_held_no_other_worker_gets_one(self, queue: Queue) -> None:
        say(queue, 1, 2)
        take(queue, limit=1)

        assert queue.sessions.claim(SESSION, worker="other") is None
        assert queue.sessions.claim_next(worker="other") is None

    def test_two_workers_racing_for_one_session_get_one_claim(self, harness: Harness) -> None:
        queue = harness.open()
        say(queue, 1, 2, 3)
        queues = [harness.open() for _ in range(4)]
        got: list[list[object]] = []
        start = threading.Barrier(len(queues))

        def race(own: Queue, worker: str) -> None:
            start.wait()
            got.append(texts(own.sessions.claim(SESSION, worker=worker)))

        threads = [threading.Thread(target=race, args=(own, f"w{n}")) for n, own in enumerate(queues)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)

        assert sorted(got) == [[], [], [], [1, 2, 3]]

    def test_fencing_token_and_epochs_increase_with_each_claim(self, queue: Queue) -> None:
        say(queue, 1)
        tokens, epochs = [], []
        for _ in range(3):
            turn = take(queue)
            tokens.append(turn.fencing_token)
            epochs.append(turn.entries[0].epoch)
            queue.sessions.settle(turn, Released())

        assert (tokens, epochs) == ([1, 2, 3], [1, 2, 3])

    def test_an_expired_claim_is_taken_back_in_order_by_the_next(self, queue: Queue, clock: ManualClock) -> None:
        say(queue, 1, 2)
        first = take(queue, lease=LEASE)
        say(queue, 3)
        clock.advance(LEASE)

        second = take(queue, worker="other")

        assert texts(second) == [1, 2, 3]
        assert second.fencing_token == first.fencing_token + 1
        assert [job.attempt for job in second.entries] == [2, 2, 1]

    def test_a_session_is_reopened_after_a_crash(self, durable_harness: Harness) -> None:
        queue = durable_harness.open()
        say(queue, 1, 2)
        lost = take(queue, lease=LEASE)

        queue = durable_harness.reopen()
        say(queue, 3)
        assert queue.sessions.claim(SESSION, worker="new") is None
        durable_harness.clock.advance(LEASE)

        again = take(queue, worker="new")
        assert texts(again) == [1, 2, 3]
        assert again.fencing_token > lost.fencing_token

    def test_sessions_do_not_block_each_other(self, queue: Queue) -> None:
        for name in ("a", "b"):
            say(queue, name, session=name)
        take(queue, "a")

        assert texts(take(queue, "b")) == ["b"]


class TestSkippedEntries:
    def test_a_delayed_entry_is_skipped_until_it_is_due(self, queue: Queue, clock: ManualClock) -> None:
        say(queue, "later", delay=60)
        say(queue, 1, join=False)
        say(queue, 2)

        turn = take(queue)
        assert texts(turn) == [1]
        queue.sessions.settle(turn, Done())
        clock.advance(60)
        assert texts(take(queue)) == ["later", 2]

    def test_an_entry_in_backoff_blocks_later_ones(self, queue: Queue, clock: ManualClock) -> None:
        say(queue, 1, 2)
        queue.sessions.settle(take(queue, limit=1), Failed("no", retry_after=60))

        assert queue.sessions.claim(SESSION) is None
        assert queue.sessions.claim_next() is None
        clock.advance(60)
        assert texts(take(queue)) == [1, 2]

    def test_a_deferred_entry_blocks_later_ones(self, queue: Queue, clock: ManualClock) -> None:
        from holdfast import Deferred

        say(queue, 1, 2)
        queue.sessions.settle(take(queue, limit=1), Deferred(after=60))

        assert queue.sessions.claim(SESSION) is None
        clock.advance(60)
        assert texts(take(queue)) == [1, 2]

    def test_with_backoff_skip_an_entry_in_backoff_is_skipped(self, queue: Queue, clock: ManualClock) -> None:
        queue.lanes.set("default", backoff="skip")
        say(queue, 1, 2)
        queue.sessions.settle(take(queue, limit=1), Failed("no", retry_after=60))

        turn = take_any(queue)
        assert texts(turn) == [2]
        queue.sessions.settle(turn, Done())
        clock.advance(60)
        assert texts(take_any(queue)) == [1]

    @pytest.mark.parametrize("any_session", [True, False])
    def test_the_backoff_setting_of_a_lane_may_change(self, queue: Queue, any_session: bool) -> None:
        say(queue, 1, 2)
        queue.sessions.settle(take(queue, limit=1), Failed("no", retry_after=60))
        queue.lanes.set("default", backoff="skip")

        turn = take_any(queue) if any_session else take(queue)
        assert texts(turn) == [2]
        queue.sessions.settle(turn, Released())
        queue.lanes.set("default", backoff="block")
        assert (queue.sessions.claim_next() if any_session else queue.sessions.claim(SESSION)) is None

    def test_a_failed_first_entry_is_skipped(self, queue: Queue) -> None:
        say(queue, 1, 2)
        queue.sessions.settle(take(queue, limit=1), Failed("no", permanent=True))

        assert texts(take(queue)) == [2]

    def test_a_cancelled_first_entry_is_skipped(self, queue: Queue) -> None:
        [first, _] = say(queue, 1, 2)
        queue.cancel(first)

        assert texts(take_any(queue)) == [2]

    def test_a_first_entry_past_its_deadline_fails_and_is_skipped(self, queue: Queue, clock: ManualClock) -> None:
        say(queue, 1, deadline=10)
        say(queue, 2)
        clock.advance(10)

        assert texts(take(queue)) == [2]
        assert states(queue) == {1: "failed", 2: "running"}

    def test_a_requeued_entry_returns_to_its_position(self, queue: Queue) -> None:
        [first, _, _] = say(queue, 1, 2, 3, join=False)
        queue.sessions.settle(take(queue), Failed("no", permanent=True))
        queue.sessions.settle(take(queue), Done())
        queue.requeue(first)

        turn = take_any(queue)
        assert texts(turn) == [1]
        queue.sessions.settle(turn, Done())
        assert texts(take_any(queue)) == [3]

    def test_more_entries_than_one_page_may_be_skipped(self, queue: Queue) -> None:
        queue.lanes.set("default", backoff="skip")
        many = SURPLUS * 2 + 5
        say(queue, *range(many))
        claim = take(queue, limit=many)
        queue.sessions.settle(claim, Failed("no", retry_after=600))
        say(queue, "first", "second")

        assert texts(take_any(queue, limit=1)) == ["first"]

    def test_a_turn_continues_after_more_than_one_page_of_skipped_entries(self, queue: Queue) -> None:
        queue.lanes.set("default", backoff="skip")
        say(queue, "first")
        many = SURPLUS * 2 + 5
        say(queue, *range(many))
        turn = take(queue, limit=many + 1)
        queue.sessions.settle(turn, [Released(), *(Failed("no", retry_after=600) for _ in range(many))])
        say(queue, "second")

        assert texts(take(queue, limit=2)) == ["first", "second"]

    def test_a_thousand_delayed_entries_are_skipped(self, queue: Queue) -> None:
        options = {"kind": "chat.message", "session": SESSION, "delay": 600}
        queue.enqueue_many([options] * 1_000)
        say(queue, "now")

        assert texts(take_any(queue)) == ["now"]


class TestCheckpoints:
    def test_the_holder_claims_more_entries_with_the_same_fencing_token(self, queue: Queue) -> None:
        say(queue, 1)
        turn = take(queue)
        say(queue, 2, 3)

        more = take_more(queue, turn)

        assert texts(more) == [2, 3]
        assert (more.fencing_token, more.lease_token, more.claim_id) == (
            turn.fencing_token,
            turn.lease_token,
            turn.claim_id,
        )
        whole = turn.joined(more)
        assert [job.state for job in queue.sessions.settle(whole, Done())] == ["done"] * 3

    def test_the_entries_belong_to_the_worker_and_the_lease_of_the_turn(self, queue: Queue) -> None:
        say(queue, 1)
        turn = take(queue, worker="w", incarnation="i", lease=5)
        say(queue, 2)

        [more] = take_more(queue, turn).entries

        assert (more.worker, more.incarnation, more.lease_until) == ("w", "i", turn.entries[0].lease_until)

    def test_only_entries_with_delivery_at_checkpoints_are_claimed(self, queue: Queue) -> None:
        say(queue, 1)
        turn = take(queue)
        say(queue, 2, delivery="next_turn")
        say(queue, 3)

        assert queue.sessions.checkpoint(turn) is None
        queue.sessions.settle(turn, Done())
        assert texts(take(queue)) == [2]

    def test_a_first_command_ends_a_checkpoint_too(self, queue: Queue) -> None:
        say(queue, 1)
        turn = take(queue)
        say(queue, "stop", entry_type="command")
        say(queue, 2)

        assert queue.sessions.checkpoint(turn, only="message") is None
        command = take_more(queue, turn, only="command")
        assert texts(command) == ["stop"]

    def test_an_entry_that_fell_due_during_the_turn_is_claimed(self, queue: Queue, clock: ManualClock) -> None:
        say(queue, "later", delay=10)
        say(queue, 1)
        turn = take(queue)
        clock.advance(10)

        assert texts(queue.sessions.checkpoint(turn)) == ["later"]

    def test_a_repeated_checkpoint_returns_the_lost_answer(self, queue: Queue) -> None:
        say(queue, 1)
        turn = take(queue)
        say(queue, 2, 3)
        more = take_more(queue, turn, limit=1)

        assert take_more(queue, turn, limit=1) == more
        whole = turn.joined(more)
        assert texts(take_more(queue, whole)) == [3]

    def test_a_stale_holder_is_refused(self, queue: Queue, clock: ManualClock) -> None:
        say(queue, 1)
        turn = take(queue, lease=LEASE)
        say(queue, 2)
        clock.advance(LEASE)

        with pytest.raises(LeaseLost):
            queue.sessions.checkpoint(turn)
        take(queue, worker="other", limit=1)
        with pytest.raises(LeaseLost):
            queue.sessions.checkpoint(turn)
        assert states(queue) == {1: "running", 2: "ready"}

    def test_a_checkpoint_requires_the_held_claim(self, queue: Queue) -> None:
        say(queue, 1)
        turn = take(queue)

        others: list[Any] = [SESSION, turn.claims[0], None]
        for other in others:
            with pytest.raises(InvalidInput, match="turn: must be a SessionClaim"):
                queue.sessions.checkpoint(other)

    def test_claims_of_two_fences_are_not_joined(self, queue: Queue) -> None:
        say(queue, 1)
        say(queue, 1, session="other")

        with pytest.raises(InvalidInput, match="more"):
            take(queue).joined(take(queue, "other"))


class TestLostAnswers:
    def test_a_repeated_claim_returns_the_same_claim(self, queue: Queue) -> None:
        say(queue, 1, 2, 3)
        first = take(queue, limit=2, lease_token="n1", worker="w")
        say(queue, 4)

        assert take(queue, limit=2, lease_token="n1", worker="w") == first

    def test_a_repeated_claim_of_any_session_returns_the_same_claim(self, queue: Queue) -> None:
        say(queue, 1)
        say(queue, 2, session="other")
        first = take_any(queue, lease_token="n1", worker="w")

        assert take_any(queue, lease_token="n1", worker="w") == first
        assert take_any(queue, lease_token="n2", worker="w") != first

    def test_another_worker_or_token_is_another_claim(self, queue: Queue) -> None:
        say(queue, 1)
        take(queue, lease_token="n1", worker="w")

        assert queue.sessions.claim(SESSION, lease_token="n2", worker="w") is None
        assert queue.sessions.claim(SESSION, lease_token="n1", worker="other") is None

    @pytest.mark.parametrize(
        "other",
        [
            {"tenant": "b"},
            {"lanes": ["slow"]},
            {"kinds": ["other"]},
            {"capabilities": []},
            {"only": "command"},
        ],
    )
    def test_the_token_of_another_request_is_refused(self, queue: Queue, other: dict[str, Any]) -> None:
        queue.enqueue("say", "secret", session=SESSION, tenant="a", requires=["gpu"])
        request: dict[str, Any] = {"worker": "w", "lease_token": "n1", "capabilities": ["gpu"]}
        first = queue.sessions.claim_next(**request)
        with pytest.raises(Conflict, match="lease_token") as caught:
            queue.sessions.claim_next(**{**request, **other})
        assert (caught.value.job_id, "secret" in str(caught.value)) == (None, False)
        assert queue.sessions.claim_next(**request, tenant="a", kinds=["say"]) == first

    @pytest.mark.parametrize("other", [{"kinds": ["other"]}, {"capabilities": []}, {"only": "command"}])
    def test_the_token_of_another_request_for_a_session_is_refused(self, queue: Queue, other: dict[str, Any]) -> None:
        queue.enqueue("say", session=SESSION, requires=["gpu"])
        request: dict[str, Any] = {"worker": "w", "lease_token": "n1", "capabilities": ["gpu"]}
        first = queue.sessions.claim(SESSION, **request)
        with pytest.raises(Conflict, match="lease_token"):
            queue.sessions.claim(SESSION, **{**request, **other})
        assert queue.sessions.claim(SESSION, **request) == first

    def test_the_token_is_the_lease_token_of_the_claim(self, queue: Queue) -> None:
        say(queue, 1, 2)
        turn = take(queue, lease_token="n1")

        assert turn.lease_token == "n1"
        assert {claim.lease_token for claim in turn.claims} == {"n1"}

    def test_the_token_of_a_claim_of_another_session_is_refused(self, queue: Queue) -> None:
        say(queue, 1)
        say(queue, 2, session="other")
        first = take(queue, lease_token="n1", worker="w")

        with pytest.raises(Conflict, match="lease_token"):
            queue.sessions.claim("other", lease_token="n1", worker="w")
        assert take_any(queue, lease_token="n1", worker="w") == first

    def test_a_claim_of_jobs_and_one_of_a_session_do_not_share_a_token(self, queue: Queue) -> None:
        queue.enqueue("mail")
        say(queue, 1)
        queue.claim(lease_token="n1", worker="w")
        take(queue, lease_token="n2", worker="w")

        with pytest.raises(Conflict, match="lease_token"):
            queue.sessions.claim(SESSION, lease_token="n1", worker="w")
        with pytest.raises(Conflict, match="lease_token"):
            queue.claim(lease_token="n2", worker="w")

    def test_after_the_settle_it_is_a_new_claim(self, queue: Queue) -> None:
        say(queue, 1, 2)
        queue.sessions.settle(take(queue, limit=1, lease_token="n1"), Done())

        assert texts(take(queue, lease_token="n1")) == [2]


class TestKinds:
    def test_an_entry_of_another_kind_blocks_later_ones(self, queue: Queue) -> None:
        say(queue, 1)
        queue.enqueue("chat.note", 2, session=SESSION)
        say(queue, 3)

        assert texts(queue.sessions.claim(SESSION, kinds=["chat.note"])) == []
        turn = take(queue, kinds=["chat.message"])
        assert texts(turn) == [1]
        assert queue.sessions.checkpoint(turn, kinds=["chat.message"]) is None
        more = queue.sessions.checkpoint(turn, kinds=["chat.note"])
        assert texts(more) == [2]


class TestBadCalls:
    @pytest.mark.validation
    @pytest.mark.parametrize(
        ("options", "field"),
        [
            ({"only": "all"}, "only"),
            ({"boundary": "never"}, "boundary"),
            ({"limit": 0}, "limit"),
            ({"limit": limits.CLAIM_MAX + 1}, "limit"),
            ({"lease": 0}, "lease"),
            ({"tenant": ""}, "tenant"),
            ({"lease_token": ""}, "lease_token"),
            ({"session_lease": "lease"}, "session_lease"),
            ({"kinds": "a"}, "kinds"),
            ({"lanes": "a"}, "lanes"),
            ({"limit": {"a": 1}}, "limit"),
        ],
    )
    def test_a_wrong_option_of_a_session_claim_is_named(
        self, queue: Queue, options: dict[str, object], field: str
    ) -> None:
        with refused(queue, field):
            queue.sessions.claim(SESSION, **options)  # type: ignore[arg-type]

    @pytest.mark.validation
    @pytest.mark.parametrize(
        ("options", "field"), [({"only": 1}, "only"), ({"lanes": "a"}, "lanes"), ({"boundary": "idle"}, "boundary")]
    )
    def test_a_wrong_option_of_a_claim_of_any_session_is_named(
        self, queue: Queue, options: dict[str, object], field: str
    ) -> None:
        with refused(queue, field):
            queue.sessions.claim_next(**options)  # type: ignore[arg-type]


class TestCancelling:
    def test_entries_that_are_not_held_are_cancelled(self, queue: Queue) -> None:
        say(queue, 1, 2, 3)
        say(queue, "later", delay=60)
        take(queue, limit=1)

        cancelled = queue.sessions.cancel(SESSION)

        assert len(cancelled) == 3
        assert states(queue) == {1: "running", 2: "cancelled", 3: "cancelled", "later": "cancelled"}

    def test_more_than_one_chunk_is_cancelled(self, queue: Queue) -> None:
        options = {"kind": "chat.message", "session": SESSION}
        queue.enqueue_many([options] * (limits.CHUNK + 10))

        assert len(queue.sessions.cancel(SESSION)) == limits.CHUNK + 10
        assert queue.sessions.claim_next() is None


class TestListing:
    def test_entries_of_a_session_are_listed_newest_first(self, queue: Queue) -> None:
        say(queue, 1, 2, 3)
        say(queue, 4, session="other")
        queue.sessions.settle(take(queue, limit=1), Done())

        assert [job.payload for job in queue.jobs(session=SESSION)] == [3, 2, 1]
        assert [job.payload for job in queue.jobs(session=SESSION, state="done")] == [1]
        assert [job.payload for job in queue.jobs(session=SESSION, tenant="other")] == []
        page = queue.jobs(session=SESSION, limit=2)
        assert [job.payload for job in queue.jobs(session=SESSION, after=page.cursor)] == [1]

    def test_an_entry_of_another_tenant_is_not_found(self, queue: Queue) -> None:
        [entry] = say(queue, 1, tenant="a")

        with pytest.raises(JobNotFound):
            queue.get(entry, tenant="b")
