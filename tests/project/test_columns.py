"""The lists of a job's columns: the named queries of both engines write what the shared code binds, in its order."""

from __future__ import annotations

import re

import pytest

from holdfast.domain.job import JobRow
from holdfast.storage.postgres.sql import LEASED
from holdfast.storage.postgres.sql import QUERIES as POSTGRES
from holdfast.storage.sql_transaction import CHANGING, MOVED, NEW
from holdfast.storage.sqlite.sql import QUERIES as SQLITE

ENGINES = {"sqlite": SQLITE, "postgres": POSTGRES}


def columns(fields: tuple[str, ...]) -> list[str]:
    return [field.removesuffix("_json") for field in fields]


def listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("query", "before"), [("job_insert", ["route"]), ("session_entry_insert", ["route"])])
def test_an_insert_has_the_columns_of_a_new_job_in_order(engine: str, query: str, before: list[str]) -> None:
    first = listed(ENGINES[engine][query].partition("(")[2].partition(")")[0])
    first = first[first.index("route") :]
    assert first[: len(NEW) + 1] == [*before, *columns(NEW)]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_transition_writes_the_columns_that_are_bound(engine: str) -> None:
    assigned = ENGINES[engine]["job_transition"].partition(" set ")[2].partition("from unnest")[0]
    assigned = assigned.partition(" where ")[0]
    assert re.findall(r"(\w+) = (?:\?|v\.\1)", assigned) == columns(MOVED)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_columns_that_change_in_an_attempt_are_read_in_order(engine: str) -> None:
    selected = ENGINES[engine]["jobs_current"].partition("select ")[2].partition(" from ")[0]
    names = [name.removeprefix("j.") for name in listed(selected.replace("\n", " "))]
    assert names == ["seq", "epoch", "state", *columns(CHANGING)]


def test_every_listed_column_is_a_field_of_the_row() -> None:
    assert {*NEW, *MOVED, *CHANGING, *LEASED} - {"route"} <= set(JobRow._fields)
