"""Sessions for callers that pass turns on to others: unacknowledged turns, lanes, leases of turns, and lists.

Every store must pass this file unchanged.
"""

from __future__ import annotations

import pytest

from holdfast import Done, InvalidInput, LeaseLost, Queue
from holdfast.errors import SessionNotFound
from tests.support.assertions import refused
from tests.support.clock import ManualClock
from tests.support.sessions import SESSION, say, states, take, take_any, take_more, texts


class TestAcknowledgement:
    def test_a_turn_that_is_never_acknowledged_uses_up_no_attempt_except_the_third_time(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        say(queue, 1, 2, max_attempts=1)
        for token in (1, 2, 3):
            turn = (
                take_any(queue, acknowledged=False, lease=5)
                if token == 2
                else take(queue, acknowledged=False, lease=5)
            )
            assert (texts(turn), turn.fencing_token) == ([1, 2], token)
            assert [job.attempt for job in turn.entries] == [1, 1]
            clock.advance(6)

        assert queue.sessions.claim(SESSION) is None
        assert states(queue) == {1: "failed", 2: "failed"}

    def test_a_heartbeat_acknowledges_it(self, queue: Queue, clock: ManualClock) -> None:
        say(queue, 1, max_attempts=1)
        turn = take(queue, acknowledged=False, lease=5)
        queue.sessions.heartbeat(turn.lease, lease=60)
        clock.advance(50)
        queue.sessions.heartbeat(turn.lease, lease=5)
        clock.advance(61)

        assert queue.sessions.claim(SESSION) is None
        assert states(queue) == {1: "failed"}


class TestLanes:
    def test_a_claim_of_a_session_takes_entries_of_its_lanes_and_is_blocked_by_others(self, queue: Queue) -> None:
        say(queue, 1, lane="mail")
        say(queue, 2, lane="bulk")

        assert queue.sessions.claim(SESSION, lanes=["bulk"]) is None
        turn = take(queue, lanes=["mail"])
        assert texts(turn) == [1]
        queue.sessions.settle(turn, Done())
        assert texts(take(queue, lanes=["bulk", "other"])) == [2]

    @pytest.mark.validation
    def test_bad_options_are_refused(self, queue: Queue) -> None:
        with refused(queue, "lanes[0]"):
            queue.sessions.claim(SESSION, lanes=[""])
        with refused(queue, "acknowledged"):
            queue.sessions.claim(SESSION, acknowledged=1)  # type: ignore[arg-type]


class TestCheckpointByLease:
    def test_the_holder_of_a_lease_takes_more_entries(self, queue: Queue) -> None:
        say(queue, 1)
        turn = take(queue)
        say(queue, 2)
        more = queue.sessions.checkpoint(turn.lease)

        assert (texts(more), more and more.fencing_token) == ([2], turn.fencing_token)
        # Sent again, because its answer was lost.
        assert texts(take_more(queue, turn)) == [2]
        assert more is not None
        queue.sessions.settle(turn.joined(more), Done())
        assert states(queue) == {1: "done", 2: "done"}

    def test_the_holder_of_an_old_lease_takes_nothing(self, queue: Queue, clock: ManualClock) -> None:
        say(queue, 1)
        turn = take(queue)
        queue.sessions.settle(turn, Done())
        say(queue, 2)
        with pytest.raises(LeaseLost):
            queue.sessions.checkpoint(turn.lease)
        other = take(queue)
        clock.advance(31)
        take(queue)
        with pytest.raises(LeaseLost):
            queue.sessions.checkpoint(other.lease)


class TestReading:
    def test_sessions_are_listed_in_pages_by_tenant_and_name(self, queue: Queue) -> None:
        for tenant, session in (("b", "x"), ("a", "z"), ("a", "y"), ("c", "x")):
            say(queue, 1, tenant=tenant, session=session)
        found: list[tuple[str, str]] = []
        cursor = None
        while True:
            page = queue.sessions.list(after=cursor, limit=2)
            assert len(page) <= 2
            found += [(info.tenant, info.session) for info in page]
            if (cursor := page.cursor) is None:
                break

        assert found == [("a", "y"), ("a", "z"), ("b", "x"), ("c", "x")]
        first = queue.sessions.list(tenant="a", limit=1)
        assert [info.session for info in (first[0], *queue.sessions.list(tenant="a", after=first.cursor))] == [
            "y",
            "z",
        ]
        for wrong in ("s1-999999", "o1-1", "s1-x"):
            with pytest.raises(InvalidInput, match="not a cursor"):
                queue.sessions.list(after=wrong)
        with pytest.raises(InvalidInput, match="not a cursor"):
            queue.sessions.list(tenant="b", after=first.cursor)

    def test_a_session_shows_its_counters_and_its_owner(self, queue: Queue, clock: ManualClock) -> None:
        say(queue, 1, 2)
        info = queue.sessions.get(SESSION)
        assert (info.entries, info.fencing_token, info.ready, info.owner) == (2, 0, True, None)
        turn = take(queue)
        info = queue.sessions.get(SESSION)
        assert (info.fencing_token, info.ready) == (1, False)
        queue.sessions.settle(turn, Done())
        lease = queue.sessions.open(SESSION, worker="agent", lease=60)
        info = queue.sessions.get(SESSION)
        assert (info.owner, info.generation, info.lease_until) == ("agent", 1, lease.lease_until)
        clock.advance(61)
        info = queue.sessions.get(SESSION)
        assert (info.owner, info.generation, info.lease_until) == (None, 1, None)

    def test_a_session_of_another_tenant_is_not_found(self, queue: Queue) -> None:
        say(queue, 1, tenant="a")
        assert queue.sessions.get(SESSION, tenant="a").tenant == "a"
        for options in ({}, {"tenant": "b"}):
            with pytest.raises(SessionNotFound, match="no session 'chat-42'"):
                queue.sessions.get(SESSION, **options)
