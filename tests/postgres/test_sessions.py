"""Sessions with many writers: no caller waits for a session that it does not use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast import Done, LeaseLost, Queue
from holdfast.domain.job import row_of
from tests.support.sessions import say, take, take_any, texts
from tests.support.stores import Harness

PATIENCE = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Harness]:
    made = Harness("postgres", tmp_path)
    yield made
    made.close()


@pytest.fixture
def queue(server: Harness) -> Queue:
    return server.open()


def while_held(queue: Queue, act: Callable[[], object]) -> object:
    """Call *act* while another transaction that has enqueued into session `held` is open, and return the result."""
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with queue.transaction() as tx:
            tx.enqueue("chat.message", "open", session="held")
            entered.set()
            leave.wait(PATIENCE)

    holder = threading.Thread(target=hold)
    holder.start()
    assert entered.wait(PATIENCE)
    try:
        return act()
    finally:
        leave.set()
        holder.join(PATIENCE)


class TestWhileASessionIsLocked:
    def test_a_claim_of_any_takes_another(self, server: Harness, queue: Queue) -> None:
        say(queue, 1, session="held")
        say(queue, 2, session="free")

        assert texts(while_held(server.open(), lambda: take_any(queue))) == [2]  # type: ignore[arg-type]

    def test_it_takes_another_tenants_where_those_of_the_first_are_locked(
        self, server: Harness, queue: Queue
    ) -> None:
        say(queue, 1, session="held")
        say(queue, 2, session="free", tenant="other")

        assert texts(while_held(server.open(), lambda: take_any(queue))) == [2]  # type: ignore[arg-type]

    def test_it_returns_nothing_where_all_are(self, server: Harness, queue: Queue) -> None:
        say(queue, 1, session="held")

        assert while_held(server.open(), queue.sessions.claim_next) is None
        assert texts(take_any(queue)) == [1]

    def test_other_sessions_take_entries_in_and_settle(self, server: Harness, queue: Queue) -> None:
        say(queue, 1, session="free")
        turn = take(queue, "free")

        def serve() -> list[object]:
            say(queue, 2, session="free")
            queue.sessions.settle(turn, Done())
            return texts(take(queue, "free"))

        assert while_held(server.open(), serve) == [2]

    def test_the_maintenance_of_a_plain_claim_skips_its_entries(self, server: Harness, queue: Queue) -> None:
        say(queue, 1, session="held")
        take(queue, "held", lease=5)
        plain = queue.enqueue("email.send")
        server.clock.advance(5)

        def claim() -> list[str]:
            return [one.job.id for one in queue.claim_many()]

        assert while_held(server.open(), claim) == [plain.id]
        assert texts(take_any(queue)) == [1]


class TestRaces:
    def test_places_follow_commits_whatever_the_order_of_numbers(self, server: Harness, queue: Queue) -> None:
        """The first to enqueue commits last, so its number is lower and its position later than those of others."""
        queues = [server.open() for _ in range(4)]
        start = threading.Barrier(len(queues))

        def speak(own: Queue, name: str) -> None:
            start.wait()
            for n in range(10):
                say(own, [name, n], session="s")

        threads = [threading.Thread(target=speak, args=(own, f"w{n}")) for n, own in enumerate(queues)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)

        turn = take(queue, "s")
        assert [row_of(job).enqueue_seq for job in turn.entries] == list(range(1, 41))
        for n in range(4):
            assert [text[1] for text in texts(turn) if text[0] == f"w{n}"] == list(range(10))

    def test_cancel_settle_and_claim_of_one_session_do_not_lock_each_other_out(
        self, server: Harness, queue: Queue
    ) -> None:
        rounds, failed = 15, list[BaseException]()
        finished = threading.Event()

        def work(act: Callable[[Queue], object]) -> None:
            own = server.open()
            try:
                while not finished.is_set():
                    act(own)
            except BaseException as error:
                failed.append(error)

        def serve(own: Queue) -> None:
            if claim := own.sessions.claim_next(limit=3):
                with suppress(LeaseLost):
                    own.sessions.settle(claim, Done())

        acts: list[Callable[[Queue], object]] = [serve, serve, lambda own: own.sessions.cancel("s")]
        threads = [threading.Thread(target=work, args=(act,)) for act in acts]
        for thread in threads:
            thread.start()
        for n in range(rounds):
            say(queue, n, n + 100, session="s")
            queue.sessions.open("s", take_over=True, lease_token=f"t{n}")
            queue.sessions.close(queue.sessions.open("s", take_over=True, lease_token=f"u{n}"))
        finished.set()
        for thread in threads:
            thread.join(PATIENCE)

        assert failed == []
        assert not any(thread.is_alive() for thread in threads)
