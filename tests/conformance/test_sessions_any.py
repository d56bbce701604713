"""Claiming any ready session: the oldest first entry first, fair between tenants, by lanes, kinds and capabilities.

Every store must pass this file unchanged.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Done, Failed, Queue, Released
from holdfast.types import SessionClaim
from tests.support.assertions import refused
from tests.support.clock import ManualClock
from tests.support.sessions import say, take, take_any, texts
from tests.support.stores import Harness

LONG = 60.0


def drain(queue: Queue, **options: object) -> list[object]:
    """Claim and settle until no session is ready; return the payloads in order."""
    got: list[object] = []
    while claim := queue.sessions.claim_next(**options):  # type: ignore[arg-type]
        got += texts(claim)
        queue.sessions.settle(claim, Done())
    return got


class TestOrder:
    def test_the_oldest_head_goes_first(self, queue: Queue) -> None:
        for text, name in ((1, "b"), (2, "a"), (3, "c"), (4, "b")):
            say(queue, text, session=name, join=False)

        assert drain(queue) == [1, 2, 3, 4]

    def test_consecutive_entries_are_claimed_together(self, queue: Queue) -> None:
        say(queue, 1, session="a")
        say(queue, 2, session="b")
        say(queue, 3, session="a")

        assert [texts(take_any(queue)), texts(take_any(queue))] == [[1, 3], [2]]

    def test_tenants_take_turns(self, queue: Queue) -> None:
        for n in range(4):
            say(queue, f"a{n}", session=f"s{n}", tenant="a")
        say(queue, "b0", session="s0", tenant="b")
        say(queue, "b1", session="s1", tenant="b")

        assert drain(queue) == ["a0", "b0", "a1", "b1", "a2", "a3"]

    def test_a_strict_lane_ignores_tenants(self, queue: Queue) -> None:
        queue.lanes.set("default", order="strict")
        for n in range(2):
            say(queue, f"a{n}", session=f"s{n}", tenant="a")
        say(queue, "b0", session="s0", tenant="b")

        assert drain(queue) == ["a0", "a1", "b0"]

    def test_a_lane_may_change_its_order_while_sessions_wait(self, queue: Queue) -> None:
        for n in range(2):
            say(queue, f"a{n}", session=f"s{n}", tenant="a")
        say(queue, "b0", session="s0", tenant="b")
        queue.lanes.set("default", order="strict")
        assert texts(take_any(queue)) == ["a0"]
        queue.lanes.set("default", order="fair")

        assert [texts(take_any(queue)), texts(take_any(queue))] == [["a1"], ["b0"]]

    @pytest.mark.parametrize("order", ["fair", "strict"])
    def test_a_claim_may_name_one_tenant(self, queue: Queue, order: str) -> None:
        queue.lanes.set("default", order=order)  # type: ignore[arg-type]
        say(queue, "a0", session="s", tenant="a")
        say(queue, "b0", session="s", tenant="b")
        say(queue, "b1", session="s2", tenant="b")

        assert drain(queue, tenant="b") == ["b0", "b1"]
        assert queue.sessions.claim_next(tenant="b") is None
        assert drain(queue) == ["a0"]

    def test_only_sessions_whose_first_entry_has_the_given_entry_type(self, queue: Queue) -> None:
        say(queue, "command", session="a", entry_type="command")
        say(queue, "message", session="b")

        assert texts(take_any(queue, only="message")) == ["message"]
        assert queue.sessions.claim_next(only="message") is None
        assert texts(take_any(queue, only="command")) == ["command"]


class TestWorkerFilters:
    def test_only_its_lanes(self, queue: Queue) -> None:
        say(queue, 1, session="a", lane="slow")

        assert queue.sessions.claim_next() is None
        assert texts(take_any(queue, lanes=["default", "slow"])) == [1]

    def test_a_turn_ends_before_an_entry_of_another_lane(self, queue: Queue) -> None:
        say(queue, 1, session="a")
        say(queue, 2, session="a", lane="slow")

        turn = take_any(queue)
        assert texts(turn) == [1]
        queue.sessions.settle(turn, Done())
        assert queue.sessions.claim_next() is None
        assert texts(take(queue, "a")) == [2]

    def test_only_its_kinds(self, queue: Queue) -> None:
        queue.enqueue("chat.message", 1, session="a")
        queue.enqueue("chat.note", 2, session="b")

        assert texts(take_any(queue, kinds=["chat.note"])) == [2]
        assert queue.sessions.claim_next(kinds=["chat.note"]) is None
        assert queue.sessions.claim_next(kinds=[]) is None

    def test_only_entries_whose_requirements_it_meets(self, queue: Queue) -> None:
        say(queue, 1, session="a", requires=["gpu"])
        say(queue, 2, session="a")

        assert queue.sessions.claim_next() is None
        assert queue.sessions.claim("a") is None
        assert texts(take_any(queue, capabilities=["gpu", "more"])) == [1, 2]

    def test_nothing_of_a_paused_lane(self, queue: Queue) -> None:
        say(queue, 1, session="a")
        queue.lanes.set("default", state="paused")

        assert queue.sessions.claim_next() is None
        assert queue.sessions.claim("a") is None
        queue.lanes.set("default", state="active")
        assert texts(take_any(queue)) == [1]

    def test_nothing_of_a_retired_kind(self, queue: Queue) -> None:
        say(queue, 1, session="a")
        queue.enqueue("chat.note", 2, session="a")
        queue.kinds.retire("chat.message")

        assert texts(take_any(queue)) == [2]


class TestSessionsThatBecomeReadyAgain:
    def test_a_session_with_an_expired_claim_is_claimed_again(self, queue: Queue, clock: ManualClock) -> None:
        say(queue, 1, session="a")
        take_any(queue, lease=5)
        clock.advance(5)

        assert texts(take_any(queue, worker="other")) == [1]

    def test_so_is_one_whose_lease_a_plain_claim_has_taken_back(self, queue: Queue, clock: ManualClock) -> None:
        say(queue, 1, session="a")
        take_any(queue, lease=5)
        clock.advance(5)

        assert queue.claim() is None
        assert texts(take_any(queue, worker="other")) == [1]

    def test_an_entry_that_fell_due_is_claimed(self, queue: Queue, clock: ManualClock) -> None:
        say(queue, 1, session="a", delay=10)
        say(queue, 2, session="b")

        assert drain(queue) == [2]
        clock.advance(10)
        assert drain(queue) == [1]

    def test_a_retry_is_claimed_after_its_delay(self, queue: Queue, clock: ManualClock) -> None:
        say(queue, 1, 2, session="a", join=False)
        queue.sessions.settle(take_any(queue), Failed("no", retry_after=10))

        assert drain(queue) == []
        clock.advance(10)
        assert drain(queue) == [1, 2]

    def test_a_first_entry_past_its_deadline_does_not_hide_later_ones(self, queue: Queue, clock: ManualClock) -> None:
        say(queue, 1, session="a", deadline=5)
        say(queue, 2, session="a")
        say(queue, 3, session="b", deadline=5)
        say(queue, 4, session="c")
        clock.advance(5)

        assert drain(queue) == [2, 4]

    def test_released_entries_are_claimed_at_once(self, queue: Queue) -> None:
        say(queue, 1, 2, session="a")
        queue.sessions.settle(take_any(queue), Released())

        assert texts(take_any(queue)) == [1, 2]


class TestManyAtOnce:
    def test_workers_share_sessions_and_each_keeps_its_order(self, harness: Harness) -> None:
        queue = harness.open()
        names = [f"s{n}" for n in range(12)]
        queue.enqueue_many(
            [
                {"kind": "chat.message", "payload": [name, n], "session": name, "tenant": f"t{n % 2}"}
                for n in range(6)
                for name in names
            ]
        )
        served: list[tuple[str, str, int]] = []
        guard = threading.Lock()

        def serve(own: Queue, worker: str) -> None:
            while claim := own.sessions.claim_next(worker=worker, limit=2):
                with guard:
                    served.extend((claim.tenant, *text) for text in texts(claim))
                own.sessions.settle(claim, Done())

        threads = [threading.Thread(target=serve, args=(harness.open(), f"w{n}")) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        # A worker stops if other workers hold all sessions; process the remaining entries now.
        serve(queue, "last")

        assert len(served) == len(set(served)) == 72
        for tenant in ("t0", "t1"):
            for name in names:
                own = [n for at, session, n in served if (at, session) == (tenant, name)]
                assert own == sorted(own)


def claim_while(act: Callable[[], object], claim: Callable[[], SessionClaim | None]) -> list[object]:
    """Start a claim that waits, call *act*, and return the claimed payloads."""
    got: list[object] = []
    waiting = threading.Thread(target=lambda: got.extend(texts(claim())))
    waiting.start()
    act()
    waiting.join(LONG / 2)
    assert not waiting.is_alive(), "the claim was not woken"
    return got


class TestWaiting:
    def test_a_claim_of_any_session_is_woken_by_an_entry(self, harness: Harness) -> None:
        queue, other = harness.open(), harness.open()

        assert claim_while(lambda: say(other, 1), lambda: queue.sessions.claim_next(wait=LONG)) == [1]

    def test_a_claim_of_one_session_is_woken_by_an_entry(self, harness: Harness) -> None:
        queue, other = harness.open(), harness.open()

        assert claim_while(lambda: say(other, 1, session="a"), lambda: queue.sessions.claim("a", wait=LONG)) == [1]

    def test_it_is_woken_when_the_previous_turn_is_settled(self, harness: Harness) -> None:
        queue, other = harness.open(), harness.open()
        say(queue, 1, 2, join=False, session="a")
        turn = take(queue, "a")

        assert claim_while(
            lambda: other.sessions.settle(turn, Done()), lambda: queue.sessions.claim_next(wait=LONG)
        ) == [2]

    def test_without_jobs_it_returns_nothing_after_the_timeout(self, queue: Queue) -> None:
        assert queue.sessions.claim_next(wait=0.01) is None
        assert queue.sessions.claim("a", wait=0.01) is None


def test_the_async_api_behaves_the_same(harness: Harness) -> None:
    async def converse() -> list[object]:
        queue = harness.open_async()
        for n in range(3):
            await queue.enqueue("chat.message", n, session="a", join=True)
        turn = await queue.sessions.claim_next(limit=2)
        assert turn is not None
        more = await queue.sessions.checkpoint(turn)
        assert more is not None
        await queue.sessions.heartbeat(turn.joined(more))
        jobs = await queue.sessions.settle(turn.joined(more), Done())
        lease = await queue.sessions.open("a")
        await queue.sessions.close(await queue.sessions.renew(lease))
        assert await queue.sessions.cancel("a") == []
        await queue.close()
        return [job.payload for job in jobs if job.state == "done"]

    assert asyncio.run(converse()) == [0, 1, 2]


class TestLimits:
    def test_a_limit_may_depend_on_the_kind_of_the_first_entry(self, queue: Queue) -> None:
        for kind in ("chat.message", "chat.note", "chat.edit"):
            for text in range(120 if kind == "chat.edit" else 3):
                queue.enqueue(kind, text, session=kind, join=True)

        found = {
            turn.session: len(turn.entries)
            for _ in range(3)
            if (turn := queue.sessions.claim_next(limit={"chat.message": 2, "chat.note": 1})) is not None
        }

        # Other kinds have the default limit.
        assert found == {"chat.message": 2, "chat.note": 1, "chat.edit": 100}

    @pytest.mark.parametrize("most", [0, 1_001, "2", True])
    def test_a_wrong_limit_is_named_with_its_kind(self, queue: Queue, most: Any) -> None:
        with refused(queue, "limit.chat.note"):
            queue.sessions.claim_next(limit={"chat.note": most})
