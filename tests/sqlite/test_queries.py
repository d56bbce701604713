"""Queries are named, in the same order in both engines, and each has a purpose and a user."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import get_args

import pytest

import holdfast
from holdfast.storage.queries import SAVEPOINTS, load_queries
from holdfast.storage.query_names import PostgresQuery, SharedQuery, SqliteQuery
from holdfast.storage.sqlite.sql import QUERIES, with_nulls

SOURCES = Path(holdfast.__file__).parent / "storage"


def test_every_query_is_used() -> None:
    files = [path for path in SOURCES.rglob("*.py") if path.name != "query_names.py"]
    used = set(re.findall(r'"([a-z_]+)"', "\n".join(path.read_text() for path in files)))
    assert {*get_args(SharedQuery), *get_args(SqliteQuery), *get_args(PostgresQuery)} - used == set()


def test_both_engines_have_the_same_topics_and_order() -> None:
    sqlite, postgres = (
        {file.name: _names(file) for file in (SOURCES / engine / "queries").iterdir()}
        for engine in ("sqlite", "postgres")
    )
    assert sqlite.keys() == postgres.keys()
    for topic, names in sqlite.items():
        shared = [name for name in names if name in postgres[topic]]
        assert shared == [name for name in postgres[topic] if name in names]


def _names(file: Path) -> list[str]:
    return re.findall(r"^-- name: (\w+)$", file.read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-- name: one\n-- Purpose.\nselect 1;\n\n-- name: one\n-- Purpose.\nselect 1;\n", "defined twice"),
        ("-- name: one\nselect 1;\n", "no purpose"),
        ("-- name: other\n-- Purpose.\nselect 1;\n", "one, other"),
    ],
)
def test_a_wrong_query_file_fails_at_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    engine = f"engine_of_{tmp_path.name}"
    (tmp_path / engine / "queries").mkdir(parents=True)
    (tmp_path / engine / "__init__.py").touch()
    (tmp_path / engine / "queries" / "topic.sql").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match=message):
        load_queries(engine, ["one", *SAVEPOINTS])


def test_a_statement_for_one_writes_and_reads_what_that_for_many_does() -> None:
    for name in QUERIES:
        if name.endswith("_one"):
            assert _columns(name) == _columns(name.removesuffix("_one")), name


def test_a_statement_with_literals_for_nulls_stores_the_same_row() -> None:
    for values in ((1, None, "a", None), (None, None, None, None), (1, 2, 3, 4)):
        text, bound = with_nulls("insert into stored values (?4, ?1 || ?2, ?3, ?2, ?1)", values)
        with sqlite3.connect(":memory:") as connection:
            connection.execute("create table stored (a, b, c, d, e)")
            connection.execute("insert into stored values (?4, ?1 || ?2, ?3, ?2, ?1)", values)
            connection.execute(text, bound)
            assert len(set(connection.execute("select * from stored"))) == 1
        assert None not in bound


def _columns(name: str) -> set[str]:
    """Return the columns that a statement names."""
    text = re.sub(r"--.*|'[^']*'|[:$][\w\[\]]+", "", QUERIES[name])
    return set(re.findall(r"[a-z_]+", text)) & set(_all_columns())


def _all_columns() -> list[str]:
    with holdfast.connect(":memory:") as queue, queue.transaction() as transaction:
        return [
            name
            for table in ("holdfast_job", "holdfast_event")
            for (name,) in transaction.execute(f"select name from pragma_table_info('{table}')")
        ]
