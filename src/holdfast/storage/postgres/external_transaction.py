"""An open transaction that operations join, each in its own savepoint: a refused operation changes nothing."""

import asyncio
import os
import re
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from holdfast.domain import errors
from holdfast.storage import cancellation, runners, store
from holdfast.storage.notifications import Notifier
from holdfast.storage.postgres import commits, transaction
from holdfast.storage.postgres.errors import translated, translated_loss
from holdfast.storage.postgres.io import AsyncIO, ServerIO, SyncIO

T = TypeVar("T")

_locks: WeakKeyDictionary[psycopg.Connection[Any], threading.RLock] = WeakKeyDictionary()


class _Joined:
    """The part that sync and async have in common."""

    joined: Final = True
    writes_in_order: Final = False
    translate: Final = None

    def __init__(
        self,
        state: transaction.PostgresState,
        io: ServerIO,
        settings: commits.PostgresSettings,
        notifier: Notifier,
        *,
        own: bool,
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
        self.process = os.getpid()

    def end(self) -> None:
        """Refuse all further calls."""
        self._ended = True

    async def _run(self, operation: store.Operation[T]) -> T:
        if self._checked or self.connection.autocommit:
            # A connection without autocommit may have no transaction open yet, but only until its first use.
            commits.refuse_ended(self.connection)
        if not self._checked:
            await commits.check_joined(self._settings, self.io)
            self._checked = True
        result, signals = await transaction.run_joined(
            self._state, self._settings, operation, self.io, notifies=not self._own
        )
        self.signals |= signals
        return result

    async def _execute(self, sql: str, values: Any) -> list[Any]:
        self.ran_sql = True
        # Without values the driver reads no parameters.
        return await (self.io.query(to_driver(sql, values), values) if values else self.io.query(sql, None))

    def refuse_inherited(self) -> None:
        """Raise `Misconfigured` if this process was forked while the transaction was open."""
        if os.getpid() != self.process:
            raise errors.Misconfigured(store.INHERITED)

    def _refuse_ended(self) -> None:
        self.refuse_inherited()
        if self._ended:
            raise errors.Misconfigured("the transaction that this would join has ended")


class PostgresSyncExternalTransaction(_Joined):
    """Joins a transaction on a `psycopg.Connection`. Only a sync `Queue` uses it."""

    @cached_property
    def lock(self) -> threading.RLock:
        """Held by the thread that uses the connection: savepoints of several threads must not overlap."""
        return _locks.setdefault(self.connection, threading.RLock())

    def read(self, operation: store.Operation[T]) -> T:
        """Run *operation* in a savepoint."""
        return self.write(operation)

    def write(self, operation: store.Operation[T]) -> T:
        """Run *operation* in a savepoint."""
        self.refuse_inherited()
        with self.lock:
            self._refuse_ended()
            with translated(self._settings.schema):
                return runners.run_sync(self._run(operation))

    async def read_async(self, operation: store.Operation[T]) -> T:
        """Raise `TypeError`: this connection is sync."""
        raise TypeError("a sync connection needs a Queue")

    async def write_async(self, operation: store.Operation[T]) -> T:
        """Raise `TypeError`: this connection is sync."""
        raise TypeError("a sync connection needs a Queue")

    def execute(self, sql: str, values: Any = ()) -> list[Any]:
        """Run the caller's own SQL."""
        self.refuse_inherited()
        with self.lock:
            self._refuse_ended()
            with translated_loss(self._settings.schema):
                return runners.run_sync(self._execute(sql, values))

    async def execute_async(self, sql: str, values: Any = ()) -> list[Any]:  # part of the protocol
        """Raise `TypeError`: this connection is sync."""
        raise TypeError("a sync connection needs a Queue")


class PostgresAsyncExternalTransaction(_Joined):
    """Joins a transaction on a `psycopg.AsyncConnection`, awaiting each statement."""

    @cached_property
    def lock(self) -> asyncio.Lock:
        """Held by the task that uses the connection."""
        return cancellation.lock_of(self.connection)

    def read(self, operation: store.Operation[T]) -> T:
        """Raise `TypeError`: this connection is async."""
        raise TypeError("an async connection needs an AsyncQueue")

    def write(self, operation: store.Operation[T]) -> T:
        """Raise `TypeError`: this connection is async."""
        raise TypeError("an async connection needs an AsyncQueue")

    async def read_async(self, operation: store.Operation[T]) -> T:
        """Run *operation* in a savepoint."""
        return await self.write_async(operation)

    async def write_async(self, operation: store.Operation[T]) -> T:
        """Run *operation* in a savepoint; if the task is cancelled, the operation finishes first."""
        async with self.lock:
            self._refuse_ended()
            with translated(self._settings.schema):
                return await cancellation.finish_despite_cancellation(self._run(operation))

    def execute(self, sql: str, values: Any = ()) -> list[Any]:  # part of the protocol
        """Raise `TypeError`: this connection is async."""
        raise TypeError("an async connection needs an AsyncQueue")

    async def execute_async(self, sql: str, values: Any = ()) -> list[Any]:
        """Run the caller's own SQL."""
        async with self.lock:
            self._refuse_ended()
            with translated_loss(self._settings.schema):
                return await self._execute(sql, values)


def join(
    state: transaction.PostgresState, connection: Any, settings: commits.PostgresSettings, notifier: Notifier
) -> PostgresSyncExternalTransaction | PostgresAsyncExternalTransaction:
    """Return the transaction open on the caller's *connection*; raise `InvalidInput` if it cannot be joined."""
    if not isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
        raise errors.InvalidInput("connection", f"must be a psycopg connection, not {type(connection).__name__}")
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        raise errors.InvalidInput("connection", "is in pipeline mode; leave it before joining the transaction")
    # The driver has no public API for this.
    if getattr(connection, "_tpc", None) is not None:
        raise errors.InvalidInput(
            "connection",
            "is in a two-phase transaction, which cannot be joined: PostgreSQL does not prepare one that notifies;"
            " use a plain transaction",
        )
    status = connection.pgconn.transaction_status
    begins_by_itself = status == TransactionStatus.IDLE and not connection.autocommit
    if status != TransactionStatus.INTRANS and not begins_by_itself:
        raise errors.InvalidInput("connection", "has no open transaction; begin one")
    if isinstance(connection, psycopg.Connection):
        return PostgresSyncExternalTransaction(
            state, SyncIO(connection, of_caller=True), settings, notifier, own=False
        )
    return PostgresAsyncExternalTransaction(state, AsyncIO(connection, of_caller=True), settings, notifier, own=False)


# What may contain a colon, a question mark or a percent sign and is not a parameter. An unclosed literal or comment
# reaches to the end: the server reports it.
_LITERAL: Final = r"""
    (?<![\w$]) [eE] ' (?: [^'\\] | \\. | '' )* (?: ' | \Z )  # a string with backslash escapes
  | ' [^']* (?: ' | \Z )                                     # a string; a doubled quote begins the next one
  | " [^"]* (?: " | \Z )                                     # a quoted name
  | (?<![\w$]) \$ (?P<tag> (?: [^\W\d] \w* )? ) \$ .*? (?: \$ (?P=tag) \$ | \Z )
  | -- [^\n]*
  | (?P<comment> /\* )
  | :: | :=
"""
_PARAMETER: Final = r"(?<![\w\])]) : (?P<name> [^\W\d] \w* ) | (?P<mark> \? )"
_TOKEN: Final = re.compile(rf"{_LITERAL} | {_PARAMETER} | %", re.VERBOSE | re.DOTALL)
_COMMENT_EDGE: Final = re.compile(r"/\*|\*/")


def to_driver(sql: str, params: Sequence[Any] | Mapping[str, Any]) -> str:
    """Return *sql* with the parameters of the driver: `:name` for a mapping, `?` for a sequence.

    Strings, quoted names, comments and casts stay as they are. A colon directly after a name, a number or a bracket,
    as in `a[1:n]`, begins no parameter.
    """
    named = isinstance(params, Mapping)
    parts: list[str] = []
    position = 0
    while found := _TOKEN.search(sql, position):
        parts.append(sql[position : found.start()])
        position = _comment_end(sql, found.end()) if found["comment"] else found.end()
        if named and found["name"]:
            parts.append(f"%({found['name']})s")
        elif not named and found["mark"]:
            parts.append("%s")
        else:
            # The driver reads a percent sign as the beginning of a parameter, also within strings and comments.
            parts.append(sql[found.start() : position].replace("%", "%%"))
    return "".join([*parts, sql[position:]])


def _comment_end(sql: str, position: int) -> int:
    """Return where the comment ends that was opened before *position*; comments nest."""
    depth = 1
    while depth and (edge := _COMMENT_EDGE.search(sql, position)):
        depth += 1 if edge[0] == "/*" else -1
        position = edge.end()
    return len(sql) if depth else position
