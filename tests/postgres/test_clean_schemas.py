"""A schema that a test has returned is equivalent to a new one, regardless of the test's changes."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

import holdfast
from holdfast import Done
from tests.support import postgres_schemas


def use(url: str, schema: str) -> None:
    with holdfast.connect(url, schema=schema) as queue:
        queue.lanes.set("slow", order="strict")
        queue.kinds.retire("old")
        queue.enqueue("mail", lane="slow")
        queue.enqueue("chat", session="one")
        claim = queue.claim(lanes=["slow"])
        assert claim is not None
        queue.settle(claim, Done())
        with queue.transaction() as tx:
            tx.execute(f"create table {schema}.orders (id integer)")


def contents(url: str, schema: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of all tables and the state of all sequences, except the identity of the store."""
    relations = "select relname from pg_class where relnamespace = %s::regnamespace and relkind in ('r', 'S')"
    rows: dict[str, list[tuple[Any, ...]]] = {}
    with psycopg.connect(url) as connection:
        for (name,) in connection.execute(relations, [schema]).fetchall():
            rows[name] = connection.execute(f"select * from {schema}.{name}".encode()).fetchall()
    rows["meta"] = sorted(row for row in rows["meta"] if row[0] != "identity")
    rows["migration"] = [row[:3] for row in rows["migration"]]
    # A sequence also stores how many values were logged ahead, which is irrelevant here.
    return {
        name: [(*row[:1], *row[2:]) if len(row) == 3 and name.endswith("seq") else row for row in found]
        for name, found in rows.items()
    }


def test_a_returned_schema_looks_like_a_new_one(url: str) -> None:
    used, other = postgres_schemas.take(), postgres_schemas.take()
    fresh = contents(url, other)
    use(url, used)
    assert contents(url, used) != fresh
    postgres_schemas.give_back(used)
    assert postgres_schemas.take() == used
    assert contents(url, used) == fresh
    for name in (used, other):
        postgres_schemas.give_back(name)


def test_the_identity_of_the_store_is_a_new_one(url: str) -> None:
    query = "select value from {}.meta where name = 'identity'"
    with postgres_schemas.migrated_schema() as schema, psycopg.connect(url) as connection:
        [before] = connection.execute(query.format(schema).encode()).fetchall()
    with postgres_schemas.migrated_schema() as again, psycopg.connect(url) as connection:
        assert again == schema
        assert connection.execute(query.format(schema).encode()).fetchall() != [before]


@pytest.mark.parametrize(
    "alteration",
    [
        "alter table {0}.job add column remark text",
        "alter table {0}.job drop column percent cascade",
        "drop table {0}.artifact",
        "drop index {0}.ready_job_order",
        "create function {0}.more() returns int language sql as 'select 1'",
        "create view {0}.more as select 1 as one",
        "create index more on {0}.job (percent)",
    ],
)
def test_a_schema_that_was_altered_is_not_used_again(url: str, alteration: str) -> None:
    schema = postgres_schemas.take()
    with psycopg.connect(url) as connection:
        connection.execute(alteration.format(schema).encode())
    postgres_schemas.give_back(schema)
    with psycopg.connect(url) as connection:
        assert connection.execute("select to_regnamespace(%s)", [schema]).fetchall() == [(None,)]


def test_a_transaction_left_open_costs_the_schema_and_not_the_next_test(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_schemas, "QUIET_SECONDS", 0.05)
    schema = postgres_schemas.take()
    with psycopg.connect(url) as connection:
        connection.execute(f"lock table {schema}.job in access exclusive mode".encode())
        postgres_schemas.give_back(schema)
        assert connection.closed is False
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    with postgres_schemas.migrated_schema() as other:
        assert other != schema
