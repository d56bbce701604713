"""An interrupt at every possible point: afterwards nothing is locked, lost, or done twice."""

from __future__ import annotations

import fcntl
import itertools
import os
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Conflict, HoldfastError
from holdfast.client.connect import queue_on
from holdfast.client.queue_state import state_of
from holdfast.storage.sqlite.readers import _Loan
from holdfast.storage.sqlite.store import SqliteStore
from tests.chaos.processes import PATIENCE_SECONDS
from tests.chaos.strikes import Strike, discard_interrupted_coroutines  # noqa: F401
from tests.chaos.threads import in_background, wait_until

# The garbage collector closes a file that was being opened when the interrupt occurred.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


@pytest.fixture
def queue(path: str) -> Iterator[holdfast.Queue]:
    queue = holdfast.connect(path, durability="relaxed")
    queue.enqueue("task", job_id="there")
    # The last close checkpoints and removes the log, which would take longer than everything else here.
    other = sqlite3.connect(path)
    other.execute("select * from holdfast_job").fetchall()
    yield queue
    other.close()
    in_background(queue.close).result(PATIENCE_SECONDS)


def assert_free(path: str) -> None:
    """Assert that another caller can lock the lock file and write at once."""
    other = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        other.execute("pragma synchronous = off")
        other.execute("begin immediate")
        other.execute("rollback")
        # The whole log can be checkpointed, so no reader still uses an old snapshot of it.
        busy, pages, copied = other.execute("pragma wal_checkpoint(full)").fetchone()
        assert (busy, pages) == (0, copied)
    finally:
        other.close()
    if Path(f"{path}-holdfast").exists():
        descriptor = os.open(f"{path}-holdfast", os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)


def assert_works(queue: holdfast.Queue, job_id: str) -> None:
    """Assert that another thread can write with *queue*, and that this one reads what it wrote."""
    assert in_background(lambda: queue.enqueue("after", job_id=job_id)).result(PATIENCE_SECONDS).created
    assert queue.get(job_id).kind == "after"


# --- one caller ----------------------------------------------------------------------------------------------------


def enqueue(queue: holdfast.Queue, name: str) -> object:
    return queue.enqueue("task", {"n": 1}, job_id=name)


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
        transaction.execute("select * from holdfast_job").pop()
        return transaction.enqueue("task", job_id=f"{name}-twin")


def open_and_enqueue(queue: holdfast.Queue, name: str) -> object:
    queue.close()
    return queue.enqueue("task", job_id=name)


def read_first(queue: holdfast.Queue, _name: str) -> object:
    queue.close()
    return queue.get("there")


ALONE = [enqueue, enqueue_refused, claim, read, transact, open_and_enqueue, read_first]


def strike(one: Strike, work: Callable[[], Any]) -> BaseException | None:
    """Return the interrupt that ended *work*, or None if it completed."""
    try:
        one.during(work)
    except KeyboardInterrupt as interrupt:
        return interrupt
    return None


@pytest.mark.slow("an interrupt strikes at each place in turn")
@pytest.mark.parametrize("work", ALONE)
def test_an_interrupt_at_any_place_leaves_nothing_held(
    queue: holdfast.Queue, path: str, work: Callable[..., object]
) -> None:
    for place in itertools.count():
        one = Strike(place)
        interrupt = strike(one, lambda name=f"job-{place}": work(queue, name))  # type: ignore[misc]
        if interrupt is not None and work is transact:
            # If interrupted while leaving the block, it ends when the exception that references it is released.
            interrupt = None
        assert_free(path)
        assert_works(queue, f"after-{place}")
        if not one.struck:
            break
    assert place > 30


@pytest.mark.parametrize("pairs", [25, pytest.param(250, marks=pytest.mark.long)])
@pytest.mark.parametrize("work", ALONE)
def test_a_second_interrupt_behind_the_first_changes_nothing(
    queue: holdfast.Queue, path: str, work: Callable[..., object], pairs: int
) -> None:
    chance = random.Random(7)
    counted = Strike(1 << 30)
    counted.during(lambda: work(queue, "counted"))
    for number in range(pairs):
        one = Strike(chance.randrange(counted.passed), chance.randrange(60))
        strike(one, lambda name=f"job-{number}": work(queue, name))  # type: ignore[misc]
        assert_free(path)
        assert_works(queue, f"after-{number}")


# --- a leader with others behind it --------------------------------------------------------------------------------


class Crowd:
    """A store whose leader waits at its begin until others are queued behind it."""

    def __init__(self, path: str) -> None:
        self.store = SqliteStore(path, relaxed=True, observe=self._observe)
        self.queue = queue_on(self.store)
        self.expected = 0
        self.struck = threading.Event()
        self.queue.migrate()

    def _observe(self, name: str) -> None:
        if name == "begin" and self.expected:
            expected, self.expected = self.expected, 0
            wait_until(lambda: len(self.store._writer._queue.queue) >= expected or self.struck.is_set())

    def enqueue_behind(self, *kinds: str) -> list[Future[Any]]:
        """Enqueue each in its own thread, once there is a leader."""
        wait_until(lambda: self.expected == 0 or self.struck.is_set())
        return [in_background(self.queue.enqueue, kind) for kind in kinds]

    def kinds(self) -> dict[str, int]:
        kinds: dict[str, int] = {}
        for job in self.queue.jobs(limit=1000):
            kinds[job.kind] = kinds.get(job.kind, 0) + 1
        return kinds


