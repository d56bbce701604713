"""Session leases: one worker at a time; renew, close and take over; claims end with the lease.

Every store must pass this file unchanged.
"""

from __future__ import annotations

import pytest

from holdfast import Conflict, Done, InvalidInput, LeaseLost, Queue
from holdfast.types import SessionLease
from tests.support.clock import ManualClock
from tests.support.sessions import SESSION, say, states, take, take_any, take_more, texts
from tests.support.stores import Harness

LEASE = 30.0


def opened(queue: Queue, worker: str = "owner-1", **options: object) -> SessionLease:
    return queue.sessions.open(SESSION, worker=worker, lease=LEASE, **options)  # type: ignore[arg-type]


class TestOpening:
    def test_an_empty_session_may_be_opened(self, queue: Queue) -> None:
        lease = opened(queue)

        assert (lease.session, lease.tenant, lease.generation, lease.worker) == (SESSION, "default", 1, "owner-1")
        say(queue, 1)
        assert texts(take(queue, session_lease=lease)) == [1]

    def test_only_one_worker_at_a_time(self, queue: Queue) -> None:
        opened(queue)

        with pytest.raises(Conflict, match="owner-1"):
            opened(queue, "owner-2")

    def test_a_repeated_call_returns_the_same_lease(self, queue: Queue) -> None:
        lease = opened(queue, lease_token="t")

        assert opened(queue, lease_token="t") == lease
        with pytest.raises(Conflict):
            opened(queue, lease_token="u")

    def test_an_expired_lease_is_replaced_by_the_next_generation(self, queue: Queue, clock: ManualClock) -> None:
        first = opened(queue)
        clock.advance(LEASE)

        assert opened(queue, "owner-2").generation == first.generation + 1

    def test_a_session_with_a_held_claim_is_not_opened(self, queue: Queue, clock: ManualClock) -> None:
        say(queue, 1)
        take(queue, worker="w", lease=LEASE)

        with pytest.raises(Conflict, match="'w'"):
            opened(queue)
        clock.advance(LEASE)
        assert texts(take(queue, session_lease=opened(queue))) == [1]

    def test_two_tenants_have_two_sessions_of_one_name(self, queue: Queue) -> None:
        opened(queue, tenant="a")

        assert opened(queue, tenant="b").generation == 1

    def test_it_survives_a_crash_and_expires(self, durable_harness: Harness) -> None:
        opened(durable_harness.open())
        queue = durable_harness.reopen()

        with pytest.raises(Conflict):
            opened(queue, "owner-2")
        durable_harness.clock.advance(LEASE)
        assert opened(queue, "owner-2").generation == 2


