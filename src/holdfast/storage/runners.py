"""Runners run the transactions of a call and wait between them: `SyncRunner` blocks, `AsyncRunner` awaits.

Both have the same methods, so that the sync API can be generated from the async one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from itertools import count
from time import monotonic
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeAlias, TypeVar

from holdfast.domain import errors, limits, rollups
from holdfast.domain.backoff import RetryPolicy
from holdfast.domain.rollups import Rollup
from holdfast.storage import cancellation, randomness, store
from holdfast.storage.contract import StoreTransaction
from holdfast.storage.notifications import AsyncListener, Listener, Notifier, SyncListener
from holdfast.storage.rollup_buffer import RollupBuffer

T = TypeVar("T")

log = logging.getLogger("holdfast")

Undo: TypeAlias = Callable[[StoreTransaction, T | None, Any], Coroutine[Any, Any, None]]
"""An operation that releases the leases of a result, or of a request whose result was lost with an interrupt."""

# How often an undo is sent to a store that does not respond; after that the leases simply expire.
_UNDO_RETRIES: Final = RetryPolicy(first=0.05, last=1.0, calls=5)


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    except BaseException:
        # An interrupt may come before the coroutine has started.
        coroutine.close()
        raise
    coroutine.close()
    raise RuntimeError("an operation suspended in a sync transaction")


P = ParamSpec("P")

Function: TypeAlias = Callable[Concatenate[StoreTransaction, P], Coroutine[Any, Any, T]]
"""A store operation, without its arguments after the transaction."""


class WithdrawnError(Exception):
    """The caller was gone before the transaction began; nothing was done."""


class UndoableWrite(Generic[T]):
    """One write, whether it has begun, and its result, even if the caller never receives it."""

    __slots__ = ("_abandoned", "_arguments", "_decision", "_function", "_options", "_results", "_undo")

    def __init__(
        self,
        undo: Undo[T],
        function: Function[..., T],
        arguments: tuple[Any, ...],
        options: dict[str, Any],
    ) -> None:
        self._undo = undo
        self._function = function
        self._arguments = arguments
        """The arguments after the transaction; the last is the request."""
        self._options = options
        self._decision: dict[str, bool] = {}
        self._abandoned = False
        self._results: list[T] = []

    async def run(self, tx: StoreTransaction) -> T:
        """Run the write in *tx*, unless the caller has withdrawn it."""
        # The caller may withdraw concurrently in another thread; `setdefault` decides which of them is first.
        if self._abandoned or not self._decision.setdefault("begun", True):
            raise WithdrawnError
        self._results.clear()
        result: T = await self._function(tx, *self._arguments, **self._options)
        self._results.append(result)
        return result

    def _withdraw(self) -> bool:
        """Keep the write from beginning or running again; return whether it had not begun."""
        self._abandoned = True
        return not self._decision.setdefault("begun", False)

    async def _run_undo(self, tx: StoreTransaction) -> None:
        """Release the write's leases. Reads the results in the transaction: another thread may have run the write."""
        # A plain form commits before its result is here: an interrupt may come in between.
        await self._undo(tx, self._results[0] if self._results else None, self._arguments[-1])

    # --- sync ------------------------------------------------------------------------------------------------------

    def abandon(self, target: store.SyncTarget) -> None:
        """Withdraw or undo the write for a caller that was interrupted."""
        if self._withdraw():
            return
        try:
            target.write(self._run_undo)
        except errors.HoldfastError as error:
            _log_failure(error)

    # --- async -----------------------------------------------------------------------------------------------------

    async def run_async(self, target: store.AsyncTarget) -> T:
        """Run the write and return its result; if the task is cancelled, withdraw or undo it."""
        if target.writes_in_order:
            # The undo is a later write, which sees the result of this one: no task of its own has to wait for it.
            try:
                return await target.write_async(self.run)
            except asyncio.CancelledError:
                await self._abandon_async(None, target)
                raise
        running = asyncio.ensure_future(target.write_async(self.run))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await self._abandon_async(running, target)
            raise

    async def _abandon_async(self, running: asyncio.Future[T] | None, target: store.AsyncTarget) -> None:
        if self._withdraw():
            if running is not None:
                running.add_done_callback(cancellation.retrieve)
            return
        await cancellation.undo(self._undo_async(running, target))

    async def _undo_async(self, running: asyncio.Future[T] | None, target: store.AsyncTarget) -> None:
        if running is not None:
            if not running.done():
                await asyncio.wait([running])
            cancellation.retrieve(running)
            if not any(self._results):
                return
        for failures in count(1):
            try:
                await target.write_async(self._run_undo)
            except errors.HoldfastError as error:
                if not _UNDO_RETRIES.repeats(error, failures):
                    _log_failure(error)
                    return
                await asyncio.sleep(_UNDO_RETRIES.pause_seconds(failures, randomness.RANDOM.random()))
            else:
                return


def _log_failure(error: errors.HoldfastError) -> None:
    log.warning("a cancelled claim could not be released and will expire: %s", error)


async def append_counted(tx: StoreTransaction, counted: Rollup) -> None:
    """Store what a process has counted as the rollup of the current ten seconds."""
    at_ms = (await tx.now()).wall_ms // limits.ROLLUP_MS * limits.ROLLUP_MS
    await tx.append_rollups(limits.ROLLUP_MS, {at_ms: rollups.encode(counted)})


def _is_due(buffer: RollupBuffer | None) -> bool:
    return buffer is not None and monotonic() >= buffer.due_at and not buffer.is_empty()


