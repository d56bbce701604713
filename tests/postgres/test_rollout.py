"""Two versions of the code on one schema, as during a rollout."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg import sql

import holdfast
from holdfast import Done
from holdfast.errors import SchemaMismatch
from holdfast.storage.postgres.migrate import migrations
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
