"""`Queue`: the sync API. It may be shared between threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from holdfast.client import validate_calls
from holdfast.client.methods import leasing_sync_method, sync_method
from holdfast.client.operations import Operations
from holdfast.storage.store import ExternalTransaction, Store
from holdfast.tasks.decorators import SyncTaskHost


class Transaction:
    """Operations that join an open transaction: they commit with it or not at all.

    An operation that raises has changed nothing; the caller may catch the error and continue.
    """

    def __init__(self, operations: Operations, joined: ExternalTransaction) -> None:
        self._operations = operations.sync_on(joined)
        self._joined = joined

    enqueue = sync_method(Operations.enqueue)
    enqueue_many = sync_method(Operations.enqueue_many)
    heartbeat = sync_method(Operations.heartbeat)
    progress = sync_method(Operations.progress)
    attach = sync_method(Operations.attach)
    settle = sync_method(Operations.settle)
    settle_many = sync_method(Operations.settle_many)
    get = sync_method(Operations.get)
    cancel = sync_method(Operations.cancel)
    requeue = sync_method(Operations.requeue)
    reprioritize = sync_method(Operations.reprioritize)

    def execute(self, sql: str, values: Any = ()) -> list[Any]:
        """Run the caller's SQL in the transaction and return the rows."""
        return self._joined.execute(sql, values)


class Queue(SyncTaskHost):
    """A durable work queue. It opens, creates and migrates its store on first use."""

    def __init__(self, store: Store, operations: Operations | None = None) -> None:
        if not isinstance(operations, Operations):
            raise validate_calls.not_connected("connect")
        super().__init__()
        self._use(store, operations)

    def _use(self, store: Store, operations: Operations) -> None:
        """Switch to *store* and *operations*."""
        self._store = store
        self._operations = operations.for_tasks(self.tasks).sync_on(store)

    def __repr__(self) -> str:
        return f"<Queue on {self._store!r}>"

    @property
    def store(self) -> Store:
        """The store, for a worker, which needs its own connections."""
        return self._store

    @property
    def operations(self) -> Operations:
        """The operations as coroutines, for a worker."""
        return self._operations

    enqueue = sync_method(Operations.enqueue)
    enqueue_many = sync_method(Operations.enqueue_many)
    claim = leasing_sync_method(Operations.claim)
    claim_many = leasing_sync_method(Operations.claim_many)
    heartbeat = sync_method(Operations.heartbeat)
    heartbeat_many = sync_method(Operations.heartbeat_many)
    acknowledge = sync_method(Operations.acknowledge)
    progress = sync_method(Operations.progress)
    attach = sync_method(Operations.attach)
    settle = sync_method(Operations.settle)
    settle_many = sync_method(Operations.settle_many)
    settle_and_claim = leasing_sync_method(Operations.settle_and_claim)
    get = sync_method(Operations.get)
    wait = sync_method(Operations.wait)
    jobs = sync_method(Operations.jobs)
    attempts = sync_method(Operations.attempts)
    artifacts = sync_method(Operations.artifacts)
    artifact = sync_method(Operations.artifact)
    counts = sync_method(Operations.counts)
    tally = sync_method(Operations.tally)
    backlog = sync_method(Operations.backlog)
    unserved = sync_method(Operations.unserved)
    events = sync_method(Operations.events)
    workers = sync_method(Operations.workers)
    drain_worker = sync_method(Operations.drain_worker)
    stop_worker = sync_method(Operations.stop_worker)
    report = sync_method(Operations.report)
    cancel = sync_method(Operations.cancel)
    cancel_many = sync_method(Operations.cancel_many)
    requeue = sync_method(Operations.requeue)
    requeue_many = sync_method(Operations.requeue_many)
    requeue_failed = sync_method(Operations.requeue_failed)
    reprioritize = sync_method(Operations.reprioritize)
    kinds = sync_method(Operations.kinds)
    kind = sync_method(Operations.kind)
    retire = sync_method(Operations.retire)
    restore = sync_method(Operations.restore)
    prune = sync_method(Operations.prune)
    lanes = sync_method(Operations.lanes)
    set_lane = sync_method(Operations.set_lane)
    claim_session = leasing_sync_method(Operations.claim_session)
    claim_any_session = leasing_sync_method(Operations.claim_any_session)
    cancel_session = sync_method(Operations.cancel_session)
    open_session = leasing_sync_method(Operations.open_session)
    renew_session = sync_method(Operations.renew_session)
    close_session = sync_method(Operations.close_session)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Open a write transaction; it commits at the end of the block, or rolls back if the block raises.

        It blocks every other writer: keep it short.
        """
        with self._store.transaction() as joined:
            yield Transaction(self._operations, joined)

    def within(self, connection: Any) -> Transaction:
        """Join the write transaction that is open on the caller's *connection* to the same database.

        The caller commits or rolls back. Waiting callers and workers see the changes at their next poll.
        """
        return Transaction(self._operations, self._store.within(connection))

    def migrate(self) -> list[str]:
        """Bring the schema up to date and return the names of the migrations applied."""
        return self._store.migrate()

    def close(self) -> None:
        """Close the store. The next use opens it again; the contents of `:memory:` are lost."""
        self._store.close()

    def __enter__(self) -> Queue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
