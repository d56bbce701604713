"""Two versions of the code on one schema, as during a rollout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

import holdfast
from holdfast import Done
from holdfast.errors import SchemaMismatch
from holdfast.storage.postgres.migrate import migrations
from tests.chaos.processes import PATIENCE_SECONDS
from tests.support.job_states import claimed

# The schema of a later, additive version: a migration unknown to this code, and more columns and tables.
LATER = (
    "insert into {}.migration values (9999, '9999_later', 'x', 0)",
    "alter table {}.job add column later text",
    "alter table {}.event add column later text default 'x'",
    "create table {}.later (x int)",
    "create index later_job on {}.job (later) where later is not null",
)
# The schema of a later version that older code must not use.
BREAKING = ("update {}.meta set value = '99.0.0' where name = 'code_version_min'",)


@pytest.fixture
def apply(url: str, schema: str) -> Callable[[tuple[str, ...]], None]:
    def apply(statements: tuple[str, ...]) -> None:
        with psycopg.connect(url) as connection:
            for statement in statements:
                query = sql.SQL(statement).format(sql.Identifier(schema))
                connection.execute(query)

    return apply


def _live(queue: holdfast.Queue) -> None:
    queue.enqueue("mail", events="all")
    queue.enqueue_many([{"kind": "mail"}] * 600)
    claim = claimed(queue)
    queue.heartbeat(claim)
    assert queue.settle(claim, Done()).state == "done"
    assert queue.events().events


def test_a_newer_schema_that_still_admits_this_code_is_used(
    queue: holdfast.Queue, url: str, schema: str, apply: Callable[[tuple[str, ...]], None]
) -> None:
    queue.migrate()
    apply(LATER)
    late = holdfast.connect(url, schema=schema)
    assert late.migrate() == []
    _live(late)
    late.close()


@pytest.mark.slow("a server or processes of its own are started")
def test_a_queue_that_was_open_goes_on_while_the_schema_grows(
    queue: holdfast.Queue, apply: Callable[[tuple[str, ...]], None]
) -> None:
    # Often enough for every statement to be prepared with the old columns.
    for _ in range(8):
        _live(queue)
    apply(LATER)
    for _ in range(8):
        _live(queue)


def test_a_schema_that_needs_newer_code_is_refused(
    queue: holdfast.Queue, url: str, schema: str, apply: Callable[[tuple[str, ...]], None]
) -> None:
    queue.migrate()
    apply(BREAKING)
    with pytest.raises(SchemaMismatch, match=r"99\.0\.0"):
        holdfast.connect(url, schema=schema).enqueue("mail")
    with pytest.raises(SchemaMismatch, match=r"99\.0\.0"):
        holdfast.connect(url, schema=schema, migrate=False).enqueue("mail")


def test_an_applied_migration_that_was_edited_is_noticed(
    url: str, schema: str, apply: Callable[[tuple[str, ...]], None]
) -> None:
    [first, *_] = [migration.name for migration in migrations()]
    apply(("update {}.migration set checksum = 'another' where number = 1",))
    with pytest.raises(SchemaMismatch, match=first):
        holdfast.connect(url, schema=schema).enqueue("mail")


# --- a later version of the code -----------------------------------------------------------------------------------

_PACKAGE = Path(holdfast.__file__).resolve().parent
# A second migration: a column and a table that older code does not know, and a plain form in a second version.
_SECOND = """-- Remarks on finished jobs, written by the second version of the function that settles.
alter table holdfast.job add column remark text;
create table holdfast.remark (seq bigint primary key, remark text not null);
create index job_remark on holdfast.job (remark) where remark is not null;
create function holdfast.settle_2(
    clock_ms bigint, lease_clock_ms bigint, seqs bigint[], epochs integer[], tokens text[], results text[],
    started_seqs bigint[], started_epochs integer[], started_tokens text[]
) returns table (
    wall_ms bigint, settled_seqs bigint[], priority integer, phase text, percent double precision,
    cancel_requested smallint, event_count integer
) language plpgsql volatile as
$$
#variable_conflict use_column
begin
    insert into holdfast.remark (seq, remark) select s.seq, 'settled by the second' from unnest(seqs) as s (seq);
    return query
    select * from holdfast.settle_1(
        clock_ms, lease_clock_ms, seqs, epochs, tokens, results, started_seqs, started_epochs, started_tokens
    );
end
$$;
"""
# Runs jobs and turns of sessions, its own and those of others, and prints what it has settled.
_WORK = """
import json, sys
import holdfast
url, schema, name, rounds = *sys.argv[1:4], int(sys.argv[4])
settled = []
with holdfast.connect(url, schema=schema) as queue:
    for number in range(rounds):
        queue.enqueue("mail", {"from": name}, job_id=f"{name}-{number}")
        queue.enqueue("chat", {"from": name}, job_id=f"{name}-turn-{number}", session=f"s{number % 3}")
        claims = queue.claim_many(limit=2, lease=3600)
        settled += [one.job.id for one in queue.settle_many([(claim, holdfast.Done()) for claim in claims])]
        turn = queue.sessions.claim_next(lease=3600)
        if turn is not None:
            settled += [job.id for job in queue.sessions.settle(turn, holdfast.Done())]
print(json.dumps({"version": holdfast.__version__, "settled": settled}))
"""


def _later_version(folder: Path) -> Path:
    """Make another version of the package, with the second migration and a statement that uses it."""
    package = folder / "holdfast"
    shutil.copytree(_PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "version.py").write_text('"""Another version."""\n\n__version__ = "9.0.0"\n')
    storage = package / "storage" / "postgres"
    (storage / "migrations" / "9000_remarks.sql").write_text(_SECOND)
    settle = storage / "queries" / "settle.sql"
    settle.write_text(settle.read_text().replace("holdfast.settle_1(", "holdfast.settle_2("))
    return folder


def _start(code: Path, url: str, schema: str, name: str, rounds: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _WORK, url, schema, name, str(rounds)]
    environment = {**os.environ, "PYTHONPATH": str(code)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=code)


def _end(process: subprocess.Popen[str]) -> Any:
    said, _ = process.communicate(timeout=PATIENCE_SECONDS)
    return json.loads(said)


@pytest.mark.slow("two versions run in processes")
def test_an_older_version_works_beside_a_newer_one_on_its_schema(
    queue: holdfast.Queue, url: str, schema: str, tmp_path: Path
) -> None:
    queue.migrate()
    current, later = _PACKAGE.parent, _later_version(tmp_path)
    # The older one has its statements prepared when the newer one migrates.
    processes = [_start(current, url, schema, "old", 15), _start(later, url, schema, "new", 15)]
    _live(queue)
    said = [_end(process) for process in processes]
    _live(queue)

    assert [one["version"] for one in said] == [holdfast.__version__, "9.0.0"]
    settled = [job_id for one in said for job_id in one["settled"]]
    assert len(settled) == len(set(settled))
    assert {queue.get(job_id).state for job_id in settled} == {"done"}
    with psycopg.connect(url) as connection:
        query = sql.SQL("select count(*) from {}.remark").format(sql.Identifier(schema))
        [remarks] = connection.execute(query).fetchone() or [0]
    assert remarks == len(said[1]["settled"])
