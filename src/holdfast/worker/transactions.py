"""A handler's own transaction, which the settlement of its attempt joins: both commit, or neither.

It stays open from the handler's block until the handler returns, so that its result is part of the commit. It is
bounded in time, because on SQLite it holds up every other writer: past that it is undone, whatever its handler does.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from holdfast.client.async_queue import AsyncTransaction
from holdfast.client.operations import Operations
from holdfast.client.queue import Transaction
from holdfast.domain.errors import HoldfastError, LeaseLost, Misconfigured, OutcomeUnknown
from holdfast.domain.outcomes import Done, Failed, Outcome
from holdfast.storage.store import ExternalTransaction, Store
from holdfast.storage.transaction import Operation, PlainForm, run_sync
from holdfast.worker.attempt import RunningAttempt
from holdfast.worker.timers import Scheduled

T = TypeVar("T")


def offer_transaction(attempt: RunningAttempt, operations: Operations, store: Store) -> None:
    """Let the handler of *attempt* open a transaction that its settlement joins."""
    attempt.context._open_transaction = partial(SettlingTransaction, attempt, operations, store)


class SettlingTransaction:
    """The block that `context.transaction()` gives, in both colours."""

    def __init__(self, attempt: RunningAttempt, operations: Operations, store: Store, seconds: float) -> None:
        self._attempt = attempt
        self._operations = operations
        self._store = store
        self._seconds = seconds
        self._ends_at = 0.0
        self._expired = False
        self._guarded: _Guarded | None = None
        self._opened: AbstractContextManager[ExternalTransaction] | None = None
        self._opened_async: AbstractAsyncContextManager[ExternalTransaction] | None = None
        self._timer = attempt.timer
        self._expiring: Scheduled | None = None

    # --- the block -------------------------------------------------------------------------------------------------

    def __enter__(self) -> Transaction:
        self._check_only_one()
        opened = self._store.transaction()
        guarded = self._begin(opened.__enter__())
        self._opened = opened
        self._expiring = self._timer.call_later(self._seconds, self._expire)
        return Transaction(self._operations, guarded)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._guarded is not None:
            with self._guarded.lock:
                self._undo(error)

    async def __aenter__(self) -> AsyncTransaction:
        self._check_only_one()
        opened = self._store.transaction_async()
        guarded = self._begin(await opened.__aenter__())
        self._opened_async = opened
        self._expiring = asyncio.ensure_future(self._expire_async())
        return AsyncTransaction(self._operations, guarded)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._guarded is not None:
            async with self._guarded.lock_async:
                await self._undo_async(error)

    def _check_only_one(self) -> None:
        if self._attempt.transaction is not None:
            raise Misconfigured("this attempt has opened its transaction already; there is one for each")

    def _begin(self, joined: ExternalTransaction) -> _Guarded:
        self._guarded = _Guarded(joined)
        self._ends_at = self._timer.monotonic() + self._seconds
        self._attempt.transaction = self
        return self._guarded

    # --- when its time is up ---------------------------------------------------------------------------------------

    def _expire(self) -> None:
        if self._guarded is not None:
            with self._guarded.lock:
                self._expired = self._opened is not None
                self._undo(_UndoneError())

    async def _expire_async(self) -> None:
        await self._timer.sleep(self._seconds)
        # From here on it must not be cancelled half way.
        self._expiring = None
        if self._guarded is not None:
            async with self._guarded.lock_async:
                self._expired = self._opened_async is not None
                await self._undo_async(_UndoneError())

    # --- the end ---------------------------------------------------------------------------------------------------

    def finish(self, outcome: Outcome) -> Outcome | None:
        """Settle in it and commit, or undo it; return what is still to be settled, if anything."""
        if self._guarded is None:
            return outcome
        with self._guarded.lock:
            if self._opened is None:
                return self._without_it(outcome)
            if refused := self._refusal(outcome):
                self._undo(_UndoneError())
                return refused
            try:
                run_sync(self._attempt.settling(self._operations.sync_on(self._guarded.joined), outcome))
                self._end()
                self._opened.__exit__(None, None, None)
            except BaseException as error:  # whatever happens, it must not stay open
                self._undo(error)
                return self._after(error)
            self._attempt.settled = True
            return None

    async def finish_async(self, outcome: Outcome) -> Outcome | None:
        """Do the same for a handler that is awaited."""
        if self._guarded is None:
            return outcome
        async with self._guarded.lock_async:
            if self._opened_async is None:
                return self._without_it(outcome)
            if refused := self._refusal(outcome):
                await self._undo_async(_UndoneError())
                return refused
            try:
                await self._attempt.settling(self._operations.async_on(self._guarded.joined), outcome)
                self._end()
                await self._opened_async.__aexit__(None, None, None)
            except BaseException as error:  # whatever happens, it must not stay open
                await self._undo_async(error)
                return self._after(error)
            self._attempt.settled = True
            return None

    def _without_it(self, outcome: Outcome) -> Outcome:
        """Return what the attempt ends with when its transaction is no more: never done without its writes."""
        return self._too_long() if self._expired and isinstance(outcome, Done | Failed) else outcome

    def _refusal(self, outcome: Outcome) -> Outcome | None:
        """Return what the attempt ends with instead, if this must not be committed."""
        if not isinstance(outcome, Done):
            return outcome
        if self._attempt.stopped in {"lost", "timeout"} or self._timer.monotonic() > self._ends_at:
            return self._too_long()
        return None

    def _too_long(self) -> Failed:
        message = f"its transaction was open for longer than {self._seconds:g} s"
        return Failed(message, reason="transaction_timeout")

    def _after(self, error: BaseException) -> Outcome | None:
        """Return what the attempt ends with when its commit did not succeed."""
        if not isinstance(error, Exception):
            raise error
        if isinstance(error, LeaseLost | OutcomeUnknown):
            # Not ours any more, or perhaps committed: if it was not, the lease will expire.
            return None
        # The caller's own tables may refuse the commit as well.
        reason = error.code if isinstance(error, HoldfastError) else "transaction_refused"
        return Failed(f"its transaction could not be committed: {error}", reason=reason)

    def _end(self) -> None:
        if self._expiring is not None:
            self._expiring.cancel()
        if self._guarded is not None:
            self._guarded.ended = True

    def _undo(self, error: BaseException) -> None:
        self._end()
        opened, self._opened = self._opened, None
        if opened is not None:
            try:
                opened.__exit__(type(error), error, error.__traceback__)
            except BaseException as raised:
                if raised is not error:
                    raise

    async def _undo_async(self, error: BaseException) -> None:
        self._end()
        opened, self._opened_async = self._opened_async, None
        if opened is not None:
            try:
                await opened.__aexit__(type(error), error, error.__traceback__)
            except BaseException as raised:
                if raised is not error:
                    raise


class _Guarded:
    """The transaction as its handler has it: no call is under way when it ends, and none comes after."""

    def __init__(self, joined: ExternalTransaction) -> None:
        self.joined = joined
        self.notifier = joined.notifier
        self.lock = threading.Lock()
        self.lock_async = asyncio.Lock()
        self.ended = False

    def read(self, operation: Operation[T]) -> T:
        """Run *operation* in a savepoint."""
        return self.write(operation)

    def write(self, operation: Operation[T], plain: Callable[[], PlainForm | None] | None = None) -> T:
        """Run *operation* in a savepoint."""
        with self.lock:
            self._refuse_ended()
            return self.joined.write(operation, plain)

    async def read_async(self, operation: Operation[T]) -> T:
        """Run *operation* in a savepoint."""
        return await self.write_async(operation)

    async def write_async(self, operation: Operation[T], plain: Callable[[], PlainForm | None] | None = None) -> T:
        """Run *operation* in a savepoint."""
        async with self.lock_async:
            self._refuse_ended()
            return await self.joined.write_async(operation, plain)

    def execute(self, sql: str, values: Any = ()) -> list[Any]:
        """Run the caller's own SQL."""
        with self.lock:
            self._refuse_ended()
            return self.joined.execute(sql, values)

    async def execute_async(self, sql: str, values: Any = ()) -> list[Any]:
        """Run the caller's own SQL."""
        async with self.lock_async:
            self._refuse_ended()
            return await self.joined.execute_async(sql, values)

    def _refuse_ended(self) -> None:
        if self.ended:
            raise Misconfigured("the transaction of this attempt has ended; it may have been open for too long")


class _UndoneError(Exception):
    """The transaction comes to nothing, as its handler did."""
