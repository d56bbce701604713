"""Notifications across processes: waiting callers are woken without polling; without inotify, they poll."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import holdfast
from holdfast import Done
from holdfast.client.async_api import queue as async_api
from holdfast.client.connect import async_queue_on, queue_on
from holdfast.client.sync_api import queue as sync_api
from holdfast.storage.notifications import SyncListener
from holdfast.storage.sqlite import notify
from holdfast.storage.sqlite.lock_file import LockFile
from holdfast.storage.sqlite.notify import FileNotifier, notifier_for
from holdfast.storage.sqlite.store import SqliteStore
from tests.chaos.processes import PATIENCE_SECONDS, Child, say
from tests.chaos.threads import in_background, wait_until

LOOK = "job_by_id"
_of_others: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


@pytest.fixture(autouse=True)
def short_linger(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let watchers end soon, so that each test sees only its own."""
    _of_others.update(watchers())
    monkeypatch.setattr(notify, "_LINGER_SECONDS", 0.1)
    yield
    wait_until(lambda: not watchers())


@pytest.fixture
def no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable polling: only a notification can wake a caller."""
    for module in (sync_api, async_api):
        monkeypatch.setattr(module, "_POLL_SECONDS_FIRST", PATIENCE_SECONDS)
        monkeypatch.setattr(module, "_POLL_SECONDS_LAST", PATIENCE_SECONDS)


class Looks:
    """Counts how often waiting callers look at their job."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, name: str) -> None:
        self.count += name == LOOK

    def beyond(self, count: int) -> bool:
        return self.count > count


def open_counted(path: str) -> tuple[holdfast.Queue, Looks]:
    looks = Looks()
    return queue_on(SqliteStore(path, observe=looks)), looks


def watchers() -> list[threading.Thread]:
    running = threading.enumerate()
    return [thread for thread in running if thread.name == "holdfast-wake" and thread not in _of_others]


def wait_for(queue: holdfast.Queue, job_id: str) -> holdfast.Job:
    return queue.wait(job_id, timeout=PATIENCE_SECONDS)


# --- functions for other processes ---------------------------------------------------------------------------------


def settle_when_signalled(pipe: Connection, path: str) -> None:
    """Claim everything, and settle the named jobs as done, until signalled."""
    queue = holdfast.connect(path)
    claims = {claim.job.id: claim for claim in queue.claim_many(lease=600, limit=1000)}
    word = say(pipe)
    while word != "end":
        queue.settle(claims[word], Done())
        word = say(pipe)


class TestAcrossProcesses:
    @pytest.mark.usefixtures("no_poll")
    def test_a_settle_elsewhere_wakes_a_waiter_that_never_polls(self, path: str) -> None:
        queue, looks = open_counted(path)
        jobs = [queue.enqueue("mail").id for _ in range(20)]
        with Child(settle_when_signalled, path) as worker:
            worker.hear()
            for job_id in jobs:
                looks.count = 0
                waiting = in_background(wait_for, queue, job_id)
                wait_until(lambda: looks.count >= 1)
                worker.tell(job_id)
                assert waiting.result(PATIENCE_SECONDS).state == "done"
                # Once before it slept and once when it was woken; a colliding topic may wake it needlessly.
                assert looks.count <= 3
                worker.hear()
        queue.close()

    @pytest.mark.usefixtures("no_poll")
    def test_every_one_of_many_waiters_is_woken(self, path: str) -> None:
        queue, looks = open_counted(path)
        jobs = [queue.enqueue("mail").id for _ in range(10)]
        with Child(settle_when_signalled, path) as worker:
            worker.hear()
            waiting = [in_background(wait_for, queue, job_id) for job_id in jobs for _ in range(5)]
            wait_until(lambda: looks.count >= 50)
            for job_id in jobs:
                worker.tell(job_id)
                worker.hear()
            assert [answer.result(PATIENCE_SECONDS).state for answer in waiting] == ["done"] * 50
        queue.close()

    @pytest.mark.usefixtures("no_poll")
    def test_a_task_is_woken_too(self, path: str) -> None:
        looks = Looks()
        store = SqliteStore(path, observe=looks)
        job_id = queue_on(store).enqueue("mail").id

        async def wait(worker: Child) -> holdfast.Job:
            waiting = asyncio.create_task(async_queue_on(store).wait(job_id, timeout=PATIENCE_SECONDS))
            await asyncio.to_thread(wait_until, lambda: looks.count >= 1)
            worker.tell(job_id)
            return await waiting

        with Child(settle_when_signalled, path) as worker:
            worker.hear()
            assert asyncio.run(wait(worker)).state == "done"
        store.close()

    @pytest.mark.usefixtures("no_poll")
    def test_what_concerns_others_does_not_make_a_waiter_look(self, path: str) -> None:
        queue, looks = open_counted(path)
        jobs = [queue.enqueue("mail", job_id=f"job-{number}").id for number in range(20)]
        with Child(settle_when_signalled, path) as worker:
            worker.hear()
            waiting = in_background(wait_for, queue, jobs[0])
            wait_until(lambda: looks.count >= 1)
            wait_until(lambda: bool(watchers()))
            for job_id in [*jobs[1:], jobs[0]]:
                worker.tell(job_id)
                worker.hear()
            assert waiting.result(PATIENCE_SECONDS).state == "done"
            assert looks.count <= 3
        queue.close()

    @pytest.mark.usefixtures("no_poll")
    def test_more_than_a_thousand_open_files_are_no_hindrance(self, path: str) -> None:
        queue, looks = open_counted(path)
        job_id = queue.enqueue("mail").id
        with Child(settle_when_signalled, path) as worker:
            worker.hear()
            opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
            try:
                waiting = in_background(wait_for, queue, job_id)
                wait_until(lambda: looks.count >= 1)
                worker.tell(job_id)
                assert waiting.result(PATIENCE_SECONDS).state == "done"
            finally:
                for descriptor in opened:
                    os.close(descriptor)
        queue.close()


