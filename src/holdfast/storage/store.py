"""The interface of a store to the client: running operations, opening transactions, joining the caller's."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from holdfast.storage import notifications
from holdfast.storage.contract import StoreTransaction

T = TypeVar("T")

INHERITED: Final = (
    "this process was forked while a transaction was open, which belongs to the parent: nothing was stored; leave the"
    " process with os._exit, fork before you open the transaction, or start processes with 'spawn'"
)

Operation: TypeAlias = Callable[[StoreTransaction], Coroutine[Any, Any, T]]
"""A store operation with its arguments bound; it can be run again."""


Translate: TypeAlias = Callable[[Any], Any]
"""Returns the function to call instead of an operation, with the same arguments after the first."""


class SyncTarget(Protocol):
    """Runs operations in the caller's thread."""

    @property
    def joined(self) -> bool:
        """Whether operations join a transaction that is already open."""
        ...

    @property
    def notifier(self) -> notifications.Notifier:
        """The notifier of committed changes."""
        ...

    @property
    def translate(self) -> Translate | None:
        """None, or for a store behind a server: returns the function that does an operation over the network.

        Such a store waits for changes itself, and releases leases that no caller has received.
        """
        ...

    def read(self, operation: Operation[T]) -> T:
        """Run *operation* in a read-only transaction on one consistent snapshot of the store."""
        ...

    def write(self, operation: Operation[T]) -> T:
        """Run *operation* in one write transaction and return its result once that has committed."""
        ...


class AsyncTarget(Protocol):
    """Runs operations without blocking the event loop."""

    @property
    def joined(self) -> bool:
        """Whether operations join a transaction that is already open."""
        ...

    @property
    def writes_in_order(self) -> bool:
        """Whether a write that has begun ends even if its task is cancelled, before any write that is sent later."""
        ...

    @property
    def notifier(self) -> notifications.Notifier:
        """The notifier of committed changes."""
        ...

    @property
    def translate(self) -> Translate | None:
        """None, or for a store behind a server: returns the function that does an operation over the network.

        Such a store waits for changes itself, and releases leases that no caller has received.
        """
        ...

    def read_async(self, operation: Operation[T]) -> Coroutine[Any, Any, T]:
        """Do what `read` does."""
        ...

    def write_async(self, operation: Operation[T]) -> Coroutine[Any, Any, T]:
        """Do what `write` does; the call itself raises if the caller's task holds a transaction of the store."""
        ...


class ExternalTransaction(SyncTarget, AsyncTarget, Protocol):
    """A transaction that is already open: operations join it, each in its own savepoint."""

    def execute(self, sql: str, values: Any = ()) -> list[Any]:
        """Run the caller's own SQL in the transaction and return the rows."""
        ...

    async def execute_async(self, sql: str, values: Any = ()) -> list[Any]:
        """Run the caller's own SQL in the transaction and return the rows."""
        ...


class Store(SyncTarget, AsyncTarget, Protocol):
    """One database, opened lazily, safe to share between threads and tasks."""

    def transaction(self) -> AbstractContextManager[ExternalTransaction]:
        """Open a write transaction that commits at the end of the block, or rolls back if it raises."""
        ...

    def transaction_async(self) -> AbstractAsyncContextManager[ExternalTransaction]:
        """Open a write transaction that commits at the end of the block, or rolls back if it raises."""
        ...

    def within(self, connection: Any) -> ExternalTransaction:
        """Join the write transaction open on the caller's own connection."""
        ...

    def clone(self) -> Store:
        """Return another store on the same database with its own connections; a store in memory returns itself."""
        ...

    def address(self) -> dict[str, Any] | None:
        """Return, as JSON, the arguments with which another process opens the same database; None if none can."""
        ...

    def description(self) -> str:
        """Return a human-readable location of the database: a file path, or host and database; never a password."""
        ...

    def interrupt(self) -> None:
        """Make calls of threads that wait for a server raise `Unavailable`; other calls continue."""
        ...

    async def interrupt_async(self) -> None:
        """Make calls in this event loop that wait for a server raise `Unavailable`, unless they finish soon."""
        ...

    def migrate(self) -> list[str]:
        """Migrate the schema and return the migrations applied."""
        ...

    def close(self) -> None:
        """Close the connections. A store that is used again opens again."""
        ...
