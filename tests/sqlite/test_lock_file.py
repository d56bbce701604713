"""The lock file as a lock between processes: exclusive, fair, and never held by a dead process."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import StoreBusy
from holdfast.storage.sqlite import connection, lock_file as lock_files
from holdfast.storage.sqlite.lock_file import LockFile
from tests.chaos.processes import PATIENCE_SECONDS, Child, gate_is_free, say
from tests.chaos.threads import in_background, interruptible, wait_until
from tests.support.filesystems import open_folder

SOON = 0.05
# How often each of several processes must get the lock, while the others keep asking for it.
OFTEN = 200


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


@pytest.fixture
def lock_file(path: str) -> Iterator[LockFile]:
    lock_file = LockFile(path)
    yield lock_file
    lock_file.close()


# --- functions for other processes ---------------------------------------------------------------------------------


def hold_gate(pipe: Connection, path: str) -> None:
    lock_file = LockFile(path)
    lock_file.lock(PATIENCE_SECONDS)
    say(pipe, "held")
    lock_file.unlock()
    say(pipe, "free")


def hold_gate_and_fork(pipe: Connection, path: str) -> None:
    lock_file = LockFile(path)
    lock_file.lock(PATIENCE_SECONDS)
    child = os.fork()
    if child == 0:
        signal.pause()
    say(pipe, child)


def hold_transaction(pipe: Connection, path: str) -> None:
    with holdfast.connect(path) as queue, queue.transaction() as transaction:
        transaction.enqueue("mail", job_id="theirs")
        say(pipe, "held")


def add_under_lock(pipe: Connection, path: str, tally: str, rounds: int) -> None:
    """Add to a number in a file in a way that loses additions if two processes do it concurrently."""
    lock_file, number = LockFile(path), Path(tally)
    say(pipe)
    for _ in range(rounds):
        lock_file.lock(PATIENCE_SECONDS)
        number.write_text(str(int(number.read_text()) + 1))
        lock_file.unlock()
    pipe.send("done")


def lock_until_signalled(pipe: Connection, path: str) -> None:
    """Lock and unlock repeatedly until signalled. Say so when it was often enough."""
    lock_file, passed = LockFile(path), 0
    say(pipe)
    while not pipe.poll():
        lock_file.lock(PATIENCE_SECONDS)
        passed += 1
        lock_file.unlock()
        if passed == OFTEN:
            pipe.send("often")


@contextmanager
def held_elsewhere(path: str) -> Iterator[Child]:
    with Child(hold_gate, path) as holder:
        assert holder.hear() == "held"
        yield holder


def comes_free(path: str) -> bool:
    """Return whether the lock can be taken repeatedly, once late threads have taken and released it."""
    in_a_row = 0
    for _ in range(300):
        in_a_row = in_a_row + 1 if gate_is_free(path) else 0
        if in_a_row == 20:
            return True
        time.sleep(0.01)
    return False


# --- exclusive -----------------------------------------------------------------------------------------------------


class TestExclusive:
    def test_one_process_at_a_time_holds_the_lock(self, path: str, tmp_path: Path) -> None:
        tally = tmp_path / "tally"
        tally.write_text("0")
        children = [Child(add_under_lock, path, str(tally), 300) for _ in range(4)]
        for child in children:
            child.hear()
        for child in children:
            child.tell()
        for child in children:
            assert child.hear() == "done"
            child.kill()
        assert tally.read_text() == "1200"

    def test_two_openings_in_one_process_exclude_each_other(self, path: str, lock_file: LockFile) -> None:
        lock_file.lock(SOON)
        assert not gate_is_free(path)
        lock_file.unlock()
        assert gate_is_free(path)

    def test_who_waits_gets_it_when_it_is_let_go(self, path: str, lock_file: LockFile) -> None:
        with held_elsewhere(path) as holder:
            waiting = in_background(lock_file.lock, PATIENCE_SECONDS)
            holder.tell("let go")
            assert holder.hear() == "free"
            waiting.result(PATIENCE_SECONDS)
            assert not gate_is_free(path)

    def test_every_process_that_keeps_locking_gets_the_lock(self, path: str) -> None:
        children = [Child(lock_until_signalled, path) for _ in range(4)]
        for child in children:
            child.hear()
        for child in children:
            child.tell()
        for child in children:
            assert child.hear() == "often"
        for child in children:
            child.tell("end")
            child.kill()


class TestOvertaking:
    def test_who_has_waited_for_long_gets_it_before_a_process_that_runs(
        self, path: str, lock_file: LockFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # On a busy machine the one that waits may not run for longer than it is waited for.
        monkeypatch.setattr(lock_files, "_LET_PASS_SECONDS", PATIENCE_SECONDS)
        monkeypatch.setattr(lock_files, "_AWAITED_NANOSECONDS", int(PATIENCE_SECONDS * 1e9))
        other, order = LockFile(path), list[str]()

        def wait() -> None:
            other.lock(PATIENCE_SECONDS)
            order.append("waiting")
            other.unlock()

        for _ in range(20):
            lock_file.lock(PATIENCE_SECONDS)
            waiting = in_background(wait)
            wait_until(lambda: lock_file.is_awaited)
            lock_file.unlock()
            lock_file.lock(PATIENCE_SECONDS)  # at once, before the other can run
            order.append("running")
            lock_file.unlock()
            waiting.result(PATIENCE_SECONDS)
        other.close()
        assert order == ["waiting", "running"] * 20

    def test_a_process_that_is_killed_while_it_waits_lets_others_go_on(self, path: str, lock_file: LockFile) -> None:
        lock_file.lock(PATIENCE_SECONDS)
        with Child(hold_gate, path):
            wait_until(lambda: lock_file.is_awaited)
        lock_file.unlock()
        lock_file.lock(PATIENCE_SECONDS)
        wait_until(lambda: not lock_file.is_awaited)

    def test_a_time_of_another_clock_means_nothing(self, path: str, lock_file: LockFile) -> None:
        with Path(lock_file.path).open("r+b") as file:
            file.seek(-8, os.SEEK_END)
            file.write((time.monotonic_ns() + 10**12).to_bytes(8, sys.byteorder))
        assert not lock_file.is_awaited


# --- timeouts ------------------------------------------------------------------------------------------------------


class TestPatience:
    def test_a_lock_held_for_too_long_raises_and_can_be_requested_again(self, path: str, lock_file: LockFile) -> None:
        with held_elsewhere(path) as holder:
            for _ in range(3):
                with pytest.raises(StoreBusy, match="try again"):
                    lock_file.lock(SOON)
            holder.tell("let go")
            assert holder.hear() == "free"
            lock_file.lock(PATIENCE_SECONDS)
            assert not gate_is_free(path)
            lock_file.unlock()
            assert gate_is_free(path)

    def test_a_withdrawn_request_does_not_keep_the_lock(self, path: str, lock_file: LockFile) -> None:
        with held_elsewhere(path) as holder:
            with pytest.raises(StoreBusy):
                lock_file.lock(SOON)
            holder.tell("let go")
            assert holder.hear() == "free"
            assert comes_free(path)

    def test_a_withdrawn_request_serves_the_next_one(self, path: str, lock_file: LockFile) -> None:
        with held_elsewhere(path) as holder:
            with pytest.raises(StoreBusy):
                lock_file.lock(SOON)
            waiting = in_background(lock_file.lock, PATIENCE_SECONDS)
            holder.tell("let go")
            assert holder.hear() == "free"
            waiting.result(PATIENCE_SECONDS)

    def test_locking_and_withdrawing_repeatedly_never_leaves_it_locked(self, path: str, lock_file: LockFile) -> None:
        other = LockFile(path)
        for round_ in range(200):
            other.lock(PATIENCE_SECONDS)
            releasing = in_background(other.unlock)
            try:
                # Timeouts around the time of release, so that the grant and the withdrawal coincide.
                lock_file.lock(0.0001 * (round_ % 5))
            except StoreBusy:
                pass
            else:
                lock_file.unlock()
            releasing.result(PATIENCE_SECONDS)
        other.lock(PATIENCE_SECONDS)
        other.close()

    def test_an_interrupted_wait_does_not_keep_the_lock(self, path: str, lock_file: LockFile) -> None:
        with held_elsewhere(path) as holder:
            with pytest.raises(KeyboardInterrupt), interrupted_once_waiting():
                lock_file.lock(PATIENCE_SECONDS)
            holder.tell("let go")
            assert holder.hear() == "free"
            assert comes_free(path)

    def test_closing_after_giving_up_leaves_other_openings_alone(
        self, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        late_holds, reached = threading.Event(), threading.Event()
        flock = fcntl.flock

        def unlock_late(descriptor: int, operation: int) -> None:
            if operation == fcntl.LOCK_UN and threading.current_thread() is lock_thread:
                reached.set()
                late_holds.wait(1)  # times out if the lock thread holds the lock
            flock(descriptor, operation)

        with held_elsewhere(path) as holder:
            early = LockFile(path)
            with pytest.raises(StoreBusy):
                early.lock(SOON)
            [lock_thread] = [thread for thread in threading.enumerate() if thread.name == "holdfast-lock"]
            monkeypatch.setattr(fcntl, "flock", unlock_late)
            early.close()
            late = LockFile(path)  # under the number that has just become free
            holder.tell("let go")
            assert holder.hear() == "free"
            late.lock(PATIENCE_SECONDS)
            while lock_thread.is_alive() and not reached.is_set():
                late.unlock()
                late.lock(PATIENCE_SECONDS)
            late_holds.set()
            lock_thread.join(PATIENCE_SECONDS)
            assert not gate_is_free(path)
            late.close()


@contextmanager
def interrupted_once_waiting() -> Iterator[None]:
    """Let a signal interrupt the main thread while it waits in the block."""

    def interrupt_waiter() -> None:
        wait_until(lambda: any(thread.name == "holdfast-lock" for thread in threading.enumerate()))
        time.sleep(SOON)  # the thread was started; its owner now waits
        interrupt()

    with interruptible() as interrupt:
        interrupting = in_background(interrupt_waiter)
        try:
            yield
        finally:
            interrupting.result(PATIENCE_SECONDS)


# --- dead and stopped processes ------------------------------------------------------------------------------------


class TestHoldersThatFallSilent:
    def test_a_killed_holder_releases_the_lock(self, path: str, lock_file: LockFile) -> None:
        with held_elsewhere(path) as holder:
            assert not gate_is_free(path)
            holder.kill()
            lock_file.lock(PATIENCE_SECONDS)

    def test_a_killed_holder_releases_the_lock_though_its_forked_child_lives(
        self, path: str, lock_file: LockFile
    ) -> None:
        with Child(hold_gate_and_fork, path) as holder:
            orphan = holder.hear()
            try:
                holder.kill()
                lock_file.lock(1)
            finally:
                os.kill(orphan, signal.SIGKILL)

    def test_a_killed_transaction_leaves_nothing_and_blocks_no_caller(self, path: str) -> None:
        with holdfast.connect(path) as queue, Child(hold_transaction, path) as holder:
            assert holder.hear() == "held"
            holder.kill()
            assert queue.enqueue("mail", job_id="ours").created
            assert [job.id for job in queue.jobs()] == ["ours"]

    def test_a_stopped_holder_makes_others_raise_until_it_continues(
        self, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connection, "BUSY_SECONDS", SOON)
        with holdfast.connect(path) as queue, Child(hold_transaction, path) as holder:
            assert holder.hear() == "held"
            holder.stop()
            for _ in range(2):
                with pytest.raises(StoreBusy):
                    queue.enqueue("mail", job_id="ours")
            assert queue.counts() == {}
            monkeypatch.setattr(connection, "BUSY_SECONDS", PATIENCE_SECONDS)
            holder.resume()
            holder.tell()
            assert queue.enqueue("mail", job_id="ours").created
            assert {job.id for job in queue.jobs()} == {"ours", "theirs"}


# --- permissions ---------------------------------------------------------------------------------------------------


def _mode(path: str) -> int:
    return stat.S_IMODE(Path(path).stat().st_mode)


class TestPermissions:
    @pytest.mark.parametrize(
        ("database", "lock_file"), [(0o600, 0o600), (0o640, 0o600), (0o644, 0o600), (0o660, 0o660), (0o666, 0o666)]
    )
    def test_those_who_may_write_the_database_may_use_it_and_no_others(
        self, path: str, database: int, lock_file: int
    ) -> None:
        Path(path).touch()
        Path(path).chmod(database)
        for _ in range(2):  # as it is made, and as it is opened after the mode was changed
            LockFile(path).close()
            assert _mode(f"{path}-holdfast") == lock_file
            Path(f"{path}-holdfast").chmod(0o604)

    def test_its_mode_follows_the_database_whatever_the_umask(self, path: str) -> None:
        before = os.umask(0)
        try:
            with holdfast.connect(path) as queue:
                queue.migrate()
        finally:
            os.umask(before)
        assert _mode(f"{path}-holdfast") == 0o600
        Path(path).chmod(0o664)
        with holdfast.connect(path) as queue:
            queue.migrate()
        assert _mode(f"{path}-holdfast") == 0o660

    @pytest.mark.skipif(os.geteuid() != 0, reason="ONLY ROOT CAN GIVE FILES TO OTHER USERS")
    def test_another_user_of_the_group_can_write_and_a_stranger_can_neither_write_nor_lock(self) -> None:
        with open_folder() as folder:
            folder.chmod(0o777)
            path = str(folder / "jobs.db")
            Path(path).touch()
            os.chown(path, _OWNER, _GROUP)
            Path(path).chmod(0o660)
            with holdfast.connect(path) as queue:
                queue.migrate()
            for user, group, ending in ((_OWNER, _GROUP, 0), (_MEMBER, _GROUP, 0), (_STRANGER, _STRANGER, 13)):
                assert _visit_as(user, group, path) == ending

    def test_a_lock_file_that_may_not_be_opened_is_named(self, path: str) -> None:
        with holdfast.connect(path) as queue:
            queue.migrate()
        Path(f"{path}-holdfast").unlink()
        Path(f"{path}-holdfast").symlink_to("elsewhere")
        with pytest.raises(
            holdfast.errors.StoreUnreachable, match=r"the lock file cannot be opened .*jobs\.db-holdfast"
        ):
            holdfast.connect(path).enqueue("mail")


_OWNER, _MEMBER, _STRANGER, _GROUP = 60001, 60002, 60003, 60010


def _visit_as(user: int, group: int, path: str) -> int:
    """As another user: enqueue a job, then try to lock the lock file; return 0, or the number of the error."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([group])
            os.setgid(group)
            os.setuid(user)
            try:
                descriptor = os.open(f"{path}-holdfast", os.O_RDONLY)
            except OSError as error:
                with pytest.raises((holdfast.errors.ReadOnlyStore, holdfast.errors.StoreUnreachable)):
                    holdfast.connect(path).enqueue("mail")
                os._exit(error.errno or 1)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(descriptor)
            with holdfast.connect(path) as queue:
                os._exit(0 if queue.enqueue("mail").created else 1)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# --- counters ------------------------------------------------------------------------------------------------------


