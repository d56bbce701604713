"""Runners run the transactions of an operation and wait between them, in sync and in async code.

The methods of both runners are coroutines. Those of `SyncRunner` block instead of suspending, so `run_sync` can run
any coroutine that awaits nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

from holdfast.domain.errors import HoldfastError
from holdfast.storage.contract import Transaction
from holdfast.storage.notifications import AsyncListener, Listener, Notifier, SyncListener
from holdfast.storage.store import AsyncTarget, SyncTarget
from holdfast.storage.transaction import PlainForm, run_sync
from holdfast.storage.undo import Undo, UndoableWrite

P = ParamSpec("P")
T = TypeVar("T")

Function: TypeAlias = Callable[Concatenate[Transaction, P], Coroutine[Any, Any, T]]
"""A store operation, without its arguments after the transaction."""


class WaitingListener(Listener, Protocol):
    """A listener whose caller can wait."""

    async def wait(self, seconds: float) -> float:
        """Wait for a notification, *seconds* at most, and return the seconds that passed."""
        ...


class Runner(Protocol):
    """Runs transactions for one caller."""

    async def read(self, function: Function[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function(tx, *args, **kwargs)` in a read-only transaction on one consistent snapshot of the store."""
        ...

    async def write(self, function: Function[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function(tx, *args, **kwargs)` in one write transaction; return its result once that has committed."""
        ...

    async def write_plain(
        self, plain: Callable[[], PlainForm | None], function: Function[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Do what `write` does, in the plain form if there is one."""
        ...

    async def lease(self, undo: Undo[T], function: Function[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Do what `write` does for a function that leases; run *undo* if the caller is gone before the result."""
        ...

    def listen(self, *topics: str) -> AbstractContextManager[WaitingListener]:
        """Listen to *topics* during the block; no notification sent after entering it is missed."""
        ...


class SyncRunner:
    """Runs transactions in the caller's thread."""

    def __init__(self, target: SyncTarget) -> None:
        self._target = target
        self._leasing: UndoableWrite[Any] | None = None

    async def read(self, function: Function[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run *function* on one consistent snapshot of the store."""
        return self._target.read(lambda tx: function(tx, *args, **kwargs))

    async def write(self, function: Function[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run *function* in one write transaction."""
        return self._target.write(lambda tx: function(tx, *args, **kwargs))

    async def write_plain(
        self, plain: Callable[[], PlainForm | None], function: Function[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run *function* in one write transaction, in the plain form if there is one."""
        return self._target.write(lambda tx: function(tx, *args, **kwargs), plain)

    async def lease(self, undo: Undo[T], function: Function[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run *function*, which leases, in one write transaction; `run_leasing` undoes it."""
        write = UndoableWrite(lambda tx: function(tx, *args, **kwargs), undo)
        self._leasing = write
        return self._target.write(write.run)

    def abandon(self) -> None:
        """Release the jobs leased by the newest `lease`."""
        if self._leasing is not None:
            self._leasing.abandon(self._target)

    @contextmanager
    def listen(self, *topics: str) -> Iterator[SyncListener]:
        """Listen to *topics* for the block."""
        listener = SyncListener()
        with _listening(self._target.notifier, topics, listener):
            yield listener


class AsyncRunner:
    """Runs transactions without blocking the event loop."""

    def __init__(self, target: AsyncTarget) -> None:
        self._target = target

    async def read(self, function: Function[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run *function* on one consistent snapshot of the store."""
        return await self._target.read_async(lambda tx: function(tx, *args, **kwargs))

    async def write(self, function: Function[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run *function* in one write transaction."""
        return await self._target.write_async(lambda tx: function(tx, *args, **kwargs))

    async def write_plain(
        self, plain: Callable[[], PlainForm | None], function: Function[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run *function* in one write transaction, in the plain form if there is one."""
        return await self._target.write_async(lambda tx: function(tx, *args, **kwargs), plain)

    async def lease(self, undo: Undo[T], function: Function[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run *function*, which leases, in one write transaction; a cancellation undoes it."""
        return await UndoableWrite(lambda tx: function(tx, *args, **kwargs), undo).run_async(self._target)

    @contextmanager
    def listen(self, *topics: str) -> Iterator[AsyncListener]:
        """Listen to *topics* for the block."""
        listener = AsyncListener()
        with _listening(self._target.notifier, topics, listener):
            yield listener


def run_leasing(runner: SyncRunner, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that leases through its own *runner*; release the leases if it is interrupted."""
    try:
        return run_sync(coroutine)
    except HoldfastError:
        raise
    except BaseException:
        runner.abandon()
        raise


@contextmanager
def _listening(notifier: Notifier, topics: tuple[str, ...], listener: Listener) -> Iterator[None]:
    try:
        for topic in topics:
            notifier.add(topic, listener)
        yield
    finally:
        for topic in topics:
            notifier.remove(topic, listener)
