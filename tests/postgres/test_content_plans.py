"""Output, artifacts and uploads are read, changed and deleted through indexes."""

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
]
VALUES = {
    **dict.fromkeys(("seq", "after", "first", "now", "chunks", "size", "expires_at_ms"), "1"),
    **dict.fromkeys(("id", "name", "upload", "digest"), "17"),
    "limit": "10",
    "seqs": "{1,2}",
    "uploads": "{17,18}",
}
FILL = """
    insert into output (seq, number, part, size, at_ms, epoch, attempt, data)
    select n / 50, n %% 50, n, n, n, 1, 1, 'text' from generate_series(1, 5000) n;
    insert into artifact (seq, size, created_at_ms, epoch, input, name, media_type, digest, upload)
    select n, 1, 1, 1, n %% 2 = 0, 'a', 't', 'd', n::text from generate_series(1, 5000) n;
    insert into upload (size, expires_at_ms, chunks, upload, tenant)
    select 1, case when n %% 10 = 0 then n end, 1, n::text, 't' from generate_series(1, 5000) n;
    insert into upload_chunk (number, upload, data) select 0, n::text, ''::bytea from generate_series(1, 5000) n;
    analyze output; analyze artifact; analyze upload; analyze upload_chunk
"""


@pytest.fixture
def database(url: str, schema: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'set search_path to "{schema}"')
        for statement in FILL.replace("%%", "%").split(";"):
            connection.execute(statement)
        yield connection


def test_no_query_scans_a_table_of_content(database: psycopg.Connection, schema: str) -> None:
    queries = texts(schema).reading
    for name in NAMES:
        values = {key: VALUES[key] for key in set(re.findall(r"%\((\w+)\)", queries[name]))}
        plan = "\n".join(line for (line,) in database.execute(f"explain {queries[name]}", values).fetchall())
        assert not re.search(r"Seq Scan on (output|artifact|upload)", plan), (name, plan)
        assert re.search(r"Index|Bitmap", plan), (name, plan)
