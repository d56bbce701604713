"""`Queue`: the blocking face. Safe to share between threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from holdfast.client import validate_calls
from holdfast.client.methods import blocking, leasing
from holdfast.client.operations import Operations
from holdfast.storage.store import Joined, Store
from holdfast.tasks.decorators import BlockingHost


class Transaction:
    """Operations that join an open transaction: they commit with it or not at all.

    A refused operation leaves nothing behind, so that the caller may catch the error and go on.
    """

    def __init__(self, operations: Operations, joined: Joined) -> None:
        self._operations = operations.sync_on(joined)
        self._joined = joined

    enqueue = blocking(Operations.enqueue)
    enqueue_many = blocking(Operations.enqueue_many)
    heartbeat = blocking(Operations.heartbeat)
    progress = blocking(Operations.progress)
    attach = blocking(Operations.attach)
    settle = blocking(Operations.settle)
    settle_many = blocking(Operations.settle_many)
    get = blocking(Operations.get)
    cancel = blocking(Operations.cancel)
    requeue = blocking(Operations.requeue)
    reprioritize = blocking(Operations.reprioritize)

    def execute(self, sql: str, values: Any = ()) -> list[Any]:
        """Run the caller's own SQL in the transaction and return the rows."""
        return self._joined.execute(sql, values)


class Queue(BlockingHost):
    """A durable work queue. Opens, creates and migrates its store on first use."""

    def __init__(self, store: Store, operations: Operations | None = None) -> None:
        if not isinstance(operations, Operations):
            raise validate_calls.not_connected("connect")
        super().__init__()
        self._use(store, operations)

    def _use(self, store: Store, operations: Operations) -> None:
        """Run operations on *store* from now on."""
        self._store = store
        self._operations = operations.for_tasks(self.tasks).sync_on(store)

    def __repr__(self) -> str:
        return f"<Queue on {self._store!r}>"

    @property
    def store(self) -> Store:
        """The store itself, for a worker: it needs connections of its own."""
        return self._store

    @property
    def operations(self) -> Operations:
        """The operations without colour, for a worker."""
        return self._operations

    enqueue = blocking(Operations.enqueue)
    enqueue_many = blocking(Operations.enqueue_many)
    claim = leasing(Operations.claim)
    claim_many = leasing(Operations.claim_many)
    heartbeat = blocking(Operations.heartbeat)
    heartbeat_many = blocking(Operations.heartbeat_many)
    acknowledge = blocking(Operations.acknowledge)
    progress = blocking(Operations.progress)
    attach = blocking(Operations.attach)
    settle = blocking(Operations.settle)
    settle_many = blocking(Operations.settle_many)
    settle_and_claim = leasing(Operations.settle_and_claim)
    get = blocking(Operations.get)
    wait = blocking(Operations.wait)
    jobs = blocking(Operations.jobs)
    attempts = blocking(Operations.attempts)
    artifacts = blocking(Operations.artifacts)
    artifact = blocking(Operations.artifact)
    counts = blocking(Operations.counts)
    tally = blocking(Operations.tally)
    backlog = blocking(Operations.backlog)
    unserved = blocking(Operations.unserved)
    events = blocking(Operations.events)
    workers = blocking(Operations.workers)
    report = blocking(Operations.report)
    cancel = blocking(Operations.cancel)
    cancel_many = blocking(Operations.cancel_many)
    requeue = blocking(Operations.requeue)
    requeue_many = blocking(Operations.requeue_many)
    requeue_failed = blocking(Operations.requeue_failed)
    reprioritize = blocking(Operations.reprioritize)
    kinds = blocking(Operations.kinds)
    retire = blocking(Operations.retire)
    restore = blocking(Operations.restore)
    prune = blocking(Operations.prune)
    lanes = blocking(Operations.lanes)
    set_lane = blocking(Operations.set_lane)
    claim_session = leasing(Operations.claim_session)
    claim_any_session = leasing(Operations.claim_any_session)
    cancel_session = blocking(Operations.cancel_session)
    open_session = leasing(Operations.open_session)
    renew_session = blocking(Operations.renew_session)
    close_session = blocking(Operations.close_session)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Open a write transaction; it commits at the end of the block, or rolls back if that raises.

        It holds up every other writer: keep it short.
        """
        with self._store.transaction() as joined:
            yield Transaction(self._operations, joined)

    def within(self, connection: Any) -> Transaction:
        """Join the write transaction that is open on the caller's own *connection* to the same database.

        Commit and rollback stay the caller's. Others notice at poll latency.
        """
        return Transaction(self._operations, self._store.within(connection))

    def migrate(self) -> list[str]:
        """Bring the schema up to date and return the names of the migrations applied."""
        return self._store.migrate()

    def close(self) -> None:
        """Close the store. A queue that is used again opens it again; what was in memory is gone."""
        self._store.close()

    def __enter__(self) -> Queue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
