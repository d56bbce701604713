"""Limits on kinds of sessions: one permit for each claim of a session, by its first entry."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from holdfast import Deferred, Done, Failed, Queue
from holdfast.operations import flow_limits, maintenance, sessions
from holdfast.storage.contract import StoreTransaction
from holdfast.storage.runners import SyncRunner
from holdfast.types import SessionClaim
from tests.support.clock import ManualClock
from tests.support.sessions import say, states, take_any, take_more, texts
from tests.support.stores import store_of


@pytest.fixture
def limited(queue: Queue) -> Queue:
    queue.limits.set("turns", kinds=["chat.message"], key="tenant", concurrency=1)
    return queue


def end(queue: Queue, claim: SessionClaim, outcome: Any = None) -> None:
    queue.sessions.settle(claim, outcome or Done())


def running(queue: Queue, key: str = "default") -> tuple[int, int]:
    use = next(iter(queue.limits.show(key)), None)
    return (0, 0) if use is None else (use.running or 0, use.parked)


def test_a_session_whose_head_has_no_room_is_skipped_until_another_ends(limited: Queue) -> None:
    say(limited, "a1", "a2", session="a")
    say(limited, "b1", "b2", session="b")
    say(limited, "c1", session="c", tenant="other")
    first = take_any(limited)
    assert texts(first) == ["a1", "a2"]
    assert texts(take_any(limited)) == ["c1"]
    assert limited.sessions.claim_next() is None
    assert states(limited, "b") == {"b1": "parked", "b2": "ready"}
    assert running(limited) == (1, 1)
    assert limited.sessions.claim("b") is None
    why = limited.why(next(job.id for job in limited.jobs(state="parked")))
    assert "limit turns" in why.summary
    end(limited, first)
    assert texts(take_any(limited)) == ["b1", "b2"]


def test_checkpoints_take_no_further_permit(limited: Queue) -> None:
    say(limited, "a1", session="a")
    turn = take_any(limited)
    say(limited, "a2", session="a", delivery="checkpoint")
    more = take_more(limited, turn)
    assert texts(more) == ["a2"]
    assert running(limited) == (1, 0)
    say(limited, "b1", session="b")
    assert limited.sessions.claim_next() is None
    end(limited, turn)
    end(limited, more)
    assert texts(take_any(limited)) == ["b1"]


def test_an_entry_behind_a_parked_one_does_not_overtake_it(limited: Queue) -> None:
    turn = take_any(limited) if say(limited, "a1", session="a") else None
    say(limited, "b1", session="b")
    assert limited.sessions.claim_next() is None
    limited.enqueue("free", "b2", session="b")
    assert limited.sessions.claim("b") is None
    assert limited.sessions.claim_next() is None
    assert turn is not None
    end(limited, turn)
    end(limited, take_any(limited))
    assert texts(take_any(limited)) == ["b2"]


def test_a_session_whose_first_entry_is_parked_has_no_head_that_claims_would_pass_over(limited: Queue) -> None:
    say(limited, "a1", session="a")
    turn = take_any(limited)
    say(limited, "b1", "b2", session="b", join=False)
    assert limited.sessions.claim_next() is None
    numbers = [job.number for job in limited.jobs(kind="chat.message")]

    async def heads(tx: StoreTransaction) -> list[bool]:
        jobs = await tx.jobs_by_seq(numbers)
        found = await tx.sessions_by_number(sessions.sessions_of(jobs))
        return [session.head is not None for session in found]

    runner = SyncRunner(store_of(limited))
    assert runner.write(heads) == [False, False]
    end(limited, turn)
    limited.claim_many(kinds=["none"])
    assert runner.write(heads) == [False, True]


@pytest.mark.parametrize("way", ["failed", "retried", "expired"])
def test_the_permit_is_given_back_if_a_turn(limited: Queue, clock: ManualClock, way: str) -> None:
    say(limited, "a1", session="a", max_attempts=2)
    say(limited, "b1", session="b")
    turn = take_any(limited, lease=30)
    assert limited.sessions.claim_next() is None
    if way == "expired":
        clock.advance(31)
        assert texts(take_any(limited)) in (["a1"], ["b1"])
    else:
        end(limited, turn, Failed("no", permanent=way == "failed"))
        assert texts(take_any(limited)) == ["b1"]
    assert running(limited)[0] == 1


def test_parked_heads_can_be_cancelled(limited: Queue) -> None:
    say(limited, "a1", session="a")
    [parked] = say(limited, "b1", session="b")
    turn = take_any(limited)
    assert limited.sessions.claim_next() is None
    limited.cancel(parked)
    say(limited, "b2", session="b")
    assert limited.sessions.claim_next() is None
    assert states(limited, "b") == {"b1": "cancelled", "b2": "parked"}
    assert len(limited.sessions.cancel("b")) == 1
    say(limited, "b3", session="b")
    end(limited, turn)
    assert texts(take_any(limited)) == ["b3"]


def test_parked_heads_fail_at_their_deadline(limited: Queue, clock: ManualClock) -> None:
    say(limited, "a1", session="a")
    say(limited, "b1", session="b", deadline=10)
    say(limited, "b2", session="b")
    turn = take_any(limited, lease=60)
    assert limited.sessions.claim_next() is None
    clock.advance(11)
    assert limited.sessions.claim_next() is None
    assert states(limited, "b") == {"b1": "failed", "b2": "parked"}
    end(limited, turn)
    assert texts(take_any(limited)) == ["b2"]


def test_a_limit_set_later_counts_running_turns_and_a_removed_one_frees_sessions(queue: Queue) -> None:
    say(queue, "a1", "a2", session="a")
    turn = take_any(queue)
    queue.limits.set("turns", kinds=["chat.message"], key="tenant", concurrency=1)
    assert running(queue) == (1, 0)
    say(queue, "b1", session="b")
    say(queue, "c1", session="c")
    assert queue.sessions.claim_next() is None
    assert running(queue) == (1, 2)
    queue.limits.set("turns", kinds=["chat.message"], key="tenant", concurrency=2)
    assert texts(take_any(queue)) == ["b1"]
    assert queue.sessions.claim_next() is None
    queue.limits.remove("turns")
    assert texts(take_any(queue)) == ["c1"]
    end(queue, turn)


def test_jobs_and_sessions_of_a_lane_share_its_limit(queue: Queue) -> None:
    queue.limits.set("one", lanes=["default"], concurrency=1)
    queue.enqueue("job")
    say(queue, "a1", session="a")
    turn = take_any(queue)
    assert queue.claim() is None
    end(queue, turn)
    claim = queue.claim()
    assert claim is not None
    say(queue, "a2", session="a")
    assert queue.sessions.claim_next() is None
    queue.settle(claim, Done())
    assert texts(take_any(queue)) == ["a2"]


def test_an_offered_entry_that_joins_the_turn_of_another_key_leaves_its_room_to_others(
    queue: Queue, clock: ManualClock
) -> None:
    queue.lanes.set("default", backoff="skip")
    queue.limits.set("model", kinds=["chat.message"], key="tag:model", concurrency=1)
    say(queue, "a1", session="a", tags={"model": "x"})
    end(queue, take_any(queue), Deferred(after=20))
    say(queue, "h1", session="h", tags={"model": "y"})
    holder = take_any(queue, lease=600)
    # The entry behind the deferred one is parked at the gate of its own key, as is one of another session.
    say(queue, "a2", session="a", tags={"model": "y"})
    assert queue.sessions.claim_next() is None
    say(queue, "b1", session="b", tags={"model": "y"})
    assert queue.sessions.claim_next() is None
    end(queue, holder)
    queue.claim_many(kinds=["none"])
    assert states(queue, "a")["a2"] == "ready"
    clock.advance(20)
    assert texts(take_any(queue, lease=600)) == ["a1", "a2"]
    assert texts(take_any(queue)) == ["b1"]


def test_a_turn_that_is_deferred_can_close_the_key(limited: Queue, clock: ManualClock) -> None:
    say(limited, "a1", session="a")
    say(limited, "b1", session="b")
    say(limited, "c1", session="c", tenant="other")
    end(limited, take_any(limited, tenant="default"), Deferred(after=20, closes=True))
    assert texts(take_any(limited)) == ["c1"]
    assert limited.sessions.claim_next() is None
    [use] = limited.limits.show("default")
    assert use.closed
    clock.advance(21)
    probe = take_any(limited)
    assert limited.sessions.claim_next() is None
    end(limited, probe)
    assert texts(take_any(limited)) != texts(probe)


def test_the_usage_of_a_turn_is_a_refund_or_a_debt_once(queue: Queue) -> None:
    queue.limits.set("tokens", kinds=["chat.message"], key="tenant", rate=1_000, per=3_600, weight="tokens")
    say(queue, "a1", "a2", session="a")
    turn = take_any(queue)
    assert texts(turn) == ["a1", "a2"]
    for _ in range(2):
        # The same settlement again counts once.
        queue.sessions.settle(turn, Done(usage={"tokens": 301}))
    queue.claim_many(kinds=["none"])
    [use] = queue.limits.show("default")
    assert use.left == 699


def test_rates_count_turns(queue: Queue, clock: ManualClock) -> None:
    queue.limits.set("turns", kinds=["chat.message"], rate=1, per=60)
    say(queue, "a1", "a2", session="a")
    say(queue, "b1", session="b")
    end(queue, take_any(queue))
    assert queue.sessions.claim_next() is None
    clock.advance(61)
    assert texts(take_any(queue)) == ["b1"]


def test_more_full_sessions_than_a_claim_looks_at_do_not_hide_others(limited: Queue) -> None:
    say(limited, "first", session="first")
    take_any(limited)
    for n in range(150):
        say(limited, f"p{n}", f"q{n}", session=f"s{n}", join=False)
    say(limited, "other", session="other", tenant="other")
    assert texts(take_any(limited)) == ["other"]


def test_turns_that_no_gate_counts_are_found_and_counted(limited: Queue) -> None:
    say(limited, "a1", "a2", session="a")
    turn = take_any(limited)

    async def forget(tx: StoreTransaction) -> None:
        await tx.set_gates([(None, entry.number) for entry in turn.entries])

    runner = SyncRunner(store_of(limited))
    runner.write(forget)
    assert [one.detail for one in runner.read(flow_limits.findings)] == ["1 running jobs are not counted: turns"]
    runner.write(maintenance.delete_expired)
    assert [one.status for one in runner.read(flow_limits.findings)] == ["ok"]
    assert running(limited) == (1, 0)


@pytest.mark.slow("80 turns by eight threads")
def test_a_limit_is_never_exceeded_by_many_claimers(queue: Queue, clock: ManualClock) -> None:
    queue.limits.set("turns", kinds=["chat.message"], key="tenant", concurrency=2)
    for n in range(80):
        say(queue, n, session=f"s{n % 40}", tenant=f"t{n % 4}", join=False)
    uses: list[int] = []
    done: list[SessionClaim] = []
    problems: list[object] = []

    def work() -> None:
        idle = 0
        while len(done) < 80 and idle < 2_000 and not problems:
            # The claims without a result move the clock: a lease of usual length would expire during a turn.
            claim = queue.sessions.claim_next(lease=3_600)
            idle = 0 if claim is not None else idle + 1
            if claim is None:
                # What was parked at a locked gate is looked at again a little later.
                clock.advance(0.02)
            else:
                uses.append(running(queue, claim.tenant)[0])
                queue.sessions.settle(claim, Done())
                done.append(claim)

    def try_work() -> None:
        try:
            work()
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=try_work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert (problems, len(done), max(uses)) == ([], 80, 2), queue.counts()
    assert [running(queue, f"t{n}") for n in range(4)] == [(0, 0)] * 4