class TestClaimingUnderIt:
    def test_other_workers_claim_nothing_of_an_open_session(self, queue: Queue) -> None:
        opened(queue)
        say(queue, 1)

        with pytest.raises(Conflict, match="owner-1"):
            queue.sessions.claim(SESSION, worker="w")
        assert queue.sessions.claim_next(worker="w") is None

    def test_a_slow_turn_keeps_its_claim_while_the_lease_is_renewed(self, queue: Queue, clock: ManualClock) -> None:
        lease = opened(queue)
        say(queue, 1)
        turn = take(queue, session_lease=lease)
        for _ in range(5):
            clock.advance(LEASE - 1)
            lease = queue.sessions.renew(lease)

        assert turn.generation == lease.generation
        assert [job.state for job in queue.sessions.settle(turn, Done())] == ["done"]

    def test_its_claims_are_lost_when_it_expires(self, queue: Queue, clock: ManualClock) -> None:
        lease = opened(queue)
        say(queue, 1)
        turn = take(queue, session_lease=lease)
        clock.advance(LEASE)

        with pytest.raises(LeaseLost):
            queue.sessions.settle(turn, Done())
        assert texts(take_any(queue, worker="w")) == [1]

    def test_a_heartbeat_does_not_extend_beyond_the_lease(self, queue: Queue, clock: ManualClock) -> None:
        lease = opened(queue)
        say(queue, 1)
        turn = take(queue, session_lease=lease)
        clock.advance(LEASE - 1)

        assert queue.sessions.heartbeat(turn).lease_until == lease.lease_until
        clock.advance(1)
        with pytest.raises(LeaseLost):
            queue.sessions.heartbeat(turn)

    def test_a_late_claim_expires_with_the_lease(self, queue: Queue, clock: ManualClock) -> None:
        lease = opened(queue)
        say(queue, 1)
        clock.advance(LEASE - 1)

        assert take(queue, session_lease=lease).lease_until == lease.lease_until

    def test_a_checkpoint_works_under_it(self, queue: Queue, clock: ManualClock) -> None:
        lease = opened(queue)
        say(queue, 1)
        turn = take(queue, session_lease=lease)
        say(queue, 2)

        more = take_more(queue, turn)
        assert (more.generation, more.lease_until) == (lease.generation, lease.lease_until)
        clock.advance(LEASE - 1)
        queue.sessions.renew(lease)
        clock.advance(LEASE - 1)
        assert len(queue.sessions.settle(turn.joined(more), Done())) == 2

    def test_a_stale_lease_claims_nothing(self, queue: Queue, clock: ManualClock) -> None:
        lease = opened(queue)
        say(queue, 1)
        clock.advance(LEASE)

        with pytest.raises(LeaseLost, match="generation 1 is lost: it expired"):
            queue.sessions.claim(SESSION, session_lease=lease)

    def test_a_session_lease_and_a_duration_exclude_each_other(self, queue: Queue) -> None:
        with pytest.raises(InvalidInput, match="lease"):
            queue.sessions.claim(SESSION, session_lease=opened(queue), lease=5)

    def test_a_lease_on_another_session_is_refused(self, queue: Queue) -> None:
        with pytest.raises(InvalidInput, match="session_lease"):
            queue.sessions.claim("other", session_lease=opened(queue))

    def test_waiting_claims_are_served_when_a_lease_expires(self, queue: Queue, clock: ManualClock) -> None:
        opened(queue)
        say(queue, 1)
        clock.advance(LEASE)

        assert texts(queue.sessions.claim_next(worker="w", wait=1)) == [1]

    def test_a_session_whose_lease_expired_is_served_by_the_age_of_its_head(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        opened(queue)
        say(queue, 1)
        say(queue, 2, session="younger")
        clock.advance(LEASE)

        assert texts(take_any(queue, worker="w")) == [1]


class TestTakingOver:
    def test_a_takeover_increases_the_generation_and_takes_the_turn_at_once(self, queue: Queue) -> None:
        first = opened(queue)
        say(queue, 1, 2)
        turn = take(queue, session_lease=first)

        second = opened(queue, "owner-2", take_over=True)

        assert second.generation == first.generation + 1
        assert states(queue) == {1: "ready", 2: "ready"}
        with pytest.raises(LeaseLost):
            queue.sessions.settle(turn, Done())
        again = take(queue, session_lease=second, worker="owner-2")
        assert texts(again) == [1, 2]
        assert again.fencing_token > turn.fencing_token
        assert [job.attempt for job in again.entries] == [1, 1]

    def test_the_previous_holder_can_neither_renew_close_nor_claim(self, queue: Queue) -> None:
        first = opened(queue)
        say(queue, 1)
        opened(queue, "owner-2", take_over=True)

        for write in (
            lambda: queue.sessions.renew(first),
            lambda: queue.sessions.close(first),
            lambda: queue.sessions.claim(SESSION, session_lease=first),
        ):
            with pytest.raises(LeaseLost, match="generation 2"):
                write()

    def test_a_repeated_takeover_takes_nothing_from_itself(self, queue: Queue) -> None:
        say(queue, 1)
        lease = opened(queue, take_over=True, lease_token="t")
        take(queue, session_lease=lease)

        assert opened(queue, take_over=True, lease_token="t") == lease
        assert states(queue) == {1: "running"}

    def test_a_claim_that_had_expired_before_uses_an_attempt(self, queue: Queue, clock: ManualClock) -> None:
        say(queue, 1)
        take(queue, worker="w", lease=5)
        clock.advance(5)
        lease = opened(queue, take_over=True)

        assert take(queue, session_lease=lease).entries[0].attempt == 2


class TestClosing:
    def test_a_closed_session_can_be_claimed_again(self, queue: Queue) -> None:
        lease = opened(queue)
        say(queue, 1)
        queue.sessions.close(lease)

        assert texts(take_any(queue, worker="w")) == [1]

    def test_its_claims_are_released_without_using_attempts(self, queue: Queue) -> None:
        lease = opened(queue)
        say(queue, 1)
        turn = take(queue, session_lease=lease)
        queue.sessions.close(lease)

        with pytest.raises(LeaseLost):
            queue.sessions.settle(turn, Done())
        [again] = take_any(queue, worker="w").entries
        assert (again.attempt, again.suspect) == (1, 0)

    def test_closing_twice_has_no_effect_until_another_worker_opens(self, queue: Queue) -> None:
        lease = opened(queue)
        queue.sessions.close(lease)
        queue.sessions.close(lease)
        with pytest.raises(LeaseLost, match="it was closed"):
            queue.sessions.renew(lease)
        opened(queue, "owner-2")

        with pytest.raises(LeaseLost, match="generation 2"):
            queue.sessions.close(lease)

    def test_closing_after_the_lease_expired_has_no_effect(self, queue: Queue, clock: ManualClock) -> None:
        lease = opened(queue)
        say(queue, 1)
        take(queue, session_lease=lease)
        clock.advance(LEASE)
        queue.sessions.close(lease)

        assert take_any(queue, worker="w").entries[0].attempt == 2

    def test_the_generation_continues(self, queue: Queue) -> None:
        lease = opened(queue)
        queue.sessions.close(lease)

        assert opened(queue).generation == lease.generation + 1


@pytest.mark.parametrize("call", ["renew", "close"])
def test_an_argument_that_is_no_session_lease_is_refused(queue: Queue, call: str) -> None:
    with pytest.raises(InvalidInput, match="lease: must be a SessionLease"):
        getattr(queue.sessions, call)("lease")
