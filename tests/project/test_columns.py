"""The lists of a job's columns: the named queries of both engines write what the shared code binds, in its order."""

from __future__ import annotations

import re

import pytest

from holdfast.domain.job import JobRow
from holdfast.storage.postgres import transaction as postgres
from holdfast.storage.postgres.sql import LEASED, QUERIES as POSTGRES
from holdfast.storage.sql_transaction import CHANGING
from holdfast.storage.sqlite import narrow_rows as sqlite
from holdfast.storage.sqlite.sql import QUERIES as SQLITE

ENGINES = {"sqlite": SQLITE, "postgres": POSTGRES}
# Columns of the route, of the holder, and those that only an insert or a claim writes.
READ_APART = {"seq", "id", "state", "kind", "lane", "requires_json", "payload_json", "worker", "incarnation"} | {
    "epoch",
    "claim_index",
    "started_at_ms",
}


def columns(fields: tuple[str, ...]) -> list[str]:
    return [field.removesuffix("_json").removesuffix("_number") for field in fields]


def listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


INSERTS = {
    "sqlite job_insert": (
        SQLITE["job_insert"],
        ["seq", "id", "state", "route", *columns(sqlite.NEW), "extra", "payload"],
    ),
    "postgres job_insert": (POSTGRES["job_insert"], ["route", *columns(postgres.NEW)]),
    "postgres session_entry_insert": (
        POSTGRES["session_entry_insert"],
        ["session", "enqueue_seq", "entry", "route", *columns(postgres.NEW)],
    ),
}


@pytest.mark.parametrize("insert", INSERTS)
def test_an_insert_has_the_columns_of_a_new_job_in_order(insert: str) -> None:
    text, expected = INSERTS[insert]
    found = listed(text.partition("job (")[2].partition(")")[0])
    assert found[: len(expected)] == expected


MOVES = {
    "sqlite": (SQLITE, ["state", *columns(sqlite.MOVED), "extra"]),
    "postgres": (POSTGRES, columns(postgres.MOVED)),
}


@pytest.mark.parametrize("engine", MOVES)
def test_a_transition_writes_the_columns_that_are_bound(engine: str) -> None:
    queries, expected = MOVES[engine]
    assigned = queries["job_transition"].partition(" set ")[2].partition("from unnest")[0]
    assigned = assigned.partition(" where ")[0]
    assert re.findall(r"(\w+) = (?:\?|v\.\1)", assigned) == expected


@pytest.mark.parametrize("engine", ENGINES)
def test_the_columns_that_change_in_an_attempt_are_read_in_order(engine: str) -> None:
    text = ENGINES[engine]["jobs_current"].replace("(select name from holdfast_state where number = state)", "state")
    selected = text.partition("select ")[2].partition(" from ")[0]
    names = [name.removeprefix("j.") for name in listed(selected.replace("\n", " "))]
    assert names == ["seq", "epoch", "state", *columns(CHANGING)]


def test_every_listed_column_is_a_field_of_the_row() -> None:
    fields = {*postgres.NEW, *postgres.MOVED, *sqlite.NEW, *sqlite.MOVED, *CHANGING, *LEASED}
    assert fields - {"route"} <= set(JobRow._fields)


def test_a_field_of_the_row_is_a_column_of_the_narrow_table_or_a_rare_value() -> None:
    stored = {*sqlite.NEW, *sqlite.MOVED, *CHANGING, *sqlite.RARE, *READ_APART}
    assert stored == set(JobRow._fields)
