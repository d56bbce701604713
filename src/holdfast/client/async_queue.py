"""`AsyncQueue`: the awaited face. Safe to share between tasks, threads and event loops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

from holdfast.client import validate_calls
from holdfast.client.methods import awaiting
from holdfast.client.operations import Operations
from holdfast.storage.store import Joined, Store
from holdfast.tasks.decorators import AwaitedHost


class AsyncTransaction:
    """Operations that join an open transaction: they commit with it or not at all.

    A refused operation leaves nothing behind, so that the caller may catch the error and go on.
    """

    def __init__(self, operations: Operations, joined: Joined) -> None:
        self._operations = operations.async_on(joined)
        self._joined = joined

    enqueue = awaiting(Operations.enqueue)
    enqueue_many = awaiting(Operations.enqueue_many)
    heartbeat = awaiting(Operations.heartbeat)
    progress = awaiting(Operations.progress)
    attach = awaiting(Operations.attach)
    settle = awaiting(Operations.settle)
    settle_many = awaiting(Operations.settle_many)
    get = awaiting(Operations.get)
    cancel = awaiting(Operations.cancel)
    requeue = awaiting(Operations.requeue)
    reprioritize = awaiting(Operations.reprioritize)

    async def execute(self, sql: str, values: Any = ()) -> list[Any]:
        """Run the caller's own SQL in the transaction and return the rows."""
        return await self._joined.execute_async(sql, values)


class AsyncQueue(AwaitedHost):
    """A durable work queue, awaited. Opens, creates and migrates its store on first use."""

    def __init__(self, store: Store, operations: Operations | None = None) -> None:
        if not isinstance(operations, Operations):
            raise validate_calls.not_connected("connect_async")
        super().__init__()
        self._use(store, operations)

    def _use(self, store: Store, operations: Operations) -> None:
        """Run operations on *store* from now on."""
        self._store = store
        self._operations = operations.for_tasks(self.tasks).async_on(store)

    def __repr__(self) -> str:
        return f"<AsyncQueue on {self._store!r}>"

    @property
    def store(self) -> Store:
        """The store itself, for a worker: it needs connections of its own."""
        return self._store

    @property
    def operations(self) -> Operations:
        """The operations without colour, for a worker."""
        return self._operations

    enqueue = awaiting(Operations.enqueue)
    enqueue_many = awaiting(Operations.enqueue_many)
    claim = awaiting(Operations.claim)
    claim_many = awaiting(Operations.claim_many)
    heartbeat = awaiting(Operations.heartbeat)
    heartbeat_many = awaiting(Operations.heartbeat_many)
    acknowledge = awaiting(Operations.acknowledge)
    progress = awaiting(Operations.progress)
    attach = awaiting(Operations.attach)
    settle = awaiting(Operations.settle)
    settle_many = awaiting(Operations.settle_many)
    settle_and_claim = awaiting(Operations.settle_and_claim)
    get = awaiting(Operations.get)
    wait = awaiting(Operations.wait)
    jobs = awaiting(Operations.jobs)
    attempts = awaiting(Operations.attempts)
    artifacts = awaiting(Operations.artifacts)
    artifact = awaiting(Operations.artifact)
    counts = awaiting(Operations.counts)
    tally = awaiting(Operations.tally)
    backlog = awaiting(Operations.backlog)
    unserved = awaiting(Operations.unserved)
    events = awaiting(Operations.events)
    workers = awaiting(Operations.workers)
    report = awaiting(Operations.report)
    cancel = awaiting(Operations.cancel)
    cancel_many = awaiting(Operations.cancel_many)
    requeue = awaiting(Operations.requeue)
    requeue_many = awaiting(Operations.requeue_many)
    requeue_failed = awaiting(Operations.requeue_failed)
    reprioritize = awaiting(Operations.reprioritize)
    kinds = awaiting(Operations.kinds)
    retire = awaiting(Operations.retire)
    restore = awaiting(Operations.restore)
    prune = awaiting(Operations.prune)
    lanes = awaiting(Operations.lanes)
    set_lane = awaiting(Operations.set_lane)
    claim_session = awaiting(Operations.claim_session)
    claim_any_session = awaiting(Operations.claim_any_session)
    cancel_session = awaiting(Operations.cancel_session)
    open_session = awaiting(Operations.open_session)
    renew_session = awaiting(Operations.renew_session)
    close_session = awaiting(Operations.close_session)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncTransaction]:
        """Open a write transaction; it commits at the end of the block, or rolls back if that raises.

        It holds up every other writer: keep it short.
        """
        async with self._store.transaction_async() as joined:
            yield AsyncTransaction(self._operations, joined)

    def within(self, connection: Any) -> AsyncTransaction:
        """Join the write transaction that is open on the caller's own *connection* to the same database.

        Commit and rollback stay the caller's. Others notice at poll latency.
        """
        return AsyncTransaction(self._operations, self._store.within(connection))

    async def migrate(self) -> list[str]:
        """Bring the schema up to date and return the names of the migrations applied."""
        return await asyncio.to_thread(self._store.migrate)

    async def close(self) -> None:
        """Close the store. A queue that is used again opens it again; what was in memory is gone."""
        await asyncio.to_thread(self._store.close)

    async def __aenter__(self) -> AsyncQueue:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