# --- the watcher ---------------------------------------------------------------------------------------------------


@pytest.fixture
def notifier(path: str) -> Iterator[FileNotifier]:
    LockFile(path).close()
    notifier = notifier_for(path)
    yield notifier
    notifier.listeners.clear()


class TestTheWatcher:
    def test_it_ends_after_the_last_listener_and_lets_go_of_its_files(
        self, notifier: FileNotifier, path: str
    ) -> None:
        first, second = SyncListener(), SyncListener()
        notifier.add("a", first)
        notifier.add("b", second)
        assert len(watchers()) == 1
        notifier.remove("a", first)
        notifier.remove("b", second)
        wait_until(lambda: not watchers())
        opened = [str(number.readlink()) for number in Path("/proc/self/fd").iterdir() if number.is_symlink()]
        assert [name for name in opened if name.startswith(path)] == []

    def test_it_stays_while_there_arelisteners(self, notifier: FileNotifier, path: str) -> None:
        listener = SyncListener()
        notifier.add("a", listener)
        [watcher] = watchers()
        lock_file = LockFile(path)
        watcher.join(0.5)  # much longer than it lingers
        lock_file.notify(["a"])
        assert listener.wait(PATIENCE_SECONDS) < PATIENCE_SECONDS
        notifier.remove("a", listener)
        lock_file.close()

    def test_who_comes_while_it_is_ending_is_not_missed(
        self, notifier: FileNotifier, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(notify, "_LINGER_SECONDS", 0.002)
        lock_file = LockFile(path)
        for round_ in range(300):
            listener = SyncListener()
            notifier.add(f"topic-{round_ % 3}", listener)
            lock_file.notify([f"topic-{round_ % 3}"])
            assert listener.wait(PATIENCE_SECONDS) < PATIENCE_SECONDS
            notifier.remove(f"topic-{round_ % 3}", listener)
            time.sleep(0.0005 * (round_ % 10))  # around the moment in which the watcher ends
        lock_file.close()

    def testlisteners_that_come_and_go_in_many_threads_are_all_woken(self, notifier: FileNotifier, path: str) -> None:
        lock_file, gate = LockFile(path), threading.Lock()

        def live(topic: str) -> int:
            for _ in range(30):
                listener = SyncListener()
                notifier.add(topic, listener)
                with gate:
                    lock_file.notify([topic])
                assert listener.wait(PATIENCE_SECONDS) < PATIENCE_SECONDS
                notifier.remove(topic, listener)
            return 30

        lives = [in_background(live, f"topic-{n}") for n in range(16)]
        assert [answer.result(PATIENCE_SECONDS) for answer in lives] == [30] * 16
        lock_file.close()


def test_a_listener_added_before_the_lock_file_is_woken_once_it_exists(path: str) -> None:
    notifier, listener = notifier_for(path), SyncListener()
    notifier.add("a", listener)
    assert watchers() == []
    assert not Path(f"{path}-holdfast").exists()
    with holdfast.connect(path) as queue:
        queue.migrate()
    assert len(watchers()) == 1
    lock_file = LockFile(path)
    listener.wait(0)  # it may have been woken when the watcher started
    lock_file.notify(["a"])
    assert listener.wait(PATIENCE_SECONDS) < PATIENCE_SECONDS
    notifier.remove("a", listener)
    lock_file.close()


# --- without inotify -----------------------------------------------------------------------------------------------


class TestWithoutABell:
    def test_waiters_poll_if_no_lock_file_can_be_opened(self, path: str) -> None:
        queue, looks = open_counted(path)
        job_id = queue.enqueue("mail").id
        with Child(settle_when_signalled, path) as worker:
            worker.hear()
            # The worker has its own file open; from here on no process, not even root's, can open one.
            Path(f"{path}-holdfast").unlink()
            Path(f"{path}-holdfast").mkdir()
            waiting = in_background(wait_for, queue, job_id)
            wait_until(lambda: looks.count >= 2)
            assert watchers() == []
            worker.tell(job_id)
            assert waiting.result(PATIENCE_SECONDS).state == "done"

    def test_waiters_poll_the_counters_without_inotify(
        self, path: str, monkeypatch: pytest.MonkeyPatch, no_poll: None
    ) -> None:
        monkeypatch.setattr(notify, "_watch_file", lambda _path: None)
        queue, looks = open_counted(path)
        job_id = queue.enqueue("mail").id
        with Child(settle_when_signalled, path) as worker:
            worker.hear()
            waiting = in_background(wait_for, queue, job_id)
            wait_until(lambda: looks.count >= 1)
            worker.tell(job_id)
            assert waiting.result(PATIENCE_SECONDS).state == "done"
            assert looks.count <= 3
        queue.close()

    def test_a_lock_file_deleted_in_use_breaks_nothing(self, path: str) -> None:
        queue, looks = open_counted(path)
        jobs = [queue.enqueue("mail").id for _ in range(4)]
        with Child(settle_when_signalled, path) as worker:
            worker.hear()
            for job_id in jobs:
                seen = looks.count
                waiting = in_background(wait_for, queue, job_id)
                wait_until(partial(looks.beyond, seen))
                Path(f"{path}-holdfast").unlink(missing_ok=True)
                with holdfast.connect(path) as fresh:  # makes a new one, which the others do not know
                    fresh.enqueue("mail")
                worker.tell(job_id)
                assert waiting.result(PATIENCE_SECONDS).state == "done"
                worker.hear()
        assert queue.counts() == {"done": 4, "ready": 4}
        queue.close()


# --- fork ----------------------------------------------------------------------------------------------------------


class TestFork:
    # Later Pythons warn of a fork in a process with threads, which is the subject of this test.
    @pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
    @pytest.mark.usefixtures("no_poll")
    def test_a_forked_child_is_woken_as_well_and_so_is_its_parent(self, path: str) -> None:
        queue, looks = open_counted(path)
        jobs = [queue.enqueue("mail").id for _ in range(2)]
        with Child(settle_when_signalled, path) as worker:
            worker.hear()
            waiting = in_background(wait_for, queue, jobs[0])
            wait_until(lambda: looks.count >= 1 and bool(watchers()))
            wake_reader, wake_writer = os.pipe()
            child = os.fork()
            if child == 0:
                wait_in_child(queue, looks, jobs[1], wake_writer)
            os.read(wake_reader, 1)
            for job_id in reversed(jobs):
                worker.tell(job_id)
                worker.hear()
            assert waiting.result(PATIENCE_SECONDS).state == "done"
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            os.close(wake_reader)
            os.close(wake_writer)
        queue.close()


def wait_in_child(queue: holdfast.Queue, looks: Looks, job_id: str, wake_writer: int) -> None:
    """In a forked child: wait, report that, and exit with 0 if a notification woke it."""
    looks.count = 0

    def tell() -> None:
        wait_until(lambda: looks.count >= 1)
        os.write(wake_writer, b"1")

    threading.Thread(target=tell, daemon=True).start()
    try:
        job = queue.wait(job_id, timeout=PATIENCE_SECONDS / 3)
        os._exit(0 if job.state == "done" and looks.count <= 3 else 2)
    except BaseException:
        os._exit(1)