@pytest.fixture
def crowd(path: str) -> Iterator[Crowd]:
    crowd = Crowd(path)
    yield crowd
    in_background(crowd.queue.close).result(PATIENCE_SECONDS)


@pytest.mark.slow("an interrupt strikes at each place in turn")
def test_a_leader_interrupted_at_any_place_neither_loses_nor_repeats_what_others_asked_for(
    crowd: Crowd, path: str
) -> None:
    for place in itertools.count():
        crowd.expected, crowd.struck = 2, threading.Event()
        starting = in_background(crowd.enqueue_behind, f"other-{place}-0", f"other-{place}-1")
        one = Strike(place)
        interrupt = strike(one, lambda place=place: crowd.queue.enqueue(f"leader-{place}"))  # type: ignore[misc]
        crowd.struck.set()
        others = starting.result(PATIENCE_SECONDS)
        assert all(other.result(PATIENCE_SECONDS).created for other in others)
        crowd.expected = 0
        assert_free(path)
        kinds = crowd.kinds()
        assert [kinds.pop(f"other-{place}-{n}", 0) for n in range(2)] == [1, 1], one.places
        assert kinds.pop(f"leader-{place}", 0) == 1 or interrupt is not None
        _clear(crowd.queue)
        if not one.struck:
            break
    assert place > 100


def test_a_caller_interrupted_while_it_is_queued_leaves_no_caller_waiting(crowd: Crowd, path: str) -> None:
    for place in itertools.count():
        crowd.expected, crowd.struck = 1, threading.Event()
        leading = in_background(crowd.queue.enqueue, f"leader-{place}")
        wait_until(lambda: crowd.expected == 0)
        one = Strike(place)
        interrupt = strike(one, lambda place=place: crowd.queue.enqueue(f"queued-{place}"))  # type: ignore[misc]
        crowd.struck.set()
        assert leading.result(PATIENCE_SECONDS).created
        assert in_background(crowd.queue.enqueue, f"after-{place}").result(PATIENCE_SECONDS).created
        assert_free(path)
        kinds = crowd.kinds()
        assert (kinds[f"leader-{place}"], kinds[f"after-{place}"]) == (1, 1)
        assert kinds.get(f"queued-{place}", 0) == 1 or interrupt is not None
        _clear(crowd.queue)
        if not one.struck:
            break
    assert place > 10


def _clear(queue: holdfast.Queue) -> None:
    with queue.transaction() as transaction:
        transaction.execute("delete from holdfast_job")


# --- the commit ----------------------------------------------------------------------------------------------------


class _StruckCursor(sqlite3.Cursor):
    """A cursor whose next commit succeeds, and is interrupted as it returns."""

    armed = False

    def execute(self, sql: str, *values: Any) -> Any:
        answer = super().execute(sql, *values)
        if sql == "commit" and type(self).armed:
            type(self).armed = False
            raise KeyboardInterrupt
        return answer


class _StruckConnection(sqlite3.Connection):
    def cursor(self, factory: Any = _StruckCursor) -> Any:
        return super().cursor(factory)


def test_what_was_committed_as_the_interrupt_struck_is_answered_and_not_run_again(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **{**k, "factory": _StruckConnection}))
    crowd = Crowd(path)
    crowd.expected = 2
    leading = in_background(crowd.queue.enqueue, "leader")
    wait_until(lambda: crowd.expected == 0)
    monkeypatch.setattr(_StruckCursor, "armed", True)
    others = [in_background(crowd.queue.enqueue, f"other-{n}") for n in range(2)]
    with pytest.raises(KeyboardInterrupt):
        leading.result(PATIENCE_SECONDS)
    assert all(other.result(PATIENCE_SECONDS).created for other in others)
    assert crowd.kinds() == {"leader": 1, "other-0": 1, "other-1": 1}
    crowd.queue.close()


def test_a_statement_left_open_by_an_interrupt_does_not_keep_an_old_view(path: str) -> None:
    """A referenced interrupt between a statement and its rows once made every later write fail."""
    with holdfast.connect(path) as queue, holdfast.connect(path) as other:
        queue.enqueue("task", job_id="there")
        kept = []
        for place in itertools.count():
            one = Strike(place)
            kept.append(strike(one, lambda: queue.claim(worker="w")))
            other.enqueue("task")
            try:
                queue.enqueue("task")
            except HoldfastError as error:
                raise AssertionError(one.places) from error
            if not one.struck:
                break


class _StruckList(list[sqlite3.Cursor]):
    """A list whose next append is interrupted as it returns."""

    def append(self, one: sqlite3.Cursor) -> None:
        super().append(one)
        raise KeyboardInterrupt


def test_a_loan_that_is_ended_again_does_not_return_a_cursor_that_another_reader_has(queue: holdfast.Queue) -> None:
    assert queue.get("there").kind == "task"
    readers = state_of(queue).store._readers  # type: ignore[attr-defined]
    [cursor] = readers._idle
    interrupted, other, third = _Loan(None), _Loan(None), _Loan(None)
    readers._lend(interrupted)
    readers._idle = _StruckList()
    with pytest.raises(KeyboardInterrupt):
        readers._take_back(interrupted)
    readers._idle = list(readers._idle)
    readers._lend(other)
    assert other.cursor is cursor
    readers._take_back(interrupted)
    readers._lend(third)
    assert third.cursor is None
    for loan in (other, third):
        readers._take_back(loan)
