"""Notifications across processes: a thread watches the lock file while this process has listeners."""

from __future__ import annotations

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
_LOOK_SECONDS = 0.005
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
        self._side: LockFile | None = None

    def add(self, topic: str, listener: Listener) -> None:
        """Notify *listener* of *topic* from now on, for commits of any process."""
        super().add(topic, listener)
        with self._watching:
            side = self._side or self._start()
            if side is not None:
                self._seen.setdefault(topic, side.count(topic))

    def refresh(self) -> None:
        """Start to watch the lock file for listeners that were added before it existed."""
        if self._side is None:
            for topic in self.topics():
                self._renew(topic)

    def _start(self) -> LockFile | None:
        """Open the lock file and start to watch it. If there is none yet, or on a read-only disk, listeners poll."""
        try:
            self._side = LockFile(self._database, create=False)
        except OSError:
            return None
        threading.Thread(target=self._watch, args=(self._side,), name="holdfast-wake", daemon=True).start()
        return self._side

    def _watch(self, side: LockFile) -> None:
        with _bell(side.path) as wait:
            left_alone_since: float | None = None
            while left_alone_since is None or time.monotonic() - left_alone_since < _LINGER_SECONDS:
                wait(_LINGER_SECONDS / 2)
                listened = self._heed(side)
                left_alone_since = None if listened else left_alone_since or time.monotonic()
        with self._watching:
            # Listeners that were added since need another watcher.
            self._side = None
            self._seen.clear()
            side.close()
        for topic in self.topics():
            self._renew(topic)

    def _renew(self, topic: str) -> None:
        with self._watching:
            side = self._side or self._start()
            if side is not None:
                self._seen.setdefault(topic, side.count(topic))
        self.publish([topic])

    def _heed(self, side: LockFile) -> bool:
        """Wake the listeners whose counters have changed; return whether there are any listeners."""
        topics = self.topics()
        moved = []
        with self._watching:
            for topic in topics:
                count = side.count(topic)
                if self._seen.get(topic) != count:
                    self._seen[topic] = count
                    moved.append(topic)
            for topic in self._seen.keys() - topics:
                del self._seen[topic]
        self.publish(moved)
        return bool(topics)


# --- one notifier for each file ------------------------------------------------------------------------------------

_hubs: weakref.WeakValueDictionary[str, FileNotifier] = weakref.WeakValueDictionary()
_hubs_lock = threading.Lock()


def hub_of(database: str) -> FileNotifier:
    """Return the notifier of a file, shared by all queues of this process that are open on it."""
    with _hubs_lock:
        return _hubs.setdefault(database, FileNotifier(database))


def _forget_hubs() -> None:
    """Start over in a forked child: the parent's threads do not exist there."""
    global _hubs, _hubs_lock
    _hubs, _hubs_lock = weakref.WeakValueDictionary(), threading.Lock()


os.register_at_fork(after_in_child=_forget_hubs)


# --- waiting for writes to the lock file ---------------------------------------------------------------------------


@contextmanager
def _bell(path: str) -> Iterator[Wait]:
    """Yield a function that waits for the next write to *path*."""
    descriptor = _watch_file(path)
    if descriptor is None:
        yield lambda _seconds: time.sleep(_LOOK_SECONDS)
        return
    try:
        yield lambda seconds: _wait(descriptor, seconds)
    finally:
        os.close(descriptor)


def _wait(descriptor: int, seconds: float) -> None:
    # Not `select`, which does not support descriptors above 1023.
    bell = select.poll()
    bell.register(descriptor, select.POLLIN)
    if bell.poll(seconds * 1000):
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
