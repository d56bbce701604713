"""`context.transaction`: the writes of a handler and the settlement of its job commit together, or neither does."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pytest

from holdfast import Context, Misconfigured, Queue
from holdfast.client.queue_state import state_of
from holdfast.worker.attempt import RunningAttempt
from holdfast.worker.executors import run_blocking
from holdfast.worker.transactions import offer_transaction
from tests.chaos.threads import wait_until
from tests.support.claims import claim_one
from tests.support.faults import Crashed
from tests.support.stores import Harness
from tests.worker.workers import comes, running_worker, wait_finished, wait_for_event

COLOURS = pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaited"])
INSERT = "insert into sums (value) values (1)"


class Sums:
    """A task that writes to its own table within its transaction."""

    def __init__(self, harness: Harness, *, awaited: bool, seconds: float = 5, **options: Any) -> None:
        self.queue = harness.open()
        with self.queue.transaction() as transaction:
            transaction.execute("create table sums (value integer primary key)")
        self.written, self.proceed = threading.Event(), threading.Event()
        self.proceed.set()
        self.error: Exception | None = None
        self.seconds = seconds
        self.queue.task("sum", **options)(self._awaited() if awaited else self._blocking())

    def _blocking(self) -> Any:
        def add(context: Context) -> str:
            with context.transaction(timeout=self.seconds) as transaction:
                transaction.execute(INSERT)
                transaction.enqueue("next", {})
                self.written.set()
                wait_for_event(self.proceed)
                if self.error is not None:
                    raise self.error
            return "added"

        return add

    def _awaited(self) -> Any:
        async def add(context: Context) -> str:
            async with context.transaction(timeout=self.seconds) as transaction:
                await transaction.execute(INSERT)
                await transaction.enqueue("next", {})
                self.written.set()
                await comes(self.proceed)
                if self.error is not None:
                    raise self.error
            return "added"

        return add

    @property
    def rows(self) -> int:
        """Return the number of rows in the task's table, which equals the number of follow-ups."""
        with self.queue.transaction() as transaction:
            [[count]] = transaction.execute("select count(*) from sums")
        assert len(self.queue.jobs(kind="next").jobs) == count
        return int(count)


@COLOURS
def test_the_traceback_names_the_line_that_raised_within_the_block(harness: Harness, awaited: bool) -> None:
    sums = Sums(harness, awaited=awaited, max_attempts=1)
    sums.error = ValueError("no")
    enqueued = sums.queue.enqueue("sum", {})
    with running_worker(sums.queue):
        failure = wait_finished(sums.queue, enqueued.id).failure

    assert failure is not None
    assert "in add\n    raise self.error" in (failure.traceback or "")


@COLOURS
def test_writes_and_settlement_arrive_together(harness: Harness, awaited: bool) -> None:
    sums = Sums(harness, awaited=awaited)
    enqueued = sums.queue.enqueue("sum", {})
    with running_worker(sums.queue) as working:
        job = wait_finished(sums.queue, enqueued.id)
        wait_until(lambda: working.worker.status().ended == {"done": 1})

    assert (job.state, job.result) == ("done", "added")
    assert sums.rows == 1
    assert [(one.kind, one.parent) for one in sums.queue.jobs(root=job.id)] == [("next", job.id), ("sum", None)]


@COLOURS
def test_an_error_undoes_the_writes(harness: Harness, awaited: bool) -> None:
    sums = Sums(harness, awaited=awaited)
    sums.error = ValueError("not today")
    enqueued = sums.queue.enqueue("sum", {}, max_attempts=1)
    with running_worker(sums.queue):
        job = wait_finished(sums.queue, enqueued.id)

    assert job.failure is not None
    assert job.failure.reason == "value_error"
    assert sums.rows == 0


@COLOURS
def test_a_transaction_that_is_open_for_too_long_is_undone_while_its_handler_hangs(
    harness: Harness, awaited: bool
) -> None:
    sums = Sums(harness, awaited=awaited, seconds=0.1)
    sums.proceed.clear()
    enqueued = sums.queue.enqueue("sum", {}, max_attempts=1)
    with running_worker(sums.queue):
        wait_for_event(sums.written)
        # If it were still open, no other call could write on SQLite until its handler returns.
        sums.queue.enqueue("other", {})
        sums.proceed.set()
        job = wait_finished(sums.queue, enqueued.id)

    assert job.failure is not None
    assert (job.failure.failure_class, job.failure.reason) == ("transient", "transaction_timeout")
    assert sums.rows == 0


