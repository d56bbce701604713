"""A handler's own transaction, which the settlement of its attempt joins: both commit, or neither.

It stays open from the handler's block until the handler returns, so that its result is part of the commit. It is
bounded in time, because on SQLite it holds up every other writer.
"""

from __future__ import annotations

import time
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from types import TracebackType

from holdfast.client.async_queue import AsyncTransaction
from holdfast.client.operations import Operations
from holdfast.client.queue import Transaction
from holdfast.domain.errors import HoldfastError, LeaseLost, Misconfigured, OutcomeUnknown
from holdfast.domain.outcome import Done, Failed, Outcome
from holdfast.runtime.attempt import Attempt
from holdfast.stores.drivers import drive, drive_async
from holdfast.stores.engine import Joined, Store


def offer_transaction(attempt: Attempt, operations: Operations, store: Store) -> None:
    """Let the handler of *attempt* open a transaction that its settlement joins."""
    attempt.context._open_transaction = partial(SettlingTransaction, attempt, operations, store)


class SettlingTransaction:
    """The block that `context.transaction()` gives, in both colours."""

    def __init__(self, attempt: Attempt, operations: Operations, store: Store, seconds: float) -> None:
        self._attempt = attempt
        self._operations = operations
        self._store = store
        self._seconds = seconds
        self._ends_at = 0.0
        self._joined: Joined | None = None
        self._opened: AbstractContextManager[Joined] | None = None
        self._opened_async: AbstractAsyncContextManager[Joined] | None = None

    # --- the block -------------------------------------------------------------------------------------------------

    def __enter__(self) -> Transaction:
        self._check_only_one()
        self._opened = self._store.transaction()
        self._begin(self._opened.__enter__())
        return Transaction(self._operations, self._joined)  # type: ignore[arg-type]  # begun in the line before

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._undo(error)

    async def __aenter__(self) -> AsyncTransaction:
        self._check_only_one()
        self._opened_async = self._store.transaction_async()
        self._begin(await self._opened_async.__aenter__())
        return AsyncTransaction(self._operations, self._joined)  # type: ignore[arg-type]  # begun in the line before

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await self._undo_async(error)

    def _check_only_one(self) -> None:
        if self._attempt.transaction is not None:
            raise Misconfigured("this attempt has opened its transaction already; there is one for each")

    def _begin(self, joined: Joined) -> None:
        self._joined = joined
        self._ends_at = time.monotonic() + self._seconds
        self._attempt.transaction = self

    # --- the end ---------------------------------------------------------------------------------------------------

    def finish(self, outcome: Outcome) -> Outcome | None:
        """Settle in it and commit, or undo it; return what is still to be settled, if anything."""
        if self._opened is None or self._joined is None:
            return outcome
        if refused := self._refusal(outcome):
            self._undo(_UndoneError())
            return refused
        try:
            drive(self._operations.settle(self._attempt.claim, outcome), self._joined)
            self._opened.__exit__(None, None, None)
        except HoldfastError as error:
            self._undo(error)
            return self._after(error)
        self._attempt.settled = True
        return None

    async def finish_async(self, outcome: Outcome) -> Outcome | None:
        """Do the same for a handler that is awaited."""
        if self._opened_async is None or self._joined is None:
            return outcome
        if refused := self._refusal(outcome):
            await self._undo_async(_UndoneError())
            return refused
        try:
            await drive_async(self._operations.settle(self._attempt.claim, outcome), self._joined)
            await self._opened_async.__aexit__(None, None, None)
        except HoldfastError as error:
            await self._undo_async(error)
            return self._after(error)
        self._attempt.settled = True
        return None

    def _refusal(self, outcome: Outcome) -> Outcome | None:
        """Return what the attempt ends with instead, if this must not be committed."""
        if not isinstance(outcome, Done):
            return outcome
        if self._attempt.stopped in {"lost", "timeout"} or time.monotonic() > self._ends_at:
            return Failed(
                f"its transaction was open for longer than {self._seconds:g} s", reason="transaction_timeout"
            )
        return None

    def _after(self, error: HoldfastError) -> Outcome | None:
        """Return what the attempt ends with when its commit did not succeed."""
        if isinstance(error, LeaseLost | OutcomeUnknown):
            # Not ours any more, or perhaps committed: if it was not, the lease will lapse.
            return None
        return Failed(f"its transaction could not be committed: {error}", reason=error.code)

    def _undo(self, error: BaseException) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            try:
                opened.__exit__(type(error), error, None)
            except BaseException as raised:
                if raised is not error:
                    raise

    async def _undo_async(self, error: BaseException) -> None:
        opened, self._opened_async = self._opened_async, None
        if opened is not None:
            try:
                await opened.__aexit__(type(error), error, None)
            except BaseException as raised:
                if raised is not error:
                    raise


class _UndoneError(Exception):
    """The transaction comes to nothing, as its handler did."""
