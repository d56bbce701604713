"""The lock file beside the database: a lock for writers, change counters, and a byte whose write wakes listeners.

It holds no data. If it is deleted, writers still exclude each other by SQLite's own lock, and listeners still poll;
the next process that opens the database creates it again.
"""

import contextlib
import fcntl
import mmap
import os
import queue
import stat
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterable
from typing import Final, Literal

from holdfast.domain import errors
from holdfast.storage.notifications import WORKER_TOPIC

_SLOTS = 4096
_SHARED_SLOTS = 3840
"""How many of them, the first, are for all topics but those of workers. A batch of settlements changes hundreds of
these: a worker that shared one would renew all of its leases, as if a cancel had been requested."""
_WAKE_BYTE = _SLOTS * 8
_AWAITED_SLOT = _SLOTS + 1
"""Until when others let a process pass that has waited for long, in nanoseconds of the machine's monotonic clock."""
_SIZE = _WAKE_BYTE + 16

_OVERTAKEN_SECONDS: Final = 0.02
"""For how long a process that waits for the lock lets others overtake it: changing processes takes time."""
_LET_PASS_SECONDS: Final = 0.02
"""For how long a process waits at most until one that was overtaken has the lock."""
_PASSING_SECONDS: Final = 0.0005
_AWAITED_NANOSECONDS: Final = int(_OVERTAKEN_SECONDS * 2e9)
CHECK_SECONDS: Final = 0.25
"""How often a caller that waits for other writers checks whether it was interrupted."""
INTERRUPTED: Final = "the wait for other writers was interrupted and nothing was stored; try again"


class LockFile:
    """One open lock file. Only one thread at a time may lock it or increment its counters."""

    def __init__(self, database: str, *, create: bool = True) -> None:
        self.path = f"{database}-holdfast"
        self._descriptor = _opened_file(self.path, create=create)
        try:
            _share_with_writers(self._descriptor, database)
            # Allocate the blocks: writing to a mapped hole on a full disk would kill the process.
            os.posix_fallocate(self._descriptor, 0, _SIZE)
            self._memory = _mapped(self.path)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._slots = memoryview(self._memory).cast("Q")
        self._lock_thread: _LockThread | None = None
        _opened.add(self)

    def lock(self, seconds: float, interrupted: Callable[[], bool] = lambda: False) -> None:
        """Wait for the lock; raise `StoreBusy` after *seconds*, or soon after *interrupted* returns true.

        If an exception interrupts the call, the caller must call `unlock`.
        """
        if self._slots[_AWAITED_SLOT] and self.is_awaited:
            self._let_others_pass()
        try:
            if self._lock_thread is None or not self._lock_thread.pending:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
        except BlockingIOError:
            pass
        self._lock_thread = self._lock_thread or _LockThread(self._descriptor)
        if self._lock_thread.lock(seconds, interrupted, self._ask_others_to_wait):
            self._slots[_AWAITED_SLOT] = 0

    def _ask_others_to_wait(self) -> None:
        self._slots[_AWAITED_SLOT] = time.monotonic_ns() + _AWAITED_NANOSECONDS

    def _let_others_pass(self) -> None:
        """Wait until a process that has waited for long has the lock, but not for longer than that."""
        until = time.monotonic() + _LET_PASS_SECONDS
        while self.is_awaited and time.monotonic() < until:
            time.sleep(_PASSING_SECONDS)

    @property
    def is_awaited(self) -> bool:
        """Whether a process has waited for long and asks others to wait."""
        until = self._slots[_AWAITED_SLOT]
        if until == 0:
            return False
        # The process may have been killed since; and the time may be one of before a restart of the machine.
        is_current = 0 < until - time.monotonic_ns() <= _AWAITED_NANOSECONDS
        if not is_current:
            self._slots[_AWAITED_SLOT] = 0
        return is_current

    def unlock(self) -> None:
        """Release the lock, or withdraw the request for it; harmless if there is neither."""
        if self._lock_thread is not None and self._lock_thread.pending:
            # Not by this thread: the kernel may just have granted the lock to the waiting thread.
            self._lock_thread.withdraw()
        else:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def notify(self, topics: Iterable[str]) -> None:
        """Increment the counters of *topics* and wake every process that watches the file. Requires the lock."""
        slots, crc32 = self._slots, zlib.crc32
        for topic in topics:
            # As `_slot`, without a call for most topics.
            slot = _slot(topic) if topic[0] == "w" else crc32(topic.encode()) % _SHARED_SLOTS
            slots[slot] = (slots[slot] + 1) & 0xFFFF_FFFF_FFFF_FFFF
        os.pwrite(self._descriptor, b"\1", _WAKE_BYTE)

    def count(self, topic: str) -> int:
        """Return the counter of *topic*, which other topics may share."""
        return self._slots[_slot(topic)]

    def close(self) -> None:
        """Close the file and release the lock."""
        _opened.discard(self)
        self._slots.release()
        self._memory.close()
        # Closed only once: the descriptor number may have been reused by the next call.
        descriptor, self._descriptor = self._descriptor, -1
        if self._lock_thread is not None:
            # The thread may still wait for the lock on this descriptor, whose number must not be reused before.
            self._lock_thread.stop()
        elif descriptor >= 0:
            os.close(descriptor)

    def forget(self) -> None:
        """Close the file inherited across a fork; the lock stays with the parent, which may hold it."""
        os.close(self._descriptor)


