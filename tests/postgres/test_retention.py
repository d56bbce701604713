"""Pruning reads each index entry once, even if the server keeps the entries of deleted rows."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

import holdfast
from holdfast import Done
from holdfast.types import Pruned
from tests.support.clock import ManualClock
from tests.support.index_reads import entries_read, wait_for_ends

JOBS = 1_000
# Jobs that are settled together have one row in the list and one in the log.
BATCH = 5


@pytest.fixture
def pinned(url: str, schema: str) -> Iterator[None]:
    """An open read-only transaction: the server keeps the index entries of deleted rows, and holds no event back."""
    with psycopg.connect(url) as connection:
        connection.execute("set transaction isolation level repeatable read, read only")
        connection.execute("select 1")
        yield


def test_pruning_reads_each_row_of_the_list_and_of_the_log_twice_under_a_pinned_snapshot(
    pinned: None, url: str, schema: str
) -> None:
    clock = ManualClock()
    with holdfast.connect(url, schema=schema, clock=clock) as queue:
        queue.enqueue_many([{"kind": "mail"} for _ in range(JOBS)])
        claims = queue.claim_many(limit=JOBS)
        for start in range(0, JOBS, BATCH):
            queue.settle_many([(claim, Done()) for claim in claims[start : start + BATCH]])
            clock.advance(0.002)
        clock.advance(61)
    wait_for_ends(url)
    before = {name: entries_read(url, schema, [name]) for name in ("ended_pkey", "event_pkey")}
    with holdfast.connect(url, schema=schema, clock=clock) as queue:
        assert queue.admin.prune(older_than=60) == Pruned(JOBS, JOBS)
    wait_for_ends(url)
    read = {name: entries_read(url, schema, [name]) - count for name, count in before.items()}

    # To find it, and to delete it; a chunk may begin within a row.
    assert JOBS / BATCH <= read["ended_pkey"] <= 2.2 * JOBS / BATCH
    assert JOBS / BATCH <= read["event_pkey"] <= 2.2 * JOBS / BATCH


def test_pruning_calls_no_function_for_each_job(url: str, schema: str) -> None:
    """A function with subqueries is not inlined: calling it would take longer than to find the job."""
    with holdfast.connect(url, schema=schema) as queue:
        queue.enqueue_many([{"kind": "mail", "job_id": f"job-{number}"} for number in range(10)])
        queue.enqueue("mail", job_id="child", after=["job-3"], priority=-1)
        queue.settle_many([(claim, Done()) for claim in queue.claim_many(limit=10)])
    with psycopg.connect(url) as connection:
        connection.execute("set track_functions = 'all'")
        found = connection.execute(
            f"select id from {schema}.jobs_to_delete_1('done', 0, 0, {2**52}, 100) join {schema}.job using (seq)"
        )
        assert {job_id for (job_id,) in found} == {f"job-{number}" for number in range(10) if number != 3}
        calls = connection.execute(
            "select funcname, calls from pg_stat_xact_user_functions where schemaname = %s", [schema]
        )
        assert dict(calls.fetchall()) == {"jobs_to_delete_1": 1}
