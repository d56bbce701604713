"""The file beside the database: a gate for writers, counters that tell what changed, and a bell.

It holds nothing that matters. If it is deleted, writers still exclude each other by SQLite's own lock, and waiters
still poll; a new one is made by the next process that opens the database.
"""

from __future__ import annotations

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

from holdfast.domain.errors import StoreBusy

_SLOTS = 4096
_SIZE = _SLOTS * 8
_BELL = _SIZE

LOOK_SECONDS: Final = 0.25
"""How often a caller that waits for other writers looks whether it was interrupted."""
INTERRUPTED: Final = "the wait for other writers was interrupted and nothing was stored; try again"


class LockFile:
    """One opening of the side file. One thread at a time may lock it or raise its counters."""

    def __init__(self, database: str, *, create: bool = True) -> None:
        self.path = f"{database}-holdfast"
        self._descriptor = _opened_file(self.path, create=create)
        try:
            _share_with_writers(self._descriptor, database)
            # Really there, not only promised: writing to a mapped hole on a full disk would kill the process.
            os.posix_fallocate(self._descriptor, 0, _SIZE + 1)
            self._memory = _mapped(self.path)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._slots = memoryview(self._memory).cast("Q")
        self._keeper: _Keeper | None = None
        _opened.add(self)

    def lock(self, seconds: float, interrupted: Callable[[], bool] = lambda: False) -> None:
        """Wait for the gate, or raise `StoreBusy` after so many seconds or soon after it is *interrupted*.

        A caller that an exception interrupts has to unlock.
        """
        try:
            if self._keeper is None or not self._keeper.asking:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
        except BlockingIOError:
            pass
        self._keeper = self._keeper or _Keeper(self._descriptor)
        self._keeper.lock(seconds, interrupted)

    def unlock(self) -> None:
        """Let the next writer pass, or ask no more to pass; harmless if there is neither."""
        if self._keeper is not None and self._keeper.asking:
            # Not by this thread as well: what the kernel grants the keeper in this moment is the next one's.
            self._keeper.give_up()
        else:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def ring(self, topics: Iterable[str]) -> None:
        """Raise the counters of *topics* and wake every process that watches; the gate is held."""
        for topic in topics:
            slot = _slot(topic)
            self._slots[slot] = (self._slots[slot] + 1) & 0xFFFF_FFFF_FFFF_FFFF
        os.pwrite(self._descriptor, b"\1", _BELL)

    def count(self, topic: str) -> int:
        """Return the counter of *topic*, which it may share with others."""
        return self._slots[_slot(topic)]

    def close(self) -> None:
        """Let go of the file, and of the gate if it is held."""
        _opened.discard(self)
        self._slots.release()
        self._memory.close()
        # Closed once only: the number may be another's by the time this is called again.
        descriptor, self._descriptor = self._descriptor, -1
        if self._keeper is not None:
            # It may still be waiting for the gate on this descriptor, whose number must not be given to another.
            self._keeper.stop()
        elif descriptor >= 0:
            os.close(descriptor)

    def forget(self) -> None:
        """Let go of what came over a fork, leaving the gate to the parent, who may hold it."""
        os.close(self._descriptor)


_opened: weakref.WeakSet[LockFile] = weakref.WeakSet()


def _forget_inherited() -> None:
    """Close in a forked child what the parent had open: else the gate of a dead parent would stay shut with it."""
    for side in list(_opened):
        side.forget()
    _opened.clear()


os.register_at_fork(after_in_child=_forget_inherited)


def _opened_file(path: str, *, create: bool) -> int:
    # An existing file is opened without O_CREAT, which the kernel may deny for files of others in a shared directory.
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
    """Let those use the file who may write the database, and no others: reading is enough to lock a file.

    As SQLite does with its own files, the owner is set only by root. Only the owner of the file and root can change
    it; others use it as it is.
    """
    try:
        wanted, found = os.stat(database), os.fstat(descriptor)  # noqa: PTH116  # the result is what counts
        owner = wanted.st_uid if os.geteuid() == 0 else found.st_uid
        if (found.st_uid, found.st_gid) != (owner, wanted.st_gid):
            os.fchown(descriptor, owner, wanted.st_gid)
        mode = 0o600 | (wanted.st_mode & 0o022) | (wanted.st_mode & 0o022) << 1
        if stat.S_IMODE(found.st_mode) != mode:
            os.fchmod(descriptor, mode)
    except OSError:
        pass


def _mapped(path: str) -> mmap.mmap:
    """Map the counters through an opening of their own.

    A mapping keeps its descriptor; were it the one that is locked, a forked child could not let go of the lock.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(descriptor, _SIZE)
    finally:
        os.close(descriptor)


def _slot(topic: str) -> int:
    return zlib.crc32(topic.encode()) % _SLOTS


class _Keeper:
    """A thread that waits for the gate where that takes long: a blocking lock alone could not be given up in time.

    The kernel hands a lock over in the order of asking only to those who block, so trying again and again is no
    substitute. Its fields change together, with no call between, so that no interrupt can strike there.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._requests: queue.SimpleQueue[Literal["lock", "stop"]] = queue.SimpleQueue()
        self._mutex = threading.Lock()
        # Not an Event, whose own lock stays shut for ever if an interrupt strikes as it is let go of.
        self._bell = threading.Lock()
        self._wanted = False
        self._granted = False
        self.asking = False
        """Whether a request is under way or granted and not taken; else the lock may be taken without this thread."""
        threading.Thread(target=self._keep, name="holdfast-gate", daemon=True).start()

    def lock(self, seconds: float, interrupted: Callable[[], bool]) -> None:
        """Wait for the gate, or raise `StoreBusy`."""
        with self._mutex:
            self._wanted = True
            if not self.asking:
                # Else an earlier request that was given up is still under way, and serves this one.
                self.asking = True
                self._requests.put("lock")
        patience = time.monotonic() + seconds
        try:
            while not self._take():
                left = patience - time.monotonic()
                if left <= 0:
                    raise StoreBusy(f"other writers held the file for more than {seconds:g} s; try again")
                if interrupted():
                    raise StoreBusy(INTERRUPTED)
                self._bell.acquire(timeout=min(left, LOOK_SECONDS))
        except BaseException:
            self.give_up()
            raise

    def _take(self) -> bool:
        """Take what was granted; tell whether it was."""
        with self._mutex:
            granted = self._granted
            if granted:
                self._wanted = self._granted = self.asking = False
            return granted

    def give_up(self) -> None:
        """Want the gate no more, and let go of it if it was granted meanwhile."""
        with self._mutex:
            self._wanted = False
            if self._granted:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
                self._granted = self.asking = False

    def stop(self) -> None:
        """End the thread, which then closes the descriptor."""
        self._requests.put("stop")

    def _keep(self) -> None:
        while self._requests.get() == "lock":
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            with self._mutex:
                if self._wanted:
                    self._granted = True
                    if self._bell.locked():
                        self._bell.release()
                else:
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)
                    self.asking = False
        os.close(self._descriptor)
