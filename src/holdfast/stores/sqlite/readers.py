"""Reading: each on one consistent view, beside the writer and beside each other."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from holdfast.stores.drivers import run_script
from holdfast.stores.script import Script
from holdfast.stores.sqlite.answers import Answers, Observer
from holdfast.stores.sqlite.errors import translated
from holdfast.stores.sqlite.opening import Opener

T = TypeVar("T")

_KEPT = 4


class Readers:
    """Connections that only read. One is lent to each script; a few are kept for the next."""

    def __init__(self, opener: Opener, observe: Observer, make_ready: Callable[[], object]) -> None:
        self._opener = opener
        self._observe = observe
        self._make_ready = make_ready
        self._changed = threading.Condition()
        self._idle: list[sqlite3.Connection] = []
        self._lent_out = 0
        self._resting = False

    def run(self, script: Callable[[], Script[T]]) -> T:
        """Run *script* on one view of the store and return its result."""
        with translated(), self._lent() as connection:
            self._observe("begin")
            connection.execute("begin")
            try:
                result = run_script(script(), Answers(connection, self._opener.clock, self._observe).blocking)
            finally:
                # An error of the disk may have ended it already.
                if connection.in_transaction:
                    connection.execute("rollback")
            return result

    @contextmanager
    def _lent(self) -> Iterator[sqlite3.Connection]:
        with self._changed:
            self._changed.wait_for(lambda: not self._resting)
            connection = self._idle.pop() if self._idle else None
            self._lent_out += 1
        try:
            connection = connection or self._open()
            yield connection
        except sqlite3.Error:
            if connection is not None:
                connection.close()
            connection = None
            raise
        finally:
            self._take_back(connection)

    def _take_back(self, connection: sqlite3.Connection | None) -> None:
        with self._changed:
            self._lent_out -= 1
            if connection is not None and len(self._idle) < _KEPT and not self._resting:
                self._idle.append(connection)
            elif connection is not None:
                connection.close()
            self._changed.notify_all()

    def rest(self, seconds: float) -> bool:
        """Lend nothing more, wait until all is back and close it; tell whether it came back in time."""
        with self._changed:
            self._resting = True
            if not self._changed.wait_for(lambda: not self._lent_out, seconds):
                self._resting = False
                return False
        self.close()
        return True

    def resume(self) -> None:
        """Lend again."""
        with self._changed:
            self._resting = False
            self._changed.notify_all()

    def _open(self) -> sqlite3.Connection:
        connection = self._opener.reading_connection()
        if connection is None:
            # Somebody has to create or migrate the file first; whoever comes to read brings it about.
            self._make_ready()
            connection = self._opener.reading_connection()
        assert connection is not None  # noqa: S101  # the file is there now
        return connection

    def close(self) -> None:
        """Close what is not lent; what is will be kept or closed when it comes back."""
        with self._changed:
            idle, self._idle = self._idle, []
        for connection in idle:
            with contextlib.suppress(sqlite3.Error):
                connection.close()
