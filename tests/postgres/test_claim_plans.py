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
    "jobs_waiting_on_routes",
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
READY = [
    "ready_affinities",
    "ready_fair_keys",
    "ready_fair_keys_beside",
    "ready_heads",
    "ready_heads_beside",
    "ready_heads_of_tenant",
    "ready_heads_of_tenant_beside",
    "ready_tops",
    "ready_tops_of_tenant",
    "ready_tops_of_tenant_strict",
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
    "routes": "{1,2}",
    "prefixes_1": "{message,command}",
}
READY_VALUES = {
    "routes": "{1,2}",
    "tenant": "3",
    "priority": "1",
    "limit": "5",
    "taken": "{}",
    **dict.fromkeys(("last_fair_key", "after"), "3"),
    **dict.fromkeys(("affinities", "prefixes_2"), "{3,9}"),
    "prefixes_0": "{1,1}",
    "prefixes_1": "{3,9}",
    **dict.fromkeys(("lows_0", "lows_1"), "{-1,-1}"),
    "position_priorities": "{1,0}",
    "position_fair_keys": "{3,3}",
    **dict.fromkeys(("position_dues", "position_seqs"), "{17,17}"),
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
    insert into ready_job (seq, due_at_ms, route, priority, again, tenant, fair_key, affinity)
    select n, n, n % 3 + 1, n % 2, n % 5 / 4, (n % 7)::text, case when n % 4 > 0 then (n % 50)::text else '' end,
           case when n % 3 = 0 then (n % 40)::text end
      from generate_series(1, 5000) n;
    insert into lease (until_ms, worker, token, seqs)
    select n, n::text, n::text, array[n] from generate_series(1, 5000) n;
    insert into session (tenant, name, lease_until_ms, head_route, head_entry_type, head_fair_key, head_seq)
    select (n % 7)::text, n::text, n, 1, 'message', (n % 50)::text, n from generate_series(1, 5000) n;
    insert into session_message_id (session, seq, enqueue_seq, enqueued_at_ms, route, message_id, id, entry)
    select n, n, n, n, 1, n::text, n::text, '' from generate_series(1, 5000) n;
    insert into event (xid, at_ms, route, number, attempt, epoch, name, tenant, tags, state, job_ids)
    select n::text::xid8, n, 1, 1, 1, 1, 'done', 'a', '{}', 'done', array[n::text] from generate_series(1, 500) n;
    analyze route, job, ready_job, open_job, lease, session, session_message_id, event
"""


@pytest.fixture
def database(url: str, schema: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'set search_path to "{schema}"')
        for statement in FILL.split(";"):
            connection.execute(statement.encode())
        yield connection
        # No call would store such rows.
        connection.execute("truncate route, job, ready_job, open_job, lease, session, session_message_id, event")


def rows_read(plan: dict[str, Any]) -> int:
    """Return the number of rows that the part of a plan which reads most has read."""
    here = plan["Actual Loops"] * (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0))
    return int(max([here, *map(rows_read, plan.get("Plans", []))]))


def explained(database: psycopg.Connection, text: str, given: dict[str, str] = VALUES) -> dict[str, Any]:
    values = {name: given[name] for name in set(re.findall(r"%\((\w+)\)", text))}
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


@pytest.mark.parametrize("name", READY)
def test_a_claim_reads_few_ready_jobs(database: psycopg.Connection, schema: str, name: str) -> None:
    with database.transaction(force_rollback=True):
        database.execute("select begin_ms(1000)")
        plan = explained(database, texts(schema).writing[name], READY_VALUES)
    assert rows_read(plan) <= ROWS_MAX, plan
