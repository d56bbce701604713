"""An open transaction that scripts join, each in a savepoint of its own, so that a refused one leaves nothing."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, TypeVar

from holdfast.domain.clock import Clock
from holdfast.domain.errors import InvalidInput, Misconfigured
from holdfast.stores.drivers import run_script, run_script_async
from holdfast.stores.script import Read, Write
from holdfast.stores.signals import Hub
from holdfast.stores.sqlite.answers import Answers, Observer, plain_cursor
from holdfast.stores.sqlite.errors import translated
from holdfast.stores.sqlite.paths import MEMORY
from holdfast.stores.sqlite.threads import in_thread

T = TypeVar("T")

_OPEN = "savepoint holdfast_join"
_KEEP = "release holdfast_join"
_UNDO = "rollback to holdfast_join"
_FILES = "pragma database_list"


class BlockingJoined:
    """Joins a transaction on a `sqlite3.Connection`; awaited, it runs in another thread."""

    def __init__(self, connection: sqlite3.Connection, clock: Clock, observe: Observer, hub: Hub) -> None:
        self.hub = hub
        self.connection = connection
        self.signals: set[str] = set()
        """What to tell the others once the transaction has committed."""
        self._clock = clock
        self._observe = observe
        self._ended = False

    def check_file(self, path: str) -> None:
        """Refuse a connection that is not open on the queue's own file."""
        with translated():
            _refuse_other_file(plain_cursor(self.connection).execute(_FILES).fetchall(), path)

    def end(self) -> None:
        """Refuse whatever comes after the transaction's end."""
        self._ended = True

    def run(self, step: Read[T] | Write[T]) -> T:
        """Run one script in a savepoint."""
        _refuse_ended(ended=self._ended or not self.connection.in_transaction)
        with translated():
            # One for each script, because several threads may run theirs in one transaction.
            cursor = plain_cursor(self.connection)
            answers = Answers(cursor, self._clock, self._observe)
            cursor.execute(_OPEN)
            try:
                result = run_script(step.script(), answers.blocking)
            except BaseException:
                # An error such as a full disk may have ended the whole transaction already.
                if self.connection.in_transaction:
                    cursor.execute(_UNDO)
                    cursor.execute(_KEEP)
                raise
            cursor.execute(_KEEP)
            self.signals |= answers.signals
            return result

    async def run_async(self, step: Read[T] | Write[T]) -> T:
        """Run one script in a savepoint, in another thread."""
        return await in_thread(lambda: self.run(step))

    def execute(self, sql: str, values: Any = ()) -> list[Any]:
        """Run the caller's own SQL."""
        _refuse_ended(ended=self._ended)
        with translated():
            return self.connection.execute(sql, values).fetchall()

    async def execute_async(self, sql: str, values: Any = ()) -> list[Any]:
        """Run the caller's own SQL in another thread."""
        return await in_thread(lambda: self.execute(sql, values))


class AwaitingJoined:
    """Joins a transaction on an `aiosqlite.Connection`, awaiting each statement."""

    def __init__(self, connection: Any, path: str, clock: Clock, observe: Observer, hub: Hub) -> None:
        self.hub = hub
        self._unchecked_path: str | None = path
        self.connection = connection
        self._clock = clock
        self._observe = observe

    def run(self, step: Read[T] | Write[T]) -> T:  # noqa: ARG002  # the shape of a runner
        """Refuse: this connection can only be awaited."""
        raise TypeError("an awaited connection needs an AsyncQueue")

    async def run_async(self, step: Read[T] | Write[T]) -> T:
        """Run one script in a savepoint."""
        _refuse_ended(ended=not self.connection.in_transaction)
        with translated():
            cursor = await self.connection.cursor()
            cursor.row_factory = None
            await self._check_file(cursor)
            await cursor.execute(_OPEN)
            try:
                answers = Answers(cursor, self._clock, self._observe)
                result = await run_script_async(step.script(), answers.awaiting)
            except BaseException:
                if self.connection.in_transaction:
                    await cursor.execute(_UNDO)
                    await cursor.execute(_KEEP)
                raise
            await cursor.execute(_KEEP)
            return result

    async def _check_file(self, cursor: Any) -> None:
        if self._unchecked_path is not None:
            await cursor.execute(_FILES)
            _refuse_other_file(list(await cursor.fetchall()), self._unchecked_path)
            self._unchecked_path = None

    def execute(self, sql: str, values: Any = ()) -> list[Any]:  # noqa: ARG002  # the shape of a runner
        """Refuse: this connection can only be awaited."""
        raise TypeError("an awaited connection needs an AsyncQueue")

    async def execute_async(self, sql: str, values: Any = ()) -> list[Any]:
        """Run the caller's own SQL."""
        with translated():
            return list(await self.connection.execute_fetchall(sql, values))


def _refuse_ended(*, ended: bool) -> None:
    if ended:
        raise Misconfigured("the transaction that this would join has ended")


def _refuse_other_file(databases: list[Any], path: str) -> None:
    opened = next((row[2] for row in databases if row[1] == "main"), "")
    if not opened or path == MEMORY or not Path(opened).samefile(path):
        raise InvalidInput("connection", f"is open on {opened or ':memory:'!r}, not on this queue's {path!r}")
