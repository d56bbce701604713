"""Writes that are committed together with a claim of the worker, so that an enqueued job starts one commit sooner."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

from holdfast.client.async_api.queue import AsyncQueue
from holdfast.client.queue_state import QueueState
from holdfast.domain import errors
from holdfast.domain.results import StoredJob
from holdfast.storage import contract, store

T = TypeVar("T")


class JointWrite:
    """The store of one claim: its first write also runs an operation of another caller, before the claim.

    Both are stored, or none. If the claim is refused or not sent, the operation runs alone. A store behind a server,
    which translates operations, cannot join them.
    """

    def __init__(self, on: store.Store, operation: store.Operation[Any]) -> None:
        self._store = on
        self._operation = operation
        self._sent = False
        self._joined: asyncio.Future[tuple[bool, Any]] = asyncio.get_running_loop().create_future()
        """Whether the operation was stored with a claim, and its result."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write_async(self, operation: store.Operation[T]) -> T:
        """Run *operation*; the first time, after the operation of the other caller and in the same transaction."""
        if self._sent:
            return await self._store.write_async(operation)
        self._sent = True

        async def both(tx: contract.StoreTransaction) -> tuple[Any, T]:
            tx.compose()
            first = await self._operation(tx)
            topics, tx.topics = tx.topics, set()
            second = await operation(tx)
            if not _claims_job(first, second):
                tx.topics |= topics
            return first, second

        try:
            first, second = await self._store.write_async(both)
        except errors.Unavailable as error:
            self._end(error=error)
            raise
        except asyncio.CancelledError:
            self._end(error=errors.OutcomeUnknown("the worker was stopped during the call; send the same call again"))
            raise
        self._end((True, first))
        return second

    def _end(self, result: tuple[bool, Any] = (False, None), error: errors.HoldfastError | None = None) -> None:
        if self._joined.done():
            return
        if error is None:
            self._joined.set_result(result)
        else:
            self._joined.set_exception(error)

    def queue(self, state: QueueState) -> AsyncQueue:
        """Return a queue for the claim."""
        return AsyncQueue(replace(state, store=cast(store.Store, self)))

    def withdraw(self, _exchange: object = None) -> None:
        """Let the operation run alone, unless it has an answer."""
        self._end()

    async def result(self) -> Any:
        """Return the result of the operation, once it is stored with the claim or alone."""
        joined, result = await self._joined
        return result if joined else await self._store.write_async(self._operation)


def _claims_job(enqueued: object, claimed: object) -> bool:
    """Return whether a claim has taken the job of an enqueue: no worker needs to be notified of it."""
    if not isinstance(enqueued, StoredJob) or not enqueued.created or not isinstance(claimed, tuple):
        return False
    # What `settle_and_claim` returns.
    return any(claim.job.id == enqueued.job.id for claim in claimed[1])


class LocalStore:
    """The store of a worker's `local_queue`: *write* runs its writes."""

    def __init__(self, on: store.Store, write: Callable[[store.Operation[Any]], Awaitable[Any]]) -> None:
        self._store = on
        self._write = write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write_async(self, operation: store.Operation[T]) -> T:
        """Run *operation* in one transaction."""
        result: T = await self._write(operation)
        return result

    def queue(self, state: QueueState) -> AsyncQueue:
        """Return a queue on this store."""
        return AsyncQueue(replace(state, store=cast(store.Store, self)))
