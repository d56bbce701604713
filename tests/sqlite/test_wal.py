"""The write-ahead log: bounded under load, truncated after a slow reader, and never blocking callers."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import JobNotFound
from holdfast.storage.sqlite import connection, group_commit
from holdfast.storage.sqlite.connection import LOG_BYTES_LONG
from tests.chaos.processes import Child, say

SHORTENED = 1 << 20
BODY = {"body": "x" * 20_000}
# How many commits may pass before the length of the log is checked.
LOOKS = getattr(group_commit, "_COMMITS_BETWEEN_CHECKS", 1)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


@pytest.fixture
def queue(path: str) -> Iterator[holdfast.Queue]:
    with holdfast.connect(path) as queue:
        queue.migrate()
        yield queue


@pytest.fixture
def shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat a log of a megabyte as long, so that a test need not write hundreds."""
    for module in (connection,):
        monkeypatch.setattr(module, "LOG_BYTES_LONG", SHORTENED)


def log_bytes(path: str) -> int:
    try:
        return Path(f"{path}-wal").stat().st_size
    except FileNotFoundError:
        return 0


def test_each_call_writes_the_pages_that_it_must(path: str, queue: holdfast.Queue) -> None:
    queue.enqueue("work")
    [claim] = queue.claim_many(limit=1)
    queue.settle(claim, holdfast.Done())

    def pages(call: Callable[[], Any]) -> tuple[int, Any]:
        with closing(sqlite3.connect(path)) as other:
            other.execute("pragma wal_checkpoint(truncate)")
        result = call()
        return log_bytes(path) // 4_096, result

    # The job, its id, and the index of ready jobs.
    assert pages(lambda: [queue.enqueue("work"), queue.enqueue("work")])[0] == 6
    # The job, the index of ready jobs, and that of leases and finished jobs.
    taken, claims = pages(lambda: queue.claim_many(limit=1))
    assert taken == 3
    # The two jobs and their event, and the same indexes.
    taken, both = pages(lambda: queue.settle_and_claim([(claims[0], holdfast.Done())], limit=1))
    assert taken == 4
    # The job, its event, and the index of leases and finished jobs.
    assert pages(lambda: queue.settle(both.claims[0], holdfast.Done()))[0] == 3


@contextmanager
def overlapping_readers(path: str) -> Iterator[None]:
    """Keep at least one reader open at any time, though each one is short."""
    ended = threading.Event()
    first, second = (sqlite3.connect(path, isolation_level=None, check_same_thread=False) for _ in range(2))

    def read() -> None:
        look(first)
        while not ended.is_set():
            for newer, older in ((second, first), (first, second)):
                time.sleep(0.003)
                look(newer)
                older.execute("rollback")
        first.execute("rollback")

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        first.close()
        second.close()


def look(connection: sqlite3.Connection) -> int:
    """Start to read, and keep this snapshot until it is rolled back."""
    connection.execute("begin")
    count: int = connection.execute("select count(*) from holdfast_job").fetchone()[0]
    return count


@contextmanager
def slow_reader(path: str) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, isolation_level=None)
    look(connection)
    try:
        yield connection
    finally:
        connection.close()


def write_watched(queue: holdfast.Queue, path: str, count: int) -> tuple[int, int]:
    """Enqueue *count* jobs; return the greatest length of the log and its greatest growth by one commit."""
    longest = growth = 0
    before = log_bytes(path)
    for _ in range(count):
        queue.enqueue("mail", BODY)
        after = log_bytes(path)
        longest, growth, before = max(longest, after), max(growth, after - before), after
    return longest, growth


