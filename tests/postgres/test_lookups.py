"""Statements find jobs by number, id, tree or session in `job`, by anything else in `ready_job` and `open_job`."""

from __future__ import annotations

import re

import psycopg
import pytest

import holdfast
from holdfast import Done
from holdfast.storage.postgres.sql import QUERIES
from tests.support.index_reads import entries_read, wait_for_ends

# They count all jobs.
COUNTS = {"counts_by_kind", "counts_by_lane", "counts_by_state", "counts_by_tenant", "jobs_count"}
JOBS = ("job_pkey",)
LOOKUP = re.compile(r"(?:from|join|update) holdfast\.job\b(?! j\b.{0,40}\bset\b)[^;]{0,320}", re.DOTALL)


@pytest.mark.parametrize("name", sorted(name for name, text in QUERIES.items() if "holdfast.job " in text))
def test_a_statement_reads_all_jobs_only_to_count_them(name: str) -> None:
    text = re.sub(r"holdfast\.job\n", "holdfast.job ", QUERIES[name])
    for found in LOOKUP.findall(text):
        assert name in COUNTS or re.search(r"\b(seq|id|root|session)\b", found), found


@pytest.mark.slow("it stores thousands of jobs")
def test_a_claim_and_a_list_read_the_jobs_that_they_return(url: str, schema: str, queue: holdfast.Queue) -> None:
    queue.enqueue_many([{"kind": "mail"} for _ in range(3_000)])
    claims = queue.claim_many(limit=1_000)
    for start in range(0, 1_000, 50):
        queue.settle_many([(claim, Done()) for claim in claims[start : start + 50]])
    queue.close()
    with psycopg.connect(url, autocommit=True) as connection:
        # With these statistics it appears cheaper to read all jobs in the order of their numbers.
        connection.execute(f"vacuum analyze {schema}.job, {schema}.ready_job, {schema}.ended".encode())
    wait_for_ends(url)
    before = entries_read(url, schema, JOBS)
    with holdfast.connect(url, schema=schema) as client:
        assert len(client.claim_many(limit=10)) == len(client.jobs(state="done", limit=10).jobs) == 10
    wait_for_ends(url)
    assert 0 < entries_read(url, schema, JOBS) - before < 300


def test_an_enqueue_of_a_plain_job_opens_few_indexes(url: str, schema: str, queue: holdfast.Queue) -> None:
    """An insert opens all indexes of a table, also partial ones that do not get the row: rare ones are elsewhere."""
    queue.enqueue("mail")
    with psycopg.connect(url) as connection:
        counts = """select relname, count(indexrelid) from pg_class left join pg_index on indrelid = pg_class.oid
                     where relnamespace = %s::regnamespace and relkind = 'r' and relname in ('job', 'ready_job')
                     group by relname order by relname"""
        indexes = connection.execute(counts, [schema]).fetchall()
        rows = connection.execute(f"select count(*) from {schema}.open_job".encode()).fetchall()
    assert (indexes, rows) == ([("job", 4), ("ready_job", 6)], [(0,)])
