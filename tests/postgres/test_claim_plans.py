"""What maintenance, sessions and readers of events look at is found through indexes, and not by reading all of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast.storage.postgres.sql import texts

ROWS_MAX = 100
"""How many rows a part of a statement may read; the tables have 5,000, or 500 events."""
WRITING = [
    "claim_next_times",
    "jobs_due",
    "jobs_expired",
    "jobs_expired_of_worker",
    "jobs_held",
    "jobs_past_deadline",
    "jobs_succeeding",
    "message_ids_seen",
    "session_by_name",
    "session_due",
    "session_entries_in_order",
    "session_entries_waiting",
    "session_expired",
    "session_fair_keys",
    "session_first_entries",
    "session_first_ready",
    "session_heads",
    "session_heads_of_tenant",
    "session_next_time",
    "session_running",
    "session_running_entries",
    "sessions_by_name",
    "sessions_by_number",
    "sessions_expired",
]
READING = ["event_last", "events_after", "events_held_back", "sessions_page", "sessions_page_of_tenant"]
VALUES = {
    **dict.fromkeys(("session", "after", "now", "event"), "17"),
    **dict.fromkeys(("worker", "incarnation", "lease_token", "name"), "17"),
    "tenant": "3",
    "limit": "10",
    "last_fair_key": "3",
    "transaction": "0",
    **dict.fromkeys(("seqs", "sessions", "numbers"), "{17,18}"),
    **dict.fromkeys(("names_0", "prefixes_2"), "{3,4}"),
    **dict.fromkeys(("names_1", "message_ids"), "{17,18}"),
    "prefixes_0": "{1,1}",
    "prefixes_1": "{message,command}",
}
FILL = """
    insert into route (lane, kind, requires, has_affinity, session)
    select 'l', n::text, '[]', 0, 1 from generate_series(1, 9) n;
    insert into job (seq, due_at_ms, enqueued_at_ms, route, priority, max_attempts, event_count, record_all, id,
                     state, tenant, fair_key, headers, tags, payload, session, enqueue_seq, entry, deadline_at_ms,
                     worker, incarnation, lease_token, lease_until_ms, predecessor)
    select n, n, n, 1, 0, 5, 0, 0, n::text, s.state, (n % 7)::text, '', '{}', '{}', 'null', n / 5, n,
           '["a", "message", true, null]', n, n::text, n::text, n::text, n, n - 1
      from generate_series(1, 5000) n,
           lateral (select (array['ready', 'running', 'scheduled', 'blocked'])[n % 4 + 1] as state) s;
    insert into open_job (seq, due_at_ms, deadline_at_ms, session, enqueue_seq, route, priority, epoch, state, tenant,
                          fair_key, predecessor)
    select seq, due_at_ms, deadline_at_ms, session, enqueue_seq, route, 0, 1, state, tenant, '', predecessor from job;
    insert into lease (until_ms, worker, token, seqs)
    select n, n::text, n::text, array[n] from generate_series(1, 5000) n;
    insert into session (tenant, name, lease_until_ms, head_route, head_entry_type, head_fair_key, head_seq)
    select (n % 7)::text, n::text, n, 1, 'message', (n % 50)::text, n from generate_series(1, 5000) n;
    insert into session_message_id (session, seq, enqueue_seq, enqueued_at_ms, route, message_id, id, entry)
    select n, n, n, n, 1, n::text, n::text, '' from generate_series(1, 5000) n;
    insert into event (xid, at_ms, route, number, attempt, epoch, name, tenant, tags, state, job_ids)
    select n::text::xid8, n, 1, 1, 1, 1, 'done', 'a', '{}', 'done', array[n::text] from generate_series(1, 500) n;
    analyze route, job, open_job, lease, session, session_message_id, event
"""


@pytest.fixture
def database(url: str, schema: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'set search_path to "{schema}"')
        for statement in FILL.split(";"):
            connection.execute(statement.encode())
        yield connection
        # No call would store such rows.
        connection.execute("truncate route, job, open_job, lease, session, session_message_id, event")


def rows_read(plan: dict[str, Any]) -> int:
    """Return the number of rows that the part of a plan which reads most has read."""
    here = plan["Actual Loops"] * (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0))
    return int(max([here, *map(rows_read, plan.get("Plans", []))]))


def explained(database: psycopg.Connection, text: str) -> dict[str, Any]:
    values = {name: VALUES[name] for name in set(re.findall(r"%\((\w+)\)", text))}
    [[[found]]] = database.execute(f"explain (analyze, format json) {text}".encode(), values).fetchall()
    plan: dict[str, Any] = found["Plan"]
    return plan


def test_no_statement_reads_more_than_it_returns(database: psycopg.Connection, schema: str) -> None:
    for name in READING:
        plan = explained(database, texts(schema).reading[name])
        assert rows_read(plan) <= ROWS_MAX, (name, plan)
    for name in WRITING:
        with database.transaction(force_rollback=True):
            database.execute("select begin_ms(1000)")
            plan = explained(database, texts(schema).writing[name])
        assert rows_read(plan) <= ROWS_MAX, (name, plan)
