"""The parameters of a caller's own SQL: the translation to those of the driver, against the server itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, strategies as st

from holdfast import Queue, Transaction
from holdfast.storage.postgres.external_transaction import to_driver

NAMED = {"n": 7, "text": "it's 100% :n ?"}

# Each returns one row; `:n` is 7 wherever it is a parameter.
STATEMENTS: list[tuple[str, list[Any]]] = [
    ("select :n::int + 1", [8]),
    ("select :n::text || ':n' || ' ?'", ["7:n ?"]),
    ("select 'it''s :n', :n::int", ["it's :n", 7]),
    (r"select E'a\':n\\', :n::int", [r"a':n" + "\\", 7]),
    ("select ':n'':n'::text, :n::int", [":n':n", 7]),
    (r"select 'back\', :n::int, ':n'", ["back\\", 7, ":n"]),
    ("select $$:n ?$$, $body$ $$ :n $body$, :n::int", [":n ?", " $$ :n ", 7]),
    ("select $é$:n$é$, :n::int", [":n", 7]),
    ('select "a:n?".x from (select :n::int as x) as "a:n?"', [7]),
    ('select "quo""te:n" from (select :n::int as "quo""te:n") s', [7]),
    ("select :n::int -- :n ? 'open", [7]),
    ("select /* :n /* ' ? */ \" :n */ :n::int", [7]),
    ("select /* unclosed? no */ :n::int /**/", [7]),
    ("select 7 % 4, '100%', :n::int % 4", [3, "100%", 3]),
    ("select (array[1,2,3])[1:2], (array[1,2,3])[2:n], n from (select :n::int as n) s", [[1, 2], [2, 3], 7]),
    ("""select '{"a": 1}'::jsonb ? 'a', '{"a": 1}'::jsonb ?| array['b'], :n::int""", [True, False, 7]),
    ("select make_interval(days := :n::int) = interval '7 days'", [True]),
    ("select :text::text, :n::int", [NAMED["text"], 7]),
    ("select :n::int,:n::int", [7, 7]),
    ("select 1 where 7=:n", [1]),
    ("select U&'d\\0061t:n', :n::int", ["dat:n", 7]),
]


@pytest.fixture
def tx(queue: Queue) -> Iterator[Transaction]:
    with queue.transaction() as transaction:
        yield transaction


@pytest.mark.parametrize(("sql", "row"), STATEMENTS, ids=[sql[:50] for sql, _ in STATEMENTS])
def test_only_parameters_are_replaced(tx: Transaction, sql: str, row: list[Any]) -> None:
    used = {name: value for name, value in NAMED.items() if f":{name}" in sql}
    assert [list(found) for found in tx.execute(sql, used)] == [row]


def test_question_marks_are_the_parameters_of_a_sequence(tx: Transaction) -> None:
    sql = "select ?::int, '?', \"c?\", $$?$$, 5 % 3, ':n' from (select ?::int as \"c?\") s -- ?"

    assert [tuple(row) for row in tx.execute(sql, [1, 2])] == [(1, "?", 2, "?", 2, ":n")]


def test_without_parameters_the_statement_is_sent_as_it_is(tx: Transaction) -> None:
    rows = tx.execute("""select '{"a": 1}'::jsonb ? 'a', 5 % 3, ':n'""")

    assert [tuple(row) for row in rows] == [(True, 2, ":n")]


PIECES = ["'", "''", '"', "$$", "$a$", "--", "/*", "*/", "\n", "\\", "E", ":n", "::", "?", "%", "x", " ", ":=", "["]


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_the_driver_reads_the_same_text_for_any_sql(sql: str) -> None:
    assert _restored(to_driver(sql, {"n": 1}), r"%\((\w+)\)s", r":\1") == sql
    assert _restored(to_driver(sql, [1]), "%s", "?") == sql


def _restored(translated: str, parameter: str, original: str) -> str:
    """Return the SQL that the driver sends, with its parameters in the form of the caller."""
    return re.sub(rf"%%|{parameter}", lambda found: "%" if found[0] == "%%" else found.expand(original), translated)
