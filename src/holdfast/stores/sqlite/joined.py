"""An open transaction that scripts join, each in a savepoint of its own, so that a refused one leaves nothing."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.domain.clock import Clock
from holdfast.stores.drivers import run_script, run_script_async
from holdfast.stores.script import Read, Write
from holdfast.stores.signals import Hub
from holdfast.stores.sqlite.answers import Answers, Observer
from holdfast.stores.sqlite.errors import translated

T = TypeVar("T")

_OPEN = "savepoint holdfast_join"
_KEEP = "release holdfast_join"
_UNDO = "rollback to holdfast_join"


class BlockingJoined:
    """Joins a transaction on a `sqlite3.Connection`; awaited, it runs in another thread."""

    def __init__(self, connection: sqlite3.Connection, clock: Clock, observe: Observer, hub: Hub) -> None:
        self.hub = hub
        self.connection = connection
        self._answers = Answers(connection, clock, observe)

    @property
    def signals(self) -> set[str]:
        """What to tell the others once the transaction has committed."""
        return self._answers.signals

    def run(self, step: Read[T] | Write[T]) -> T:
        """Run one script in a savepoint."""
        with translated():
            self.connection.execute(_OPEN)
            try:
                result = run_script(step.script(), self._answers.blocking)
            except BaseException:
                # An error such as a full disk may have ended the whole transaction already.
                if self.connection.in_transaction:
                    self.connection.execute(_UNDO)
                    self.connection.execute(_KEEP)
                raise
            self.connection.execute(_KEEP)
            return result

    async def run_async(self, step: Read[T] | Write[T]) -> T:
        """Run one script in a savepoint, in another thread."""
        return await _in_thread(lambda: self.run(step))

    def execute(self, sql: str, values: Any = ()) -> list[Any]:
        """Run the caller's own SQL."""
        with translated():
            return self.connection.execute(sql, values).fetchall()

    async def execute_async(self, sql: str, values: Any = ()) -> list[Any]:
        """Run the caller's own SQL in another thread."""
        return await _in_thread(lambda: self.execute(sql, values))


class AwaitingJoined:
    """Joins a transaction on an `aiosqlite.Connection`, awaiting each statement."""

    def __init__(self, connection: Any, clock: Clock, observe: Observer, hub: Hub) -> None:
        self.hub = hub
        self.connection = connection
        self._answers = Answers(connection, clock, observe)

    def run(self, step: Read[T] | Write[T]) -> T:
        """Refuse: this connection can only be awaited."""
        raise TypeError("an awaited connection needs an AsyncQueue")

    async def run_async(self, step: Read[T] | Write[T]) -> T:
        """Run one script in a savepoint."""
        with translated():
            await self.connection.execute(_OPEN)
            try:
                result = await run_script_async(step.script(), self._answers.awaiting)
            except BaseException:
                if self.connection.in_transaction:
                    await self.connection.execute(_UNDO)
                    await self.connection.execute(_KEEP)
                raise
            await self.connection.execute(_KEEP)
            return result

    def execute(self, sql: str, values: Any = ()) -> list[Any]:
        """Refuse: this connection can only be awaited."""
        raise TypeError("an awaited connection needs an AsyncQueue")

    async def execute_async(self, sql: str, values: Any = ()) -> list[Any]:
        """Run the caller's own SQL."""
        with translated():
            return list(await self.connection.execute_fetchall(sql, values))


async def _in_thread(work: Callable[[], T]) -> T:
    """Run *work* in another thread to its end, also if the task is cancelled meanwhile."""
    running = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        # The connection must not be touched by anybody else while the thread still uses it.
        await asyncio.wait([running])
        raise
