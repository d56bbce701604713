"""Forks: nothing of SQLite may be open across one.

SQLite keeps a list, for the whole process, of which files it holds which locks on. A forked child inherits the list
but not the locks: it would believe itself safe while others checkpoint and delete the log under its hands. So before
a fork every store comes to rest and closes its connections; parent and child open anew when they next need to. A
store that cannot come to rest, because a transaction is open, makes its file unusable in the child, which is told.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from holdfast.domain.errors import Misconfigured


class Restful(Protocol):
    """A store that can come to rest."""

    @property
    def path(self) -> str:
        """Where its database is."""
        ...

    def rest(self) -> bool:
        """Wait until nothing is under way, close all connections and stay so; tell whether that was possible."""
        ...

    def resume(self) -> None:
        """Go on after a rest."""
        ...


_stores: weakref.WeakSet[Restful] = weakref.WeakSet()
_resting: list[tuple[Restful, bool]] = []
_unusable: set[str] = set()


def rest_at_fork(store: Restful) -> None:
    """Let *store* come to rest at every fork from now on."""
    _stores.add(store)


def refuse_unusable(path: str) -> None:
    """Raise `Misconfigured` if this process was forked while a transaction was open on the file."""
    if _unusable and path in _unusable:
        raise Misconfigured(
            f"this process was forked while a transaction on {path!r} was open, and cannot use the file safely;"
            " fork before you use the queue, or start processes with 'spawn'"
        )


def _before() -> None:
    _resting.extend((store, store.rest()) for store in list(_stores))


def _in_parent() -> None:
    for store, rested in _resting:
        if rested:
            store.resume()
    _resting.clear()


def _in_child() -> None:
    for store, rested in _resting:
        if not rested:
            _unusable.add(store.path)
    _resting.clear()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