# --- length --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("shortened")
class TestLength:
    def test_it_is_bounded_though_there_is_always_a_reader(self, queue: holdfast.Queue, path: str) -> None:
        with overlapping_readers(path):
            longest, growth = write_watched(queue, path, 600)
        assert 600 * len(BODY["body"]) > 10 * SHORTENED
        assert SHORTENED < longest <= SHORTENED + (LOOKS + 1) * growth

    def test_it_is_bounded_without_readers(self, queue: holdfast.Queue, path: str) -> None:
        longest, growth = write_watched(queue, path, 600)
        assert longest <= max(SHORTENED, connection.CHECKPOINT_PAGES * 4200) + (LOOKS + 1) * growth

    def test_a_slow_reader_holds_up_no_writer_and_the_log_is_short_again_after_it(
        self, queue: holdfast.Queue, path: str
    ) -> None:
        write_watched(queue, path, 10)
        with slow_reader(path) as reader:
            # Each of these returned, though the log cannot be truncated while the reader keeps its snapshot.
            longest, _ = write_watched(queue, path, 120)
            assert longest > 2 * SHORTENED
            assert reader.execute("select count(*) from holdfast_job").fetchone() == (10,)
        for _ in range(LOOKS + 1):
            queue.enqueue("mail")
        assert log_bytes(path) <= SHORTENED
        assert queue.counts() == {"ready": 130 + LOOKS + 1}

    def test_the_busy_timeout_is_restored_after_a_reader_delayed_the_truncation_of_the_log(
        self, queue: holdfast.Queue, path: str
    ) -> None:
        def busy_timeout_ms() -> int:
            with queue.transaction() as transaction:
                [(milliseconds,)] = transaction.execute("pragma busy_timeout")
            return int(milliseconds)

        before = busy_timeout_ms()
        with slow_reader(path):
            write_watched(queue, path, 60 + LOOKS)
        assert busy_timeout_ms() == before

    def test_nothing_of_it_is_left_when_the_last_one_closes(self, queue: holdfast.Queue, path: str) -> None:
        write_watched(queue, path, 10)
        assert log_bytes(path) > 0
        queue.close()
        assert log_bytes(path) == 0


# --- concurrent callers --------------------------------------------------------------------------------------------


def read_once(pipe: Connection, path: str, job_id: str) -> None:
    """In another process: call every reading method."""
    queue = holdfast.connect(path)
    job = queue.get(job_id)
    say(pipe, (job.state, queue.counts(), len(queue.jobs()), len(queue.events()), len(queue.attempts(job_id))))


class TestReaders:
    def test_a_long_transaction_holds_up_no_reader(self, queue: holdfast.Queue, path: str) -> None:
        job_id = queue.enqueue("mail").id
        seen = ("ready", {"ready": 1}, 1, 0, 0)
        with queue.transaction() as transaction:
            transaction.cancel(job_id)
            transaction.enqueue("mail", job_id="unseen")
            # The transaction is open until the block ends, so each call here returned during it.
            assert queue.get(job_id).state == "ready"
            with holdfast.connect(path) as other, pytest.raises(JobNotFound):
                other.get("unseen")
            with Child(read_once, path, job_id) as reader:
                assert reader.hear() == seen
        assert queue.counts() == {"ready": 1, "cancelled": 1}

    def test_a_waiter_waits_beside_a_long_transaction(self, queue: holdfast.Queue) -> None:
        job_id = queue.enqueue("mail").id
        with queue.transaction() as transaction:
            transaction.cancel(job_id)
            with pytest.raises(holdfast.WaitTimeout):
                queue.wait(job_id, timeout=0.05)
        assert queue.wait(job_id, timeout=0).state == "cancelled"


# --- long runs -----------------------------------------------------------------------------------------------------


def enqueue_until_signalled(pipe: Connection, path: str) -> None:
    queue, count = holdfast.connect(path), 0
    say(pipe)
    while not pipe.poll():
        queue.enqueue("mail", BODY)
        count += 1
    pipe.send(count)


@pytest.mark.long
def test_it_is_bounded_under_the_load_of_many_processes_for_half_a_minute(queue: holdfast.Queue, path: str) -> None:
    writers = [Child(enqueue_until_signalled, path) for _ in range(4)]
    for child in writers:
        child.hear()
    longest, until = 0, time.monotonic() + 30
    with overlapping_readers(path):
        for child in writers:
            child.tell()
        while time.monotonic() < until:
            longest = max(longest, log_bytes(path))
            time.sleep(0.005)
        for child in writers:
            child.tell("end")
    total = sum(child.hear() for child in writers)
    for child in writers:
        child.kill()
    assert queue.counts() == {"ready": total}
    # Each of the four processes may let this many commits pass before it checks.
    assert longest <= LOG_BYTES_LONG + 4 * (LOOKS + 1) * 200_000
