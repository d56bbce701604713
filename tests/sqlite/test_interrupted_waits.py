"""A call that waits for a writer of another connection can be interrupted: it raises, and nothing is stored."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

import holdfast
from holdfast import Queue, StoreBusy
from holdfast.client.connect import async_queue_on
from tests.chaos.threads import in_background, wait_until

Holder: TypeAlias = Callable[[Path], AbstractContextManager[None]]


@contextmanager
def foreign_writer(path: Path) -> Iterator[None]:
    """Lock the file with a connection that does not use Holdfast."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("begin immediate")
    yield
    connection.close()


@contextmanager
def another_queue(path: Path) -> Iterator[None]:
    """Lock the file with a transaction of another queue."""
    with holdfast.connect(str(path)) as other, other.transaction():
        yield


HOLDERS = pytest.mark.parametrize("holder", [foreign_writer, another_queue])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def queue(path: Path) -> Iterator[Queue]:
    with holdfast.connect(str(path)) as queue:
        queue.migrate()
        yield queue


@HOLDERS
def test_a_thread_that_waits_is_interrupted_and_the_next_call_works(queue: Queue, path: Path, holder: Holder) -> None:
    with holder(path):
        answers = [in_background(queue.enqueue, "mail.send") for _ in range(3)]

        def interrupted() -> bool:
            queue.store.interrupt()
            return all(answer.done() for answer in answers)

        wait_until(interrupted)
    for answer in answers:
        with pytest.raises(StoreBusy, match="interrupted"):
            answer.result(0)
    assert queue.counts() == {}
    assert queue.enqueue("mail.send").created


@HOLDERS
def test_tasks_of_one_event_loop_are_interrupted_and_threads_are_not(
    queue: Queue, path: Path, holder: Holder
) -> None:
    awaited = async_queue_on(queue.store)

    async def interrupt() -> list[object]:
        calls = [asyncio.ensure_future(awaited.enqueue("mail.send")) for _ in range(3)]
        while not all(call.done() for call in calls):
            await queue.store.interrupt_async()
            await asyncio.sleep(0.01)
        return await asyncio.gather(*calls, return_exceptions=True)

    with holder(path):
        thread = in_background(queue.enqueue, "mail.send")
        interrupted = asyncio.run(interrupt())
    assert [str(error) for error in interrupted if isinstance(error, StoreBusy)] == [
        "the wait for other writers was interrupted and nothing was stored; try again"
    ] * 3
    assert thread.result(60).created
    assert queue.counts() == {"ready": 1}


@pytest.mark.parametrize("lock_file", ["has a lock file", "has no lock file"])
def test_a_call_that_waits_to_open_a_locked_file_is_interrupted(path: Path, lock_file: str) -> None:
    with holdfast.connect(str(path)) as queue:
        queue.migrate()
    if lock_file == "has no lock file":
        Path(f"{path}-holdfast").unlink()
    owner = sqlite3.connect(path, isolation_level=None)
    owner.execute("pragma locking_mode = exclusive")
    owner.execute("begin exclusive")
    with holdfast.connect(str(path)) as queue:
        answer = in_background(queue.enqueue, "mail.send")

        def interrupted() -> bool:
            queue.store.interrupt()
            return answer.done()

        wait_until(interrupted)
        with pytest.raises(StoreBusy, match="interrupted"):
            answer.result(0)
        owner.close()
        assert queue.counts() == {}
        assert queue.enqueue("mail.send").created
