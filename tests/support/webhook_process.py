"""A sender in a process of its own that kills itself before a statement.

Arguments: the file or URL of the store, by how many seconds its clock is ahead, and the statement, empty for none.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

from holdfast.domain.clock import Now
from holdfast.storage.postgres.store import PostgresStore
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.webhooks.connections import Connections
from holdfast.webhooks.sender import WebhookSender
from tests.support.receivers import LOCAL


class AheadClock:
    """The clock of this machine, some seconds ahead, so that leases have expired."""

    def __init__(self, seconds: int) -> None:
        self._ahead_ms = seconds * 1000

    def now(self) -> Now:
        now_ms = time.time_ns() // 1_000_000 + self._ahead_ms
        return Now(now_ms, now_ms)


class Killer:
    """Kills this process before the first statement of a name, or before a second one that follows it.

    `a|b` stands for either name.
    """

    def __init__(self, stage: str) -> None:
        self._names = stage.split(">") if stage else []

    def __call__(self, name: str) -> None:
        if self._names and name.startswith(tuple(self._names[0].split("|"))):
            del self._names[0]
            if not self._names:
                os.kill(os.getpid(), signal.SIGKILL)


def main(url: str, ahead: str, stage: str) -> None:
    """Send webhooks until this process is killed."""
    clock, killer = AheadClock(int(ahead)), Killer(stage)
    engine = PostgresStore if url.startswith("postgres") else SqliteStore
    store = engine(url, clock=clock, observe=killer)
    asyncio.run(WebhookSender(store, lambda: Connections(LOCAL)).run())


if __name__ == "__main__":
    main(*sys.argv[1:])
