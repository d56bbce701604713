"""An open transaction that scripts join, each in a savepoint of its own, so that a refused one leaves nothing."""

from __future__ import annotations

from typing import Any, TypeVar

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from holdfast.domain.errors import InvalidInput, Misconfigured
from holdfast.stores.endings import to_its_end
from holdfast.stores.postgres.errors import translated, translated_loss
from holdfast.stores.postgres.transactions import Terms, check_joined, refuse_ended, run_joined
from holdfast.stores.postgres.wire import Query, Talk, talk, talk_async
from holdfast.stores.script import Read, Write
from holdfast.stores.signals import Hub

T = TypeVar("T")


class _Joined:
    """What both colours have in common: whose transaction it is, and what to tell once it has committed."""

    def __init__(self, connection: Any, terms: Terms, hub: Hub, *, own: bool) -> None:
        self.hub = hub
        self.connection = connection
        self.signals: set[str] = set()
        self._terms = terms
        self._own = own
        self._checked = own
        self._ended = False
        self.ran_sql = False
        """Whether the caller ran SQL of their own, which may have changed the session."""

    def end(self) -> None:
        """Refuse whatever comes after the transaction's end."""
        self._ended = True

    def _run(self, step: Read[T] | Write[T]) -> Talk[T]:
        if self._checked or self.connection.autocommit:
            # A connection that begins by itself may have nothing open yet, but only until it was first used.
            refuse_ended(self.connection)
        if not self._checked:
            yield from check_joined(self._terms)
            self._checked = True
        result, signals = yield from run_joined(self._terms, step, self.connection, notifies=not self._own)
        self.signals |= signals
        return result

    def _execute(self, sql: str, values: Any) -> Talk[list[Any]]:
        self.ran_sql = True
        # Without values a percent sign in the text is just that.
        rows = yield Query(sql, values or None)
        return rows

    def _refuse_ended(self) -> None:
        if self._ended:
            raise Misconfigured("the transaction that this would join has ended")


class BlockingJoined(_Joined):
    """Joins a transaction on a `psycopg.Connection`; awaited, it blocks, so that only blocking queues use it."""

    def run(self, step: Read[T] | Write[T]) -> T:
        """Run one script in a savepoint."""
        self._refuse_ended()
        with translated(self._terms.schema):
            return talk(self._run(step), self.connection)

    async def run_async(self, step: Read[T] | Write[T]) -> T:  # noqa: ARG002  # the shape of a runner
        """Refuse: this connection blocks."""
        raise TypeError("a blocking connection needs a Queue")

    def execute(self, sql: str, values: Any = ()) -> list[Any]:
        """Run the caller's own SQL."""
        self._refuse_ended()
        with translated_loss(self._terms.schema):
            return talk(self._execute(sql, values), self.connection)

    async def execute_async(self, sql: str, values: Any = ()) -> list[Any]:  # noqa: ARG002  # the shape of a runner
        """Refuse: this connection blocks."""
        raise TypeError("a blocking connection needs a Queue")


class AwaitingJoined(_Joined):
    """Joins a transaction on a `psycopg.AsyncConnection`, awaiting each statement."""

    def run(self, step: Read[T] | Write[T]) -> T:  # noqa: ARG002  # the shape of a runner
        """Refuse: this connection can only be awaited."""
        raise TypeError("an awaited connection needs an AsyncQueue")

    async def run_async(self, step: Read[T] | Write[T]) -> T:
        """Run one script in a savepoint; if the task is cancelled meanwhile, the script comes to its end first."""
        self._refuse_ended()
        with translated(self._terms.schema):
            return await to_its_end(talk_async(self._run(step), self.connection))

    def execute(self, sql: str, values: Any = ()) -> list[Any]:  # noqa: ARG002  # the shape of a runner
        """Refuse: this connection can only be awaited."""
        raise TypeError("an awaited connection needs an AsyncQueue")

    async def execute_async(self, sql: str, values: Any = ()) -> list[Any]:
        """Run the caller's own SQL."""
        self._refuse_ended()
        with translated_loss(self._terms.schema):
            return await talk_async(self._execute(sql, values), self.connection)


def join(connection: Any, terms: Terms, hub: Hub) -> BlockingJoined | AwaitingJoined:
    """Return the transaction open on the caller's own *connection*, or raise `InvalidInput`."""
    if not isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
        raise InvalidInput("connection", f"must be a psycopg connection, not {type(connection).__name__}")
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        raise InvalidInput("connection", "is in pipeline mode; leave it before you join the transaction")
    # The driver has no public way to ask.
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
        return BlockingJoined(connection, terms, hub, own=False)
    return AwaitingJoined(connection, terms, hub, own=False)
