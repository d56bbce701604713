"""An open transaction that operations join, each in its own savepoint: a refused operation changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from holdfast.domain.errors import InvalidInput, Misconfigured
from holdfast.storage.cancellation import finish_despite_cancellation
from holdfast.storage.notifications import Notifier
from holdfast.storage.postgres.errors import translated, translated_loss
from holdfast.storage.postgres.io import AsyncIO, ServerIO, SyncIO
from holdfast.storage.postgres.placeholders import to_driver
from holdfast.storage.postgres.transaction import (
    PostgresSettings,
    PostgresState,
    check_joined,
    refuse_ended,
    run_joined,
)
from holdfast.storage.runners import run_sync
from holdfast.storage.store import Operation, PlainForm

T = TypeVar("T")


class _Joined:
    """The part that sync and async have in common."""

    joined: Final = True
    translate: Final = None

    def __init__(
        self, state: PostgresState, io: ServerIO, settings: PostgresSettings, notifier: Notifier, *, own: bool
    ) -> None:
        self.notifier = notifier
        self.io = io
        self.connection = io.connection
        self._state = state
        self.signals: set[str] = set()
        self._settings = settings
        self._own = own
        self._checked = own
        self._ended = False
        self.ran_sql = False
        """Whether the caller ran their own SQL, which may have changed session settings."""

    def end(self) -> None:
        """Refuse all further calls."""
        self._ended = True

    async def _run(self, operation: Operation[T]) -> T:
        if self._checked or self.connection.autocommit:
            # A connection without autocommit may have no transaction open yet, but only until its first use.
            refuse_ended(self.connection)
        if not self._checked:
            await check_joined(self._settings, self.io)
            self._checked = True
        result, signals = await run_joined(self._state, self._settings, operation, self.io, notifies=not self._own)
        self.signals |= signals
        return result

    async def _execute(self, sql: str, values: Any) -> list[Any]:
        self.ran_sql = True
        # Without values the driver reads no parameters.
        return await (self.io.query(to_driver(sql, values), values) if values else self.io.query(sql, None))

    def _refuse_ended(self) -> None:
        if self._ended:
            raise Misconfigured("the transaction that this would join has ended")


class PostgresSyncExternalTransaction(_Joined):
    """Joins a transaction on a `psycopg.Connection`. Only a sync `Queue` uses it."""

    def read(self, operation: Operation[T]) -> T:
        """Run *operation* in a savepoint."""
        return self.write(operation)

    def write(self, operation: Operation[T], plain: Callable[[], PlainForm | None] | None = None) -> T:
        """Run *operation* in a savepoint."""
        self._refuse_ended()
        with translated(self._settings.schema):
            return run_sync(self._run(operation))

    async def read_async(self, operation: Operation[T]) -> T:
        """Raise `TypeError`: this connection is sync."""
        raise TypeError("a sync connection needs a Queue")

    async def write_async(self, operation: Operation[T], plain: Callable[[], PlainForm | None] | None = None) -> T:
        """Raise `TypeError`: this connection is sync."""
        raise TypeError("a sync connection needs a Queue")

    def execute(self, sql: str, values: Any = ()) -> list[Any]:
        """Run the caller's own SQL."""
        self._refuse_ended()
        with translated_loss(self._settings.schema):
            return run_sync(self._execute(sql, values))

    async def execute_async(self, sql: str, values: Any = ()) -> list[Any]:  # part of the protocol
        """Raise `TypeError`: this connection is sync."""
        raise TypeError("a sync connection needs a Queue")


class PostgresAsyncExternalTransaction(_Joined):
    """Joins a transaction on a `psycopg.AsyncConnection`, awaiting each statement."""

    def read(self, operation: Operation[T]) -> T:
        """Raise `TypeError`: this connection is async."""
        raise TypeError("an async connection needs an AsyncQueue")

    def write(self, operation: Operation[T], plain: Callable[[], PlainForm | None] | None = None) -> T:
        """Raise `TypeError`: this connection is async."""
        raise TypeError("an async connection needs an AsyncQueue")

    async def read_async(self, operation: Operation[T]) -> T:
        """Run *operation* in a savepoint."""
        return await self.write_async(operation)

    async def write_async(self, operation: Operation[T], plain: Callable[[], PlainForm | None] | None = None) -> T:
        """Run *operation* in a savepoint; if the task is cancelled, the operation finishes first."""
        self._refuse_ended()
        with translated(self._settings.schema):
            return await finish_despite_cancellation(self._run(operation))

    def execute(self, sql: str, values: Any = ()) -> list[Any]:  # part of the protocol
        """Raise `TypeError`: this connection is async."""
        raise TypeError("an async connection needs an AsyncQueue")

    async def execute_async(self, sql: str, values: Any = ()) -> list[Any]:
        """Run the caller's own SQL."""
        self._refuse_ended()
        with translated_loss(self._settings.schema):
            return await self._execute(sql, values)


def join(
    state: PostgresState, connection: Any, settings: PostgresSettings, notifier: Notifier
) -> PostgresSyncExternalTransaction | PostgresAsyncExternalTransaction:
    """Return the transaction open on the caller's *connection*; raise `InvalidInput` if it cannot be joined."""
    if not isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
        raise InvalidInput("connection", f"must be a psycopg connection, not {type(connection).__name__}")
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        raise InvalidInput("connection", "is in pipeline mode; leave it before joining the transaction")
    # The driver has no public API for this.
    if getattr(connection, "_tpc", None) is not None:
        raise InvalidInput(
            "connection",
            "is in a two-phase transaction, which cannot be joined: PostgreSQL does not prepare one that notifies;"
            " use a plain transaction",
        )
    status = connection.pgconn.transaction_status
    begins_by_itself = status == TransactionStatus.IDLE and not connection.autocommit
    if status != TransactionStatus.INTRANS and not begins_by_itself:
        raise InvalidInput("connection", "has no open transaction; begin one")
    if isinstance(connection, psycopg.Connection):
        return PostgresSyncExternalTransaction(state, SyncIO(connection), settings, notifier, own=False)
    return PostgresAsyncExternalTransaction(state, AsyncIO(connection), settings, notifier, own=False)
