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
        self._mutex = threading.Lock()
        self._idle: list[sqlite3.Connection] = []

    @property
    def connections(self) -> list[sqlite3.Connection]:
        """Those not lent at the moment. Not to be used."""
        return self._idle

    def run(self, script: Callable[[], Script[T]]) -> T:
        """Run *script* on one view of the store and return its result."""
        with translated(), self._lent() as connection:
            self._observe("begin")
            connection.execute("begin")
            try:
                result = run_script(script(), Answers(connection, self._opener.clock, self._observe).blocking)
            finally:
                connection.execute("rollback")
            return result

    @contextmanager
    def _lent(self) -> Iterator[sqlite3.Connection]:
        with self._mutex:
            connection = self._idle.pop() if self._idle else None
        connection = connection or self._open()
        try:
            yield connection
        except sqlite3.Error:
            connection.close()
            raise
        except BaseException:
            self._keep(connection)
            raise
        self._keep(connection)

    def _keep(self, connection: sqlite3.Connection) -> None:
        with self._mutex:
            if len(self._idle) < _KEPT:
                self._idle.append(connection)
                return
        connection.close()

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
        with self._mutex:
            idle, self._idle = self._idle, []
        for connection in idle:
            with contextlib.suppress(sqlite3.Error):
                connection.close()