_opened: weakref.WeakSet[LockFile] = weakref.WeakSet()


def _forget_inherited() -> None:
    """Close inherited files in a forked child, which would otherwise keep the lock of a dead parent."""
    for lock_file in list(_opened):
        lock_file.forget()
    _opened.clear()


os.register_at_fork(after_in_child=_forget_inherited)


def _opened_file(path: str, *, create: bool) -> int:
    # An existing file is opened without O_CREAT, which the kernel may deny for others' files in a shared directory.
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            if not create:
                raise
        with contextlib.suppress(FileExistsError):
            return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)


def _share_with_writers(descriptor: int, database: str) -> None:
    """Give access to those who may write the database, and to no others: read access is enough to lock a file.

    As with SQLite's own files, only root changes the owner. Only the owner of the file and root can change its mode;
    other users use it unchanged.
    """
    try:
        database_status, file_status = os.stat(database), os.fstat(descriptor)  # noqa: PTH116
        owner = database_status.st_uid if os.geteuid() == 0 else file_status.st_uid
        if (file_status.st_uid, file_status.st_gid) != (owner, database_status.st_gid):
            os.fchown(descriptor, owner, database_status.st_gid)
        mode = 0o600 | (database_status.st_mode & 0o022) | (database_status.st_mode & 0o022) << 1
        if stat.S_IMODE(file_status.st_mode) != mode:
            os.fchmod(descriptor, mode)
    except OSError:
        pass


def _mapped(path: str) -> mmap.mmap:
    """Map the counters through a separate descriptor.

    A mapping keeps its descriptor open; if it were the locked one, a forked child could not release the lock.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(descriptor, _SIZE)
    finally:
        os.close(descriptor)


def _slot(topic: str) -> int:
    hashed = zlib.crc32(topic.encode())
    if topic.startswith(WORKER_TOPIC):
        return _SHARED_SLOTS + hashed % (_SLOTS - _SHARED_SLOTS)
    return hashed % _SHARED_SLOTS


class _LockThread:
    """A thread that waits for the lock if that takes long: a blocking `flock` call cannot be cancelled.

    The kernel grants the lock in request order only to blocked callers, so polling is no substitute. It does not hand
    the lock over: until the first of them runs, another process can take it. The fields of this object are assigned
    together, with no call in between, so that no interrupt can occur between the assignments.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._requests: queue.SimpleQueue[Literal["lock", "stop"]] = queue.SimpleQueue()
        self._mutex = threading.Lock()
        # Not an Event: its internal lock stays locked if an interrupt arrives while it is released.
        self._woken = threading.Lock()
        self._requested = False
        self._granted = False
        self.pending = False
        """Whether a request is pending, or granted and not taken; if not, `flock` may be called directly."""
        threading.Thread(target=self._run, name="holdfast-lock", daemon=True).start()

    def lock(self, seconds: float, interrupted: Callable[[], bool], overtaken: Callable[[], None]) -> bool:
        """Wait for the lock, or raise `StoreBusy`; return whether that took long and *overtaken* was called."""
        with self._mutex:
            self._requested = True
            if not self.pending:
                # Otherwise an earlier, withdrawn request is still pending and serves this call.
                self.pending = True
                self._requests.put("lock")
        deadline, took_long = time.monotonic() + seconds, False
        try:
            while not self._take():
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise errors.StoreBusy(f"other writers held the file for more than {seconds:g} s; try again")
                if interrupted():
                    raise errors.StoreBusy(INTERRUPTED)
                if not self._woken.acquire(timeout=min(remaining, _OVERTAKEN_SECONDS)):
                    took_long = True
                    overtaken()
        except BaseException:
            self.withdraw()
            raise
        return took_long

    def _take(self) -> bool:
        """Take the lock if it was granted; return whether it was."""
        with self._mutex:
            granted = self._granted
            if granted:
                self._requested = self._granted = self.pending = False
            return granted

    def withdraw(self) -> None:
        """Withdraw the request, and release the lock if it was granted."""
        with self._mutex:
            self._requested = False
            if self._granted:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
                self._granted = self.pending = False

    def stop(self) -> None:
        """End the thread, which then closes the descriptor."""
        self._requests.put("stop")

    def _run(self) -> None:
        while self._requests.get() == "lock":
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            with self._mutex:
                if self._requested:
                    self._granted = True
                    if self._woken.locked():
                        self._woken.release()
                else:
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)
                    self.pending = False
        os.close(self._descriptor)
