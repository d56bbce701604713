"""An interrupt at every possible point: afterwards no lock, slot of the pool or half-read connection remains."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
from collections.abc import Callable, Iterator

import psycopg
import pytest

import holdfast
from holdfast import Conflict
from holdfast.storage import runners
from holdfast.storage.postgres import io, pool
from tests.chaos.processes import PATIENCE_SECONDS
from tests.chaos.strikes import Strike, discard_interrupted_coroutines  # noqa: F401
from tests.chaos.threads import in_background

# The garbage collector closes a connection that was being opened when the interrupt occurred.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(autouse=True)
def _one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one slot in the pool, no later call gets a connection if a single slot is lost."""
    monkeypatch.setattr(pool, "_SIZE", 1)


def enqueue(queue: holdfast.Queue, name: str) -> object:
    return queue.enqueue("task", {"n": 1}, job_id=name)


def enqueue_many(queue: holdfast.Queue, name: str) -> object:
    return queue.enqueue_many([{"kind": "task", "job_id": f"{name}-{n}", "dedupe_key": name} for n in range(2)])


def enqueue_refused(queue: holdfast.Queue, name: str) -> object:
    with pytest.raises(Conflict):
        queue.enqueue("other", job_id="there")
    return name


def claim(queue: holdfast.Queue, name: str) -> object:
    return queue.claim(worker=name)


def read(queue: holdfast.Queue, _name: str) -> object:
    return queue.get("there")


def transact(queue: holdfast.Queue, name: str) -> object:
    with queue.transaction() as transaction:
        transaction.enqueue("task", job_id=name)
        transaction.execute("select 1").pop()
        return transaction.enqueue("task", job_id=f"{name}-twin")


def close_and_enqueue(queue: holdfast.Queue, name: str) -> object:
    queue.close()
    return queue.enqueue("task", job_id=name)


CALLS = [enqueue, enqueue_many, enqueue_refused, claim, read, transact, close_and_enqueue]
# Every seventh place, except in the first: after most interrupts the next call opens a connection, which takes long.
SOME = [pytest.param(call, 1 if call is enqueue else 7) for call in CALLS]
ALL = [pytest.param(call, 1, marks=pytest.mark.long) for call in CALLS[1:]]


def strike(one: Strike, call: Callable[..., object], queue: holdfast.Queue, name: str) -> None:
    """Run *call* and interrupt it; the interrupt is released, and with it the frames that it references."""
    with contextlib.suppress(KeyboardInterrupt):
        one.during(lambda: call(queue, name))


def assert_works(queue: holdfast.Queue, name: str, one: Strike) -> None:
    """Assert that another thread can write, and that this one can read and open a transaction."""
    try:
        assert in_background(lambda: queue.enqueue("after", job_id=name)).result(PATIENCE_SECONDS).created
        assert queue.get(name).kind == "after"
        with queue.transaction() as transaction:
            assert transaction.execute("select count(*) from pg_stat_activity where pid = pg_backend_pid()") == [(1,)]
    except (holdfast.HoldfastError, TimeoutError) as error:
        raise AssertionError(f"after an interrupt at {one.places}") from error


@pytest.mark.slow("an interrupt strikes at each place in turn")
@pytest.mark.parametrize(("call", "step"), [*SOME, *ALL])
def test_an_interrupt_at_any_place_leaves_nothing_held(
    queue: holdfast.Queue, call: Callable[..., object], step: int
) -> None:
    queue.enqueue("task", job_id="there")
    for place in itertools.count(random.randrange(step), step):
        # The driver passes hundreds of points while it opens a connection.
        one = Strike(place, driver=call is not close_and_enqueue)
        strike(one, call, queue, f"job-{place}")
        assert_works(queue, f"after-{place}", one)
        if not one.struck:
            break
    assert place > 30


@pytest.mark.slow("pairs of interrupts at random places")
@pytest.mark.parametrize("call", CALLS)
def test_a_second_interrupt_behind_the_first_changes_nothing(
    queue: holdfast.Queue, call: Callable[..., object]
) -> None:
    queue.enqueue("task", job_id="there")
    chance = random.Random(7)
    counted = Strike(1 << 30, driver=True)
    counted.during(lambda: call(queue, "counted"))
    for number in range(25):
        one = Strike(chance.randrange(counted.passed), chance.randrange(60), driver=True)
        strike(one, call, queue, f"job-{number}")
        assert_works(queue, f"after-{number}", one)


class _StruckList(list[psycopg.Connection[tuple[object, ...]]]):
    """A list whose next append is interrupted as it returns."""

    def append(self, one: psycopg.Connection[tuple[object, ...]]) -> None:
        super().append(one)
        raise KeyboardInterrupt


def test_a_loan_that_is_ended_again_does_not_return_a_connection_that_another_loan_has(url: str) -> None:
    made = pool.SyncPool(lambda: psycopg.connect(url, autocommit=True))
    interrupted, other, third = pool.Loan(), pool.Loan(), pool.Loan()
    connection = made.lend(interrupted)
    made._idle = _StruckList()
    with pytest.raises(KeyboardInterrupt):
        made.end(interrupted)
    made._loans.clear()  # as if there were another slot
    assert made.lend(other) is connection
    made.end(interrupted)
    made._loans.clear()
    assert made.lend(third) is not connection
    for loan in (other, third):
        with pytest.raises(KeyboardInterrupt):
            made.end(loan)
    made.close()


class TestServerThatDoesNotRespond:
    """An interrupted call reads what is still in flight, but not without a bound."""

    @pytest.fixture
    def connection(self, url: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
        with psycopg.connect(url, autocommit=True) as connection:
            process = connection.info.backend_pid
            os.kill(process, signal.SIGSTOP)
            try:
                yield connection
            finally:
                os.kill(process, signal.SIGCONT)

    @pytest.fixture(autouse=True)
    def _short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(io, "_DRAIN_SECONDS", 0.2)

    def test_its_connection_is_closed(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        def transactions() -> Iterator[list[io.Statement]]:
            yield [io.Statement(b"select 1")]
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            runners.run_sync(io.SyncIO(connection).run_alone(transactions(), prepare=False))
        assert connection.closed