def notify_when_signalled(pipe: Connection, path: str, topic: str) -> None:
    lock_file = LockFile(path)
    say(pipe)
    lock_file.notify([topic])
    say(pipe)


class TestCounters:
    def test_a_notification_in_another_process_increments_the_counter_here(
        self, path: str, lock_file: LockFile
    ) -> None:
        with Child(notify_when_signalled, path, "job:a") as notifying:
            notifying.hear()
            before = lock_file.count("job:a")
            notifying.tell()
            notifying.hear()
            assert lock_file.count("job:a") == before + 1
            assert lock_file.count("job:b") == 0

    def test_the_end_of_many_jobs_leaves_the_counters_of_workers_alone(self, lock_file: LockFile) -> None:
        """A worker whose counter has changed renews all of its leases."""
        workers = [f"worker:{number}" for number in range(100)]
        before = list(map(lock_file.count, workers))
        lock_file.notify([f"job:{number}" for number in range(10_000)])
        assert list(map(lock_file.count, workers)) == before
        lock_file.notify(workers[:1])
        assert lock_file.count(workers[0]) == before[0] + 1

    def test_a_counter_at_its_maximum_wraps_around(self, lock_file: LockFile) -> None:
        lock_file._slots[:4096] = memoryview(b"\xff" * 4096 * 8).cast("Q")
        lock_file.notify(["job:a"])
        assert lock_file.count("job:a") == 0

    def test_a_deleted_file_still_counts_for_those_who_have_it_open(self, path: str, lock_file: LockFile) -> None:
        Path(lock_file.path).unlink()
        lock_file.notify(["job:a"])
        assert lock_file.count("job:a") == 1
        fresh = LockFile(path)
        assert fresh.count("job:a") == 0
        fresh.close()
