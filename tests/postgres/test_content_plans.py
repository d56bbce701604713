"""Output, artifacts, uploads, kept dedupe keys, trees, tags and gates are read and changed through indexes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg
import pytest

from holdfast.storage.postgres.sql import texts

NAMES = [
    "output_after",
    "output_ends",
    "output_job",
    "outputs_delete",
    "artifact_of_job",
    "artifacts_of_job",
    "artifacts_delete",
    "inputs_delete",
    "upload_chunks",
    "upload_chunks_delete",
    "upload_write",
    "uploads_by_id",
    "uploads_delete",
    "uploads_expire",
    "uploads_expired",
    "uploads_of_jobs_expire",
    "kept_keys",
    "kept_keys_delete",
    "kept_keys_mark_deleted",
    "jobs_by_root",
    "jobs_by_tags",
    "tags_delete",
    # Dependencies, groups, wake rows, bounded lanes, and why a job waits.
    "children_cancelled",
    "edges_delete",
    "edges_of_children",
    "edges_of_parents",
    "edges_reopen",
    "group_members",
    "groups_of_members",
    "jobs_by_group",
    "lane_waiting",
    "members_end",
    "members_reopen",
    "parents_of_job",
    "pending_children",
    "tree_unfinished",
    "wake_awaited",
    "wake_of_target",
    "wakes_due",
    "why_durations",
    "why_entries",
    "why_ready",
    "why_tenants",
    # Limits by key.
    "gate_offered",
    "gate_offered_jobs",
    "gate_parked",
    "gate_routes",
    "gate_turns",
    "gate_usage_add",
    "gate_usage_take",
    "gates_find",
    "gates_use",
    "jobs_at_gates",
]
VALUES = {
    **dict.fromkeys(("seq", "after", "first", "now", "chunks", "size", "expires_at_ms"), "1"),
    **dict.fromkeys(("id", "name", "upload", "digest", "state"), "17"),
    **dict.fromkeys(("matches_0", "matches_1", "matches_2"), "{17,18}"),
    **dict.fromkeys(("tag", "value"), "17"),
    **dict.fromkeys(("tags_0", "tags_1"), "{17}"),
    "limit": "10",
    **dict.fromkeys(("states", "kind", "lane", "tenant", "failure_class", "aged_before"), None),
    "root": "17",
    "before": "1000000",
    "floor": "0",
    "system_lane": "system",
    **dict.fromkeys(("seqs", "children", "numbers", "routes"), "{1,2}"),
    **dict.fromkeys(("number", "priority", "priorities", "maximum", "route", "session", "enqueue_seq"), "1"),
    **dict.fromkeys(("due_at_ms", "fair_key"), "1"),
    "group": "17",
    "target": "parent",
    "uploads": "{17,18}",
    **dict.fromkeys(("gate", "route", "below"), "17"),
    "first_fair_key": "a",
    **dict.fromkeys(("gates", "pairs_0", "used_0", "used_2"), "{17,18}"),
    **dict.fromkeys(("pairs_1", "used_1"), "{17,18}"),
}
FILL = """
    insert into output (seq, number, part, size, at_ms, epoch, attempt, data)
    select n / 50, n %% 50, n, n, n, 1, 1, 'text' from generate_series(1, 5000) n;
    insert into artifact (seq, size, created_at_ms, epoch, input, name, media_type, digest, upload)
    select n, 1, 1, 1, n %% 2 = 0, 'a', 't', 'd', n::text from generate_series(1, 5000) n;
    insert into upload (size, expires_at_ms, chunks, upload, tenant)
    select 1, case when n %% 10 = 0 then n end, 1, n::text, 't' from generate_series(1, 5000) n;
    insert into upload_chunk (number, upload, data) select 0, n::text, ''::bytea from generate_series(1, 5000) n;
    insert into kept_key (tenant, dedupe_kind, dedupe_key, until_ms, seq, id, route, enqueued_at_ms)
    select (n % 7)::text, 'a', n::text, n, n, n::text, 1, 1 from generate_series(1, 5000) n;
    insert into job (seq, due_at_ms, enqueued_at_ms, route, priority, max_attempts, event_count, record_all, id,
                     state, tenant, fair_key, headers, tags, payload, root)
    select n, n, n, 1, 0, 5, 0, 0, n::text, 'done', 'a', 'a', '{}', '{}', 'null',
           case when n % 10 = 0 then (n / 100)::text end
      from generate_series(1, 5000) n;
    insert into open_job (seq, due_at_ms, gate, route, priority, state, tenant, fair_key)
    select n, n, n / 10, 1, 0, case n % 3 when 0 then 'running' when 1 then 'ready' else 'parked' end, 'a', 'a'
      from generate_series(10001, 15000) n;
    insert into ready_job (seq, due_at_ms, route, priority, tenant, fair_key)
    select n, n, n % 9, 0, 'a', 'a' from generate_series(20001, 25000) n;
    insert into gate (flow_limit, key) select n % 10, n::text from generate_series(1, 5000) n;
    insert into limit_key (seq, key) select n, n::text from generate_series(1, 5000) n;
    insert into gate_usage (gate, amount) select n, n from generate_series(1, 5000) n;
    analyze gate; analyze limit_key; analyze gate_usage; analyze open_job; analyze ready_job;
    insert into tag (seq, tag, value) select n, (n % 5)::text, (n % 50)::text from generate_series(1, 5000) n;
    insert into edge (child, parent, place, on_failed)
    select n / 7 - 300, n, n, 'run' from generate_series(1, 5000) n;
    insert into job_group (created_at_ms, members, done, failed, cancelled, retired, sealed, tenant, name, token)
    select n, 1, 0, 0, 0, 0, 1, 'a', n::text, 't' from generate_series(1, 5000) n;
    insert into wake (at_ms, number, target) select n, n, 'parent' from generate_series(1, 5000) n;
    insert into gate (flow_limit, key) select 99, n::text from generate_series(1, 20) n;
    analyze edge; analyze job_group; analyze wake; analyze gate;
    analyze tag; analyze job; analyze kept_key; analyze output; analyze artifact; analyze upload; analyze upload_chunk
