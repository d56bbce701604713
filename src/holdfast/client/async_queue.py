"""`AsyncQueue`: the async API. It may be shared between tasks, threads and event loops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

from holdfast.client import validate_calls
from holdfast.client.methods import async_method
from holdfast.client.operations import Operations
from holdfast.storage.store import ExternalTransaction, Store
from holdfast.tasks.decorators import AsyncTaskHost


class AsyncTransaction:
    """Operations that join an open transaction: they commit with it or not at all.

    An operation that raises has changed nothing; the caller may catch the error and continue.
    """

    def __init__(self, operations: Operations, joined: ExternalTransaction) -> None:
        self._operations = operations.async_on(joined)
        self._joined = joined

    enqueue = async_method(Operations.enqueue)
    enqueue_many = async_method(Operations.enqueue_many)
    heartbeat = async_method(Operations.heartbeat)
    progress = async_method(Operations.progress)
    attach = async_method(Operations.attach)
    settle = async_method(Operations.settle)
    settle_many = async_method(Operations.settle_many)
    get = async_method(Operations.get)
    cancel = async_method(Operations.cancel)
    requeue = async_method(Operations.requeue)
    reprioritize = async_method(Operations.reprioritize)

    async def execute(self, sql: str, values: Any = ()) -> list[Any]:
        """Run the caller's SQL in the transaction and return the rows."""
        return await self._joined.execute_async(sql, values)


class AsyncQueue(AsyncTaskHost):
    """A durable work queue with async methods. It opens, creates and migrates its store on first use."""

    def __init__(self, store: Store, operations: Operations | None = None) -> None:
        if not isinstance(operations, Operations):
            raise validate_calls.not_connected("connect_async")
        super().__init__()
        self._use(store, operations)

    def _use(self, store: Store, operations: Operations) -> None:
        """Switch to *store* and *operations*."""
        self._store = store
        self._operations = operations.for_tasks(self.tasks).async_on(store)

    def __repr__(self) -> str:
        return f"<AsyncQueue on {self._store!r}>"

    @property
    def store(self) -> Store:
        """The store, for a worker, which needs its own connections."""
        return self._store

    @property
    def operations(self) -> Operations:
        """The operations as coroutines, for a worker."""
        return self._operations

    enqueue = async_method(Operations.enqueue)
    enqueue_many = async_method(Operations.enqueue_many)
    claim = async_method(Operations.claim)
    claim_many = async_method(Operations.claim_many)
    heartbeat = async_method(Operations.heartbeat)
    heartbeat_many = async_method(Operations.heartbeat_many)
    acknowledge = async_method(Operations.acknowledge)
    progress = async_method(Operations.progress)
    attach = async_method(Operations.attach)
    settle = async_method(Operations.settle)
    settle_many = async_method(Operations.settle_many)
    settle_and_claim = async_method(Operations.settle_and_claim)
    get = async_method(Operations.get)
    wait = async_method(Operations.wait)
    jobs = async_method(Operations.jobs)
    attempts = async_method(Operations.attempts)
    artifacts = async_method(Operations.artifacts)
    artifact = async_method(Operations.artifact)
    counts = async_method(Operations.counts)
    tally = async_method(Operations.tally)
    backlog = async_method(Operations.backlog)
    unserved = async_method(Operations.unserved)
    events = async_method(Operations.events)
    workers = async_method(Operations.workers)
    drain_worker = async_method(Operations.drain_worker)
    stop_worker = async_method(Operations.stop_worker)
    report = async_method(Operations.report)
    cancel = async_method(Operations.cancel)
    cancel_many = async_method(Operations.cancel_many)
    requeue = async_method(Operations.requeue)
    requeue_many = async_method(Operations.requeue_many)
    requeue_failed = async_method(Operations.requeue_failed)
    reprioritize = async_method(Operations.reprioritize)
    kinds = async_method(Operations.kinds)
    kind = async_method(Operations.kind)
    retire = async_method(Operations.retire)
    restore = async_method(Operations.restore)
    prune = async_method(Operations.prune)
    lanes = async_method(Operations.lanes)
    set_lane = async_method(Operations.set_lane)
    claim_session = async_method(Operations.claim_session)
    claim_any_session = async_method(Operations.claim_any_session)
    cancel_session = async_method(Operations.cancel_session)
    open_session = async_method(Operations.open_session)
    renew_session = async_method(Operations.renew_session)
    close_session = async_method(Operations.close_session)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncTransaction]:
        """Open a write transaction; it commits at the end of the block, or rolls back if the block raises.

        It blocks every other writer: keep it short.
        """
        async with self._store.transaction_async() as joined:
            yield AsyncTransaction(self._operations, joined)

    def within(self, connection: Any) -> AsyncTransaction:
        """Join the write transaction that is open on the caller's *connection* to the same database.

        The caller commits or rolls back. Waiting callers and workers see the changes at their next poll.
        """
        return AsyncTransaction(self._operations, self._store.within(connection))

    async def migrate(self) -> list[str]:
        """Bring the schema up to date and return the names of the migrations applied."""
        return await asyncio.to_thread(self._store.migrate)

    async def close(self) -> None:
        """Close the store. The next use opens it again; the contents of `:memory:` are lost."""
        await asyncio.to_thread(self._store.close)

    async def __aenter__(self) -> AsyncQueue:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