@COLOURS
def test_a_lease_lost_meanwhile_refuses_all(harness: Harness, awaited: bool) -> None:
    sums = Sums(harness, awaited=awaited)
    sums.proceed.clear()
    enqueued = sums.queue.enqueue("sum", {})
    with running_worker(sums.queue, concurrency=1) as working:
        wait_for_event(sums.written)
        harness.clock.advance(60)
        sums.proceed.set()
        wait_until(lambda: working.worker.status().ended == {"lost": 1, "done": 1})

    # If the first commit had not been refused, the second would have violated the table's key.
    assert [attempt.outcome for attempt in sums.queue.attempts(enqueued.id)] == ["expired", "done"]
    assert sums.rows == 1


@COLOURS
def test_a_commit_that_the_callers_own_table_refuses_is_a_failure(harness: Harness, awaited: bool) -> None:
    sums = Sums(harness, awaited=awaited)
    enqueued = [sums.queue.enqueue("sum", {}, max_attempts=1) for _ in range(2)]
    with running_worker(sums.queue, concurrency=1):
        states = sorted(wait_finished(sums.queue, one.id).state for one in enqueued)

    # The second violates the key of the first, and its settlement as done is rolled back with it.
    assert states == ["done", "failed"]
    assert sums.rows == 1


@COLOURS
def test_there_is_one_transaction_for_each_attempt(harness: Harness, awaited: bool) -> None:
    queue = harness.open()
    refusals: list[Exception] = []

    def twice(context: Context) -> None:
        with context.transaction():
            pass
        try:
            with context.transaction():
                pass
        except Misconfigured as error:
            refusals.append(error)

    async def twice_awaited(context: Context) -> None:
        async with context.transaction():
            pass
        try:
            async with context.transaction():
                pass
        except Misconfigured as error:
            refusals.append(error)

    queue.task("twice")(twice_awaited if awaited else twice)
    enqueued = queue.enqueue("twice", {})
    with running_worker(queue):
        assert wait_finished(queue, enqueued.id).state == "done"

    assert len(refusals) == 1


@COLOURS
def test_after_its_end_a_transaction_takes_no_more(harness: Harness, awaited: bool) -> None:
    sums = Sums(harness, awaited=awaited)
    transactions: list[Any] = []

    def keep(context: Context) -> None:
        with context.transaction() as transaction:
            transactions.append(transaction)

    sums.queue.task("keep")(keep)
    enqueued = sums.queue.enqueue("keep", {})
    with running_worker(sums.queue):
        wait_finished(sums.queue, enqueued.id)

    with pytest.raises(Misconfigured):
        transactions[0].execute(INSERT)
    assert sums.rows == 0


def _attempt(queue: Queue) -> RunningAttempt:
    """Claim a job as a worker would, for the test to run."""
    claim = claim_one(queue, lease=30)
    attempt = RunningAttempt(claim, state_of(queue).tasks.get(claim.job.kind), 0.0)
    offer_transaction(attempt, state_of(queue))
    return attempt


def test_no_crash_parts_the_writes_from_the_settlement(durable_harness: Harness) -> None:
    harness = durable_harness
    sums = Sums(harness, awaited=False)
    states: list[str] = []
    while "done" not in states:
        enqueued = sums.queue.enqueue("sum", {})
        attempt = _attempt(sums.queue)
        harness.faults.crash_before(len(states) + 1)
        with suppress(Crashed):
            run_blocking(attempt)
        del attempt
        queue = harness.reopen()
        state_of(queue).tasks.add(*state_of(sums.queue).tasks)
        sums.queue = queue
        states.append(queue.get(enqueued.id).state)
        assert sums.rows == (states[-1] == "done")

    # Every statement from the start of the block to the commit was once the last one.
    assert len(states) > 5
    assert set(states[:-1]) == {"running"}
