"""A lease that another process presents: built from strings, and fenced like the claim itself.

Every store must pass this file unchanged.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from holdfast import (
    Artifact,
    Claim,
    Done,
    Failed,
    JobNotFound,
    Lease,
    LeaseLost,
    NewJob,
    Queue,
    Released,
    TurnLease,
)
from tests.support.assertions import refused
from tests.support.clock import ManualClock
from tests.support.sessions import SESSION, say, take, take_more, texts
from tests.support.stores import Harness

SECONDS = 30.0

CALLS: dict[str, Any] = {
    "heartbeat": lambda queue, lease: queue.heartbeat(lease),
    "acknowledge": lambda queue, lease: queue.acknowledge(lease),
    "progress": lambda queue, lease: queue.progress(lease, phase="half", percent=50),
    "attach": lambda queue, lease: queue.attach(lease, [Artifact("a", b"1")]),
    "settle": lambda queue, lease: queue.settle(lease, Done("result")),
}


def claimed(queue: Queue, **options: Any) -> Claim:
    queue.enqueue("mail", **options)
    claim = queue.claim(lease=SECONDS, acknowledged=0)
    assert claim is not None
    return claim


def sent(lease: Lease) -> Lease:
    """Return *lease* as another process rebuilds it."""
    return Lease(str(lease.job_id), int(str(lease.epoch)), str(lease.lease_token))


class TestJobs:
    def test_a_lease_is_as_good_as_the_claim(self, harness: Harness, queue: Queue, clock: ManualClock) -> None:
        lease, other = sent(claimed(queue).lease), harness.open()
        clock.advance(SECONDS - 1)

        renewal = other.heartbeat(lease)
        other.acknowledge(lease)
        assert (other.progress(lease, percent=50).percent, renewal.cancel_requested) == (50, False)
        other.attach(lease, [Artifact("log", b"line")])
        clock.advance(SECONDS - 1)
        settled = other.settle(lease, Done("result", follow_ups=[NewJob("next")]))

        assert (settled.state, settled.result) == ("done", "result")
        assert [one.name for one in queue.artifacts(lease.job_id)] == ["log"]
        assert queue.counts(by="kind") == {"mail": 1, "next": 1}

    def test_a_heartbeat_extends_it_by_the_given_length(self, queue: Queue, clock: ManualClock) -> None:
        lease = sent(claimed(queue).lease)

        renewal = queue.heartbeat(lease, lease=300)
        clock.advance(299)

        assert queue.heartbeat(lease).lease_until > renewal.lease_until

    @pytest.mark.parametrize("call", CALLS)
    @pytest.mark.parametrize("change", [{"epoch": 7}, {"epoch": 0}, {"lease_token": "another"}])
    def test_another_epoch_or_token_is_refused(self, queue: Queue, call: str, change: dict[str, Any]) -> None:
        lease = claimed(queue).lease

        with pytest.raises(LeaseLost):
            CALLS[call](queue, replace(lease, **change))
        assert (queue.get(lease.job_id).state, queue.get(lease.job_id).percent) == ("running", None)
        assert queue.artifacts(lease.job_id) == []

    @pytest.mark.parametrize("call", CALLS)
    def test_an_expired_lease_is_refused(self, queue: Queue, clock: ManualClock, call: str) -> None:
        lease = claimed(queue).lease
        clock.advance(SECONDS)

        with pytest.raises(LeaseLost):
            CALLS[call](queue, lease)

    @pytest.mark.parametrize("call", CALLS)
    def test_the_lease_of_an_earlier_claim_is_refused(self, queue: Queue, clock: ManualClock, call: str) -> None:
        stale = claimed(queue).lease
        clock.advance(SECONDS)
        newer = queue.claim(lease=SECONDS)
        assert newer is not None

        with pytest.raises(LeaseLost):
            CALLS[call](queue, stale)
        assert queue.settle(newer.lease, Done()).state == "done"

    @pytest.mark.parametrize("call", CALLS)
    def test_a_job_that_does_not_exist_or_of_another_tenant_is_not_found(self, queue: Queue, call: str) -> None:
        lease = claimed(queue, tenant="acme").lease

        assert lease.tenant == "acme"
        for unknown in (replace(lease, tenant="other"), replace(lease, job_id="unknown")):
            with pytest.raises(JobNotFound):
                CALLS[call](queue, unknown)
        assert queue.get(lease.job_id).state == "running"

    def test_a_repeated_settle_succeeds(self, queue: Queue) -> None:
        lease = sent(claimed(queue).lease)
        first = queue.settle(lease, Done(1))

        assert queue.settle(lease, Done(1)) == first
        with pytest.raises(LeaseLost):
            queue.settle(lease, Done(2))

    def test_follow_ups_belong_to_the_tenant_of_the_job(self, queue: Queue) -> None:
        lease = sent(claimed(queue, tenant="acme").lease)

        queue.settle(lease, Done(follow_ups=[NewJob("next")]))

        assert queue.counts(by="tenant") == {"acme": 2}

    def test_it_settles_within_a_transaction(self, queue: Queue) -> None:
        lease = sent(claimed(queue).lease)

        with suppress(ZeroDivisionError), queue.transaction() as tx:
            assert tx.settle(lease, Done()).state == "done"
            raise ZeroDivisionError
        assert queue.get(lease.job_id).state == "running"
        with queue.transaction() as tx:
            tx.settle(lease, Done())
        assert queue.get(lease.job_id).state == "done"

    @pytest.mark.validation
    @pytest.mark.parametrize(
        ("lease", "field"),
        [
            (Lease("", 1, "token"), "claim.job_id"),
            (Lease("job", -1, "token"), "claim.epoch"),
            (Lease("job", True, "token"), "claim.epoch"),
            (Lease("job", 1, ""), "claim.lease_token"),
            (Lease("job", 1, "token", ""), "claim.tenant"),
            (("job", 1, "token"), "claim"),
            (TurnLease("s", "token", [("job", 1)]), "claim"),
            (None, "claim"),
        ],
    )
    @pytest.mark.parametrize("call", CALLS)
    def test_an_invalid_lease_is_refused_by_name(self, queue: Queue, call: str, lease: Any, field: str) -> None:
        with refused(queue, field):
            CALLS[call](queue, lease)


class TestTurns:
    def test_a_lease_is_as_good_as_the_turn(self, harness: Harness, queue: Queue, clock: ManualClock) -> None:
        say(queue, 1, 2)
        turn, other = take(queue, lease=SECONDS), harness.open()
        say(queue, 3)
        lease = _sent_turn(turn.joined(take_more(queue, turn)).lease)
        clock.advance(SECONDS - 1)

        other.sessions.heartbeat(lease)
        clock.advance(SECONDS - 1)
        settled = other.sessions.settle(lease, [Done(1), Failed("no", permanent=True), Done(3)])

        assert [(job.payload, job.state) for job in settled] == [(1, "done"), (2, "failed"), (3, "done")]

    @pytest.mark.parametrize("change", [{"lease_token": "another"}, {"entries": [("first", 7)]}])
    def test_another_epoch_or_token_is_refused(self, queue: Queue, change: dict[str, Any]) -> None:
        say(queue, 1, job_id="first")
        lease = replace(take(queue).lease, **change)

        with pytest.raises(LeaseLost):
            queue.sessions.heartbeat(lease)
        with pytest.raises(LeaseLost):
            queue.sessions.settle(lease, Done())
        assert queue.get("first").state == "running"

    def test_a_stale_turn_is_refused(self, queue: Queue, clock: ManualClock) -> None:
        say(queue, 1)
        stale = take(queue, lease=SECONDS).lease
        clock.advance(SECONDS)
        turn = take(queue)

        with pytest.raises(LeaseLost):
            queue.sessions.settle(stale, Done())
        assert [job.state for job in queue.sessions.settle(turn.lease, Done())] == ["done"]

    def test_an_entry_of_another_session_tenant_or_of_none_is_not_found(self, queue: Queue) -> None:
        say(queue, 1)
        queue.enqueue("mail", job_id="plain")
        lease = take(queue).lease

        for other in (
            replace(lease, session="other"),
            replace(lease, tenant="other"),
            replace(lease, entries=[("plain", 1)]),
            replace(lease, entries=[*lease.entries, ("unknown", 1)]),
        ):
            with pytest.raises(JobNotFound):
                queue.sessions.settle(other, Done())
            with pytest.raises(JobNotFound):
                queue.sessions.heartbeat(other)

    def test_a_repeated_settle_succeeds(self, queue: Queue) -> None:
        say(queue, 1, 2)
        lease = _sent_turn(take(queue).lease)
        first = queue.sessions.settle(lease, Done(1))

        assert queue.sessions.settle(lease, Done(1)) == first

    def test_under_a_session_lease_a_heartbeat_extends_nothing(self, queue: Queue, clock: ManualClock) -> None:
        owner = queue.sessions.open(SESSION, lease=SECONDS)
        say(queue, 1)
        lease = take(queue, session_lease=owner).lease

        assert queue.sessions.heartbeat(lease, lease=600).lease_until == owner.lease_until
        clock.advance(SECONDS)
        with pytest.raises(LeaseLost):
            queue.sessions.heartbeat(lease)

    def test_it_settles_within_a_transaction(self, queue: Queue) -> None:
        say(queue, 1)
        lease = take(queue).lease

        with queue.transaction() as tx:
            tx.sessions.heartbeat(lease)
            tx.sessions.settle(lease, Released())
        assert texts(take(queue)) == [1]

    @pytest.mark.validation
    @pytest.mark.parametrize(
        ("lease", "field"),
        [
            (TurnLease("", "token", [("a", 1)]), "turn.session"),
            (TurnLease("s", "", [("a", 1)]), "turn.lease_token"),
            (TurnLease("s", "token", []), "turn.entries"),
            (TurnLease("s", "token", "ab"), "turn.entries"),  # type: ignore[arg-type]
            (TurnLease("s", "token", ["ab"]), "turn.entries[0]"),  # type: ignore[list-item]
            (TurnLease("s", "token", [("", 1)]), "turn.entries[0][0]"),
            (TurnLease("s", "token", [("a", "1")]), "turn.entries[0][1]"),  # type: ignore[list-item]
            (TurnLease("s", "token", [("a", 1)], ""), "turn.tenant"),
            (Lease("job", 1, "token"), "turn"),
            (None, "turn"),
        ],
    )
    def test_an_invalid_lease_is_refused_by_name(self, queue: Queue, lease: Any, field: str) -> None:
        for call in (queue.sessions.heartbeat, lambda turn: queue.sessions.settle(turn, Done())):
            with refused(queue, field):
                call(lease)


def _sent_turn(lease: TurnLease) -> TurnLease:
    """Return *lease* as another process rebuilds it."""
    return TurnLease(lease.session, lease.lease_token, [list(pair) for pair in lease.entries], lease.tenant)  # type: ignore[misc]