"""


@pytest.fixture
def database(url: str, schema: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'set search_path to "{schema}"')
        for statement in FILL.replace("%%", "%").split(";"):
            connection.execute(statement)
        yield connection
        # No call would store such jobs.
        connection.execute("truncate job, ready_job, open_job")


def test_no_query_scans_a_table_of_content(database: psycopg.Connection, schema: str) -> None:
    queries = texts(schema).reading
    for name in NAMES:
        values = {key: VALUES[key] for key in set(re.findall(r"%\((\w+)\)", queries[name]))}
        plan = "\n".join(line for (line,) in database.execute(f"explain {queries[name]}", values).fetchall())
        tables = "output|artifact|upload|kept_key|job|ready_job|open_job|tag|edge|wake|limit_key|gate_usage"
        assert not re.search(rf"Seq Scan on ({tables})\b", plan), (name, plan)
        assert re.search(r"Index|Bitmap", plan), (name, plan)


@pytest.mark.parametrize("name", ["jobs_by_root", "jobs_by_tags", "jobs_by_fingerprint"])
def test_lists_look_their_jobs_up_one_by_one_until_the_page_is_full(
    database: psycopg.Connection, schema: str, name: str
) -> None:
    query = texts(schema).reading[name]
    known = {**VALUES, "fingerprint": "a", "finished_before": 1 << 60, "finished_floor": 0}
    values = {key: known[key] for key in set(re.findall(r"%\((\w+)\)", query))}
    plan = "\n".join(line for (line,) in database.execute(f"explain {query}", values).fetchall())
    assert "Index Scan using job_pkey on job b" in plan, plan
    # Joined in another way, all jobs of the list would be read and sorted.
    assert not re.search(r"Sort Key: .*(b|job_row|j)\.|Merge Join", plan), plan
