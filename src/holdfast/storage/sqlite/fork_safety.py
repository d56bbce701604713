"""Forks: no SQLite connection may be open across one.

SQLite keeps a process-wide list of the locks it holds on files. A forked child inherits the list but not the locks:
it would assume that it holds them while other processes checkpoint and delete the log. So before a fork every store
finishes its transactions and closes its connections; parent and child reopen them on next use. If a store cannot do
so, because a transaction is open, its file is unusable in the child, which gets an error.
"""

# Imported for its fork handlers. Handlers run after a fork in the order of their registration: those of the thread
# pools release a lock without which the writer cannot start a thread in `_in_parent`.
import concurrent.futures.thread  # noqa: F401
import os
import threading
import weakref
from typing import Protocol

from holdfast.domain import errors
from holdfast.storage.store import INHERITED


class Suspendable(Protocol):
    """A store that can suspend."""

    @property
    def path(self) -> str:
        """The path of its database."""
        ...

    def suspend(self) -> bool:
        """Wait until no transaction is open, close all connections and open none; return whether that succeeded."""
        ...

    def resume(self) -> None:
        """Continue after `suspend`."""
        ...

    def open_connections(self) -> list[object]:
        """Return the connections that are open because `suspend` did not succeed."""
        ...


_stores: weakref.WeakSet[Suspendable] = weakref.WeakSet()
# Held from before a fork until after it: a store is suspended by one thread at a time.
_forking = threading.Lock()
_this_thread = threading.local()
_suspended: list[tuple[Suspendable, bool]] = []
_unusable: set[str] = set()
process = os.getpid()
"""The id of this process, kept because every write compares it: a system call would slow down what follows it."""


def suspend_at_fork(store: Suspendable) -> None:
    """Suspend *store* at every fork from now on."""
    _stores.add(store)


def refuse_unusable(path: str) -> None:
    """Raise `Misconfigured` if this process was forked while a transaction was open on the file."""
    if _unusable and path in _unusable:
        raise errors.Misconfigured(
            f"this process was forked while a transaction on {path!r} was open, and cannot use the file safely;"
            " fork before you use the queue, or start processes with 'spawn'"
        )


def refuse_inherited(opened_in: int) -> None:
    """Raise `Misconfigured` if this process was forked while a transaction was open that began in *opened_in*."""
    if opened_in != process:
        raise errors.Misconfigured(INHERITED)


def _before() -> None:
    _this_thread.forks = False
    _forking.acquire()
    _this_thread.forks = True
    _suspended.extend((store, store.suspend()) for store in list(_stores))


def _in_parent() -> None:
    if not _this_thread.forks:
        return  # interrupted while another thread forked
    for store, suspended in _suspended:
        if suspended:
            store.resume()
    _suspended.clear()
    _forking.release()


def _in_child() -> None:
    global process  # noqa: PLW0603
    process = os.getpid()
    for store, suspended in _suspended:
        if not suspended:
            _unusable.add(store.path)
            for connection in store.open_connections():
                _never_close(connection)
    _suspended.clear()
    if _this_thread.forks:
        _forking.release()


def _never_close(connection: object) -> None:
    """Keep *connection* even at the end of this process: its close could delete the log of others."""
    import ctypes  # noqa: PLC0415  # rarely needed

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
