"""Notifications across processes: a thread watches the lock file while this process has listeners."""

import ctypes
import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from holdfast.storage.notifications import Listener, Notifier
from holdfast.storage.sqlite.lock_file import LockFile

_IN_MODIFY = 0x00000002
# How often the counters are read if inotify is not available.
_POLL_SECONDS = 0.005
# How long the thread stays after the last listener was removed.
_LINGER_SECONDS = 2.0

Wait: TypeAlias = Callable[[float], None]
"""Wait for a notification, at most the given number of seconds."""


class FileNotifier(Notifier):
    """The notifier of one database file in this process, for commits of this and every other process."""

    def __init__(self, database: str) -> None:
        super().__init__()
        self._database = database
        self._watching = threading.Lock()
        self._seen: dict[str, int] = {}
        self._lock_file: LockFile | None = None

    def add(self, topic: str, listener: Listener) -> None:
        """Notify *listener* of *topic* from now on, for commits of any process."""
        super().add(topic, listener)
        with self._watching:
            lock_file = self._lock_file or self._start()
            if lock_file is not None:
                self._seen.setdefault(topic, lock_file.count(topic))

    def refresh(self) -> None:
        """Start to watch the lock file for listeners that were added before it existed."""
        if self._lock_file is None:
            for topic in self.topics():
                self._renew(topic)

    def _start(self) -> LockFile | None:
        """Open the lock file and start to watch it. If there is none yet, or on a read-only disk, listeners poll."""
        try:
            self._lock_file = LockFile(self._database, create=False)
        except OSError:
            return None
        threading.Thread(target=self._watch, args=(self._lock_file,), name="holdfast-wake", daemon=True).start()
        return self._lock_file

    def _watch(self, lock_file: LockFile) -> None:
        with write_waiter(lock_file.path) as wait:
            idle_since: float | None = None
            while idle_since is None or time.monotonic() - idle_since < _LINGER_SECONDS:
                wait(_LINGER_SECONDS / 2)
                listened = self._wake_changed(lock_file)
                idle_since = None if listened else idle_since or time.monotonic()
        with self._watching:
            # Listeners that were added since need another watcher.
            self._lock_file = None
            self._seen.clear()
            lock_file.close()
        for topic in self.topics():
            self._renew(topic)

    def _renew(self, topic: str) -> None:
        with self._watching:
            lock_file = self._lock_file or self._start()
            if lock_file is not None:
                self._seen.setdefault(topic, lock_file.count(topic))
        self.publish([topic])

    def _wake_changed(self, lock_file: LockFile) -> bool:
        """Wake the listeners whose counters have changed; return whether there are any listeners."""
        topics = self.topics()
        moved = []
        with self._watching:
            for topic in topics:
                count = lock_file.count(topic)
                if self._seen.get(topic) != count:
                    self._seen[topic] = count
                    moved.append(topic)
            for topic in self._seen.keys() - topics:
                del self._seen[topic]
        self.publish(moved)
        return bool(topics)


# --- one notifier for each file ------------------------------------------------------------------------------------

_notifiers: weakref.WeakValueDictionary[str, FileNotifier] = weakref.WeakValueDictionary()
_notifiers_lock = threading.Lock()


def notifier_for(database: str) -> FileNotifier:
    """Return the notifier of a file, shared by all queues of this process that are open on it."""
    with _notifiers_lock:
        return _notifiers.setdefault(database, FileNotifier(database))


def _reset_notifiers() -> None:
    """Start over in a forked child: the parent's threads do not exist there."""
    global _notifiers, _notifiers_lock
    _notifiers, _notifiers_lock = weakref.WeakValueDictionary(), threading.Lock()


os.register_at_fork(after_in_child=_reset_notifiers)


# --- waiting for writes to the lock file ---------------------------------------------------------------------------


@contextmanager
def write_waiter(path: str) -> Iterator[Wait]:
    """Yield a function that waits for the next write to *path*."""
    descriptor = _watch_file(path)
    if descriptor is None:
        yield lambda _seconds: time.sleep(_POLL_SECONDS)
        return
    try:
        yield lambda seconds: _wait(descriptor, seconds)
    finally:
        os.close(descriptor)


def _wait(descriptor: int, seconds: float) -> None:
    # Not `select`, which does not support descriptors above 1023.
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    if poller.poll(seconds * 1000):
        os.read(descriptor, 4096)


def _watch_file(path: str) -> int | None:
    """Return an inotify descriptor for writes to *path*, or None if inotify is not available."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "inotify_init1"):
        return None
    descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        return None
    if libc.inotify_add_watch(descriptor, os.fsencode(path), _IN_MODIFY) < 0:
        os.close(descriptor)
        return None
    return descriptor
