"""A handler's transaction that also settles its attempt: both commit, or neither.

It stays open after the handler's block until the handler returns, because the commit includes the result. On SQLite
it blocks every other writer, so it has a time limit: after that it is rolled back, even if the handler still runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final, TypeVar

from holdfast.client.async_api.queue import AsyncQueue, AsyncTransaction
from holdfast.client.async_api.worker_calls import AsyncWorkerCalls
from holdfast.client.queue_state import QueueState
from holdfast.client.sync_api.queue import Queue, Transaction
from holdfast.client.sync_api.worker_calls import WorkerCalls
from holdfast.domain import artifacts, errors, outcomes
from holdfast.domain.claims import Claim
from holdfast.domain.job import Job
from holdfast.domain.output import OutputWrite, StreamEnd
from holdfast.storage import store
from holdfast.worker.attempt import RunningAttempt, emitted
from holdfast.worker.timers import Scheduled

T = TypeVar("T")


def offer_transaction(attempt: RunningAttempt, state: QueueState) -> None:
    """Allow the handler of *attempt* to read from the store, and to open a transaction that its settlement joins."""
    attempt.handler_state.open_transaction = partial(SettlingTransaction, attempt, state)
    attempt.handler_state.reader = HandlerReads(attempt.claim.job.id, lambda: state)
    # In an isolated process, the handler's earlier output must be written before its transaction opens.
    attempt.flush_output = lambda: WorkerCalls(state.store).flush_output(emitted([attempt]))


class HandlerReads:
    """Reads the artifacts of one job, and the jobs on which it depends, for its handler."""

    def __init__(self, job_id: str, state: Callable[[], QueueState]) -> None:
        self._job_id = job_id
        self._state = state

    def read(self, name: str) -> artifacts.Artifact:
        """Return one artifact."""
        return Queue(self._state()).artifact(self._job_id, name)

    async def read_async(self, name: str) -> artifacts.Artifact:
        """Return one artifact."""
        return await AsyncQueue(self._state()).artifact(self._job_id, name)

    def parents(self) -> list[Job]:
        """Return the jobs on which it depends."""
        return Queue(self._state()).parents(self._job_id)

    async def parents_async(self) -> list[Job]:
        """Return the jobs on which it depends."""
        return await AsyncQueue(self._state()).parents(self._job_id)


class SettlingTransaction:
    """The context manager that `context.transaction()` returns, sync and async."""

    def __init__(self, attempt: RunningAttempt, state: QueueState, seconds: float) -> None:
        self._attempt = attempt
        self._state = replace(state, parent=attempt.claim.job)
        self._seconds = seconds
        self._ends_at = 0.0
        self._expired = False
        self._guarded: _GuardedTransaction | None = None
        self._opened: AbstractContextManager[store.ExternalTransaction] | None = None
        self._opened_async: AbstractAsyncContextManager[store.ExternalTransaction] | None = None
        self._timer = attempt.timer
        self._expiry: Scheduled | None = None

    # --- enter and exit---------------------------------------------------------------------------------------------

    def __enter__(self) -> Transaction:
        self._check_only_one()
        opened = self._state.store.transaction()
        guarded = self._begin(opened.__enter__())
        self._opened = opened
        self._expiry = self._timer.call_later(self._seconds, self._expire)
        return Transaction(self._state, guarded, is_open=lambda: not guarded.ended)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._guarded is not None:
            with self._guarded.lock:
                self._rollback(error)

    async def __aenter__(self) -> AsyncTransaction:
        self._check_only_one()
        opened = self._state.store.transaction_async()
        guarded = self._begin(await opened.__aenter__())
        self._opened_async = opened
        self._expiry = asyncio.ensure_future(self._expire_async())
        return AsyncTransaction(self._state, guarded, is_open=lambda: not guarded.ended)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._guarded is not None:
            async with self._guarded.lock_async:
                await self._rollback_async(error)

    def _check_only_one(self) -> None:
        if self._attempt.transaction is not None:
            raise errors.Misconfigured(
                "this attempt has already opened its transaction; an attempt can open only one"
            )

    def _begin(self, external: store.ExternalTransaction) -> _GuardedTransaction:
        self._guarded = _GuardedTransaction(external)
        self._ends_at = self._timer.monotonic() + self._seconds
        self._attempt.transaction = self
        return self._guarded

    @property
    def is_open(self) -> bool:
        """Whether it has not been rolled back."""
        return self._opened is not None or self._opened_async is not None

    # --- time limit -----------------------------------------------------------------------------------------------

    def _expire(self) -> None:
        if self._guarded is not None:
            with self._guarded.lock:
                self._expired = self._opened is not None
                self._rollback(_RolledBackError())

    async def _expire_async(self) -> None:
        await self._timer.sleep(self._seconds)
        # From here on the rollback must not be cancelled.
        self._expiry = None
        if self._guarded is not None:
            async with self._guarded.lock_async:
                self._expired = self._opened_async is not None
                await self._rollback_async(_RolledBackError())

    # --- settlement ------------------------------------------------------------------------------------------------

    def finish(self, outcome: outcomes.Outcome) -> outcomes.Outcome | None:
        """Settle in the transaction and commit, or roll back; return the outcome still to settle, if any."""
        if self._guarded is None:
            return outcome
        with self._guarded.lock:
            if self._opened is None:
                return self._outcome_after_rollback(outcome)
            if instead := self._outcome_instead_of_commit(outcome):
                self._rollback(_RolledBackError())
                return instead
            try:
                if writes := self._unwritten_output():
                    _check_written(WorkerCalls(self._guarded.external).append_output(writes))
                self._attempt.settle(Transaction(self._state, self._guarded.external), outcome)
                self._mark_settled()
                self._opened.__exit__(None, None, None)
            except BaseException as error:  # the transaction must never stay open
                self._attempt.settled = False
                self._rollback(error)
                return self._outcome_after_error(error)
            return None

    async def finish_async(self, outcome: outcomes.Outcome) -> outcomes.Outcome | None:
        """Do the same for an async handler."""
        if self._guarded is None:
            return outcome
        async with self._guarded.lock_async:
            if self._opened_async is None:
                return self._outcome_after_rollback(outcome)
            if instead := self._outcome_instead_of_commit(outcome):
                await self._rollback_async(_RolledBackError())
                return instead
            try:
                if writes := self._unwritten_output():
                    _check_written(await AsyncWorkerCalls(self._guarded.external).append_output(writes))
                await self._attempt.settle_async(AsyncTransaction(self._state, self._guarded.external), outcome)
                self._mark_settled()
                await self._opened_async.__aexit__(None, None, None)
            except BaseException as error:  # the transaction must never stay open
                self._attempt.settled = False
                await self._rollback_async(error)
                return self._outcome_after_error(error)
            return None

    def _unwritten_output(self) -> list[tuple[Claim, OutputWrite]]:
        """Return the text to write in the transaction; after a rollback it is still in its buffer."""
        output = self._attempt.output
        write = None if output is None else output.pending()
        return [] if write is None else [(self._attempt.claim, write)]

    def _mark_settled(self) -> None:
        self._mark_ended()
        # A lease renewal that waits for the commit is refused after it: the lease is not lost but settled.
        self._attempt.settled = True

    def _outcome_after_rollback(self, outcome: outcomes.Outcome) -> outcomes.Outcome:
        """Return the outcome after the transaction was rolled back: not `Done`, because its writes are lost."""
        return (
            self._timeout_failure()
            if self._expired and isinstance(outcome, outcomes.Done | outcomes.Failed)
            else outcome
        )

    def _outcome_instead_of_commit(self, outcome: outcomes.Outcome) -> outcomes.Outcome | None:
        """Return the outcome to settle without a commit; None if the transaction may commit."""
        if not isinstance(outcome, outcomes.Done):
            return outcome
        if self._attempt.stopped in {"lost", "timeout"} or self._timer.monotonic() > self._ends_at:
            return self._timeout_failure()
        return None

    def _timeout_failure(self) -> outcomes.Failed:
        message = f"its transaction was open for longer than {self._seconds:g} s"
        return outcomes.Failed(message, reason="transaction_timeout")

    def _outcome_after_error(self, error: BaseException) -> outcomes.Outcome | None:
        """Return the outcome of an attempt whose commit failed."""
        if not isinstance(error, Exception):
            raise error
        if isinstance(error, errors.LeaseLost | errors.OutcomeUnknown):
            # The lease is lost, or the commit may have succeeded; if it did not, the lease expires.
            return None
        # Constraints of the caller's tables may reject the commit too.
        reason = error.code if isinstance(error, errors.HoldfastError) else "transaction_refused"
        return outcomes.Failed(f"its transaction could not be committed: {error}", reason=reason)

    def _mark_ended(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        if self._guarded is not None:
            self._guarded.ended = True

    def _rollback(self, error: BaseException) -> None:
        self._mark_ended()
        opened, self._opened = self._opened, None
        if opened is not None:
            try:
                opened.__exit__(type(error), error, error.__traceback__)
            except BaseException as raised:
                if raised is not error:
                    raise

    async def _rollback_async(self, error: BaseException) -> None:
        self._mark_ended()
        opened, self._opened_async = self._opened_async, None
        if opened is not None:
            try:
                await opened.__aexit__(type(error), error, error.__traceback__)
            except BaseException as raised:
                if raised is not error:
                    raise


def _check_written(answers: list[StreamEnd | errors.HoldfastError]) -> None:
    for answer in answers:
        if isinstance(answer, errors.HoldfastError):
            raise answer


class _GuardedTransaction:
    """The transaction for its handler: locks keep calls from overlapping its end, and refuse calls after it."""

    joined: Final = True
    writes_in_order: Final = False
    translate: Final = None

    def __init__(self, external: store.ExternalTransaction) -> None:
        self.external = external
        self.notifier = external.notifier
        self.lock = threading.Lock()
        self.lock_async = asyncio.Lock()
        self.ended = False

    def read(self, operation: store.Operation[T]) -> T:
        """Run *operation* in a savepoint."""
        return self.write(operation)

    def write(self, operation: store.Operation[T]) -> T:
        """Run *operation* in a savepoint."""
        with self.lock:
            self._check_open()
            return self.external.write(operation)

    async def read_async(self, operation: store.Operation[T]) -> T:
        """Run *operation* in a savepoint."""
        return await self.write_async(operation)

    async def write_async(self, operation: store.Operation[T]) -> T:
        """Run *operation* in a savepoint."""
        async with self.lock_async:
            self._check_open()
            return await self.external.write_async(operation)

    def execute(self, sql: str, values: Any = ()) -> list[Any]:
        """Run the caller's SQL."""
        with self.lock:
            self._check_open()
            return self.external.execute(sql, values)

    async def execute_async(self, sql: str, values: Any = ()) -> list[Any]:
        """Run the caller's SQL."""
        async with self.lock_async:
            self._check_open()
            return await self.external.execute_async(sql, values)

    def _check_open(self) -> None:
        if self.ended:
            raise errors.Misconfigured(
                "the transaction of this attempt has ended; it may have exceeded its time limit"
            )


class _RolledBackError(Exception):
    """Passed to the store's context manager to roll back."""