class SyncRunner:
    """Runs transactions in the caller's thread."""

    def __init__(self, target: store.SyncTarget) -> None:
        self._target = target
        self._translate = target.translate
        self._rollups: RollupBuffer | None = getattr(target, "rollups", None)
        self.joined = target.joined
        """Whether every write joins one transaction that is already open, instead of committing by itself."""

    def read(self, function: Function[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function(tx, *args, **kwargs)` in a read-only transaction on one consistent snapshot of the store."""
        if self._translate is not None:
            function = self._translate(function)
        return self._target.read(lambda tx: function(tx, *args, **kwargs))

    def write(self, function: Function[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function(tx, *args, **kwargs)` in one write transaction; return its result once that has committed."""
        if self._translate is not None:
            function = self._translate(function)
        result = self._target.write(lambda tx: function(tx, *args, **kwargs))
        if self._rollups is not None and monotonic() >= self._rollups.due_at:
            self.write_due_rollups()
        return result

    def write_due_rollups(self) -> None:
        """Write what this process has counted, if it is time to."""
        if _is_due(self._rollups):
            self.write_rollups()

    def write_rollups(self) -> None:
        """Write what this process has counted; it is lost if the store does not answer."""
        if self._rollups is not None and (counted := self._rollups.take()):
            with contextlib.suppress(errors.HoldfastError):
                self._target.write(lambda tx: append_counted(tx, counted))

    def leasing(self) -> SyncLeasing:
        """Return a context for a call that leases; if the call is interrupted, its leases are released."""
        return SyncLeasing(self._target)

    @contextmanager
    def listen(self, *topics: str) -> Iterator[SyncListener]:
        """Listen to *topics* during the block; no notification sent after entering it is missed."""
        listener = SyncListener()
        with _listening(self._target.notifier, topics if self._translate is None else (), listener):
            yield listener

    def run_blocking(self, function: Callable[[], T]) -> T:
        """Call a function that blocks."""
        return function()


class AsyncRunner:
    """Runs transactions without blocking the event loop."""

    def __init__(self, target: store.AsyncTarget) -> None:
        self._target = target
        self._translate = target.translate
        self._rollups: RollupBuffer | None = getattr(target, "rollups", None)
        self.joined = target.joined
        """Whether every write joins one transaction that is already open, instead of committing by itself."""

    async def read(self, function: Function[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function(tx, *args, **kwargs)` in a read-only transaction on one consistent snapshot of the store."""
        if self._translate is not None:
            function = self._translate(function)
        return await self._target.read_async(lambda tx: function(tx, *args, **kwargs))

    async def write(self, function: Function[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function(tx, *args, **kwargs)` in one write transaction; return its result once that has committed."""
        if self._translate is not None:
            function = self._translate(function)
        result = await self._target.write_async(lambda tx: function(tx, *args, **kwargs))
        if self._rollups is not None and monotonic() >= self._rollups.due_at:
            await self.write_due_rollups()
        return result

    async def write_due_rollups(self) -> None:
        """Write what this process has counted, if it is time to."""
        if _is_due(self._rollups):
            await self.write_rollups()

    async def write_rollups(self) -> None:
        """Write what this process has counted; it is lost if the store does not answer."""
        if self._rollups is not None and (counted := self._rollups.take()):
            with contextlib.suppress(errors.HoldfastError):
                await self._target.write_async(lambda tx: append_counted(tx, counted))

    def leasing(self) -> AsyncLeasing:
        """Return a context for a call that leases; if its task is cancelled, its leases are released."""
        return AsyncLeasing(self._target)

    @contextmanager
    def listen(self, *topics: str) -> Iterator[AsyncListener]:
        """Listen to *topics* during the block; no notification sent after entering it is missed."""
        listener = AsyncListener()
        with _listening(self._target.notifier, topics if self._translate is None else (), listener):
            yield listener

    async def run_blocking(self, function: Callable[[], T]) -> T:
        """Call a function that blocks, in another thread."""
        return await asyncio.to_thread(function)


class SyncLeasing:
    """The leases of one sync call: an exception such as `KeyboardInterrupt` in its block releases the newest."""

    __slots__ = ("_newest", "_target")

    def __init__(self, target: store.SyncTarget) -> None:
        self._target = target
        self._newest: UndoableWrite[Any] | None = None

    def lease(self, undo: Undo[T], function: Function[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run *function*, which leases, in one write transaction; *undo* releases what it has leased.

        The last argument is the request.
        """
        if self._target.translate is not None:
            translated = self._target.translate(function)
            return self._target.write(lambda tx: translated(tx, *args, **kwargs))  # type: ignore[no-any-return]
        write = UndoableWrite(undo, function, args, kwargs)
        self._newest = write
        return self._target.write(write.run)

    def __enter__(self) -> SyncLeasing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, errors.HoldfastError) and self._newest is not None:
            self._newest.abandon(self._target)


class AsyncLeasing:
    """The leases of one async call: a cancellation releases what it has leased."""

    def __init__(self, target: store.AsyncTarget) -> None:
        self._target = target

    async def lease(self, undo: Undo[T], function: Function[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run *function*, which leases, in one write transaction; *undo* releases what it has leased."""
        if self._target.translate is not None:
            translated = self._target.translate(function)
            return await self._target.write_async(lambda tx: translated(tx, *args, **kwargs))
        # Only an await can be cancelled, and the call awaits nothing after the lease.
        return await UndoableWrite(undo, function, args, kwargs).run_async(self._target)

    def __enter__(self) -> AsyncLeasing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


@contextmanager
def _listening(notifier: Notifier, topics: tuple[str, ...], listener: Listener) -> Iterator[None]:
    try:
        for topic in topics:
            notifier.add(topic, listener)
        yield
    finally:
        for topic in topics:
            notifier.remove(topic, listener)
