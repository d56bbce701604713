"""A call that waits for a writer of another connection can be interrupted: it raises, and nothing is stored."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

import holdfast
from holdfast import Queue
from holdfast.client.connect import async_queue_on
from holdfast.client.queue_state import state_of
from holdfast.errors import StoreBusy
from holdfast.storage.sqlite import connection as connection_module, readers
from tests.chaos.processes import PATIENCE_SECONDS
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


def exclusive_owner(path: Path) -> sqlite3.Connection:
    """Lock the file against readers too."""
    owner = sqlite3.connect(path, isolation_level=None)
    owner.execute("pragma locking_mode = exclusive")
    owner.execute("begin exclusive")
    return owner


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
            state_of(queue).store.interrupt()
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
    awaited = async_queue_on(state_of(queue).store)

    async def interrupt() -> list[object]:
        calls = [asyncio.ensure_future(awaited.enqueue("mail.send")) for _ in range(3)]
        while not all(call.done() for call in calls):
            await state_of(queue).store.interrupt_async()
            await asyncio.sleep(0.01)
        return list(await asyncio.gather(*calls, return_exceptions=True))

    with holder(path):
        thread = in_background(queue.enqueue, "mail.send")
        interrupted = asyncio.run(interrupt())
    assert [str(error) for error in interrupted if isinstance(error, StoreBusy)] == [
        "the wait for other writers was interrupted and nothing was stored; try again"
    ] * 3
    assert thread.result(PATIENCE_SECONDS).created
    assert queue.counts() == {"ready": 1}


@pytest.mark.parametrize("lock_file", ["has a lock file", "has no lock file"])
def test_a_call_that_waits_to_open_a_locked_file_is_interrupted(path: Path, lock_file: str) -> None:
    with holdfast.connect(str(path)) as queue:
        queue.migrate()
    if lock_file == "has no lock file":
        Path(f"{path}-holdfast").unlink()
    owner = exclusive_owner(path)
    with holdfast.connect(str(path)) as queue:
        answer = in_background(queue.enqueue, "mail.send")

        def interrupted() -> bool:
            state_of(queue).store.interrupt()
            return answer.done()

        wait_until(interrupted)
        with pytest.raises(StoreBusy, match="interrupted"):
            answer.result(0)
        owner.close()
        assert queue.counts() == {}
        assert queue.enqueue("mail.send").created


# --- calls that would wait for minutes ------------------------------------------------------------------------------


@pytest.fixture
def patient(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    """A queue that waits for minutes for a file that another program owns; nothing of it is open yet."""
    with holdfast.connect(str(path)) as creating:
        creating.enqueue("mail.send")
    monkeypatch.setattr(connection_module, "BUSY_SECONDS", 150.0)
    tried = threading.Event()
    plain = connection_module.wait_while_busy

    def wait_while_busy(call: Callable[[], object], interrupted: Callable[[], bool]) -> object:
        def trying() -> object:
            try:
                return call()
            except sqlite3.OperationalError:
                tried.set()
                raise

        return plain(trying, interrupted)

    monkeypatch.setattr(connection_module, "wait_while_busy", wait_while_busy)
    monkeypatch.setattr(readers, "wait_while_busy", wait_while_busy)
    owner = exclusive_owner(path)
    with holdfast.connect(str(path)) as queue:
        queue.tried = tried  # type: ignore[attr-defined]
        yield queue
        owner.close()
        assert queue.counts() == {"ready": 1}


def tried(queue: Queue) -> threading.Event:
    event: threading.Event = queue.tried  # type: ignore[attr-defined]
    return event


CALLS = pytest.mark.parametrize("call", ["counts", "enqueue"])


def arguments(call: str) -> tuple[str, ...]:
    return ("mail.send",) if call == "enqueue" else ()


@CALLS
def test_a_signal_ends_a_call_that_waits_for_the_owner_of_the_file(patient: Queue, call: str) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def send() -> None:
        assert tried(patient).wait(60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        sending = in_background(send)
        with pytest.raises(KeyboardInterrupt):
            getattr(patient, call)(*arguments(call))
        sending.result(PATIENCE_SECONDS)
    finally:
        signal.signal(signal.SIGUSR1, before)


@CALLS
def test_an_event_loop_ends_though_a_cancelled_call_waits_for_the_owner_of_a_file(patient: Queue, call: str) -> None:
    awaited = async_queue_on(state_of(patient).store)

    async def give_up() -> None:
        waiting = asyncio.ensure_future(getattr(awaited, call)(*arguments(call)))
        while not tried(patient).is_set():  # noqa: ASYNC110  # a thread sets it
            await asyncio.sleep(0.001)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        # The process waits for these threads when it ends.
        async with asyncio.timeout(60):
            await asyncio.get_running_loop().shutdown_default_executor()

    asyncio.run(give_up())
    wait_until(lambda: not state_of(patient).store._writer._queue.all())  # type: ignore[attr-defined]


def test_a_reader_that_waits_is_interrupted_with_its_store(patient: Queue) -> None:
    answer = in_background(patient.counts)
    assert tried(patient).wait(60)
    state_of(patient).store.interrupt()

    with pytest.raises(StoreBusy, match="interrupted"):
        answer.result(PATIENCE_SECONDS)


def test_a_reader_that_waited_reads_after_the_owner_has_gone(path: Path) -> None:
    with holdfast.connect(str(path)) as creating:
        creating.migrate()
    owner = exclusive_owner(path)
    with holdfast.connect(str(path)) as other:
        answer = in_background(other.counts)
        wait_until(lambda: bool(state_of(other).store._readers._loans))  # type: ignore[attr-defined]
        owner.close()

        assert answer.result(PATIENCE_SECONDS) == {}
