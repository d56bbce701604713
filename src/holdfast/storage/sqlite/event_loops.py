"""Transactions whose event loop was closed: their task never runs again, so a thread ends them.

Otherwise such a transaction would block all writers of all processes until this process ends.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from holdfast.storage.sqlite.writer_queue import TaskTicket

_POLL_SECONDS = 1.0

_Abandon: TypeAlias = Callable[[TaskTicket], None]


class _Watch:
    """The open transactions of all event loops, and the thread that checks their loops while there are any."""

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Clear all state, including the thread: a forked child has neither the loops nor the thread."""
        self._mutex = threading.Lock()
        self._abandoning: dict[TaskTicket, _Abandon] = {}
        self._running = False

    def add(self, ticket: TaskTicket, abandon: _Abandon) -> None:
        """Call *abandon* once the loop of *ticket* is closed."""
        with self._mutex:
            self._abandoning[ticket] = abandon
            if not self._running:
                threading.Thread(target=self._run, name="holdfast-loops", daemon=True).start()
                self._running = True

    def discard(self, ticket: TaskTicket) -> None:
        """Stop checking the loop of *ticket*."""
        with self._mutex:
            self._abandoning.pop(ticket, None)

    def _run(self) -> None:
        while self._check():
            time.sleep(_POLL_SECONDS)

    def _check(self) -> bool:
        """Abandon the transactions of closed loops; return whether there are any to check again."""
        with self._mutex:
            self._running = bool(self._abandoning)
            watched = list(self._abandoning.items())
        for ticket, abandon in watched:
            # If a thread still works for the transaction, the next check tries again.
            if ticket.loop_closed and ticket.working.acquire(blocking=False):
                try:
                    abandon(ticket)
                finally:
                    ticket.working.release()
                self.discard(ticket)
        return bool(watched)


_watch = _Watch()

os.register_at_fork(after_in_child=_watch.start_over)


@contextmanager
def abandon_when_closed(ticket: TaskTicket, abandon: _Abandon) -> Iterator[None]:
    """Call *abandon* in another thread if the event loop of *ticket* is closed within the block."""
    _watch.add(ticket, abandon)
    try:
        yield
    finally:
        _watch.discard(ticket)
